"""Names in pickles of arrays and containers, and the checks on a loaded whole.

NumPy gives an array or dtype its state after it is made; here once, and after every part of that
state has been checked against the data that is there. Types are checked before values are compared:
comparing arrays and tensors computes.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes
import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import ALL
from treadle.base.files.container import MAX_NDIM
from treadle.base.files.strict_json import shorten
from treadle.base.quantized import BUILTIN, quantized_type
from treadle.serialization.encode import MAX_DEPTH
from treadle.serialization.pickle_machine import (
    OPCODE,
    Callee,
    Malformed,
    Meter,
    checked_key,
    kind,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_CODES = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
_DTYPES = frozenset([BFLOAT16, *map(np.dtype, _CODES)])
_SCALARS = [*(d.name for d in ALL if d.numpy != BFLOAT16), "complex128", "bool_"]
_CORES = ("numpy.core", "numpy._core")
_OWN_ORDERS = ("|", "=", "<" if sys.byteorder == "little" else ">")
_MAX_REACHED = 10_000_000


class Values:
    """Makes arrays, dtypes and containers for one file.

    Args:
        meter: of the file.

    Attributes:
        unfilled: objects that have been made and have not got their state yet, by id.
    """

    def __init__(self, meter: Meter) -> None:
        self.unfilled: dict[int, Any] = {}
        self._meter = meter
        self._ndarray = Callee("numpy.ndarray", _only_named)
        self.object = Callee("builtins.object", _only_named)

    def table(self) -> dict[tuple[str, str], object]:
        """Return the stand-ins by name."""
        found: dict[tuple[str, str], object] = {
            ("numpy", "ndarray"): self._ndarray,
            ("collections", "OrderedDict"): Callee("collections.OrderedDict", self._ordered),
            ("_codecs", "encode"): Callee("_codecs.encode", self._encoded),
        }
        functions: dict[str, Callable[[tuple[Any, ...]], object]] = {
            "set": lambda arguments: set(self._elements(arguments)),
            "frozenset": lambda arguments: frozenset(self._elements(arguments)),
            "bytearray": self._bytearray,
            "bytes": _no_bytes,
            "complex": _complex,
        }
        for builtins in ("builtins", "__builtin__"):
            found[builtins, "object"] = self.object
            for name, make in functions.items():
                found[builtins, name] = Callee(f"builtins.{name}", make)
        dtype = Callee("numpy.dtype", self._dtype)
        found["numpy", "dtype"] = dtype
        for core in _CORES:
            for place, name, make in (
                ("multiarray", "_reconstruct", self._reconstruct),
                ("multiarray", "scalar", self._scalar),
                ("numeric", "_frombuffer", self._from_buffer),
            ):
                path = f"{core}.{place}"
                found[path, name] = Callee(f"{path}.{name}", make)
        return found | {("numpy", name): np.dtype(name).type for name in _SCALARS}

    # -- arrays ----------------------------------------------------------------------------

    def _dtype(self, arguments: tuple[Any, ...]) -> object:
        match arguments:
            case (str(code), int(), int()) if code in _CODES:
                # A copy: its state is given to it in place.
                made = np.dtype(code, False, True)
                self.unfilled[id(made)] = made
                return made
            case (np.dtype() as dtype, int(), int()) if dtype is BFLOAT16:
                return dtype
            case (str(code), *_):
                raise Malformed(f"dtype {shorten(code)} is not one of numbers")
        raise Malformed("a dtype is malformed")

    def fill_dtype(self, dtype: np.dtype[Any], state: object) -> None:
        """Give a dtype its byte order and, if it is quantized, its grid."""
        match state:
            case (int(version), str(order), None, None, None, int(), int(), int(), *more) if (
                version in (3, 4)
            ):
                pass
            case _:
                raise Malformed("the state of a dtype is malformed, or not that of a number")
        if order not in _OWN_ORDERS:
            raise Malformed(f"byte order {shorten(order)} is not that of this machine")
        if len(more) > 1:
            raise Malformed("the state of a dtype is malformed")
        if dtype is BFLOAT16:
            return
        if self.unfilled.pop(id(dtype), None) is None:
            raise Malformed("a dtype is given a state twice")
        if more and more[0] is not None:
            grid = dict(_quantized(dtype, more[0]).metadata or {})
            dtype.__setstate__((4, dtype.byteorder, None, None, None, -1, -1, 0, grid))  # type: ignore[attr-defined]

    def _reconstruct(self, arguments: tuple[Any, ...]) -> object:
        match arguments:
            case (Callee() as cls, (int(n),), bytes() | str()) if cls is self._ndarray and n == 0:
                made = np.empty((0,), np.int8)
                self.unfilled[id(made)] = made
                return made
        raise Malformed("an array is malformed, or of a class of its own")

    def fill_array(self, array: Array, state: object) -> None:
        """Give an array its shape, dtype and data."""
        match state:
            case (int(version), tuple(shape), np.dtype() as dtype, bool(fortran), bytes(raw)):
                self._check(shape, dtype, raw)
            case _:
                raise Malformed("the state of an array is malformed, or holds Python objects")
        if version != 1:
            raise Malformed(f"the state of an array is of version {version}")
        if self.unfilled.pop(id(array), None) is None:
            raise Malformed("an array is given a state twice")
        # A copy: NumPy would let the array write to the bytes, which others may refer to.
        own = bytes(memoryview(raw))
        array.__setstate__((1, shape, dtype, fortran, own))  # type: ignore[arg-type]
        check_booleans(array)

    def _from_buffer(self, arguments: tuple[Any, ...]) -> object:
        match arguments:
            case (
                bytes() | bytearray() as raw,
                np.dtype() as dtype,
                tuple(shape),
                str(order),
                *axes,
            ):
                self._check(shape, dtype, raw)
                flat = np.ndarray((math.prod(shape),), dtype, buffer=raw).copy()
                check_booleans(flat)
                array = flat.reshape(shape, order="F" if order == "F" else "C")
                return array.transpose(_permutation(axes, array.ndim)) if axes else array
        raise Malformed("an array is malformed")

    def _scalar(self, arguments: tuple[Any, ...]) -> object:
        match arguments:
            case (np.dtype() as dtype, bytes(raw)):
                self._check((), dtype, raw)
                array = np.ndarray((), dtype, buffer=raw)
                check_booleans(array)
                return array[()]
        raise Malformed("a number of NumPy is malformed")

    def _check(self, shape: tuple[Any, ...], dtype: np.dtype[Any], raw: bytes | bytearray) -> None:
        """Check that an array has as much data as shape and dtype say, and a complete dtype."""
        if dtype not in _DTYPES or id(dtype) in self.unfilled:
            raise Malformed(f"an array has the dtype {dtype}")
        if len(shape) > MAX_NDIM or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
            raise Malformed(f"an array has the shape {shorten(list(shape))}")
        # Zeros are left out: NumPy bounds the product of the other axes even for empty arrays.
        if math.prod(n for n in shape if n) * dtype.itemsize >= 2**63:
            raise Malformed("an array has a shape beyond 2^63 bytes")
        if math.prod(shape) * dtype.itemsize != len(raw):
            raise Malformed(f"{len(raw)} bytes are the data of {dtype.name}{shorten(list(shape))}")
        self._meter.copy(len(raw))

    # -- containers ------------------------------------------------------------------------

    def _ordered(self, arguments: tuple[Any, ...]) -> object:
        made: OrderedDict[Any, object] = OrderedDict()
        match arguments:
            case ():
                return made
            case (list(pairs),):
                self._meter.objects(OPCODE * len(pairs))
                for pair in pairs:
                    if type(pair) not in (list, tuple) or len(pair) != 2:
                        raise Malformed("an OrderedDict is malformed")
                    made[checked_key(pair[0])] = pair[1]
                return made
        raise Malformed("an OrderedDict is malformed")

    def _elements(self, arguments: tuple[Any, ...]) -> Iterable[Any]:
        match arguments:
            case ():
                return ()
            case (list(items),):
                self._meter.objects(OPCODE * len(items))
                return map(checked_key, items)
        raise Malformed("a set is malformed")

    def _encoded(self, arguments: tuple[Any, ...]) -> bytes:
        match arguments:
            case (str(text), str(codec)) if codec in ("latin1", "latin-1"):
                self._meter.copy(len(text))
                try:
                    return text.encode("latin-1")
                except UnicodeEncodeError:
                    raise Malformed("text in place of bytes") from None
        raise Malformed("_codecs.encode is used for other than bytes")

    def _bytearray(self, arguments: tuple[Any, ...]) -> bytearray:
        match arguments:
            case ():
                return bytearray()
            case (bytes(raw),):
                self._meter.copy(len(raw))
                return bytearray(raw)
            case (str(), str()):
                return bytearray(self._encoded(arguments))
        raise Malformed("a bytearray is malformed")


def _permutation(axes: list[Any], ndim: int) -> tuple[int, ...]:
    """The order of axes in memory, as NumPy 2.3 and later write it."""
    match axes:
        case (tuple(order),) if all(type(n) is int for n in order):
            if sorted(order) == list(range(ndim)):
                return order
    raise Malformed("the order of an array's axes is malformed")


def _only_named(_: tuple[Any, ...]) -> object:
    raise Malformed("a class that is only named is called")


def _no_bytes(arguments: tuple[Any, ...]) -> bytes:
    # Protocols below 3 have no bytes; this is how they write none. Given a number, bytes() would
    # take as much memory as the file likes.
    if arguments:
        raise Malformed("bytes is called with arguments")
    return b""


def _complex(arguments: tuple[Any, ...]) -> complex:
    match arguments:
        case (int() | float() as real, int() | float() as imaginary):
            try:
                return complex(real, imaginary)
            except OverflowError:
                pass
    raise Malformed("a complex number is malformed")


def _quantized(dtype: np.dtype[Any], metadata: object) -> np.dtype[Any]:
    """The dtype that MegEngine's metadata describes."""
    match metadata:
        case {"mgb_dtype": {"name": str(name), "scale": float(scale), **more}}:
            zero = more.pop("zero_point", None)
        case _:
            raise Malformed("a dtype has metadata")
    if not isinstance(zero, int | None):
        raise Malformed(f"the zero point of a dtype is a {kind(zero)}")
    for family in BUILTIN.values():
        if family.cname == name and family.np_dtype_str == dtype.name and not more:
            try:
                return quantized_type(family, scale, zero).numpy
            except ValueError as error:
                raise Malformed(str(error)) from None
    raise Malformed(f"{shorten(name)} on {dtype.name} is not a quantized dtype")


def check_booleans(array: Array) -> None:
    """Refuse booleans that are neither 0 nor 1: what is computed from them is undefined."""
    if array.dtype == np.bool_ and array.size and np.ravel(array, "K").view(np.uint8).max() > 1:
        raise Malformed("an array holds booleans other than 0 and 1")


def check_tree(root: object) -> None:
    """Refuse what would make whoever walks the object run forever, or out of the stack.

    Raises:
        Malformed: it contains itself, nests too deeply, refers to its parts so often that there
            are millions of ways through it, or holds a class instead of an object.
    """
    reached: dict[int, tuple[int, int]] = {}  # by id: ways through, depth
    entered: set[int] = set()
    stack: list[tuple[Any, bool]] = [(root, False)]
    while stack:
        value, is_left = stack.pop()
        if isinstance(value, Callee):
            raise Malformed(f"it holds {value.name} itself, not an object of it")
        if type(value) not in _CHILDREN or not value or id(value) in reached:
            continue
        children = _CHILDREN[type(value)](value)
        if is_left:
            below = [reached.get(id(child), (1, 0)) for child in children]
            ways = 1 + sum(n for n, _ in below)
            depth = 1 + max((d for _, d in below), default=0)
            if depth > MAX_DEPTH:
                raise Malformed(f"it nests deeper than {MAX_DEPTH}")
            if ways > _MAX_REACHED:
                raise Malformed(f"it refers to its parts in more than {_MAX_REACHED} ways")
            reached[id(value)] = ways, depth
            continue
        if id(value) in entered:
            raise Malformed(f"a {kind(value)} contains itself")
        entered.add(id(value))
        if len(entered) - len(reached) > MAX_DEPTH:
            raise Malformed(f"it nests deeper than {MAX_DEPTH}")
        stack.append((value, True))
        stack.extend([(c, False) for c in children if type(c) in _WALKED])


_CHILDREN: dict[type, Callable[[Any], Iterable[Any]]] = {
    list: lambda x: x,
    tuple: lambda x: x,
    dict: lambda x: x.values(),
    OrderedDict: lambda x: x.values(),
}
_WALKED = frozenset((*_CHILDREN, Callee))
