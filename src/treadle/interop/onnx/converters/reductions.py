"""Sums, extrema and their places, products of many axes, and what is sorted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.guards import data_decide
from treadle.base.symbol import Dim
from treadle.interop.conventions import truncated_quotient
from treadle.interop.onnx.converters.shapes import extents, joined, part, reshaped
from treadle.interop.onnx.nodes import OnnxNode, Value, concrete, dtype_of, is_known, known
from treadle.interop.onnx.registry import converts
from treadle.interop.onnx.sizes import extent_as
from treadle.ops import logic, reduce, unary
from treadle.ops.cumulative import CumProd, CumSum
from treadle.ops.gather import Nonzero, Take
from treadle.ops.gather_along import ScatterAlongAxis
from treadle.ops.movement import Broadcast, Concat, Flip, Transpose
from treadle.ops.select import Where
from treadle.ops.softmax import LogSoftmax, Softmax
from treadle.ops.softmax import LogSumExp as LogSumExpOp
from treadle.ops.sort import Sort, TopK

_NAMES = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)


def _reduced(node: OnnxNode, x: Value, axes: list[int] | None) -> Value:
    rank = len(extents(x))
    if not axes:
        if axes is not None and node.attr("noop_with_empty_axes", 0):
            return _of_each(node, x)
        axes = list(range(rank))
    where = tuple(sorted(node.place(a, rank) for a in axes))
    return _reduction(node, x, where, bool(node.attr("keepdims", 1)))


def _of_each(node: OnnxNode, x: Value) -> Value:
    """A reduction over no axis."""
    name = node.op_type
    if name == "ReduceSumSquare":
        return x * x
    if name in ("ReduceL1", "ReduceL2"):
        return unary.Abs()(x)
    if name != "ReduceLogSum":
        return x
    kind = dtype_of(x)
    return unary.Log()(x if kind.is_float else x.astype(dt.float64)).astype(kind)


def _reduction(node: OnnxNode, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    name, kind = node.op_type, dtype_of(x)
    if kind is dt.bool_:
        return reduce.Any(axes, keep)(x) if name == "ReduceMax" else reduce.All(axes, keep)(x)
    x, empty = _with_elements(x, axes, name)
    if empty and name in ("ReduceMax", "ReduceMin"):
        return _extremum_of_nothing(x, axes, keep, name == "ReduceMax")
    if name == "ReduceMean" and not kind.is_float:
        total = reduce.Sum(axes, keep)(x)
        count = extent_as(total, math.prod([extents(x)[a] for a in axes]), kind)
        return truncated_quotient(total, count)
    simple: dict[str, Any] = {
        "ReduceSum": reduce.Sum,
        "ReduceMean": reduce.Mean,
        "ReduceMax": reduce.Max,
        "ReduceMin": reduce.Min,
        "ReduceProd": reduce.Prod,
    }
    if name in simple:
        return simple[name](axes, keep)(x)
    if name == "ReduceL1":
        return reduce.Sum(axes, keep)(unary.Abs()(x))
    wide = x if kind.is_float else x.astype(dt.float64)
    if name == "ReduceLogSumExp" and not empty:
        return LogSumExpOp(axes, keep)(wide).astype(kind)
    if name == "ReduceLogSumExp":
        return unary.Log()(reduce.Sum(axes, keep)(unary.Exp()(wide))).astype(kind)
    if name == "ReduceLogSum":
        return unary.Log()(reduce.Sum(axes, keep)(wide)).astype(kind)
    squares = reduce.Sum(axes, keep)(x * x)
    if name == "ReduceSumSquare":
        return squares
    root = squares if kind.is_float else squares.astype(dt.float64)
    return unary.Sqrt()(root).astype(kind)


_NEUTRAL = ("ReduceMax", "ReduceMin", "ReduceLogSumExp")
"""Reductions that take no empty axis, and leave out what is least, or largest."""


def _with_elements(x: Value, axes: tuple[int, ...], name: str) -> tuple[Value, bool]:
    """x, and whether it is known to have no elements along these axes.

    Where data decide, what takes some gets one more along an axis, which changes nothing.
    """
    shape = extents(x)
    axis = next((a for a in axes if data_decide(shape[a])), None)
    if axis is None:
        return x, any(shape[a] == 0 for a in axes)
    if name not in _NEUTRAL:
        return x, False
    one = tuple(1 if i == axis else d for i, d in enumerate(shape))
    fill = x.constant(_outermost(dtype_of(x), least=name != "ReduceMin"), dtype_of(x))
    return Concat(axis)(x, Broadcast(one)(fill)), False


def _outermost(kind: dt.DType, *, least: bool) -> Any:
    if kind.is_float:
        return -np.inf if least else np.inf
    limits = np.iinfo(kind.numpy)
    return limits.min if least else limits.max


def _extremum_of_nothing(x: Value, axes: tuple[int, ...], keep: bool, largest: bool) -> Value:
    """The least (or largest) value there is, as ONNX has it for no elements."""
    shape = [1 if i in axes else d for i, d in enumerate(extents(x))]
    shape = shape if keep else [d for i, d in enumerate(shape) if i not in axes]
    value = _outermost(dtype_of(x), least=largest)
    return known(np.full(shape, value, dtype_of(x).numpy))


@converts(*_NAMES)
def _by_attribute(node: OnnxNode, x: Value) -> Value:
    axes = node.attributes.get("axes")
    return _reduced(node, x, None if axes is None else list(axes))


def _by_input(node: OnnxNode, x: Value, axes: Array | None = None) -> Value:
    given = [] if axes is None else [int(a) for a in axes.reshape(-1)]
    return _reduced(node, x, given)


converts("ReduceSum", since=13, host=(1,))(_by_input)
converts(*_NAMES[1:], since=18, host=(1,))(_by_input)


@converts("ArgMax", "ArgMin")
def _arg_extremum(node: OnnxNode, x: Value) -> Value:
    axis = node.place(node.attr("axis", 0), len(extents(x)))
    keep = bool(node.attr("keepdims", 1))
    op = (reduce.Argmax if node.op_type == "ArgMax" else reduce.Argmin)(axis, keep)
    if not node.attr("select_last_index", 0):
        return op(x).astype(dt.int64)
    last = op(Flip((axis,))(x)).astype(dt.int64)
    return extents(x)[axis] - 1 - last


@converts("TopK", host=(1,), symbols=True)
def _top_k(node: OnnxNode, x: Value, k: Array) -> tuple[Value, Value]:
    axis = node.place(node.attr("axis", -1), len(extents(x)))
    op = TopK(axis, k.reshape(-1).tolist()[0], bool(node.attr("largest", 1)), True)
    values, places = op.outputs(x)
    return values, places.astype(dt.int64)


@converts("TopK", since=1)
def _top_k_attribute(node: OnnxNode, x: Value) -> tuple[Value, Value]:
    values, places = _top_k(node, x, np.array(node.attributes["k"]))
    return values, places


converts("TopK", since=10, host=(1,), symbols=True)(_top_k)


@converts("CumSum", host=(1,))
def _cum_sum(node: OnnxNode, x: Value, axis: Array) -> Value:
    where = node.place(axis.reshape(-1)[0], len(extents(x)))
    return CumSum(where, bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0)))(x)


@converts("CumProd", host=(1,))
def _cum_prod(node: OnnxNode, x: Value, axis: Array) -> Value:
    where = node.place(axis.reshape(-1)[0], len(extents(x)))
    return CumProd(where, bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0)))(x)


# -- normalized exponentials -------------------------------------------------------------------


def _flat_softmax(node: OnnxNode, x: Value) -> Value:
    """Return softmax over all axes from `axis` on, as before opset 13."""
    shape, axis = extents(x), node.attr("axis", 1)
    axis %= max(len(shape), 1)
    flat = reshaped(x, (math.prod(shape[:axis]), -1))
    return reshaped(_exponential(node, flat, 1), shape)


def _softmax(node: OnnxNode, x: Value) -> Value:
    return _exponential(node, x, node.place(node.attr("axis", -1), len(extents(x))))


def _exponential(node: OnnxNode, x: Value, axis: int) -> Value:
    if node.op_type == "Hardmax":
        largest = reduce.Argmax(axis, True)(x).astype(dt.int64)
        places = np.arange(extents(x)[axis], dtype=np.int64)
        shape = [-1 if i == axis else 1 for i in range(len(extents(x)))]
        same = logic.Equal()(largest, largest.constant(places.reshape(shape), dt.int64))
        return same.astype(dtype_of(x))
    return (Softmax if node.op_type == "Softmax" else LogSoftmax)(axis)(x)


converts("Softmax", "LogSoftmax", "Hardmax")(_flat_softmax)
converts("Softmax", "LogSoftmax", "Hardmax", since=13)(_softmax)


@converts("LpNormalization")
def _lp_normalization(node: OnnxNode, x: Value) -> Value:
    axis = node.place(node.attr("axis", -1), len(extents(x)))
    if node.attr("p", 2) == 1:
        size = reduce.Sum((axis,), True)(unary.Abs()(x))
    else:
        size = unary.Sqrt()(reduce.Sum((axis,), True)(x * x))
    zero = logic.Equal()(size, size.constant(0))
    return x / (size + zero.astype(dtype_of(x)))


# -- sums over named axes ----------------------------------------------------------------------


@converts("Einsum")
def _einsum(node: OnnxNode, *xs: Value) -> Value:
    equation = str(node.attributes["equation"]).replace(" ", "")
    terms, result = _terms(equation, [len(extents(x)) for x in xs])
    value, names = _diagonals(xs[0], terms[0])
    for x, term in zip(xs[1:], terms[1:], strict=True):
        other, its = _diagonals(x, term)
        later = set(result).union(*terms[2:]) if len(terms) > 2 else set(result)
        value, names = _contracted(value, names, other, its, later)
    gone = tuple(i for i, n in enumerate(names) if n not in result)
    value = reduce.Sum(gone)(value) if gone else value
    left = [n for n in names if n in result]
    order = tuple(left.index(n) for n in result)
    return Transpose(order)(value) if order else value


def _terms(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Axis names of each operand and of the result; those of an ellipsis are digits."""
    left, arrow, right = equation.partition("->")
    terms, most = [], 0
    for term, rank in zip(left.split(","), ranks, strict=True):
        hidden = rank - len(term.replace("...", "")) if "..." in term else 0
        most = max(most, hidden)
        terms.append(
            term.replace("...", "0123456789"[10 - hidden :]) if hidden else term.replace("...", "")
        )
    shared = "0123456789"[10 - most :] if most else ""
    if arrow:
        return terms, right.replace("...", shared)
    letters = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
    return terms, shared + "".join(letters)


def _diagonals(x: Value, names: str) -> tuple[Value, str]:
    """Join axes of one name into their diagonal; return x and the names that are left."""
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            i, j = names.index(name), names.rindex(name)
            n = extents(x)[i]
            pieces = [part(part(x, i, k, k + 1), j, k, k + 1) for k in range(n)]
            x = reduce.Sum((j,))(joined(pieces, i))
            names = names[:j] + names[j + 1 :]
    return x, names


def _contracted(x: Value, names: str, y: Value, its: str, later: set[str]) -> tuple[Value, str]:
    """The product of two operands, summed over shared axes that nobody needs afterwards."""
    batch = [n for n in names if n in its and n in later]
    inner = [n for n in names if n in its and n not in later]
    mine, other = [n for n in names if n not in its], [n for n in its if n not in names]
    size = {**_sizes(x, names), **{n: d for n, d in _sizes(y, its).items() if d != 1}}
    left = _arranged(x, names, [*batch, *mine, *inner], [*batch, *inner], size)
    right = _arranged(y, its, [*batch, *inner, *other], [*batch, *inner], size)
    full = {**_sizes(x, names), **_sizes(y, its), **{n: size[n] for n in (*batch, *inner)}}
    b, m, k, n = (math.prod([full[c] for c in part_]) for part_ in (batch, mine, inner, other))
    product = reshaped(left, (b, m, k)) @ reshaped(right, (b, k, n))
    made = [*batch, *mine, *other]
    return reshaped(product, [full[c] for c in made]), "".join(made)


def _sizes(x: Value, names: str) -> dict[str, int]:
    return dict(zip(names, extents(x), strict=True))


def _arranged(
    x: Value, names: str, order: list[str], shared: list[str], size: dict[str, int]
) -> Value:
    """Axes in an order, those that both operands have at their full extent."""
    turned = Transpose(tuple(names.index(n) for n in order))(x)
    mine = _sizes(x, names)
    shape = tuple(size[n] if n in shared else mine[n] for n in order)
    return turned if extents(turned) == shape else Broadcast(shape)(turned)


MOST_ROWS = 64
"""Of matrices whose determinants are computed by ops, row by row."""


@converts("Det", separate=True)
def _det(node: OnnxNode, x: Value) -> Value:
    """Return determinants by Gaussian elimination, with a column's largest element as pivot."""
    *lead, n, _ = extents(x)
    if is_known(x) or n > MOST_ROWS:
        array = concrete(x, node, "the matrix")
        return known(np.linalg.det(array.astype(np.float64)).astype(array.dtype))
    kind = dtype_of(x)
    left = reshaped(x, (-1, n, n)).astype(dt.float32 if kind.itemsize < 4 else kind)
    result = left.constant(1.0)
    for size in range(n, 0, -1):
        column = part(left, 2, 0, 1)
        pivot = reduce.Argmax(1, True)(unary.Abs()(column)).astype(dt.int64)
        rows = pivot.constant(np.arange(size).reshape(1, -1, 1), dt.int64)
        chosen = logic.Equal()(rows, pivot)
        row = reduce.Sum((1,), True)(Where()(chosen, left, left.constant(0.0)))
        # The pivot's row changes places with the first one, which turns the sign.
        first = part(left, 1, 0, 1)
        left = Where()(chosen, first, left)
        head = part(row, 2, 0, 1)
        moved = logic.NotEqual()(pivot, pivot.constant(0))
        result = result * Where()(moved, -head, head)
        if size > 1:
            safe = Where()(logic.Equal()(head, head.constant(0.0)), head.constant(1.0), head)
            below = part(left, 1, 1, size)
            below = below - part(below, 2, 0, 1) / safe * row
            left = part(below, 2, 1, size)
    return reshaped(result, lead).astype(kind)


@converts("NonZero", separate=True)
def _non_zero(node: OnnxNode, x: Value) -> Value:
    if is_known(x):
        array = np.atleast_1d(x.array)
        return known(np.array(np.nonzero(array), np.int64).reshape(array.ndim, -1))
    found = Nonzero()(reshaped(x, extents(x) or (1,)))
    return Transpose((1, 0))(found).astype(dt.int64)


@converts("Unique", separate=True)
def _unique(node: OnnxNode, x: Value) -> tuple[Value, ...]:
    axis = node.attributes.get("axis")
    where = None if axis is None else node.place(axis, len(extents(x)))
    if not is_known(x) and (where is None or 0 not in _others(x, where)):
        return _unique_rows(node, x, where)
    array = concrete(x, node, "its input, whose rows have no elements,")
    flat = array.reshape(-1) if where is None else array
    made, first, inverse, counts = np.unique(
        flat, return_index=True, return_inverse=True, return_counts=True, axis=where
    )
    inverse = inverse.reshape(-1)
    if not node.attr("sorted", 1):
        order = np.argsort(first, kind="stable")
        rank = np.argsort(order, kind="stable")
        made = np.take(made, order, where or 0)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return known(made), *(known(v.astype(np.int64)) for v in (first, inverse, counts))


def _others(x: Value, axis: int) -> tuple[Dim, ...]:
    """Return the extents of a row along an axis."""
    return tuple(d for i, d in enumerate(extents(x)) if i != axis)


def _unique_rows(node: OnnxNode, x: Value, axis: int | None) -> tuple[Value, ...]:
    """The same for a program: rows are sorted, and one that holds NaN differs from all others."""
    flat, where = (reshaped(x, (math.prod(extents(x)),)), 0) if axis is None else (x, axis)
    front = (where, *(i for i in range(len(extents(flat))) if i != where))
    turned = flat if where == 0 else Transpose(front)(flat)
    count, width = extents(flat)[where], math.prod(_others(flat, where))
    if not isinstance(width, int):
        raise node.refuse(f"its rows have {width} elements", "make the extents of a row numbers")
    keys = reshaped(turned, (count, width))
    while width > 1:  # Two columns at a time become one, of the ranks of both.
        ranks = _ranks(keys)
        if width % 2:
            ranks = Concat(1)(ranks, part(ranks, 1, 0, 1) * 0)
        width = (width + 1) // 2
        pairs = reshaped(ranks, (count, width, 2))
        left, right = (reshaped(part(pairs, 2, i, i + 1), (count, width)) for i in (0, 1))
        keys = left * (1 << 31) + right
    ranked, order = Sort(0).outputs(reshaped(keys, (count,)))
    this, before = part(ranked, 0, 1, count), part(ranked, 0, 0, count - 1)
    differs = logic.NotEqual()(this, before)
    if axis is None and dtype_of(x).is_float:  # NaN comes last.
        differs = logic.LogicalAnd()(differs, logic.Equal()(before, before))
    starts = Concat(0)(part(order, 0, 0, 1) * 0 + 1, differs.astype(dt.int32))
    return _describe(node, turned, order, starts, front)


def _ranks(x: Value) -> Value:
    """Return ranks [n, w] of elements in their columns, int64: equal ones share one, NaN never."""
    count = extents(x)[0]
    ranked, order = Sort(0).outputs(x)
    differs = logic.NotEqual()(part(ranked, 0, 1, count), part(ranked, 0, 0, count - 1))
    first = part(order, 0, 0, 1).astype(dt.int64) * 0
    group = CumSum(0)(Concat(0)(first, differs.astype(dt.int64)))
    return ScatterAlongAxis(0)(order.astype(dt.int64) * 0, order, group)


def _describe(
    node: OnnxNode, x: Value, order: Value, starts: Value, front: tuple[int, ...]
) -> tuple[Value, ...]:
    """Values, their first places, the number of each row's value, and counts.

    Args:
        node: the operator.
        x: rows along axis 0.
        order: numbers of the rows, sorted.
        starts: 1 where a row in order has another value than the one before, else 0.
        front: axes of the result, in the order in which x has them.
    """
    total = extents(order)[0]
    begin = reshaped(Nonzero()(starts), (-1,))
    first = Take(0)(order, begin)
    group = CumSum(0)(starts) - 1
    inverse = ScatterAlongAxis(0)(order * 0, order, group)
    ends = Concat(0)(part(begin, 0, 1, extents(begin)[0]), reshaped(extent_as(begin, total), (1,)))
    counts = ends - begin
    if not node.attr("sorted", 1):
        by_place = Sort(0).outputs(first)[1]
        rank = Sort(0).outputs(by_place)[1]
        first, counts, inverse = (
            Take(0)(first, by_place),
            Take(0)(counts, by_place),
            Take(0)(rank, inverse),
        )
    values = Take(0)(x, first)
    if front[0]:
        values = Transpose(tuple(int(i) for i in np.argsort(front)))(values)
    return values, *(v.astype(dt.int64) for v in (first, inverse, counts))
