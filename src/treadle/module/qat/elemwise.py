"""Elementwise functions and concatenation in quantization-aware training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from treadle.module import elemwise, rearrange
from treadle.module.qat.module import QATModule, adopted
from treadle.tensor import Tensor


class Elemwise(elemwise.Elemwise, QATModule):
    """`module.Elemwise` with its result rounded."""

    with_weight: ClassVar[bool] = False

    @classmethod
    def from_float_module(cls, float_module: elemwise.Elemwise) -> Elemwise:
        """The layer that rounds what `float_module` computes."""
        return adopted(cls, float_module)

    def forward(self, *inps: Any) -> Tensor:
        return self.apply_quant_activation(super().forward(*inps))


class Concat(rearrange.Concat, QATModule):
    """`module.Concat` with its result rounded."""

    with_weight: ClassVar[bool] = False

    @classmethod
    def from_float_module(cls, float_module: rearrange.Concat) -> Concat:
        """The layer that rounds what `float_module` computes."""
        return adopted(cls, float_module)

    def forward(self, inps: Sequence[Tensor], axis: int = 0) -> Tensor:
        return self.apply_quant_activation(super().forward(inps, axis))
