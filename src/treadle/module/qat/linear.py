"""Affine layers in quantization-aware training."""

from __future__ import annotations

import treadle.functional as F
from treadle.module import linear as Float
from treadle.module.qat.module import QATModule, adopted
from treadle.tensor import Tensor


class Linear(Float.Linear, QATModule):
    """`module.Linear` with weight, bias and result rounded."""

    @classmethod
    def from_float_module(cls, float_module: Float.Linear) -> Linear:
        """The layer that rounds what `float_module` computes; they share parameters."""
        return adopted(cls, float_module)

    def calc_linear_qat(self, inp: Tensor) -> Tensor:
        """The affine map with rounded weight and bias."""
        w_qat = self.apply_quant_weight(self.weight)
        b_qat = self.apply_quant_bias(self.bias, inp, w_qat)
        return self._calc_linear(inp, w_qat, b_qat)

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(self.calc_linear_qat(inp))


class LinearRelu(Linear):
    """`module.LinearRelu` with weight, bias and result rounded."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.apply_quant_activation(F.relu(self.calc_linear_qat(inp)))
