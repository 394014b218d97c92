"""Ops in shared libraries with the C interface of `utils/treadle_op.h`: opened and called."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import (
    DTypeError,
    LoadError,
    NumericError,
    OutOfMemory,
    ShapeError,
    TreadleError,
)
from treadle.base.shape import is_static
from treadle.base.types import TensorType

ABI = 2
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
_BACKWARD = ctypes.CFUNCTYPE(ctypes.c_int, *(_TENSORS,) * 4, _DOUBLES)
_CALL_CUDA = ctypes.CFUNCTYPE(ctypes.c_int, *(_TENSORS,) * 2, _DOUBLES, ctypes.c_void_p)
_BACKWARD_CUDA = ctypes.CFUNCTYPE(ctypes.c_int, *(_TENSORS,) * 4, _DOUBLES, ctypes.c_void_p)


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
        ("forward_cuda", _CALL_CUDA),
        ("backward_cuda", _BACKWARD_CUDA),
    )


Number = float | int | bool
_KINDS: dict[str, type[Number]] = {"float": float, "int": int, "bool": bool}


@dataclass(frozen=True)
class Param:
    """A parameter of a library's op: a number, or a list of as many as its default has.

    Attributes:
        name: what it is called.
        kind: float, int or bool.
        default: a number, or a tuple of them.
    """

    name: str
    kind: type[Number]
    default: Number | tuple[Number, ...]

    def checked(self, value: Any) -> Number | tuple[Number, ...]:
        """A value in the parameter's kind; `TypeError` where it is none of it."""
        if not isinstance(self.default, tuple):
            return self._number(value)
        if not isinstance(value, (tuple, list)) or len(value) != len(self.default):
            raise TypeError(f"{self.name} is {len(self.default)} numbers, not {value!r}")
        return tuple(map(self._number, value))

    def _number(self, value: Any) -> Number:
        if not isinstance(value, (int, float, np.number, np.bool_)) or (
            self.kind is not float and value != self.kind(value)
        ):
            raise TypeError(f"{self.name} is of type {self.kind.__name__}, not {value!r}")
        return self.kind(value)


def _param(word: str) -> Param:
    """One word of a list of parameters, such as `pads:int=0,0`."""
    name, _, text = word.partition("=")
    name, _, kind = name.partition(":")
    made = _KINDS[kind or "float"]
    every = tuple(made(float(part)) for part in (text or "0").split(","))
    return Param(name, made, every if len(every) > 1 else every[0])


@dataclass(frozen=True)
class ForeignOp:
    """One op of a library.

    Attributes:
        name: how programs refer to it.
        n_inputs, n_outputs: numbers of operands and results.
        params: its parameters by name.
        has_gradient: whether there is a function for the gradient.
        on_gpus: which of "forward" and "backward" there are for GPUs.
    """

    name: str
    n_inputs: int
    n_outputs: int
    params: Mapping[str, Param]
    has_gradient: bool
    on_gpus: frozenset[str]
    _functions: Any
    _message: Any

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
            raise self._failure(code, "refuses its operands", ShapeError, types)
        return [self._type(t) for t in made]

    def forward(self, arrays: Sequence[Array], values: Mapping[str, Any]) -> tuple[Array, ...]:
        """The results.

        Raises:
            ShapeError, DTypeError: the library's functions refuse the operands.
            OutOfMemory: there is no room for the results.
            NumericError: the library's function failed.
        """
        types = [TensorType(dt.as_dtype(a.dtype), a.shape) for a in arrays]
        inputs = _dense(arrays)
        results = self._empty(self.infer(types, values))
        with _WATCH.get()(self.name, "forward", results):
            described = [self._described_arrays(every) for every in (inputs, results)]
            self._call("forward", values, types, *described)
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
            ShapeError, DTypeError, NumericError: the library's function failed.
        """
        types = [TensorType(dt.as_dtype(a.dtype), a.shape) for a in inputs]
        given = [_dense(arrays) for arrays in (grads, inputs, outputs)]
        made = self._empty(types)
        with _WATCH.get()(self.name, "backward", made):
            every = [self._described_arrays(arrays) for arrays in (*given, made)]
            self._call("backward", values, types, *every)
        return tuple(made)

    def on_gpu(
        self,
        which: str,
        groups: Sequence[Sequence[tuple[int, TensorType]]],
        values: Mapping[str, Any],
        stream: int,
    ) -> None:
        """Call "forward" or "backward" to put its work into a CUDA stream.

        Args:
            which: the function.
            groups: addresses on the GPU with types, in the groups that the function takes.
            values: of the parameters.
            stream: the driver's pointer.

        Raises:
            ShapeError, DTypeError, NumericError: the library's function failed.
        """
        every = [
            self._described([(address, t.dtype.name, t.shape) for address, t in group])
            for group in groups
        ]
        types = [t for _, t in groups[0]]
        self._call(f"{which}_cuda", values, types, *every, last=(stream,))

    def _call(
        self,
        which: str,
        values: Mapping[str, Any],
        types: Sequence[TensorType],
        *rest: Any,
        last: Sequence[Any] = (),
    ) -> None:
        code = getattr(self._functions, which)(*rest, self._values(values), *last)
        if code:
            raise self._failure(code, f"its {which} function failed", NumericError, types)

    def _failure(
        self, code: int, what: str, cls: type[TreadleError], types: Sequence[TensorType]
    ) -> TreadleError:
        """The error of a function that returned a code, with its own words where it has some."""
        place = self._message()
        said = ctypes.string_at(place).decode(errors="replace")
        ctypes.memset(place, 0, 1)
        if not said:
            return cls(self.name, f"{what} with code {code}", saw=_saw(types))
        return _ERRORS.get(code, cls)(self.name, f"{what}: {said}", saw=_saw(types))

    def _empty(self, types: Sequence[TensorType]) -> list[Array]:
        """Arrays for results."""
        try:
            return [np.empty(tuple(int(d) for d in t.shape), t.dtype.numpy) for t in types]
        except (MemoryError, ValueError) as error:
            raise OutOfMemory(self.name, f"no room for its results: {_saw(types)}") from error

    def _check(self, types: Sequence[TensorType]) -> None:
        if len(types) != self.n_inputs:
            raise ShapeError(
                self.name, f"takes {self.n_inputs} operands, got {len(types)}", saw=_saw(types)
            )
        for t in types:
            if t.dtype not in DTYPES:
                raise DTypeError(self.name, f"C code does not know {t.dtype}", saw=_saw(types))
            if t.ndim > MAX_NDIM:
                raise ShapeError(self.name, f"takes at most {MAX_NDIM} axes", saw=_saw(types))
            if self._functions.infer and not is_static(t.shape):
                raise ShapeError(
                    self.name,
                    "its infer function takes known extents",
                    saw=_saw(types),
                    hint="compile without dynamic axes",
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
        every: list[Number] = []
        for name, param in self.params.items():
            value = param.checked(values[name]) if name in values else param.default
            every += value if isinstance(value, tuple) else (value,)
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


_ERRORS: dict[int, type[TreadleError]] = {-1: ShapeError, -2: DTypeError, -3: OutOfMemory}
"""By the numbers of `treadle_error`; what else there is depends on the function."""

Watch = Callable[[str, str, list[Array]], Any]
"""From an op's name, one of its functions and the arrays of its results to a context of the call,
which may put other arrays in their place."""


@contextmanager
def _unwatched(name: str, which: str, results: list[Array]) -> Iterator[None]:
    yield


_WATCH: ContextVar[Watch] = ContextVar("watch", default=_unwatched)
GUARD = 64
"""Bytes before and behind results that `guarded` looks at."""


@contextmanager
def guarded(fill: int) -> Iterator[None]:
    """Surround results in the block with guard bytes that are checked, and fill them with `fill`.

    Functions that write beside their results raise `NumericError`.
    """

    @contextmanager
    def watch(name: str, which: str, results: list[Array]) -> Iterator[None]:
        wide = [np.full(r.nbytes + 2 * GUARD, fill, np.uint8) for r in results]
        shapes = [(r.dtype, r.shape) for r in results]
        inside = [w[GUARD : len(w) - GUARD] for w in wide]
        results[:] = [w.view(d).reshape(s) for w, (d, s) in zip(inside, shapes, strict=True)]
        yield
        for number, w in enumerate(wide):
            for where, bytes_ in (("before", w[:GUARD]), ("behind", w[len(w) - GUARD :])):
                if (bytes_ != fill).any():
                    raise NumericError(name, f"its {which} function writes {where} result {number}")

    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


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
            f"{path} is not a library of ops: {error}",
            hint="list the ops with TREADLE_OPS of treadle_op.h, and build with build_and_load",
        ) from error
    abi.restype, listed.restype = ctypes.c_int32, ctypes.POINTER(_Op)
    if abi() != ABI:
        raise LoadError(
            "custom op",
            f"{path} was built for interface {abi()}, this is {ABI}",
            hint="build it again",
        )
    library.treadle_message.restype = ctypes.c_void_p
    entries, found = listed(), list[ForeignOp]()
    while entries[len(found)].name:
        found.append(_described_op(entries[len(found)], library))
    return found


def _described_op(entry: _Op, library: ctypes.CDLL) -> ForeignOp:
    # The entry is memory of the library, which must stay open as long as somebody calls it.
    entry.owner = library
    name = entry.name.decode(errors="replace")
    if not entry.forward or entry.inputs < 1 or entry.outputs < 1:
        raise LoadError("custom op", f"{name} has no forward function, operand or result")
    words = (entry.params or b"").decode(errors="replace").split()
    try:
        params = {param.name: param for param in map(_param, words)}
    except (KeyError, ValueError, OverflowError) as error:
        raise LoadError(
            "custom op",
            f"the parameters of {name} are not understood: {error}",
            saw=" ".join(words),
            hint="write name=default, name:int=1, name:bool=0 or name:float=0.5,1",
        ) from error
    on_gpus = [w for w in ("forward", "backward") if getattr(entry, f"{w}_cuda")]
    return ForeignOp(
        *(name, entry.inputs, entry.outputs, params, bool(entry.backward)),
        *(frozenset(on_gpus), entry, library.treadle_message),
    )
