"""A stack of affine maps in quantization-aware training."""

from __future__ import annotations

from treadle.module import batch_matmul_activation as Float
from treadle.module.qat.module import QATModule, adopted
from treadle.tensor import Tensor


class BatchMatMulActivation(Float.BatchMatMulActivation, QATModule):
    """`module.BatchMatMulActivation` with weight, bias and result rounded."""

    @classmethod
    def from_float_module(cls, float_module: Float.BatchMatMulActivation) -> BatchMatMulActivation:
        """The layer that rounds what `float_module` computes; they share parameters."""
        return adopted(cls, float_module)

    def weight_channel_axes(self) -> tuple[int, ...]:
        """None: the integer kernel of stacked products takes one scale."""
        return ()

    def forward(self, inp: Tensor) -> Tensor:
        w_qat = self.apply_quant_weight(self.weight)
        b_qat = self.apply_quant_bias(self.bias, inp, w_qat)
        return self.apply_quant_activation(self._calc_linear(inp, w_qat, b_qat))
