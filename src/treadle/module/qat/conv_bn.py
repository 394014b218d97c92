"""Convolutions with batch normalization in quantization-aware training.

In evaluation the normalization is folded into weight and bias, and both are rounded. In training
the folded weight is rounded, and the normalization by the batch's own statistics is applied to the
convolution with that weight, divided by what was folded in (Krishnamoorthi 2018, arXiv:1806.08342,
section 3.2.2), so that the rounding is that of evaluation and statistics are still learned.
"""

from __future__ import annotations

import treadle.functional as F
from treadle.module import conv_bn, conv_transpose_bn
from treadle.module.qat.folding import affine_of, by_batch, divisible, folded_bias
from treadle.module.qat.module import QATModule, adopted
from treadle.tensor import Tensor


class ConvBn2d(conv_bn.ConvBn2d, QATModule):
    """`module.ConvBn2d` with folded weight, bias and result rounded."""

    @classmethod
    def from_float_module(cls, float_module: conv_bn.ConvBn2d | conv_bn.ConvBnRelu2d) -> ConvBn2d:
        """The layer that rounds what `float_module` computes; they share parameters."""
        return adopted(cls, float_module)

    def weight_channel_axes(self) -> tuple[int, ...]:
        """Axes of the weight that stand for output channels."""
        return (0,) if self.conv.groups == 1 else (0, 1)

    def fold_weight_bias(
        self, bn_mean: Tensor | None = None, bn_var: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Weight and bias of the one convolution that computes both layers in evaluation.

        The statistics are the running ones if left out.
        """
        affine = affine_of(self.bn, bn_mean, bn_var)
        return self._scaled(affine.factor), folded_bias(affine, self.conv.bias)

    def _scaled(self, factor: Tensor) -> Tensor:
        """The weight times a number per output channel, (1, C, 1, 1)."""
        lead = (-1,) if self.conv.groups == 1 else (self.conv.groups, -1)
        return self.conv.weight * factor.reshape((*lead, 1, 1, 1))

    def calc_conv_bn_qat(self, inp: Tensor) -> Tensor:
        """Both layers with rounded weight."""
        if not by_batch(self.bn, self.training):
            weight, bias = self.fold_weight_bias()
            w_qat = self.apply_quant_weight(weight)
            return self.conv.calc_conv(inp, w_qat, self.apply_quant_bias(bias, inp, w_qat))
        factor = divisible(affine_of(self.bn).factor)
        w_qat = self.apply_quant_weight(self._scaled(factor))
        plain = self.conv.calc_conv(inp, w_qat, None) / factor
        if self.conv.bias is not None:
            plain = plain + self.conv.bias
        out: Tensor = self.bn(plain)
        return out

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(self.calc_conv_bn_qat(inp))


class ConvBnRelu2d(ConvBn2d):
    """`module.ConvBnRelu2d` with folded weight, bias and result rounded."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(F.relu(self.calc_conv_bn_qat(inp)))


class ConvTransposeBn2d(conv_transpose_bn.ConvTransposeBn2d, QATModule):
    """`module.ConvTransposeBn2d` with folded weight, bias and result rounded."""

    @classmethod
    def from_float_module(
        cls,
        float_module: conv_transpose_bn.ConvTransposeBn2d | conv_transpose_bn.ConvTransposeBnRelu2d,
    ) -> ConvTransposeBn2d:
        """The layer that rounds what `float_module` computes; they share parameters."""
        return adopted(cls, float_module)

    def weight_channel_axes(self) -> tuple[int, ...]:
        """None: the integer kernel of transposed convolutions takes one scale."""
        return ()

    def fold_weight_bias(
        self, bn_mean: Tensor | None = None, bn_var: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Weight and bias of the one layer that computes both in evaluation.

        The statistics are the running ones if left out.
        """
        affine = affine_of(self.bn, bn_mean, bn_var)
        return self._scaled(affine.factor), folded_bias(affine, self.conv_transpose2d.bias)

    def _scaled(self, factor: Tensor) -> Tensor:
        """The weight times a number per output channel, (1, C, 1, 1)."""
        conv = self.conv_transpose2d
        lead = (1, -1) if conv.groups == 1 else (conv.groups, 1, -1)
        return conv.weight * factor.reshape((*lead, 1, 1))

    def calc_conv_transpose2d_bn_qat(self, inp: Tensor) -> Tensor:
        """Both layers with rounded weight."""
        conv = self.conv_transpose2d
        if not by_batch(self.bn, self.training):
            weight, bias = self.fold_weight_bias()
            w_qat = self.apply_quant_weight(weight)
            b_qat = self.apply_quant_bias(bias, inp, w_qat)
            return conv.calc_conv_transpose2d(inp, w_qat, b_qat)
        factor = divisible(affine_of(self.bn).factor)
        w_qat = self.apply_quant_weight(self._scaled(factor))
        plain = conv.calc_conv_transpose2d(inp, w_qat, None) / factor
        if conv.bias is not None:
            plain = plain + conv.bias
        out: Tensor = self.bn(plain)
        return out

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(self.calc_conv_transpose2d_bn_qat(inp))


class ConvTransposeBnRelu2d(ConvTransposeBn2d):
    """`module.ConvTransposeBnRelu2d` with folded weight, bias and result rounded."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(F.relu(self.calc_conv_transpose2d_bn_qat(inp)))
