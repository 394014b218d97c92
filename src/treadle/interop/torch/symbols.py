"""Symbolic sizes of PyTorch as extents: symbols, expressions of them, and tensors of such shapes.

PyTorch's own integers are never asked for a value: asking would add a guard to what it captured.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped, import-not-found, unused-ignore]
import torch
from torch import fx
from torch.utils import _pytree as pytree

from treadle.base import dtype as dt
from treadle.base.shape import row_major_strides
from treadle.base.symbol import Dim, Expr, evaluate, maximum, minimum, symbol
from treadle.graph.builder import GraphBuilder
from treadle.ops.creation import Extent
from treadle.ops.elementwise import Pow
from treadle.ops.unary import Exp, Log, Sqrt

LEAST = 2
"""Least extent of a symbol: 0 and 1 are numbers, as what is empty or broadcasts differs."""
_MOST = 2**62
"""Bounds from here on are none."""
_UNKNOWN = 3
"""Extent that stands for one that data decide, while nobody knows it."""

_KNOWN: ContextVar[Mapping[str, Dim] | None] = ContextVar("torch_symbols", default=None)


@contextmanager
def knowing(dims: Mapping[str, Dim]) -> Iterator[None]:
    """Give PyTorch's symbols these extents in the block."""
    token = _KNOWN.set(dims)
    try:
        yield
    finally:
        _KNOWN.reset(token)


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a symbol's extents, and one that it was captured with.

    Attributes:
        is_known: whether it was; data decide it otherwise, and `hint` is none of theirs.
    """

    low: int
    high: int | None
    hint: int
    is_known: bool = True

    def dim(self, name: str, extent: int) -> Dim:
        """The extent in a graph that is written for `extent`."""
        return extent if extent < LEAST else symbol(name, max(self.low, LEAST), self.high)


def ranges(graph: fx.Graph, declared: Mapping[Any, Any] | None = None) -> dict[str, Range]:
    """PyTorch's symbols in the values of a graph; `declared`: ranges that are closer.

    Without those that data decide and no value says, as the 0 or 1 behind a truth value.
    """
    found: dict[str, Range] = {}
    said: set[str] = set()
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            for size in _sizes(value):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    said.add(str(size.node.expr))
                for free in size.node.expr.free_symbols:
                    if str(free) not in found:
                        bounds = (declared or {}).get(free)
                        found[str(free)] = _range(size.node.shape_env, free, bounds)
    return {name: range_ for name, range_ in found.items() if name in said or range_.is_known}


def solved(size: Any, extent: Dim, known: Mapping[str, Dim]) -> tuple[str, Dim] | None:
    """The symbol that a size of this extent tells, and its own extent; None: it tells none."""
    expr = size.node.expr
    unknown = [s for s in expr.free_symbols if str(s) not in known]
    if expr.is_Symbol:
        return (str(expr), extent) if unknown else None
    if len(unknown) == 1 and len(expr.free_symbols) == 1 and isinstance(extent, int):
        found = [x for x in sympy.solve(expr - extent, unknown[0]) if x.is_Integer]
        return (str(unknown[0]), int(found[0])) if found else None
    return None


def _sizes(value: Any) -> list[Any]:
    """The symbolic numbers of a value."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return []
        given: Iterable[Any] = (*value.shape, *value.stride(), value.storage_offset())
    else:
        given = (value,)
    return [v for v in given if is_symbolic(v)]


def _range(shape_env: Any, free: Any, declared: Any = None) -> Range:
    bounds = declared or shape_env.var_to_range.get(free)
    low, high = (0, None) if bounds is None else (_number(bounds.lower), _number(bounds.upper))
    hint = _number(_hints(shape_env).get(free))
    is_known = hint is not None
    if hint is None:  # data decide it, or it stands for the rows of a nested tensor
        hint = max(_UNKNOWN, low or 0)
        hint = hint if high is None else min(hint, high)
    return Range(max(low or 0, 0), high, hint, is_known)


def _hints(shape_env: Any) -> Mapping[Any, Any]:
    """Extents that symbols were captured with; those that data decide have none."""
    name = "backed_var_to_val" if hasattr(shape_env, "backed_var_to_val") else "var_to_val"
    found: Mapping[Any, Any] = getattr(shape_env, name)
    return found


def _number(bound: Any) -> int | None:
    finite = isinstance(bound, (int, sympy.Integer)) and abs(int(bound)) < _MOST
    return int(bound) if finite else None


def is_symbolic(value: Any) -> bool:
    """Return whether a number is one of PyTorch's that is not known while compiling."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def is_number(value: Any) -> bool:
    """Return whether a node's value is a number, known or not."""
    return is_symbolic(value) or isinstance(value, (int, float, bool))


# -- expressions -------------------------------------------------------------------------------


def dim_of(size: Any) -> Dim:
    """A size of PyTorch's as an extent.

    Raises:
        NotImplementedError: it has symbols that nobody knows here.
    """
    if isinstance(size, Expr):
        return size
    if not is_symbolic(size):
        return int(size)
    found = number_of(size)
    if not isinstance(found, (int, Expr)):
        raise NotImplementedError(f"the size {size} is not a whole number")
    return found


def number_of(value: Any) -> Any:
    """A number of PyTorch's: an extent for whole ones; others have the numbers of the call."""
    if not is_symbolic(value):
        return value
    return _translated(value.node.expr, _known_in(value.node.expr))


def _known_in(expr: Any) -> Mapping[str, Dim]:
    """The extents of PyTorch's symbols, which have to know all of an expression."""
    known = _KNOWN.get() or {}
    unknown = sorted(str(s) for s in expr.free_symbols if str(s) not in known)
    if unknown:
        raise NotImplementedError(f"data decide the number {', '.join(unknown)}")
    return known


def decided(node: fx.Node) -> str:
    """Return what data decide of a node's operands and results, as a reason to leave it to PyTorch:
    a real number, or an extent that this node finds. "" if there is nothing.
    """
    operands = pytree.tree_leaves([n.meta.get("val") for n in node.all_input_nodes])
    starts = [v.storage_offset() for v in operands if isinstance(v, torch.Tensor) and _sizes(v)]
    told = _free(size for value in operands for size in _sizes(value))
    begun = _free(filter(is_symbolic, starts))  # Where a view begins is no extent of an operand.
    made = _free(s for v in pytree.tree_leaves(node.meta.get("val")) for s in _sizes(v))
    for free, shape_env in (told | made).items():
        is_found = free not in _hints(shape_env) and (free in begun or free not in told)
        if is_found or not free.is_integer:
            return f"data decide the number {free}"
    return ""


def _free(sizes: Iterable[Any]) -> dict[Any, Any]:
    """PyTorch's symbols in numbers, and what knows of them."""
    return {free: s.node.shape_env for s in sizes for free in s.node.expr.free_symbols}


def _translated(expr: Any, known: Mapping[str, Dim]) -> Any:
    if expr.is_Symbol:
        return known[str(expr)]
    if expr.is_Integer:
        return int(expr)
    made = _FUNCTIONS.get(type(expr).__name__)
    if made is not None:
        parts = [_translated(a, known) for a in expr.args]
        if all(isinstance(p, (int, Expr)) and not isinstance(p, bool) for p in parts):
            found = made(*parts)
            if found is not None:
                return found
    return _pinned(expr, known)


def _pinned(expr: Any, known: Mapping[str, Dim]) -> Any:
    """The number at the extents of the call, which alone it then holds for."""
    found = expr.subs({s: int(known[str(s)]) for s in expr.free_symbols})
    if found in (sympy.true, sympy.false):
        return bool(found)
    return int(found) if found.is_integer else float(found)


def _sum(*xs: Dim) -> Dim:
    total: Dim = 0
    for x in xs:
        total = total + x
    return total


def _power(x: Dim, n: Dim) -> Dim | None:
    return math.prod([x] * n) if isinstance(n, int) and 0 <= n < 8 else None


def _folded(function: Callable[[Dim, Dim], Dim]) -> Callable[..., Dim]:
    def fold(first: Dim, *rest: Dim) -> Dim:
        for x in rest:
            first = function(first, x)
        return first

    return fold


_FUNCTIONS: dict[str, Callable[..., Dim | None]] = {
    "Add": _sum,
    "Mul": lambda *xs: math.prod(xs),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": lambda x, y: x // y,
    "CleanDiv": lambda x, y: x // y,
    "CeilDiv": lambda x, y: -(-x // y),
    "Mod": lambda x, y: x % y,
    "PythonMod": lambda x, y: x % y,
    "ModularIndexing": lambda x, y, z: x // y % z,
    "Max": _folded(maximum),
    "Min": _folded(minimum),
    "Identity": lambda x: x,
}
"""PyTorch's functions of whole numbers, by the names of sympy's classes."""


# -- real numbers ------------------------------------------------------------------------------


def real_of(builder: GraphBuilder, value: torch.SymFloat) -> Any:
    """A real number made of sizes, computed in the program where its functions are known."""
    expr = value.node.expr
    known = _known_in(expr)
    return _real(builder, expr, known) if expr.free_symbols else float(expr)


def _real(builder: GraphBuilder, expr: Any, known: Mapping[str, Dim]) -> Any:
    if not expr.free_symbols:
        return builder.constant(np.float64(expr))
    if expr.is_integer and type(expr).__name__ != "IntTrueDiv":
        extent = _translated(expr, known)
        if isinstance(extent, Expr):
            return builder.apply(Extent(extent, dt.float64), ())[0]
        return builder.constant(np.float64(extent))
    made = _REALS.get(type(expr).__name__)
    if made is None:
        return builder.constant(np.float64(_pinned(expr, known)))
    return made(*(_real(builder, a, known) for a in expr.args))


_REALS: dict[str, Callable[..., Any]] = {
    "Add": lambda *xs: functools.reduce(operator.add, xs),
    "Mul": lambda *xs: functools.reduce(operator.mul, xs),
    "FloatTrueDiv": operator.truediv,
    "IntTrueDiv": operator.truediv,
    "FloatPow": Pow(),
    "Pow": Pow(),
    "ToFloat": lambda x: x,
    "OpaqueUnaryFn_sqrt": Sqrt(),
    "OpaqueUnaryFn_log": Log(),
    "OpaqueUnaryFn_exp": Exp(),
}
"""PyTorch's functions of real numbers, as ops."""


def number_at(value: Any, extents: Mapping[str, int]) -> Any:
    """A number of PyTorch's at extents."""
    if not is_symbolic(value):
        return value
    expr = value.node.expr
    found = expr.subs({s: extents[str(s)] for s in expr.free_symbols})
    if found in (sympy.true, sympy.false):
        return bool(found)
    return int(found) if isinstance(value, torch.SymInt) else float(found)


# -- tensors -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Described:
    """View of a tensor with a symbolic shape for lowerings, as of a tensor of PyTorch's."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim
    dtype: torch.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def stride(self) -> tuple[Dim, ...]:
        """Steps in memory, in elements."""
        return self.strides

    def storage_offset(self) -> Dim:
        """Return the position of the first element in memory."""
        return self.offset

    def numel(self) -> Dim:
        """Return the number of elements."""
        return math.prod(self.shape)

    def is_contiguous(self) -> bool:
        """Return whether it is row-major."""
        return self.strides == row_major_strides(self.shape)

    def example(self) -> torch.Tensor:
        """A tensor of the same element type with as many axes, without memory."""
        return torch.empty((1,) * self.ndim, dtype=self.dtype, device="meta")

    def at(self, extents: Mapping[str, int]) -> Described:
        """The same at extents."""

        def numbers(dims: tuple[Dim, ...]) -> tuple[int, ...]:
            return tuple(d if isinstance(d, int) else evaluate(d, extents) for d in dims)

        (offset,) = numbers((self.offset,))
        return Described(numbers(self.shape), numbers(self.strides), offset, self.dtype)


def described(value: Any) -> Any:
    """A value of a node with extents in place of PyTorch's symbols; static tensors stay tensors."""
    if isinstance(value, (tuple, list)):
        return tuple(map(described, value))
    if not isinstance(value, torch.Tensor):
        return number_of(value) if is_symbolic(value) else value
    if not _sizes(value):
        return value
    shape, strides = (tuple(map(dim_of, sizes)) for sizes in (value.shape, value.stride()))
    return Described(shape, strides, dim_of(value.storage_offset()), value.dtype)
