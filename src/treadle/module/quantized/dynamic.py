"""Affine layers that multiply real numbers as integers, at scales found while they run."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base.quantized import BUILTIN, quantized_type
from treadle.functional.quantized import dynamic_linear
from treadle.module import linear as Float
from treadle.module.quantized.module import QuantizedModule, take_weights
from treadle.tensor import Parameter, Tensor

_LEAST = 2.0**-119
"""The scale of a row of a weight is that of such a number at least: zeros have one, too."""


class DynamicLinear(Float.Linear, QuantizedModule):
    """x W^T + b of real numbers on integers; see `functional.quantized.dynamic_linear`.

    `quantization.quantize_dynamic` puts it in the place of `module.Linear`.

    Args:
        in_features, out_features, bias, compute_mode: as those of `module.Linear`.
        scales: "token" for a scale for each row of the input, "tensor" for one in all.
        name: a name for messages and graphs.

    Raises:
        ValueError: it is called in training mode.
        DTypeError: the input is not a real number.
    """

    _mode = "identity"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        compute_mode: str = "default",
        scales: str = "token",
        name: str | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, compute_mode, name)
        self.scales = scales

    def _module_info_string(self) -> str:
        return f"{super()._module_info_string()}, scales={self.scales}"

    @classmethod
    def from_float_module(cls, float_module: Any, scales: str = "token") -> Any:
        """The layer with the weight rounded to 8 bits, a scale for each output feature."""
        made = cls._like(float_module)
        made.scales = scales
        weight = float_module.weight.detach()
        values = weight.astype("float32").numpy()
        if not np.isfinite(values).all():
            raise ValueError(f"{float_module!r} has a weight that is not finite")
        most = np.abs(values).max(1, initial=_LEAST, keepdims=True).astype(np.float64)
        family = BUILTIN["qint8_narrow"]
        levels = weight.astype("float32").astype(quantized_type(family, most / family.qmax).numpy)
        made.weight = Parameter(levels.numpy(), name=weight.name)
        return made

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The layer with the weight rounded as it was in training."""
        made = cls._like(qat_module)
        take_weights(made, qat_module, qat_module.weight, qat_module.bias, made.out_features)
        return made

    @classmethod
    def _like(cls, linear: Float.Linear) -> Any:
        given = linear.bias is not None
        made = cls(linear.in_features, linear.out_features, given, linear.compute_mode)
        made._take_mode(linear)
        made.bias = linear.bias
        return made

    def forward(self, x: Tensor) -> Tensor:
        return dynamic_linear(x, self.weight, self.bias, self._mode, self.scales)


class DynamicLinearRelu(DynamicLinear):
    """relu(x W^T + b) of real numbers on integers; built as `DynamicLinear` is."""

    _mode = "relu"
