"""Element types: interned `DType` objects and the promotion table.

Inside Treadle an element type is a `DType`; at the surface `Tensor.dtype` is a `numpy.dtype`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from treadle.base.errors import DTypeError, LoadError

try:
    import ml_dtypes

    _BFLOAT16: np.dtype[Any] | None = np.dtype(ml_dtypes.bfloat16)
except ModuleNotFoundError:  # treadle-lite needs NumPy alone
    _BFLOAT16 = None

Kind = Literal["bool", "uint", "int", "float", "complex"]


class DType:
    """One element type. There is exactly one object per type, so `is` compares.

    Attributes:
        name: the NumPy name, for example `"float32"`.
        numpy: the `numpy.dtype` with the same layout (ml_dtypes supplies bfloat16; without it
            `as_dtype` does not give that type).
        kind: `"bool"`, `"uint"`, `"int"`, `"float"` or `"complex"`.
        itemsize: bytes per element.
        is_inexact: real or complex floating, which gradients flow through.
    """

    __slots__ = ("is_float", "is_inexact", "is_integer", "itemsize", "kind", "name", "numpy")

    def __init__(self, name: str, numpy: np.dtype[Any], kind: Kind) -> None:
        self.name = name
        self.numpy = numpy
        self.kind: Kind = kind
        self.itemsize = numpy.itemsize
        self.is_float = kind == "float"
        self.is_inexact = kind in ("float", "complex")
        self.is_integer = kind in ("int", "uint")

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return as_dtype, (self.name,)

    @property
    def bits(self) -> int:
        """Bits per element."""
        return 8 * self.itemsize


def _numpy_type(name: str, kind: Kind) -> DType:
    return DType(name, np.dtype(name), kind)


bool_ = _numpy_type("bool", "bool")
uint8 = _numpy_type("uint8", "uint")
uint16 = _numpy_type("uint16", "uint")
uint32 = _numpy_type("uint32", "uint")
uint64 = _numpy_type("uint64", "uint")
int8 = _numpy_type("int8", "int")
int16 = _numpy_type("int16", "int")
int32 = _numpy_type("int32", "int")
int64 = _numpy_type("int64", "int")
float16 = _numpy_type("float16", "float")
bfloat16 = DType("bfloat16", _BFLOAT16 or np.dtype("V2"), "float")
float32 = _numpy_type("float32", "float")
float64 = _numpy_type("float64", "float")
complex64 = _numpy_type("complex64", "complex")

ALL: tuple[DType, ...] = (
    bool_,
    uint8,
    uint16,
    uint32,
    uint64,
    int8,
    int16,
    int32,
    int64,
    float16,
    bfloat16,
    float32,
    float64,
    complex64,
)
FLOATS = tuple(d for d in ALL if d.is_float)
INTEGERS = tuple(d for d in ALL if d.is_integer)
REALS = INTEGERS + FLOATS

_BY_NAME = {d.name: d for d in ALL} | {
    "float": float32,
    "int": int32,
    "half": float16,
    "complex": complex64,
}
_BY_NUMPY = {d.numpy: d for d in ALL}
if _BFLOAT16 is None:  # Nobody gets hold of two bytes that NumPy would take for anything.
    del _BY_NAME["bfloat16"], _BY_NUMPY[bfloat16.numpy]
_BY_PYTHON: dict[object, DType] = {float: float32, int: int32, bool: bool_, complex: complex64}


def as_dtype(value: object) -> DType:
    """The `DType` meant by a name, a NumPy dtype or scalar type, a Python type, or a `DType`.

    Python's types and their names mean the default types: `float` is float32, `int` is int32.

    Raises:
        DTypeError: nothing is known under `value`.
        LoadError: it is bfloat16, and ml_dtypes is not installed.
    """
    if isinstance(value, DType):
        return value
    found = _BY_NAME.get(value) if isinstance(value, str) else None
    if found is None and isinstance(value, type):
        found = _BY_PYTHON.get(value)
    if found is None and value is not None:  # NumPy takes None for float64.
        try:
            found = _BY_NUMPY.get(np.dtype(value))  # type: ignore[call-overload]
        except (TypeError, ValueError, SyntaxError):
            found = None
    if found is None and isinstance(value, str) and value == "bfloat16":
        raise LoadError(
            "dtype",
            "bfloat16 needs the package ml_dtypes, which is not installed",
            hint="pip install ml_dtypes",
        )
    if found is None:
        raise DTypeError(
            "dtype",
            f"{value!r} is not an element type",
            hint="use one of " + ", ".join(d.name for d in ALL),
        )
    return found


_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def promote(x: DType, y: DType) -> DType:
    """The element type in which an arithmetic op on `x` and `y` is computed.

    MegEngine's table where it has an entry: bool meets everything, itself included, as float32;
    float16 or bfloat16 with an integer, or with one another, is float32. float64 and complex64
    win over everything below them. Where MegEngine raises for lack of a kernel (uint8 with int8,
    ...) the narrowest type holding both is used, int64 for uint64 with a signed integer.
    """
    if x is y:
        return float32 if x is bool_ else x
    low, high = (x, y) if _RANK[x.kind] <= _RANK[y.kind] else (y, x)
    if high.kind == "complex" or high is float64:
        return high
    if low is bool_ or (high.is_float and low is not high):
        return _promote_to_float(low, high)
    return _promote_integers(low, high)


def _promote_to_float(low: DType, high: DType) -> DType:
    """bool with anything, or any two different types of which one is a float."""
    return float64 if float64 in (low, high) else float32


def _promote_integers(x: DType, y: DType) -> DType:
    if x.kind == y.kind:
        return x if x.itemsize >= y.itemsize else y
    unsigned, signed = (x, y) if x.kind == "uint" else (y, x)
    if signed.itemsize > unsigned.itemsize:
        return signed
    return {1: int16, 2: int32, 4: int64, 8: int64}[unsigned.itemsize]


def promote_scalar(x: DType, scalar: bool | int | float | complex) -> DType:
    """The element type of an op between a tensor of type `x` and a Python scalar.

    Scalars are weak: an int keeps any numeric type, a float keeps any floating type.
    """
    if isinstance(scalar, int):  # bool included
        return float32 if x is bool_ else x
    if isinstance(scalar, float):
        return x if x.is_float or x.kind == "complex" else float32
    return complex64


def float_for(x: DType) -> DType:
    """The floating type in which true division and transcendental functions compute `x`."""
    return x if x.is_float or x.kind == "complex" else float32
