"""A stack of affine maps on integers."""

from __future__ import annotations

from typing import Any

from treadle.functional.quantized import matmul_bias_activation
from treadle.module import batch_matmul_activation as Float
from treadle.module.quantized.module import QuantizedModule, take_weights, weight_only
from treadle.tensor import Tensor


class BatchMatMulActivation(Float.BatchMatMulActivation, QuantizedModule):
    """activation(weight x + bias) of quantized tensors.

    Args:
        batch, in_features, out_features, bias, nonlinear_mode: as those of the float layer.
        dtype: quantized dtype of the result; None for `qint32` sums.
        name: a name for messages and graphs.

    Raises:
        ValueError: it is called in training mode.
        DTypeError: the input is not quantized.
    """

    def __init__(
        self,
        batch: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        nonlinear_mode: str = "identity",
        dtype: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(batch, in_features, out_features, bias, nonlinear_mode, name)
        self.output_dtype = dtype

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The integer layer that computes what `qat_module` does in evaluation."""
        made = cls(
            qat_module.batch,
            qat_module.in_features,
            qat_module.out_features,
            nonlinear_mode=qat_module.nonlinear_mode,
            dtype=qat_module.get_activation_dtype(),
        )
        made._take_mode(qat_module)
        shape = (qat_module.out_features,)
        take_weights(made, qat_module, qat_module.weight, qat_module.bias, shape)
        return made

    def forward(self, inp: Tensor) -> Tensor:
        if weight_only(self, inp):
            return self._calc_linear(inp, self.weight.astype("float32"), self.bias)
        bias = None if self.bias is None else self.bias.reshape(-1, 1)
        return matmul_bias_activation(
            self.weight, inp, bias, self.output_dtype, self.nonlinear_mode
        )
