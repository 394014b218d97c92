"""Element types of the standard: what they promote to, what they can hold, what there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import DTypeError

__all__ = [
    "bool",
    "can_cast",
    "complex64",
    "complex128",
    "finfo",
    "float32",
    "float64",
    "iinfo",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "result_type",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

NumpyType = np.dtype[Any]
_python_bool = bool

bool = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float32, float64 = np.dtype(np.float32), np.dtype(np.float64)
complex64, complex128 = np.dtype(np.complex64), np.dtype(np.complex128)

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
REAL = (float32, float64)
COMPLEX = (complex64, complex128)
KINDS: dict[str, tuple[NumpyType, ...]] = {
    "bool": (bool,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": SIGNED + UNSIGNED,
    "real floating": REAL,
    "complex floating": COMPLEX,
    "numeric": SIGNED + UNSIGNED + REAL + COMPLEX,
}
ALL = (bool, *KINDS["numeric"])
PARTS: dict[NumpyType, NumpyType] = {complex64: float32, complex128: float64}
"""The type of the parts of complex numbers."""
WHOLE: dict[NumpyType, NumpyType] = {part: whole for whole, part in PARTS.items()}
DEFAULTS: dict[str, NumpyType] = {
    "real floating": float64,
    "complex floating": complex128,
    "integral": int64,
    "indexing": int64,
}


def as_numpy(dtype: Any) -> NumpyType:
    """The element type meant by a type of the namespace, of NumPy, of Treadle, or a name.

    Raises:
        DTypeError: the standard has no such type.
    """
    found = dtype.numpy if isinstance(dtype, DType) else np.dtype(dtype)
    if found not in ALL:
        raise DTypeError(
            "array_api",
            f"{dtype!r} is not an element type of the standard",
            hint="use one of " + ", ".join(str(d) for d in ALL),
        )
    return found


def part_of(dtype: NumpyType) -> DType:
    """The type in which numbers, or the parts of complex ones, are held."""
    return as_dtype(PARTS.get(dtype, dtype))


@dataclass(frozen=True)
class FloatLimits:
    """Result of `finfo`, for complex types that of their parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: NumpyType


@dataclass(frozen=True)
class IntegerLimits:
    """Result of `iinfo`."""

    bits: int
    max: int
    min: int
    dtype: NumpyType


def finfo(type: Any, /) -> FloatLimits:
    """Limits of a floating type, or of that of an array."""
    wanted = as_numpy(getattr(type, "dtype", type))
    part = PARTS.get(wanted, wanted)
    limits: Any = np.finfo(part)
    eps, largest, least, small = (
        float(v) for v in (limits.eps, limits.max, limits.min, limits.smallest_normal)
    )
    return FloatLimits(8 * part.itemsize, eps, largest, least, small, part)


def iinfo(type: Any, /) -> IntegerLimits:
    """Limits of an integer type, or of that of an array."""
    wanted = as_numpy(getattr(type, "dtype", type))
    limits = np.iinfo(wanted)
    return IntegerLimits(limits.bits, int(limits.max), int(limits.min), wanted)


def isdtype(dtype: Any, kind: Any) -> _python_bool:
    """Return whether a type is of a kind ("bool", "integral", ...), is a type, or is one of a
    tuple.

    Raises:
        ValueError: there is no such kind.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(f"isdtype: {kind!r} is not a kind; kinds are {', '.join(KINDS)}")
        return dtype in KINDS[kind]
    return _python_bool(dtype == kind)


def can_cast(from_: Any, to: Any, /) -> _python_bool:
    """Return whether promotion leads from one type (or that of an array) to another."""
    source, target = as_numpy(getattr(from_, "dtype", from_)), as_numpy(to)
    try:
        return promoted(source, target) == target
    except TypeError:
        return False


def promoted(x: NumpyType, y: NumpyType) -> NumpyType:
    """Return the type that two types meet in.

    Raises:
        TypeError: the standard says nothing about the two.
    """
    if x == y:
        return x
    both = {x, y}
    integers = KINDS["integral"]
    mixed = uint64 in both and any(d in SIGNED for d in both)
    inside = all(d in integers for d in both) or all(d in REAL + COMPLEX for d in both)
    if mixed or not inside:
        raise TypeError(f"the array API standard does not promote {x} and {y}; cast with astype")
    return np.promote_types(x, y)


def promoted_scalar(dtype: NumpyType, value: Any) -> NumpyType:
    """The type of an operation of an array and a Python number, which is weak.

    Raises:
        TypeError: the number is of a kind that the array's type does not take.
    """
    if isinstance(value, _python_bool):
        fits = dtype == bool
    elif isinstance(value, int):
        fits = dtype != bool
    elif isinstance(value, float):
        fits = dtype in REAL + COMPLEX
    else:
        fits = dtype in REAL + COMPLEX
        dtype = WHOLE.get(dtype, dtype)
    if not fits:
        raise TypeError(f"the array API standard does not mix {dtype} and {value!r}")
    return dtype


def result_type(*arrays_and_dtypes: Any) -> NumpyType:
    """The type that arrays, types and Python numbers meet in.

    Raises:
        ValueError: nothing but numbers is given.
        TypeError: the standard says nothing about these types.
    """
    numbers = [v for v in arrays_and_dtypes if isinstance(v, (int, float, complex))]
    others = [v for v in arrays_and_dtypes if not isinstance(v, (int, float, complex))]
    if not others:
        raise ValueError("result_type needs at least one array or type")
    types = [as_numpy(getattr(v, "dtype", v)) for v in others]
    found = types[0]
    for dtype in types[1:]:
        found = promoted(found, dtype)
    for number in numbers:
        found = promoted_scalar(found, number)
    return found
