"""Quantized element types: integers that stand for `scale * (q - zero_point)`.

At the surface they are NumPy dtypes that carry their grid in `metadata["mgb_dtype"]`, as in
MegEngine; NumPy ignores metadata when it compares dtypes, and so do ops: inside, a quantized tensor
is a tensor of plain integers, and scales are operands. `QuantizedType` is the interned description
that tensors carry beside their integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import DTypeError

_KEY = "mgb_dtype"
_LOW_BIT = "mgb_lowbit"


class QuantDtypeMeta(NamedTuple):
    """A family of quantized element types: all scales of one storage and one range.

    Attributes:
        name: how users name it, for example "qint8".
        cname: the name kept in a dtype's metadata, for example "QuantizedS8".
        np_dtype_str: the NumPy type that stores it.
        qmin, qmax: the smallest and the largest stored value.
        is_unsigned: whether it has a zero point.
    """

    name: str
    cname: str | None
    np_dtype_str: str
    qmin: int
    qmax: int
    is_unsigned: bool = False

    def __copy__(self) -> QuantDtypeMeta:
        return self

    def __deepcopy__(self, _: Any) -> QuantDtypeMeta:
        return self


BUILTIN: Mapping[str, QuantDtypeMeta] = {
    meta.name: meta
    for meta in (
        QuantDtypeMeta("quint8", "Quantized8Asymm", "uint8", 0, 255, True),
        QuantDtypeMeta("qint8", "QuantizedS8", "int8", -128, 127),
        QuantDtypeMeta("qint8_narrow", "QuantizedS8", "int8", -127, 127),
        QuantDtypeMeta("qint16", "QuantizedS16", "int16", -(2**15), 2**15 - 1),
        QuantDtypeMeta("qint16_narrow", "QuantizedS16", "int16", -(2**15) + 1, 2**15 - 1),
        QuantDtypeMeta("qint32", "QuantizedS32", "int32", -(2**31), 2**31 - 1),
        QuantDtypeMeta("quint4", "Quantized4Asymm", "uint8", 0, 15, True),
        QuantDtypeMeta("qint4", "QuantizedS4", "int8", -8, 7),
        QuantDtypeMeta("qint1", "QuantizedS1", "int8", 0, 1),
    )
}
"""The families that exist, by name."""

_BY_CNAME: dict[str | None, QuantDtypeMeta] = {}
for _meta in BUILTIN.values():
    _BY_CNAME.setdefault(_meta.cname, _meta)


class QuantizedType:
    """One quantized element type: a family with its scale and zero point.

    There is one object per type (`quantized_type` interns them), so `is` compares.

    Attributes:
        meta: the family.
        scale: float32; 0-d, or with a shape that broadcasts against the tensor (per channel).
        zero_point: the integer that stands for 0.0.
        stored: the element type of the integers.
        numpy: the dtype that users see; it carries all this as metadata.
    """

    __slots__ = ("meta", "numpy", "scale", "stored", "zero_point")

    def __init__(self, meta: QuantDtypeMeta, scale: Array, zero_point: int) -> None:
        self.meta = meta
        self.scale = scale.astype(np.float32)
        self.zero_point = zero_point
        self.stored: DType = as_dtype(meta.np_dtype_str)
        given: dict[str, Any] = {"name": meta.cname}
        given["scale"] = float(scale) if scale.ndim == 0 else self.scale
        if meta.is_unsigned:
            given["zero_point"] = zero_point
        usual = _BY_CNAME.get(meta.cname)
        if usual is None or (usual.qmin, usual.qmax) != (meta.qmin, meta.qmax):
            given["limits"] = (meta.qmin, meta.qmax)
        self.numpy = np.dtype(meta.np_dtype_str, metadata={_KEY: given})
        for array in (scale, self.scale):
            array.flags.writeable = False

    @property
    def is_per_channel(self) -> bool:
        """True if channels have scales of their own."""
        return self.scale.ndim > 0

    def __reduce__(self) -> tuple[object, ...]:
        scale = self.numpy.metadata[_KEY]["scale"]  # type: ignore[index]
        return quantized_type, (self.meta, scale, self.zero_point)

    def __repr__(self) -> str:
        scale = f"{self.scale:.6g}" if self.scale.ndim == 0 else f"<{self.scale.size} scales>"
        zero = f", {self.zero_point}" if self.meta.is_unsigned else ""
        return f"{self.meta.name}({scale}{zero})"


_MADE: dict[Any, QuantizedType] = {}


def quantized_type(meta: QuantDtypeMeta, scale: Any, zero_point: Any = None) -> QuantizedType:
    """The one `QuantizedType` of a family with these parameters.

    Args:
        meta: the family.
        scale: a positive number, or an array of them that broadcasts against the tensor.
        zero_point: an integer within the family's range; None where it has no zero point.

    Raises:
        ValueError: the scale is not positive and finite, or the zero point does not fit.
    """
    steps = np.array(scale, np.float64)
    if steps.size == 1:
        steps = steps.reshape(())
    if not steps.size or not (np.isfinite(steps).all() and (steps > 0).all()):
        raise ValueError(f"the scale of {meta.name} must be positive and finite, got {scale!r}")
    zero = _zero_point(meta, zero_point)
    key = meta[1:], steps.tobytes(), steps.shape, zero
    found = _MADE.get(key)
    return found if found is not None else _MADE.setdefault(key, QuantizedType(meta, steps, zero))


def _zero_point(meta: QuantDtypeMeta, zero_point: Any) -> int:
    if not meta.is_unsigned:
        if zero_point is not None and zero_point != 0:
            raise ValueError(f"{meta.name} has no zero point, got {zero_point!r}; use an unsigned")
        return 0
    if not isinstance(zero_point, (int, np.integer)) or isinstance(zero_point, bool):
        raise ValueError(f"the zero point of {meta.name} should be an integer, got {zero_point!r}")
    if not meta.qmin <= zero_point <= meta.qmax:
        raise ValueError(
            f"the zero point of {meta.name} lies within [{meta.qmin}, {meta.qmax}], "
            f"got {zero_point}"
        )
    return int(zero_point)


def quantized_type_of(dtype: object) -> QuantizedType | None:
    """The type that a NumPy dtype stands for; None for everything that is not quantized.

    Raises:
        DTypeError: the dtype's metadata names no family that is known.
    """
    if isinstance(dtype, QuantizedType):
        return dtype
    if not isinstance(dtype, np.dtype) or not dtype.metadata or _KEY not in dtype.metadata:
        return None
    given = dtype.metadata[_KEY]
    meta = _BY_CNAME.get(given["name"])
    limits = given.get("limits")
    if meta is None and limits is None:
        raise DTypeError(
            "dtype",
            f"{given['name']!r} is not a family of quantized dtypes",
            hint="use one of " + ", ".join(BUILTIN),
        )
    if meta is None or (limits is not None and limits != (meta.qmin, meta.qmax)):
        meta = _narrowed(dtype, given, meta)
    return quantized_type(meta, given["scale"], given.get("zero_point"))


def _narrowed(
    dtype: np.dtype[Any], given: Mapping[str, Any], meta: QuantDtypeMeta | None
) -> QuantDtypeMeta:
    """The family with other limits than its storage has as a rule."""
    low, high = given["limits"]
    for known in BUILTIN.values():
        if known.cname == given["name"] and (known.qmin, known.qmax) == (low, high):
            return known
    name = meta.name if meta is not None else str(given["name"])
    unsigned = "zero_point" in given
    return QuantDtypeMeta(name, given["name"], dtype.name, low, high, unsigned)


# -- MegEngine's functions of dtypes -----------------------------------------------------------


def create_quantized_dtype(
    meta: QuantDtypeMeta, scale: Any, zp: int | None = None
) -> np.dtype[Any]:
    """The NumPy dtype of a family with a scale and, for unsigned families, a zero point.

    An array of scales that broadcasts against the tensor makes a type with a scale per channel.

    Raises:
        ValueError: the scale is not positive and finite, or the zero point does not fit.
    """
    return quantized_type(meta, scale, zp).numpy


def quint8(scale: Any, zero_point: int) -> np.dtype[Any]:
    """8 bits, 0 to 255, standing for scale * (q - zero_point). Raises ValueError."""
    return create_quantized_dtype(BUILTIN["quint8"], scale, zero_point)


def qint8(scale: Any) -> np.dtype[Any]:
    """8 bits, -128 to 127, standing for scale * q. Raises ValueError."""
    return create_quantized_dtype(BUILTIN["qint8"], scale)


def qint16(scale: Any) -> np.dtype[Any]:
    """16 bits, -32768 to 32767, standing for scale * q. Raises ValueError."""
    return create_quantized_dtype(BUILTIN["qint16"], scale)


def qint32(scale: Any) -> np.dtype[Any]:
    """32 bits, standing for scale * q; the type of biases and sums. Raises ValueError."""
    return create_quantized_dtype(BUILTIN["qint32"], scale)


def quint4(scale: Any, zero_point: int) -> np.dtype[Any]:
    """4 bits, 0 to 15, stored as uint8, standing for scale * (q - zero_point)."""
    return create_quantized_dtype(BUILTIN["quint4"], scale, zero_point)


def qint4(scale: Any) -> np.dtype[Any]:
    """4 bits, -8 to 7, stored as int8, standing for scale * q. Raises ValueError."""
    return create_quantized_dtype(BUILTIN["qint4"], scale)


def qint1(scale: Any) -> np.dtype[Any]:
    """1 bit, 0 or 1, stored as int8, standing for scale * q. Raises ValueError."""
    return create_quantized_dtype(BUILTIN["qint1"], scale)


def is_quantize(dtype: object) -> bool:
    """Return whether a dtype is quantized."""
    return isinstance(dtype, np.dtype) and _KEY in (dtype.metadata or ())


def get_scale(dtype: object) -> Any:
    """The scale of a quantized dtype: a float, or an array where channels have their own.

    Raises:
        AssertionError: the dtype is not quantized.
    """
    return _metadata(dtype)["scale"]


def get_zero_point(dtype: object) -> int:
    """The zero point of an unsigned quantized dtype.

    Raises:
        AssertionError: the dtype is not quantized, or of a family without zero points.
    """
    found = _metadata(dtype)
    if "zero_point" not in found:
        raise AssertionError(f"{found['name']} has no zero point; only unsigned dtypes have one")
    return int(found["zero_point"])


def _metadata(dtype: object) -> Mapping[str, Any]:
    if not isinstance(dtype, np.dtype) or not dtype.metadata or _KEY not in dtype.metadata:
        raise AssertionError(f"{dtype!r} is not a quantized dtype")
    found: Mapping[str, Any] = dtype.metadata[_KEY]
    return found


def _low_bit(bits: int) -> np.dtype[Any]:
    return np.dtype("int8", metadata={_LOW_BIT: bits})


intb1, intb2, intb4 = _low_bit(1), _low_bit(2), _low_bit(4)
"""Integers of 1, 2 and 4 bits, each stored in 8; values are the caller's to keep in range."""

bfloat16: np.dtype[Any] = dt.bfloat16.numpy


def is_lowbit(dtype: object) -> bool:
    """Return whether a dtype is one of `intb1`, `intb2` and `intb4`."""
    return isinstance(dtype, np.dtype) and _LOW_BIT in (dtype.metadata or ())


def is_bfloat16(dtype: object) -> bool:
    """Return whether a dtype, a NumPy type or a name means bfloat16."""
    return _is(dtype, bfloat16)


def is_differentible_dtype(dtype: object) -> bool:
    """Return whether gradients are defined for tensors of this dtype (spelled as
    MegEngine does).
    """
    if is_quantize(dtype) or is_lowbit(dtype):
        return False
    return any(_is(dtype, kind) for kind in ("float16", bfloat16, "float32", "float64"))


def _is(dtype: object, kind: Any) -> bool:
    try:
        return bool(np.dtype(dtype) == np.dtype(kind))  # type: ignore[call-overload]
    except TypeError:
        return False


def is_dtype_equal(dt1: object, dt2: object) -> bool:
    """Return whether two dtypes are the same, scales and zero points included."""
    first, second = np.dtype(dt1), np.dtype(dt2)  # type: ignore[call-overload]
    if is_quantize(first) or is_quantize(second):
        return quantized_type_of(first) is quantized_type_of(second)
    return bool(first == second) and _bits_of(first) == _bits_of(second)


def _bits_of(dtype: np.dtype[Any]) -> int:
    return 8 * dtype.itemsize if dtype.metadata is None else int(dtype.metadata[_LOW_BIT])


def get_dtype_bit(dtype_name: str) -> int:
    """The number of bits that a dtype's name ends in: 8 for "quint8", 16 for "float16".

    Raises:
        ValueError: the name has no number.
    """
    digits = dtype_name[len(dtype_name.rstrip("0123456789")) :]
    if not digits:
        raise ValueError(f"{dtype_name!r} does not end in a number of bits")
    return int(digits)


# -- arrays ------------------------------------------------------------------------------------


def to_stored(values: Array, kind: QuantizedType) -> Array:
    """Real numbers as the nearest stored integers, halves away from zero; NaN as the lowest."""
    wide = np.float64 if kind.stored.itemsize > 2 else np.float32
    level = values.astype(wide) / kind.scale.astype(wide)
    whole = np.trunc(level)
    level = whole + np.copysign(np.abs(level - whole) >= 0.5, level) + kind.zero_point
    low, high = wide(kind.meta.qmin), wide(kind.meta.qmax)
    return np.asarray(np.fmin(np.fmax(level, low), high)).astype(kind.numpy)


def _convert_to(arr: Any, dtype: Any, name: str) -> Array:
    kind = quantized_type_of(dtype)
    if not isinstance(arr, np.ndarray):
        raise ValueError(f"arr parameter should be a NumPy array, got {type(arr).__name__}")
    if kind is None or kind.meta.cname != BUILTIN[name].cname:
        raise ValueError(f"dtype parameter should be a {name} dtype, got {dtype!r}")
    return to_stored(arr, kind)


def _convert_from(arr: Any, name: str) -> Array:
    if not isinstance(arr, np.ndarray):
        raise ValueError(f"arr parameter should be a NumPy array, got {type(arr).__name__}")
    kind = quantized_type_of(arr.dtype)
    if kind is None or kind.meta.cname != BUILTIN[name].cname:
        raise ValueError(f"arr's dtype should be a {name} dtype, got {arr.dtype!r}")
    level = arr.astype(np.float32) - np.float32(kind.zero_point)
    return np.asarray(level * kind.scale).astype(np.float32)


def convert_to_quint8(arr: Array, dtype: np.dtype[Any]) -> Array:
    """Real numbers as an array of a `quint8` dtype. Raises ValueError for other dtypes."""
    return _convert_to(arr, dtype, "quint8")


def convert_from_quint8(arr: Array) -> Array:
    """The float32 numbers an array of a `quint8` dtype stands for. Raises ValueError."""
    return _convert_from(arr, "quint8")


def convert_to_qint8(arr: Array, dtype: np.dtype[Any]) -> Array:
    """Real numbers as an array of a `qint8` dtype. Raises ValueError for other dtypes."""
    return _convert_to(arr, dtype, "qint8")


def convert_from_qint8(arr: Array) -> Array:
    """The float32 numbers an array of a `qint8` dtype stands for. Raises ValueError."""
    return _convert_from(arr, "qint8")


def convert_to_qint32(arr: Array, dtype: np.dtype[Any]) -> Array:
    """Real numbers as an array of a `qint32` dtype. Raises ValueError for other dtypes."""
    return _convert_to(arr, dtype, "qint32")


def convert_from_qint32(arr: Array) -> Array:
    """The float32 numbers an array of a `qint32` dtype stands for. Raises ValueError."""
    return _convert_from(arr, "qint32")


def convert_to_quint4(arr: Array, dtype: np.dtype[Any]) -> Array:
    """Real numbers as an array of a `quint4` dtype. Raises ValueError for other dtypes."""
    return _convert_to(arr, dtype, "quint4")


def convert_from_quint4(arr: Array) -> Array:
    """The float32 numbers an array of a `quint4` dtype stands for. Raises ValueError."""
    return _convert_from(arr, "quint4")


def convert_to_qint4(arr: Array, dtype: np.dtype[Any]) -> Array:
    """Real numbers as an array of a `qint4` dtype. Raises ValueError for other dtypes."""
    return _convert_to(arr, dtype, "qint4")


def convert_from_qint4(arr: Array) -> Array:
    """The float32 numbers an array of a `qint4` dtype stands for. Raises ValueError."""
    return _convert_from(arr, "qint4")


def convert_to_qint1(arr: Array, dtype: np.dtype[Any]) -> Array:
    """Real numbers as an array of a `qint1` dtype. Raises ValueError for other dtypes."""
    return _convert_to(arr, dtype, "qint1")


def convert_from_qint1(arr: Array) -> Array:
    """The float32 numbers an array of a `qint1` dtype stands for. Raises ValueError."""
    return _convert_from(arr, "qint1")
