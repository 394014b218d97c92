"""Counts of ATen: histograms, the most frequent elements, the places of what is not zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.elementwise import truth
from treadle.interop.torch.indexing import searched
from treadle.interop.torch.reductions import ordered
from treadle.interop.torch.shaping import extents, flat, part
from treadle.interop.torch.table import OperatorCall, along_axes, axis_of, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce, unary
from treadle.ops.cumulative import CumSum
from treadle.ops.gather_along import AddAlongAxis, ScatterAlongAxis, TakeAlongAxis
from treadle.ops.movement import Concat
from treadle.ops.select import Where
from treadle.ops.sort import Sort

V = GraphOperand


def _numbers(x: V, count: int, start: int = 0) -> V:
    return x.builder.constant(np.arange(start, start + count, dtype=np.int64))


@lowers("mode.default")
@along_axes
def _mode(call: OperatorCall, x: V, dim: int = -1, keepdim: bool = False) -> Any:
    """The least of the most frequent elements, and its last place.

    In order, an element's run up to it is as long as its distance from the first of its equals.
    """
    axis, last = axis_of(dim, x), x.type.ndim - 1
    to_last = (*(i for i in range(last + 1) if i != axis), axis)
    values, places = Sort(last, False).outputs(ordered(x).transpose(to_last))
    finite, alone = values, None
    if values.type.dtype.is_float:  # NaN comes last and equals nothing
        alone = logic.IsNan()(values)
        finite = Where()(alone, values.constant(math.inf), values)
    lengths = _numbers(x, extents(values)[-1], 1) - searched(finite, finite, False)
    known = lengths if alone is None else Where()(alone, lengths.constant(1), lengths)
    where = reduce.Argmax(last, True)(known).astype(dt.int64)
    take = TakeAlongAxis(last)
    found = take(values, where), take(places, where).astype(dt.int64)
    return call.shaped((truth(found[0]) if x.type.dtype is dt.bool_ else found[0], found[1]))


@lowers("nonzero_static.default")
def _nonzero_static(call: OperatorCall, x: V, *, size: int, fill_value: int = -1) -> V:
    """Return places of nonzero elements, int64 [size, rank]; missing ones hold `fill_value`."""
    shape, count = extents(x), math.prod(extents(x))
    if 0 in (*call.shape, count):
        return x.constant(fill_value, dt.int64).broadcast_to(call.shape)
    met = flat(truth(x))
    number = CumSum(0)(met.astype(dt.int64)) - 1
    kept = met & logic.Less()(number, number.constant(size))
    none = number.constant(-1).broadcast_to((size + 1,))  # the last cell takes what is not kept
    cells = Where()(kept, number, number.constant(size))
    line = part(ScatterAlongAxis(0)(none, cells, _numbers(x, count)), 0, 0, size)
    known = logic.GreaterEqual()(line, line.constant(0))
    columns = [
        Where()(known, line // math.prod(shape[d + 1 :]) % n, line.constant(fill_value))
        for d, n in enumerate(shape)
    ]
    made: V = Concat(1)(*(c.reshape((size, 1)) for c in columns))
    return made


@lowers("tril_indices.default", "triu_indices.default")
def _triangle_indices(
    call: OperatorCall, rows: int, columns: int, offset: int = 0, **kwargs: Any
) -> V:
    """Rows and columns of the elements of a triangle, which no data decide."""
    find = np.tril_indices if call.name.startswith("tril") else np.triu_indices
    return call.builder.constant(np.stack(find(rows, offset, columns)).astype(call.dtype.numpy))


# -- histograms --------------------------------------------------------------------------------


@lowers("histc.default")
def _histc(call: OperatorCall, x: V, bins: int = 100, min: Any = 0, max: Any = 0) -> V:
    line = flat(x)
    least, most = line.constant(min), line.constant(max)
    if min == max:
        if extents(line)[0]:
            least, most = reduce.Min((0,), False)(line), reduce.Max((0,), False)(line)
        same = logic.Equal()(least, most)
        least, most = Where()(same, least - 1, least), Where()(same, most + 1, most)
    if not line.type.dtype.is_float:
        raise NotImplementedError("histograms of integers")
    inside = logic.GreaterEqual()(line, least) & logic.LessEqual()(line, most)
    cell = unary.Floor()((line - least) * bins / (most - least))
    cell = Where()(inside, cell, cell.constant(0)).astype(dt.int64)
    cell = ew.Minimum()(cell, cell.constant(bins - 1))
    return AddAlongAxis(0)(
        line.constant(0).broadcast_to((bins,)), cell, inside.astype(line.type.dtype)
    )


def _even_edges(x: V, bins: int, ends: Sequence[float] | None) -> V:
    """Edges of bins of one width, between given ends or the extrema; as PyTorch from both ends."""
    if ends:
        low, high = x.constant(ends[0]), x.constant(ends[1])
    elif extents(x)[0]:
        low, high = reduce.Min((0,), False)(x), reduce.Max((0,), False)(x)
    else:
        low, high = x.constant(0.0), x.constant(1.0)
    same = logic.Equal()(low, high)
    low, high = Where()(same, low - 0.5, low), Where()(same, high + 0.5, high)
    step = (high - low) / bins
    number = _numbers(x, bins + 1).astype(x.type.dtype)
    near = logic.Less()(number, number.constant((bins + 1) // 2))
    found: V = Where()(near, low + step * number, high - step * (bins - number))
    return found


def _filled(x: V, edges: Sequence[V], weight: V | None, density: bool) -> V:
    """Sums of weights of rows in boxes of the edges; the last bin holds its right edge."""
    rows = extents(x)[0]
    cell, inside = x.constant(0, dt.int64).broadcast_to((rows,)), None
    for axis, line in enumerate(edges):
        value, bins = part(x, 1, axis, axis + 1).reshape((rows,)), extents(line)[0] - 1
        last = part(line, 0, bins, bins + 1)
        number = searched(line, value, True) - 1
        number = Where()(logic.Equal()(value, last), number.constant(bins - 1), number)
        met = logic.GreaterEqual()(number, number.constant(0))
        met = met & logic.LessEqual()(value, last)
        inside = met if inside is None else inside & met
        cell = cell * bins + number
    shape = tuple(extents(e)[0] - 1 for e in edges)
    found = x.constant(0).broadcast_to((math.prod(shape),))
    if rows and inside is not None:
        share = inside.astype(x.type.dtype)
        if weight is not None:
            share = Where()(inside, flat(weight), share)
        found = AddAlongAxis(0)(found, Where()(inside, cell, cell.constant(0)), share)
    return _per_volume(found.reshape(shape), edges) if density else found.reshape(shape)


def _per_volume(counts: V, edges: Sequence[V]) -> V:
    total = reduce.Sum(tuple(range(counts.type.ndim)), False)(counts)
    counts = counts / total
    for axis, line in enumerate(edges):
        bins = extents(line)[0] - 1
        width = part(line, 0, 1, bins + 1) - part(line, 0, 0, bins)
        counts = counts / width.reshape(
            tuple(bins if i == axis else 1 for i in range(counts.type.ndim))
        )
    return counts


@lowers("histogram.bin_ct", "histogram.bins_tensor")
def _histogram(
    call: OperatorCall,
    x: V,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: V | None = None,
    density: bool = False,
) -> tuple[V, V]:
    line = flat(x)
    edges = bins if isinstance(bins, GraphOperand) else _even_edges(line, bins, range)
    rows = line.reshape((extents(line)[0], 1))
    return _filled(rows, [edges], weight, density), edges


def _rows(x: V) -> V:
    """Points with their coordinates along the last axis."""
    return x.reshape((math.prod(extents(x)[:-1]), extents(x)[-1]))


@lowers("_histogramdd_bin_edges.default")
def _histogram_edges(
    call: OperatorCall,
    x: V,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: V | None = None,
    density: bool = False,
) -> tuple[V, ...]:
    rows, ends = _rows(x), range or ()
    return tuple(
        _even_edges(flat(part(rows, 1, d, d + 1)), count, ends[2 * d : 2 * d + 2])
        for d, count in enumerate(bins)
    )


@lowers("_histogramdd_from_bin_cts.default")
def _histogram_of_counts(
    call: OperatorCall,
    x: V,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: V | None = None,
    density: bool = False,
) -> V:
    edges = _histogram_edges(call, x, bins, range=range)
    return _filled(_rows(x), edges, weight, density)


@lowers("_histogramdd_from_bin_tensors.default")
def _histogram_of_edges(
    call: OperatorCall, x: V, bins: Sequence[V], *, weight: V | None = None, density: bool = False
) -> V:
    return _filled(_rows(x), bins, weight, density)
