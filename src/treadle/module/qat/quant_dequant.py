"""Borders of quantization in quantization-aware training."""

from __future__ import annotations

from typing import Any, ClassVar

from treadle.module import quant_dequant as Float
from treadle.module.qat.module import QATModule, adopted


class QuantStub(Float.QuantStub, QATModule):
    """`module.QuantStub` that observes and rounds the network's input."""

    with_weight: ClassVar[bool] = False

    @classmethod
    def from_float_module(cls, float_module: Float.QuantStub) -> QuantStub:
        """The layer that rounds what `float_module` passes on."""
        return adopted(cls, float_module)

    def forward(self, inp: Any) -> Any:
        return self.apply_quant_activation(inp)


class DequantStub(Float.DequantStub, QATModule):
    """`module.DequantStub`; it passes its input on."""

    with_weight: ClassVar[bool] = False
    with_act: ClassVar[bool] = False

    @classmethod
    def from_float_module(cls, float_module: Float.DequantStub) -> DequantStub:
        """The layer in the place of `float_module`."""
        return adopted(cls, float_module)
