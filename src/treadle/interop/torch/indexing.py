"""Elements at places that are data: gathering, scattering, bags, searches, counts of ATen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.conventions import extremum_last, scattered_products
from treadle.interop.torch.reductions import ordered
from treadle.interop.torch.shaping import extents, flat, part
from treadle.interop.torch.table import OperatorCall, along_axes, axis_of, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce
from treadle.ops.check import InRange
from treadle.ops.creation import Iota
from treadle.ops.cumulative import CumSum
from treadle.ops.gather import Index, IndexAdd, IndexUpdate, Take, as_index
from treadle.ops.gather_along import AddAlongAxis, ScatterAlongAxis, TakeAlongAxis
from treadle.ops.matmul import Matmul
from treadle.ops.select import Where

V = GraphOperand


@lowers("embedding.default")
def _embedding(call: OperatorCall, weight: V, index: V, *args: Any) -> V:
    return Take(0)(weight, counted("embedding", index, weight, 0))


@lowers("index_select.default")
@along_axes
def _index_select(call: OperatorCall, x: V, dim: int, index: V) -> V:
    index = index.reshape((1,)) if not index.type.ndim else index
    axis = axis_of(dim, x)
    return Take(axis)(x, counted("index_select", index, x, axis))


@lowers("gather.default")
@along_axes
def _gather(call: OperatorCall, x: V, dim: int, index: V, **kwargs: Any) -> V:
    axis = axis_of(dim, x)
    if 0 in call.shape:  # of any rank
        return x.constant(0, call.dtype).broadcast_to(call.shape)
    places = counted("gather", index, x, axis)
    return TakeAlongAxis(axis)(_cut(x, index, axis), places).reshape(call.shape)


def counted(op: str, index: V, x: V, axis: int) -> V:
    """An index of an op that does not count from the end of the axis, as ours takes it."""
    return InRange(op, 0, extents(x)[axis])(as_index(index))


def _cut(x: V, index: V, besides: int = -1) -> V:
    """x without what lies beyond the extents of the index, besides those of one axis."""
    shape = extents(index)
    for i, extent in enumerate(extents(x)):
        if i != besides and extent != shape[i]:
            x = part(x, i, 0, shape[i])
    return x


# -- scattering --------------------------------------------------------------------------------


def _source(x: V, index: V, src: Any) -> V:
    """Return the source of a write: a tensor that covers the index, or one number everywhere."""
    if isinstance(src, GraphOperand) and src.type.ndim == index.type.ndim:
        return _cut(src.astype(x.type.dtype), index)
    if isinstance(src, GraphOperand):
        return src.astype(x.type.dtype).broadcast_to(extents(index))
    return x.constant(src, x.type.dtype).broadcast_to(extents(index))


@lowers("scatter.src", "scatter.value")
@along_axes
def _scatter(call: OperatorCall, x: V, dim: int, index: V, src: Any) -> V:
    if 0 in extents(index):  # of any rank
        return x
    axis = axis_of(dim, x)
    places = counted("scatter", index, x, axis)
    return ScatterAlongAxis(axis)(x, places, _source(x, index, src))


@lowers("scatter_add.default")
@along_axes
def _scatter_add(call: OperatorCall, x: V, dim: int, index: V, src: V) -> V:
    if 0 in extents(index):
        return x
    axis = axis_of(dim, x)
    return _added(x, axis, counted("scatter_add", index, x, axis), _source(x, index, src))


def _added(x: V, axis: int, index: V, src: V) -> V:
    """Return x with `src` added at an index; bools are added as "or"."""
    if x.type.dtype is not dt.bool_:
        return AddAlongAxis(axis)(x, index, src)
    total = AddAlongAxis(axis)(x.astype(dt.int32), index, src.astype(dt.int32))
    return logic.NotEqual()(total, total.constant(0))


@lowers("scatter.reduce", "scatter.value_reduce")
@along_axes
def _scatter_into(call: OperatorCall, x: V, dim: int, index: V, src: Any, *, reduce: str) -> V:
    wanted = {"add": "sum", "multiply": "prod"}[reduce]
    return _combined(x, axis_of(dim, x), index, _source(x, index, src), wanted, True)


@lowers("scatter_reduce.two")
@along_axes
def _scatter_reduce(
    call: OperatorCall, x: V, dim: int, index: V, src: V, reduce: str, *, include_self: bool = True
) -> V:
    return _combined(x, axis_of(dim, x), index, _source(x, index, src), reduce, include_self)


@lowers("index_reduce.default")
@along_axes
def _index_reduce(
    call: OperatorCall, x: V, dim: int, index: V, src: V, reduce: str, *, include_self: bool = True
) -> V:
    axis = axis_of(dim, x)
    line = tuple(-1 if i == axis else 1 for i in range(x.type.ndim))
    places = index.reshape(tuple(extents(flat(index))[0] if n < 0 else n for n in line))
    return _combined(x, axis, places.broadcast_to(extents(src)), src, reduce, include_self)


def _combined(x: V, axis: int, index: V, src: V, how: str, with_x: bool) -> V:
    """x with the sum, product, mean or extremum of the sources that an index names."""
    if not math.prod(extents(index)):
        return x
    kind, zero = x.type.dtype, x.constant(0)
    index = counted("scatter", index, x, axis)
    if kind is dt.bool_ and how == "prod":  # "and"
        how = "amin"
    ones = src.constant(1, dt.float32).broadcast_to(extents(src))
    none = x.constant(0, dt.float32).broadcast_to(extents(x))
    count = AddAlongAxis(axis)(none, index, ones)
    met = logic.Greater()(count, count.constant(0))
    if how in ("sum", "mean"):
        total = _added(x if with_x else Where()(met, zero, x), axis, index, src)
        if how == "sum":
            return total
        parts = Where()(met, count + 1 if with_x else count, count.constant(1)).astype(kind)
        made: V = (ew.Div() if kind.is_float else ew.FloorDiv())(total, parts)
        return made
    if how == "prod":
        product = scattered_products(x, axis, index, src)
        chosen: V = Where()(met, product * x if with_x else product, x)
        return chosen
    places, values = extremum_last(axis, index, ordered(src), least=how == "amin")
    found = ScatterAlongAxis(axis)(x, places, values.astype(kind))
    if with_x:
        op = ew.Maximum() if how == "amax" else ew.Minimum()
        found = op(ordered(found), ordered(x)).astype(kind)
    chosen = Where()(met, found, x)
    return chosen


@lowers("masked_scatter.default")
def _masked_scatter(call: OperatorCall, x: V, mask: V, source: V) -> V:
    """The true places of the mask take what the source holds, in order."""
    wide, taken = x.broadcast_to(call.shape), mask.broadcast_to(call.shape)
    if not math.prod(call.shape) or not math.prod(extents(source)):
        return wide
    line = flat(taken)
    places = CumSum(0)(line.astype(dt.int64)) - 1
    values = Take(0)(flat(source), Where()(line, places, places.constant(0)))
    return Where()(taken, values.reshape(call.shape), wide)


@lowers("masked_scatter_backward.default")
def _masked_scatter_backward(call: OperatorCall, dy: V, mask: V, sizes: Sequence[int]) -> V:
    """The gradients at the true places of the mask, in order, and zeros behind them."""
    count = math.prod(sizes)
    zeros = dy.constant(0).broadcast_to((count,))
    if not count or not math.prod(extents(dy)):
        return zeros.reshape(call.shape)
    taken = flat(mask.broadcast_to(extents(dy)))
    places = CumSum(0)(taken.astype(dt.int64)) - 1
    known = Where()(taken, places, places.constant(0))
    given = Where()(taken, flat(dy), dy.constant(0))
    return AddAlongAxis(0)(zeros, known, given).reshape(call.shape)


@lowers("put.default")
def _put(call: OperatorCall, x: V, index: V, source: V, accumulate: bool = False) -> V:
    if not math.prod(extents(index)):
        return x
    places = [as_index(flat(index))]
    return _written(flat(x), flat(source), (0,), places, accumulate).reshape(call.shape)


@lowers("index_add.default")
@along_axes
def _index_add(call: OperatorCall, x: V, dim: int, index: V, source: V, *, alpha: Any = 1) -> V:
    source = source if alpha == 1 else source * source.constant(alpha)
    return _lines_written("index_add", x, dim, index, source, True)


@lowers("index_copy.default")
@along_axes
def _index_copy(call: OperatorCall, x: V, dim: int, index: V, source: V) -> V:
    return _lines_written("index_copy", x, dim, index, source, False)


@lowers("index_fill.int_Scalar", "index_fill.int_Tensor")
@along_axes
def _index_fill(call: OperatorCall, x: V, dim: int, index: V, value: Any) -> V:
    """Fill slices along an axis; of these operators, this one's index may count from the end."""
    axis, places = axis_of(dim, x), as_index(flat(index))
    value = call.operand(value, x.type.dtype, x).reshape(())
    return _written(x, value.broadcast_to(_across(x, axis, places)), (axis,), [places], False)


def _lines_written(op: str, x: V, dim: int, index: V, source: V, added: bool) -> V:
    """x with lines across an axis, from which the index does not count back."""
    axis, places = axis_of(dim, x), flat(index)
    lines = source.broadcast_to(_across(x, axis, places))
    return _written(x, lines, (axis,), [counted(op, places, x, axis)], added)


def _across(x: V, axis: int, places: V) -> tuple[Any, ...]:
    """The shape of the lines of x at places along an axis."""
    return tuple(extents(places)[0] if i == axis else n for i, n in enumerate(extents(x)))


def _written(x: V, values: V, axes: tuple[int, ...], given: list[V], added: bool) -> V:
    """x with values at places; truths are added as "or"."""
    values = values.astype(x.type.dtype)
    if not added:
        return IndexUpdate(axes)(x, values, *given)
    if x.type.dtype is not dt.bool_:
        return IndexAdd(axes)(x, values, *given)
    total = IndexAdd(axes)(x.astype(dt.int32), values.astype(dt.int32), *given)
    return logic.NotEqual()(total, total.constant(0))


# -- several axes ------------------------------------------------------------------------------


def _axes_of(x: V, indices: Sequence[V | None]) -> tuple[tuple[int, ...], list[V]]:
    given = [(i, v) for i, v in enumerate(indices) if v is not None]
    if any(v.type.dtype in (dt.bool_, dt.uint8) for _, v in given):
        raise NotImplementedError("a mask picks as many elements as its data say")
    return tuple(i for i, _ in given), [as_index(v) for _, v in given]


@lowers("index.Tensor")
def _index(call: OperatorCall, x: V, indices: Sequence[V | None]) -> V:
    axes, given = _axes_of(x, indices)
    return Index(axes)(x, *given)


@lowers("index_put.default", "_unsafe_index_put.default")
def _index_put(
    call: OperatorCall, x: V, indices: Sequence[V | None], values: V, accumulate: bool = False
) -> V:
    if set(extents(values)) <= {1} and not accumulate and _is_mask(indices):
        return _filled(x, indices[0], values)
    axes, given = _axes_of(x, indices)
    picked = extents(Index(axes)(x, *given))
    return _written(x, values.broadcast_to(picked), axes, given, accumulate)


@lowers("flex_lib.zeros_and_scatter.default")
def _sums_at(call: OperatorCall, shape: Sequence[Any], indices: Sequence[V | None], values: V) -> V:
    """Gradients of what a change of attention's scores reads."""
    none = values.constant(0).broadcast_to(tuple(shape))
    made: V = _index_put(call, none, indices, values, True)
    return made


def _is_mask(indices: Sequence[V | None]) -> bool:
    """Return whether a boolean tensor alone says which elements are meant."""
    mask, *rest = indices
    return mask is not None and mask.type.dtype is dt.bool_ and all(i is None for i in rest)


def _filled(x: V, mask: Any, value: V) -> V:
    """x with one value where the mask is true; the mask is over the first axes of x."""
    shape = extents(x)
    lined = mask.reshape((*extents(mask), *[1] * (len(shape) - mask.type.ndim)))
    made: V = Where()(lined, value.astype(x.type.dtype).reshape(()), x)
    return made.broadcast_to(shape)


# -- searches and counts -----------------------------------------------------------------------


@lowers("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    call: OperatorCall,
    line: V,
    x: Any,
    *,
    right: bool = False,
    side: str | None = None,
    **kwargs: Any,
) -> V:
    sorter = kwargs.get("sorter")
    if sorter is not None:
        places = counted("searchsorted", sorter, line, line.type.ndim - 1)
        line = TakeAlongAxis(line.type.ndim - 1)(line, places)
    value = x if isinstance(x, GraphOperand) else line.constant(x)
    return searched(line, value, right or side == "right").astype(call.dtype)


@lowers("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(call: OperatorCall, x: Any, line: V, *, right: bool = False, **kwargs: Any) -> V:
    value = x if isinstance(x, GraphOperand) else line.constant(x)
    return searched(line, value, right).astype(call.dtype)


def searched(line: V, x: V, right: bool) -> V:
    """Count the entries of a sorted line before each value, by halving."""
    rank, shape = line.type.ndim, extents(x)
    kind = dt.promote(line.type.dtype, x.type.dtype)
    line, x = line.astype(kind), x.astype(kind)
    count = extents(line)[-1]
    places = flat(x) if rank == 1 else x
    low = places.constant(0, dt.int64).broadcast_to(extents(places))
    high, take = low + count, TakeAlongAxis(rank - 1)
    for _ in range(count.bit_length()):
        middle = (low + high) // 2
        inside = ew.Minimum()(middle, middle.constant(max(count - 1, 0)))
        seen = take(line, inside)
        reached = (logic.Greater() if right else logic.GreaterEqual())(seen, places)
        going = logic.Less()(low, high)  # NaN is reached by nothing
        low = Where()(logic.LogicalAnd()(going, logic.LogicalNot()(reached)), middle + 1, low)
        high = Where()(logic.LogicalAnd()(going, reached), middle, high)
    return low.reshape(shape)


# -- bags of embeddings ------------------------------------------------------------------------


def _bags(offsets: V, count: int, closed: bool) -> tuple[V, V]:
    """The bag of each of so many indices, and the sizes of the bags."""
    offsets = InRange("embedding_bag", 0, count + 1)(offsets)
    places = offsets.builder.apply(Iota(0, 1, count, offsets.type.dtype), ())[0]
    before = searched(offsets, places, True) - 1
    bags = extents(offsets)[0] - closed
    none = before.constant(0).broadcast_to((bags,))
    ones = before.constant(1).broadcast_to((count,))
    return before, AddAlongAxis(0)(none, before, ones)


_SUM, _MEAN, _MAX = 0, 1, 2


@lowers("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(
    call: OperatorCall,
    weight: V,
    indices: V,
    offsets: V,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: V | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[V, ...]:
    """Results: the bags, and what the gradient wants: each index's bag, sizes, places of maxima."""
    count, (bags, width) = extents(indices)[0], call.shape
    bag, size = _bags(offsets, count, include_last_offset)
    rows = Take(0)(weight, counted("embedding_bag", indices, weight, 0))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape((count, 1))
    if padding_idx >= 0:
        kept, none = _kept(indices, rows, padding_idx), size.constant(0).broadcast_to((bags,))
        size = AddAlongAxis(0)(none, bag, kept.astype(size.type.dtype))
        kept = kept.reshape((count, 1))
        if mode == _MAX:
            rows = Where()(kept.astype(dt.bool_), rows, rows.constant(-np.inf))
        else:
            rows = rows * kept
    empty = rows.constant(0).broadcast_to((bags, width))
    wide = bag.reshape((count, 1)).broadcast_to((count, width))
    places = size.constant(0, indices.type.dtype).broadcast_to((bags, width))
    if mode == _MAX:
        y = _combined(empty, 0, wide, rows, "amax", False)
        hit = logic.Equal()(rows, TakeAlongAxis(0)(y, wide))
        number = indices.reshape((count, 1)).broadcast_to((count, width))
        places = _combined(places, 0, wide, Where()(hit, number, number.constant(0)), "amax", True)
        met = logic.NotEqual()(size, size.constant(0)).reshape((bags, 1))
        y, places = (Where()(met, v, v.constant(0)) for v in (y, places))
    else:
        y = AddAlongAxis(0)(empty, wide, rows)
        if mode == _MEAN:
            parts = ew.Maximum()(size, size.constant(1)).astype(y.type.dtype)
            y = y / parts.reshape((bags, 1))
    found = (y, bag.astype(indices.type.dtype), size.astype(indices.type.dtype), places)
    return tuple(_as_declared(call, i, v) for i, v in enumerate(found))


def _as_declared(call: OperatorCall, number: int, result: V) -> V:
    """A result in the shape that PyTorch gives it: what it does not need is empty or undefined."""
    shape = tuple(call.values[number].shape)
    if shape == extents(result):
        return result
    return result.constant(0).broadcast_to(shape)


@lowers("_embedding_bag_backward.default")
def _embedding_bag_backward(
    call: OperatorCall,
    dy: V,
    indices: V,
    offsets: V,
    bag: V,
    size: V,
    maxima: V,
    rows: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: V | None,
    padding_idx: int = -1,
) -> V:
    """Return the gradient; bags are found anew, as PyTorch keeps of them what its own one reads."""
    if scale_grad_by_freq or sparse:
        raise NotImplementedError("gradients of bags that are sparse or scaled by frequency")
    count, (bags, width) = extents(indices)[0], extents(dy)
    zeros = dy.constant(0).broadcast_to((rows, width))
    if mode == _MAX:
        met = logic.NotEqual()(size, size.constant(0)).reshape((bags, 1))
        return AddAlongAxis(0)(zeros, maxima, Where()(met, dy, dy.constant(0)))
    bag, _ = _bags(offsets, count, extents(offsets)[0] != bags)
    share, kept = _kept(indices, dy, padding_idx), None
    if mode == _MEAN:
        kept = AddAlongAxis(0)(dy.constant(0).broadcast_to((bags,)), bag, share)
        dy = dy / ew.Maximum()(kept, kept.constant(1)).reshape((bags, 1))
    if per_sample_weights is not None:
        share = share * per_sample_weights
    return IndexAdd((0,))(zeros, Take(0)(dy, bag) * share.reshape((count, 1)), indices)


def _kept(indices: V, like: V, padding_idx: int) -> V:
    """1 for every index, 0 for the padding."""
    if padding_idx < 0:
        return like.constant(1).broadcast_to(extents(indices))
    kept = logic.NotEqual()(indices, indices.constant(padding_idx))
    return kept.astype(like.type.dtype)


@lowers("_embedding_bag_per_sample_weights_backward.default")
def _bag_weights_backward(
    call: OperatorCall,
    dy: V,
    weight: V,
    indices: V,
    offsets: V,
    bag: V,
    mode: int,
    padding_idx: int = -1,
) -> V:
    bag, _ = _bags(offsets, extents(indices)[0], extents(offsets)[0] != extents(dy)[0])
    products = reduce.Sum((1,), False)(Take(0)(dy, bag) * Take(0)(weight, indices))
    return products * _kept(indices, dy, padding_idx)


# -- experts -----------------------------------------------------------------------------------


@lowers("transformers.grouped_mm_fallback_backward.default")
def _grouped_mm_backward(call: OperatorCall, x: V, y: V, offs: V, dy: V) -> tuple[V, V]:
    return _grouped(dy, y.transpose((0, 2, 1)), offs), _grouped(x.transpose((1, 0)), dy, offs)


@lowers("_grouped_mm.default", "transformers.grouped_mm_fallback.default")
def _grouped_mm(
    call: OperatorCall,
    x: V,
    y: V,
    offs: V | None = None,
    bias: V | None = None,
    *rest: Any,
    **kw: Any,
) -> V:
    if bias is not None:
        raise NotImplementedError("a bias of groups")
    return (Matmul()(x, y) if offs is None else _grouped(x, y, offs)).astype(call.dtype)


def _grouped(x: V, y: V, offs: V) -> V:
    """Products of groups of rows (or columns, or inner lines) that end at `offs`.

    Every group multiplies all rows, those of others as zeros: shapes do not depend on data.
    """
    groups = extents(offs)[0]
    ranks = x.type.ndim, y.type.ndim
    lines = extents(x)[0] if ranks == (2, 3) else extents(y)[-1 if ranks == (3, 2) else 0]
    places = offs.builder.constant(np.arange(lines, dtype=np.int64))
    group = searched(offs.astype(dt.int64), places, True)
    number = offs.builder.constant(np.arange(groups, dtype=np.int64).reshape(groups, 1))
    own = logic.Equal()(number, group.reshape((1, lines))).astype(x.type.dtype)  # [groups, lines]
    if ranks == (2, 3):
        given = x.reshape((1, *extents(x))) * own.reshape((groups, lines, 1))
        return reduce.Sum((0,), False)(Matmul()(given, y))
    elif ranks == (3, 2):
        given = y.reshape((1, *extents(y))) * own.reshape((groups, 1, lines))
        return reduce.Sum((0,), False)(Matmul()(x, given))
    given = x.reshape((1, *extents(x))) * own.reshape((groups, 1, lines))
    return Matmul()(given, y.reshape((1, *extents(y))).broadcast_to((groups, *extents(y))))
