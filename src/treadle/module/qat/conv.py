"""Convolutions in quantization-aware training."""

from __future__ import annotations

import treadle.functional as F
from treadle.module import conv as Float
from treadle.module.qat.module import QATModule, adopted
from treadle.tensor import Tensor


class Conv2d(Float.Conv2d, QATModule):
    """`module.Conv2d` with weight, bias and result rounded."""

    @classmethod
    def from_float_module(cls, float_module: Float.Conv2d) -> Conv2d:
        """The layer that rounds what `float_module` computes; they share parameters."""
        return adopted(cls, float_module)

    def weight_channel_axes(self) -> tuple[int, ...]:
        """Axes of the weight that stand for output channels."""
        return (0,) if self.groups == 1 else (0, 1)

    def calc_conv_qat(self, inp: Tensor) -> Tensor:
        """The convolution with rounded weight and bias."""
        w_qat = self.apply_quant_weight(self.weight)
        b_qat = self.apply_quant_bias(self.bias, inp, w_qat)
        return self.calc_conv(inp, w_qat, b_qat)

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(self.calc_conv_qat(inp))


class ConvRelu2d(Conv2d):
    """`module.ConvRelu2d` with weight, bias and result rounded."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(F.relu(self.calc_conv_qat(inp)))
