"""Ops in shared libraries with the C interface of `utils/treadle_op.h`: opened and called."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.base import dtype as dt
from treadle.base.errors import DTypeError, LoadError, NumericError, ShapeError
from treadle.base.shape import is_static
from treadle.base.types import TensorType

ABI = 1
MAX_NDIM = 8
DTYPES = (
    dt.bool_,
    dt.uint8,
    dt.uint16,
    dt.uint32,
    dt.uint64,
    dt.int8,
    dt.int16,
    dt.int32,
    dt.int64,
    dt.float16,
    dt.bfloat16,
    dt.float32,
    dt.float64,
)
"""Element types by the number that C code knows them by."""

Array = npt.NDArray[Any]


class _Tensor(ctypes.Structure):
    """`treadle_tensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_NDIM),
    )


_TENSORS = ctypes.POINTER(_Tensor)
_DOUBLES = ctypes.POINTER(ctypes.c_double)
_CALL = ctypes.CFUNCTYPE(ctypes.c_int, _TENSORS, _TENSORS, _DOUBLES)
_BACKWARD = ctypes.CFUNCTYPE(ctypes.c_int, _TENSORS, _TENSORS, _TENSORS, _TENSORS, _DOUBLES)


class _Op(ctypes.Structure):
    """`treadle_op`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("params", ctypes.c_char_p),
        ("infer", _CALL),
        ("forward", _CALL),
        ("backward", _BACKWARD),
    )


@dataclass(frozen=True)
class ForeignOp:
    """One op of a library.

    Attributes:
        name: how programs refer to it.
        n_inputs, n_outputs: numbers of operands and results.
        params: its parameters with their defaults.
        has_gradient: whether there is a function for the gradient.
    """

    name: str
    n_inputs: int
    n_outputs: int
    params: Mapping[str, float]
    has_gradient: bool
    _functions: Any

    def infer(self, types: Sequence[TensorType], values: Mapping[str, Any]) -> list[TensorType]:
        """Types of the results.

        Raises:
            ShapeError: another number of operands, or the library refuses these.
            DTypeError: an element type that C code does not know.
        """
        self._check(types)
        if not self._functions.infer:
            return [TensorType(types[0].dtype, types[0].shape) for _ in range(self.n_outputs)]
        given = self._described([(None, t.dtype.name, t.shape) for t in types])
        made = (_Tensor * self.n_outputs)()
        code = self._functions.infer(given, made, self._values(values))
        if code:
            raise ShapeError(self.name, f"refuses its operands with code {code}", saw=_saw(types))
        return [self._type(t) for t in made]

    def forward(self, arrays: Sequence[Array], values: Mapping[str, Any]) -> tuple[Array, ...]:
        """The results.

        Raises:
            NumericError: the library's function failed.
        """
        types = [TensorType(dt.as_dtype(a.dtype), a.shape) for a in arrays]
        inputs = _dense(arrays)
        results = _empty(self.infer(types, values))
        described = self._described_arrays
        self._call("forward", values, described(inputs), described(results))
        return tuple(results)

    def backward(
        self,
        grads: Sequence[Array],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        values: Mapping[str, Any],
    ) -> tuple[Array, ...]:
        """The gradients of the inputs, in their types.

        Raises:
            NumericError: the library's function failed.
        """
        given = [_dense(arrays) for arrays in (grads, inputs, outputs)]
        made = [np.empty(a.shape, a.dtype) for a in inputs]
        every = [self._described_arrays(arrays) for arrays in (*given, made)]
        self._call("backward", values, *every)
        return tuple(made)

    def _call(self, which: str, values: Mapping[str, Any], *tensors: Any) -> None:
        code = getattr(self._functions, which)(*tensors, self._values(values))
        if code:
            raise NumericError(self.name, f"its {which} function failed with code {code}")

    def _check(self, types: Sequence[TensorType]) -> None:
        if len(types) != self.n_inputs:
            raise ShapeError(
                self.name, f"takes {self.n_inputs} operands, got {len(types)}", saw=_saw(types)
            )
        for t in types:
            if t.dtype not in DTYPES:
                raise DTypeError(self.name, f"C code does not know {t.dtype}", saw=_saw(types))
            if t.ndim > MAX_NDIM or not is_static(t.shape):
                raise ShapeError(
                    self.name, f"takes known extents, at most {MAX_NDIM}", saw=_saw(types)
                )

    def _described(self, parts: Sequence[tuple[Any, str, Any]]) -> Any:
        made = (_Tensor * max(len(parts), 1))()
        for tensor, (data, dtype, shape) in zip(made, parts, strict=False):
            tensor.data = data
            tensor.dtype = DTYPES.index(dt.as_dtype(dtype))
            tensor.ndim = len(shape)
            tensor.shape[: len(shape)] = [int(d) for d in shape]
        return made

    def _described_arrays(self, arrays: Sequence[Array]) -> Any:
        return self._described(
            [(a.ctypes.data, dt.as_dtype(a.dtype).name, a.shape) for a in arrays]
        )

    def _values(self, values: Mapping[str, Any]) -> Any:
        every = [float(values.get(name, default)) for name, default in self.params.items()]
        return (ctypes.c_double * max(len(every), 1))(*every)

    def _type(self, found: _Tensor) -> TensorType:
        shape = tuple(found.shape[: found.ndim]) if 0 <= found.ndim <= MAX_NDIM else (-1,)
        if not 0 <= found.dtype < len(DTYPES) or any(d < 0 for d in shape):
            raise ShapeError(self.name, "its infer function describes no tensor")
        return TensorType(DTYPES[found.dtype], shape)


def _saw(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))


def _dense(arrays: Sequence[Array]) -> list[Array]:
    return [np.ascontiguousarray(a).reshape(a.shape) for a in arrays]


def _empty(types: Sequence[TensorType]) -> list[Array]:
    return [np.empty(tuple(int(d) for d in t.shape), t.dtype.numpy) for t in types]


LISTING = "treadle_ops"
"""The function of a library that lists its ops, as `TREADLE_OPS` of treadle_op.h makes it."""


def open_library(path: str, listing: str = LISTING) -> list[ForeignOp]:
    """The ops of a shared library, whose function `listing` lists them.

    Raises:
        LoadError: the file cannot be opened, lists no ops, or was built for another interface.
    """
    try:
        library = ctypes.CDLL(path)
        abi, listed = library.treadle_abi, getattr(library, listing)
    except (OSError, AttributeError) as error:
        raise LoadError(
            "custom op",
            f"{path} is no library of ops: {error}",
            hint="list the ops with TREADLE_OPS of treadle_op.h, and build with build_and_load",
        ) from error
    abi.restype, listed.restype = ctypes.c_int32, ctypes.POINTER(_Op)
    if abi() != ABI:
        raise LoadError(
            "custom op",
            f"{path} was built for interface {abi()}, this is {ABI}",
            hint="build it again",
        )
    found, entries, i = [], listed(), 0
    while entries[i].name:
        found.append(_described_op(entries[i], library))
        i += 1
    return found


def _described_op(entry: _Op, library: ctypes.CDLL) -> ForeignOp:
    words = (entry.params or b"").decode().split()
    params = {name: float(value or 0) for name, _, value in (w.partition("=") for w in words)}
    # The entry is memory of the library, which must stay open as long as somebody calls it.
    entry.owner = library
    name = entry.name.decode()
    if not entry.forward or entry.inputs < 1 or entry.outputs < 1:
        raise LoadError("custom op", f"{name} has no forward function, operand or result")
    return ForeignOp(name, entry.inputs, entry.outputs, params, bool(entry.backward), entry)
