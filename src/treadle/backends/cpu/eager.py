"""Eager calls on generated kernels: lowered once per shape, compiled once for all of them."""

from __future__ import annotations

import ctypes
import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.backends.api import Support, no
from treadle.backends.cpu.allocator import HOST
from treadle.backends.cpu.layout import NO_POOL, NOT_DENSE
from treadle.backends.cpu.native import runtime
from treadle.backends.cpu.pool import PROCESS, start
from treadle.backends.measuring import MEASURING
from treadle.backends.program import Address, Lowered, Program, Ref, Run
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import OutOfMemory
from treadle.base.log import get_logger
from treadle.base.process import RUNTIME
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.families import Elementwise, Movement
from treadle.ops.op import Op

if TYPE_CHECKING:
    from treadle.backends.cpu.compiler import NativeCompiler

Launch = Callable[..., Any]
_MOST_SHAPES = 256
_BROKEN: dict[str, bool] = RUNTIME.table("ops whose generator failed", "messages")
"""Names of ops whose generator has failed."""
AT_ONCE = 1 << 18
"""Elements of an operand from which on NumPy takes about as long as lowering."""


def same_bits(op: Op, dtypes: Sequence[DType]) -> bool:
    """Return whether NumPy and generated kernels compute an op to the same bits."""
    if isinstance(op, Movement) or op.rounded_once:
        return True
    return isinstance(op, Elementwise) and not any(d.is_inexact for d in dtypes)


@RUNTIME.cached("environment")
def compiler() -> NativeCompiler:
    """The compiler of the process; the first call imports the code generators."""
    from treadle.backends.cpu.compiler import NativeCompiler

    return NativeCompiler()


class BoundLaunch:
    """An op on operands of given types: its program, and what its results are."""

    __slots__ = ("_count", "_keep", "_program", "_rest", "_results", "_run", "_workspaces")

    def __init__(self, lowered: Lowered, inputs: int, results: Sequence[TensorType]) -> None:
        self._results = [(tuple(map(int, t.shape)), t.dtype.numpy) for t in results]
        self._workspaces = lowered.workspaces
        self._rest = tuple(map(_aligned, lowered.constants))
        first = {
            "input": 0,
            "output": inputs,
            "workspace": inputs + len(results),
            "constant": inputs + len(results) + len(lowered.workspaces),
        }
        self._count = first["constant"] + len(lowered.constants)
        steps = tuple(
            Run(x.kernel, tuple(_place(a, first) for a in x.arguments), x.items, x.serial)
            for x in lowered.launches
        )
        executable = compiler().executable(Program(steps, self._count))
        self._keep = executable
        self._program = executable.address
        self._run = runtime().launch

    def __call__(self, *arrays: Array) -> Any:
        empty = HOST.empty
        results = [empty(shape, dtype) for shape, dtype in self._results]
        scratch = [HOST.arena(int(nbytes)) for nbytes in self._workspaces]
        operands = [a if type(a) is np.ndarray else np.asarray(a) for a in arrays]
        table = (*operands, *results, *scratch, *self._rest)
        code = self._run(PROCESS.address, self._program, table, self._count)
        if code == NO_POOL:
            code = self._run(start(), self._program, table, self._count)
        if code == NOT_DENSE:
            dense = [np.ascontiguousarray(a) for a in operands]
            table = (*dense, *table[len(dense) :])
            self._run(PROCESS.address or start(), self._program, table, self._count)
        return results[0] if len(results) == 1 else tuple(results)


def _aligned(constant: Array) -> Array:
    """A copy that starts where kernels expect constants to."""
    room = HOST.arena(constant.nbytes)
    copy: Array = np.ndarray(constant.shape, constant.dtype, room)
    copy[...] = constant
    return copy


def _place(argument: Ref | Dim, first: dict[str, int]) -> Address | Dim:
    if isinstance(argument, Ref):
        return Address(first[argument.kind] + argument.index, argument.offset)
    return argument


def bind(op: Op, types: Sequence[TensorType]) -> BoundLaunch | Support:
    """The launch of an op on operands of these types, or why it has none."""
    if MEASURING.on:
        MEASURING.first(compiler(), lambda: compiler().lower(op, types))
    lowered = compiler().lower(op, types)
    if isinstance(lowered, Support):
        return lowered
    if lowered.views or lowered.prelude or not lowered.launches:
        return no("policy", f"{op.name} moves no data here")
    return BoundLaunch(lowered, len(types), op.infer(*types))


def try_bind(op: Op, types: Sequence[TensorType]) -> BoundLaunch | Support:
    """Return what `bind` does; a defect of the generator is logged and refused: it costs speed."""
    try:
        return bind(op, types)
    except OutOfMemory:
        raise
    except Exception as error:
        # Once for each op: every new shape would repeat it.
        level = logging.DEBUG if op.name in _BROKEN else logging.WARNING
        _BROKEN[op.name] = True
        get_logger().log(
            level,
            "cpu: no code for %s on %s, NumPy runs it: %s",
            op.name,
            op.saw(tuple(types)),
            error,
        )
        return no("policy", f"code generation failed: {error}")


class AnyShape:
    """An op on operands of given element types and any shapes.

    Lowering takes a millisecond or two, and shapes that vary may not come again: where NumPy gives
    the same bits, small ones are bound when they come for the second time. Elsewhere the first
    call would differ from later ones by its rounding, so they are bound at once.
    """

    def __init__(self, op: Op, types: Sequence[TensorType]) -> None:
        self._op = op
        self._dtypes = tuple(t.dtype for t in types)
        self._may_wait = same_bits(op, self._dtypes)
        self._bound: dict[Any, Launch] = {}
        self._met: set[Any] = set()

    def __call__(self, *arrays: Array) -> Any:
        key = tuple([a.shape for a in arrays])
        launch = self._bound.get(key)
        if launch is None:
            launch = self._meet(key)
        return launch(*arrays)

    def _meet(self, shapes: tuple[tuple[int, ...], ...]) -> Launch:
        is_new = self._may_wait and shapes not in self._met
        if is_new and max(map(math.prod, shapes)) < AT_ONCE:
            if len(self._met) >= _MOST_SHAPES:
                self._met.clear()
            self._met.add(shapes)
            return self._op.reference
        pairs = zip(self._dtypes, shapes, strict=True)
        types = [TensorType(dtype, shape) for dtype, shape in pairs]
        try:
            self._op.infer(*types)
        except Exception:
            return self._op.reference  # it raises what the framework explains
        found = try_bind(self._op, types)
        launch: Launch = self._op.reference if isinstance(found, Support) else found
        if len(self._bound) >= _MOST_SHAPES:
            self._bound.clear()
        self._bound[shapes] = launch
        return launch


# -- by size: a function that Python calls as fast as NumPy's own ------------------------------


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_FASTCALL = 0x80


class _Context(np.ndarray[Any, Any]):
    """Memory that the native switch reads, and the functions that it may call."""

    functions: tuple[Launch, Launch]


@functools.cache
def _method() -> _MethodDef:
    return _MethodDef(b"by_size", runtime().switch, _METH_FASTCALL, None)


def by_size(limit: int, small: Launch, large: Launch) -> Launch:
    """A function of arrays: `large` where one has at least `limit` elements, else `small`."""
    vectorcall = ctypes.cast(ctypes.pythonapi.PyObject_Vectorcall, ctypes.c_void_p).value
    context = _Context((5,), np.int64)
    context[:] = [limit, id(small), id(large), id(np.ndarray), vectorcall]
    context.functions = small, large
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = (
        ctypes.py_object,
        (
            ctypes.POINTER(_MethodDef),
            ctypes.py_object,
            ctypes.c_void_p,
        ),
    )
    made: Launch = make(_method(), context, None)
    return made
