"""Borders of integers in quantized networks."""

from __future__ import annotations

from typing import Any

from treadle.module import quant_dequant as Float
from treadle.module.quantized.module import QuantizedModule


class QuantStub(Float.QuantStub, QuantizedModule):
    """Rounds its input to a quantized dtype; None passes it on.

    Args:
        dtype: quantized dtype of the result.
        name: a name for messages and graphs.
    """

    def __init__(self, dtype: Any = None, name: str | None = None) -> None:
        super().__init__(name)
        self.output_dtype = dtype

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The conversion with the scale that `qat_module` found."""
        made = cls(qat_module.get_activation_dtype())
        made._take_mode(qat_module)
        return made

    def forward(self, inp: Any) -> Any:
        return inp if self.output_dtype is None else inp.astype(self.output_dtype)


class DequantStub(Float.DequantStub, QuantizedModule):
    """float32 numbers of a quantized tensor; other tensors are passed on."""

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The conversion in the place of `qat_module`."""
        made = cls()
        made._take_mode(qat_module)
        return made

    def forward(self, inp: Any) -> Any:
        return inp if inp._kind.quantized is None else inp.astype("float32")
