"""Elementwise functions and concatenation of quantized tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.module import elemwise, rearrange
from treadle.module.quantized.module import QuantizedModule
from treadle.tensor import Tensor


class Elemwise(elemwise.Elemwise, QuantizedModule):
    """An elementwise function of the numbers quantized tensors stand for, rounded again.

    Args:
        method: as that of `module.Elemwise`.
        dtype: quantized dtype of the result; None for float32.
        name: a name for messages and graphs.

    Raises:
        ValueError: there is no such function, or it is called in training mode.
    """

    def __init__(self, method: str, dtype: Any = None, name: str | None = None) -> None:
        super().__init__(method, name)
        self.output_dtype = dtype

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The integer layer that computes what `qat_module` does in evaluation."""
        made = cls(qat_module.method, qat_module.get_activation_dtype())
        made._take_mode(qat_module)
        return made

    def forward(self, *inps: Any) -> Tensor:
        out = super().forward(*map(_real, inps))
        return out if self.output_dtype is None else out.astype(self.output_dtype)


class Concat(rearrange.Concat, QuantizedModule):
    """Quantized tensors joined along an axis, each rounded to the type of the result first.

    Args:
        dtype: quantized dtype of the result; None joins the tensors as they are.
        name: a name for messages and graphs.
    """

    def __init__(self, dtype: Any = None, name: str | None = None) -> None:
        super().__init__(name)
        self.output_dtype = dtype

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The integer layer that computes what `qat_module` does in evaluation."""
        made = cls(qat_module.get_activation_dtype())
        made._take_mode(qat_module)
        return made

    def forward(self, inps: Sequence[Tensor], axis: int = 0) -> Tensor:
        if self.output_dtype is None:
            return super().forward(inps, axis)
        return super().forward([x.astype(self.output_dtype) for x in inps], axis)


def _real(x: Any) -> Any:
    quantized = isinstance(x, Tensor) and x._kind.quantized is not None
    return x.astype("float32") if quantized else x
