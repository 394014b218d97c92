"""Transposed convolutions in quantization-aware training."""

from __future__ import annotations

import treadle.functional as F
from treadle.module import conv_transpose as Float
from treadle.module.qat.module import QATModule, adopted
from treadle.tensor import Tensor


class ConvTranspose2d(Float.ConvTranspose2d, QATModule):
    """`module.ConvTranspose2d` with weight, bias and result rounded."""

    @classmethod
    def from_float_module(cls, float_module: Float.ConvTranspose2d) -> ConvTranspose2d:
        """The layer that rounds what `float_module` computes; they share parameters."""
        return adopted(cls, float_module)

    def weight_channel_axes(self) -> tuple[int, ...]:
        """None: the integer kernel of transposed convolutions takes one scale."""
        return ()

    def calc_conv_transpose2d_qat(self, inp: Tensor) -> Tensor:
        """The transposed convolution with rounded weight and bias."""
        w_qat = self.apply_quant_weight(self.weight)
        b_qat = self.apply_quant_bias(self.bias, inp, w_qat)
        return self.calc_conv_transpose2d(inp, w_qat, b_qat)

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(self.calc_conv_transpose2d_qat(inp))


class ConvTransposeRelu2d(ConvTranspose2d):
    """`module.ConvTransposeRelu2d` with weight, bias and result rounded."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(F.relu(self.calc_conv_transpose2d_qat(inp)))
