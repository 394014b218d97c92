"""Parameters of a quantization: what a tensor's values are rounded to, kept beside the tensor."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

from treadle.base.quantized import BUILTIN, QuantDtypeMeta
from treadle.base.saved_objects import allow


class QuantMode(Enum):
    """Mappings of real numbers to integers; the spelling is MegEngine's.

    SYMMERTIC: 0.0 is the integer 0, and the range reaches as far down as up.
    ASYMMERTIC: 0.0 is the zero point, and the range is that of the values.
    """

    SYMMERTIC = 1
    ASYMMERTIC = 2


class QParams:
    """Scale and zero point, with the family of dtypes they are for.

    Attributes:
        mode: a `QuantMode`, or None.
        dtype_meta: a `QuantDtypeMeta`, or None.
        scale: a number or tensor; None before it is known.
        zero_point: a number or tensor; None for symmetric modes.
    """

    __slots__: ClassVar[tuple[str, ...]] = ("dtype_meta", "mode", "scale", "zero_point")
    _fields: ClassVar[tuple[str, ...]] = ("mode", "dtype_meta", "scale", "zero_point")

    def __init__(
        self,
        mode: QuantMode | None,
        dtype_meta: QuantDtypeMeta | None,
        scale: Any,
        zero_point: Any,
    ) -> None:
        self.mode = mode
        self.dtype_meta = dtype_meta
        self.scale = scale
        self.zero_point = zero_point

    def update(self, qparams: QParams) -> None:
        """Take over all parameters that the other object has, too."""
        for field in self._fields:
            if field in qparams._fields:
                setattr(self, field, getattr(qparams, field))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QParams) or self._fields != other._fields:
            return False
        return all(_same(getattr(self, f), getattr(other, f)) for f in self._fields)

    __hash__ = None  # type: ignore[assignment]  # Fields change.

    def __repr__(self) -> str:
        parts = (f"{field}={getattr(self, field)}" for field in self._fields)
        return f"{type(self).__name__}({', '.join(parts)})"


allow(QuantMode, QuantDtypeMeta, QParams)


def _same(x: Any, y: Any) -> bool:
    """Return whether two fields are equal; tensors and arrays are where all their elements are."""
    if x is None or y is None:
        return x is y
    if getattr(x, "shape", ()) != getattr(y, "shape", ()):
        return False
    equal = x == y
    return bool(equal.min()) if getattr(equal, "size", 1) > 1 else bool(equal)


def create_qparams(
    mode: QuantMode = QuantMode.SYMMERTIC,
    dtype_meta: str | QuantDtypeMeta | None = None,
    scale: Any = None,
    zero_point: Any = None,
) -> QParams:
    """A `QParams`; the family may be given by name, such as "qint8".

    Raises:
        ValueError: there is no family of that name, or the mode is no `QuantMode`.
    """
    if not isinstance(mode, QuantMode):
        raise ValueError(f"mode is a QuantMode, got {mode!r}")
    return QParams(mode, family_of(dtype_meta), scale, zero_point)


def family_of(dtype_meta: str | QuantDtypeMeta | None) -> Any:
    """The family of a name; a family itself and None are returned as they are.

    Raises:
        ValueError: there is no family of that name.
    """
    if not isinstance(dtype_meta, str):
        return dtype_meta
    if dtype_meta not in BUILTIN:
        raise ValueError(f"unknown dtype: {dtype_meta}; known are {', '.join(BUILTIN)}")
    return BUILTIN[dtype_meta]
