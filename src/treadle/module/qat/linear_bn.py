"""Affine layers with batch normalization in quantization-aware training; see `conv_bn`."""

from __future__ import annotations

import treadle.functional as F
from treadle.module import linear_bn as Float
from treadle.module.qat.folding import affine_of, by_batch, divisible, folded_bias
from treadle.module.qat.module import QATModule, adopted
from treadle.tensor import Tensor


class LinearBn1d(Float.LinearBn1d, QATModule):
    """`module.LinearBn1d` with folded weight, bias and result rounded."""

    @classmethod
    def from_float_module(cls, float_module: Float.LinearBn1d | Float.LinearBnRelu1d) -> LinearBn1d:
        """The layer that rounds what `float_module` computes; they share parameters."""
        return adopted(cls, float_module)

    def fold_weight_bias(
        self, bn_mean: Tensor | None = None, bn_var: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Weight and bias of the one affine layer that computes both in evaluation.

        The statistics are the running ones if left out.
        """
        affine = affine_of(self.bn, bn_mean, bn_var)
        weight = self.linear.weight * affine.factor.reshape((-1, 1))
        return weight, folded_bias(affine, self.linear.bias).reshape((-1,))

    def calc_linear_bn_qat(self, inp: Tensor) -> Tensor:
        """Both layers with rounded weight."""
        linear = self.linear
        if not by_batch(self.bn, self.training):
            weight, bias = self.fold_weight_bias()
            w_qat = self.apply_quant_weight(weight)
            return linear._calc_linear(inp, w_qat, self.apply_quant_bias(bias, inp, w_qat))
        factor = divisible(affine_of(self.bn).factor)
        w_qat = self.apply_quant_weight(linear.weight * factor.reshape((-1, 1)))
        plain = linear._calc_linear(inp, w_qat, None) / factor.reshape((-1,))
        if linear.bias is not None:
            plain = plain + linear.bias
        out: Tensor = self.bn(plain)
        return out

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(self.calc_linear_bn_qat(inp))


class LinearBnRelu1d(LinearBn1d):
    """`module.LinearBnRelu1d` with folded weight, bias and result rounded."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(F.relu(self.calc_linear_bn_qat(inp)))
