"""Affine layers on integers."""

from __future__ import annotations

from typing import Any

import treadle.functional as F
from treadle.functional.quantized import linear_bias_activation
from treadle.module import linear as Float
from treadle.module.quantized.module import QuantizedModule, folded, take_weights, weight_only
from treadle.tensor import Tensor


class Linear(Float.Linear, QuantizedModule):
    """x W^T + b of quantized tensors; see `functional.quantized.linear_bias_activation`.

    Args:
        in_features, out_features, bias, compute_mode: as those of `module.Linear`.
        dtype: quantized dtype of the result; None for `qint32` sums.
        name: a name for messages and graphs.

    Raises:
        ValueError: it is called in training mode.
        DTypeError: the input is not quantized.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        compute_mode: str = "default",
        dtype: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, compute_mode, name)
        self.output_dtype = dtype

    def _module_info_string(self) -> str:
        return ""  # as MegEngine prints it

    def calc_linear_quantized(self, inp: Tensor, nonlinear_mode: str = "identity") -> Tensor:
        """The affine map with an activation by name."""
        if weight_only(self, inp):
            out = self._calc_linear(inp, self.weight.astype("float32"), self.bias)
            return F.relu(out) if nonlinear_mode == "relu" else out
        return linear_bias_activation(
            inp, self.weight, self.bias, self.output_dtype, nonlinear_mode
        )

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The integer layer that computes what `qat_module` does in evaluation."""
        made = cls._like(qat_module, qat_module.get_activation_dtype())
        made._take_mode(qat_module)
        shape = (qat_module.out_features,)
        take_weights(made, qat_module, qat_module.weight, qat_module.bias, shape)
        return made

    @classmethod
    def _like(cls, linear: Float.Linear, dtype: Any) -> Any:
        size = linear.in_features, linear.out_features
        return cls(*size, compute_mode=linear.compute_mode, dtype=dtype)

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_linear_quantized(inp)


class LinearRelu(Linear):
    """relu(x W^T + b) of quantized tensors; built as `quantized.Linear` is."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_linear_quantized(inp, "relu")


class _FoldedLinear(Linear):
    """An affine layer with the batch normalization behind it folded in."""

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The integer layer that computes what `qat_module` does in evaluation."""
        return folded(cls, qat_module, qat_module.linear)


class LinearBn1d(_FoldedLinear):
    """An affine layer and folded batch normalization of quantized tensors."""


class LinearBnRelu1d(_FoldedLinear):
    """An affine layer, folded batch normalization and ReLU of quantized tensors."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_linear_quantized(inp, "relu")
