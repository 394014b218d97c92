"""Shapes, parts and creation of ATen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from treadle.base.symbol import Expr, is_identical
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.strides import placed
from treadle.interop.torch.table import OperatorCall, along_axes, axis_of, lowers
from treadle.ops.creation import Eye, Full, Iota
from treadle.ops.gather import IndexAdd, IndexUpdate, Take
from treadle.ops.indexing import bounds_of
from treadle.ops.movement import Concat, Flip, Roll
from treadle.ops.slicing import Pad, Slice, SliceUpdate

V = GraphOperand
LAST = (1 << 63) - 1
"""End of an axis, as PyTorch writes it."""


def extents(x: V) -> tuple[Any, ...]:
    """The shape; its extents may be expressions."""
    return x.type.shape


def flat(x: V) -> V:
    """The elements along one axis."""
    return x.reshape((math.prod(extents(x)),))


@lowers(
    "view.default",
    "_unsafe_view.default",
    "reshape.default",
    "unsqueeze.default",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "view_copy.default",
    "squeeze_copy.default",
    "squeeze_copy.dim",
    "squeeze_copy.dims",
    "unsqueeze_copy.default",
    "_reshape_copy.default",
    "_reshape_alias.default",
)
def _view(call: OperatorCall, x: V, *args: Any) -> V:
    return x.reshape(call.shape)


@lowers("permute.default", "permute_copy.default")
def _permute(call: OperatorCall, x: V, dims: Sequence[int]) -> V:
    return x.transpose(tuple(axis_of(d, x) for d in dims))


@lowers("transpose.int")
@along_axes
def _transpose(call: OperatorCall, x: V, a: int, b: int) -> V:
    order = list(range(x.type.ndim))
    order[a], order[b] = order[b], order[a]
    return x.transpose(tuple(order))


@lowers("t.default")
def _t(call: OperatorCall, x: V) -> V:
    return x.transpose((1, 0)) if x.type.ndim == 2 else x


@lowers("expand.default", "expand_copy.default")
def _expand(call: OperatorCall, x: V, *args: Any, **kwargs: Any) -> V:
    return x.broadcast_to(call.shape)


@lowers("repeat.default")
def _repeat(call: OperatorCall, x: V, repeats: Sequence[int]) -> V:
    shape = (*[1] * (len(repeats) - x.type.ndim), *extents(x))
    apart = tuple(n for d in shape for n in (1, d))
    wide = tuple(n for r, d in zip(repeats, shape, strict=True) for n in (r, d))
    return x.reshape(apart).broadcast_to(wide).reshape(call.shape)


# -- parts -------------------------------------------------------------------------------------


def _box(x: V, axis: int, start: Any, stop: Any, step: int) -> tuple[tuple[Any, ...], ...]:
    shape, axis = extents(x), axis_of(axis, x)
    end = None if isinstance(stop, int) and stop == LAST else stop
    start, stop, step = bounds_of(slice(start, end, step), shape[axis])
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else d for i, d in enumerate(shape))
    steps = tuple(step if i == axis else 1 for i in range(len(shape)))
    return starts, stops, steps


def part(x: V, axis: int, start: int, stop: int, step: int = 1) -> V:
    """x from start to stop along an axis."""
    return Slice(*_box(x, axis, start, stop, step))(x)


@lowers("slice.Tensor", "slice_copy.Tensor")
def _slice(
    call: OperatorCall, x: V, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> V:
    if any(isinstance(v, Expr) for v in (extents(x)[dim], start, end)):
        return _open_part(x, axis_of(dim, x), start, call.shape[dim], step)
    return part(x, dim, 0 if start is None else start, LAST if end is None else end, step)


def _open_part(x: V, axis: int, start: Any, count: Any, step: int) -> V:
    """Return `count` elements along an axis whose extents are expressions, as PyTorch says."""
    whole = extents(x)[axis]
    first = 0 if start is None else start if start >= 0 else max(whole + start, 0)
    if is_identical(first, 0) and is_identical(count, whole):
        return x
    stop = first + (count - 1) * step + 1 if step != 1 else first + count
    rank = x.type.ndim
    starts = tuple(first if i == axis else 0 for i in range(rank))
    stops = tuple(stop if i == axis else d for i, d in enumerate(extents(x)))
    steps = tuple(step if i == axis else 1 for i in range(rank))
    return Slice(starts, stops, steps)(x)


@lowers("slice_scatter.default")
def _slice_scatter(
    call: OperatorCall,
    x: V,
    src: V,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> V:
    box = _box(x, dim, 0 if start is None else start, LAST if end is None else end, step)
    return SliceUpdate(*box)(x, src.astype(x.type.dtype))


def _place(x: V, dim: int, index: Any) -> Any:
    """A place along an axis, counted from the front."""
    return index if index >= 0 else index + extents(x)[dim]


@lowers("select.int", "select_copy.int")
def _select(call: OperatorCall, x: V, dim: int, index: int) -> V:
    index = _place(x, dim, index)
    return part(x, dim, index, index + 1).reshape(call.shape)


@lowers("select_scatter.default")
def _select_scatter(call: OperatorCall, x: V, src: V, dim: int, index: int) -> V:
    index = _place(x, dim, index)
    box = _box(x, dim, index, index + 1, 1)
    shape = list(extents(x))
    shape[axis_of(dim, x)] = 1
    return SliceUpdate(*box)(x, src.astype(x.type.dtype).reshape(tuple(shape)))


@lowers("cat.default")
def _cat(call: OperatorCall, xs: Sequence[V], dim: int = 0) -> V:
    rank = len(call.shape)
    given = [x.astype(call.dtype) for x in xs if extents(x) != (0,) or rank == 1]
    return given[0] if len(given) == 1 else Concat(dim % rank)(*given)


@lowers("stack.default")
def _stack(call: OperatorCall, xs: Sequence[V], dim: int = 0) -> V:
    axis = dim % len(call.shape)
    shape = tuple(1 if i == axis else d for i, d in enumerate(call.shape))
    given = [x.astype(call.dtype).reshape(shape) for x in xs]
    return given[0] if len(given) == 1 else Concat(axis)(*given)


@lowers("split_with_sizes.default", "split_with_sizes_copy.default")
def _split(call: OperatorCall, x: V, sizes: Sequence[int], dim: int = 0) -> tuple[V, ...]:
    places = np.cumsum([0, *sizes]).tolist()
    return tuple(part(x, dim, a, b) for a, b in pairwise(places))


@lowers("split.Tensor", "split_copy.Tensor")
def _split_even(call: OperatorCall, x: V, size: int, dim: int = 0) -> tuple[V, ...]:
    extent = extents(x)[dim]
    return tuple(part(x, dim, a, min(a + size, extent)) for a in range(0, extent, size))


@lowers("unbind.int", "unbind_copy.int")
def _unbind(call: OperatorCall, x: V, dim: int = 0) -> tuple[V, ...]:
    shape = [d for i, d in enumerate(extents(x)) if i != axis_of(dim, x)]
    return tuple(part(x, dim, i, i + 1).reshape(tuple(shape)) for i in range(extents(x)[dim]))


@lowers("diagonal.default", "diagonal_copy.default")
def _diagonal(call: OperatorCall, x: V, offset: int = 0, dim1: int = 0, dim2: int = 1) -> V:
    """Elements of two axes at equal places, on a new last axis."""
    lined, places, _ = _diagonal_line(x, offset, dim1, dim2, call.shape[-1])
    return Take(x.type.ndim - 2)(lined, places)


def _diagonal_line(
    x: V, offset: int, dim1: int, dim2: int, count: int
) -> tuple[V, V, tuple[int, ...]]:
    """x with both axes as one line behind the others, where the diagonal is on it, the order."""
    rank, shape = x.type.ndim, extents(x)
    first, second = axis_of(dim1, x), axis_of(dim2, x)
    order = (*(i for i in range(rank) if i not in (first, second)), first, second)
    columns = shape[second]
    wide = (*(shape[i] for i in order[:-2]), shape[first] * columns)
    start = offset if offset >= 0 else -offset * columns
    places = start + np.arange(count, dtype=np.int64) * (columns + 1)
    return x.transpose(order).reshape(wide), x.builder.constant(places), order


@lowers("diagonal_scatter.default")
def _diagonal_scatter(
    call: OperatorCall, x: V, src: V, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> V:
    lined, places, order = _diagonal_line(x, offset, dim1, dim2, extents(src)[-1])
    made = IndexUpdate((x.type.ndim - 2,))(lined, src.astype(x.type.dtype), places)
    back = made.reshape(tuple(extents(x)[i] for i in order))
    return back.transpose(tuple(order.index(i) for i in range(len(order))))


@lowers("as_strided.default", "as_strided_copy.default")
def _as_strided(
    call: OperatorCall, x: V, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> V:
    """Elements of the memory of x."""
    lies = placed(call.inputs[0])
    places = _strided(call, x, size, stride, offset, lies is not None and 0 not in lies.strides)
    memory = flat(lies.in_order_of_memory(x) if lies else x)
    return Take(0)(memory, call.builder.constant(places.reshape(-1))).reshape(call.shape)


def _strided(
    call: OperatorCall,
    x: V,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None,
    is_dense: bool = False,
) -> Any:
    """Places in the memory of x, from its first element; it has to be row-major, or `is_dense`."""
    value = call.inputs[0]
    if not (is_dense or value.is_contiguous()):
        raise NotImplementedError("strides over memory that is not row-major")
    start = 0 if offset is None else offset - value.storage_offset()
    places = np.full((), start, np.int64)
    for count, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(count, dtype=np.int64) * step
    if places.size and not 0 <= places.min() <= places.max() < math.prod(extents(x)):
        raise NotImplementedError("strides beyond the tensor")
    return places


@lowers("as_strided_scatter.default")
def _as_strided_scatter(
    call: OperatorCall,
    x: V,
    src: V,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> V:
    """x with elements of its memory replaced; PyTorch leaves open what wins where two meet."""
    places = call.builder.constant(_strided(call, x, size, stride, offset).reshape(-1))
    made: V = IndexUpdate((0,))(flat(x), flat(src).astype(x.type.dtype), places)
    return made.reshape(call.shape)


@lowers("flip.default")
@along_axes
def _flip(call: OperatorCall, x: V, dims: Sequence[int]) -> V:
    return Flip(tuple(sorted(axis_of(d, x) for d in dims)))(x) if dims else x


@lowers("roll.default")
@along_axes
def _roll(call: OperatorCall, x: V, shifts: Sequence[int], dims: Sequence[int] = ()) -> V:
    if not dims:
        return Roll(tuple(shifts), (0,))(flat(x)).reshape(call.shape)
    for shift, dim in zip(shifts, dims, strict=True):  # an axis may come twice
        x = Roll((shift,), (axis_of(dim, x),))(x)
    return x


@lowers("constant_pad_nd.default")
def _pad(call: OperatorCall, x: V, pad: Sequence[int], value: float = 0.0) -> V:
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    widths = [(0, 0)] * (x.type.ndim - len(pairs)) + pairs[::-1]
    for axis, (before, after) in enumerate(widths):  # what is negative cuts off
        if before < 0 or after < 0:
            x = part(x, axis, max(-before, 0), extents(x)[axis] + min(after, 0))
    return Pad(tuple((max(b, 0), max(a, 0)) for b, a in widths), "constant", value)(x)


# -- creation ----------------------------------------------------------------------------------


@lowers("full.default", "full_like.default", "new_full.default")
def _full(call: OperatorCall, first: Any, *args: Any, **kwargs: Any) -> V:
    value = args[-1] if args else kwargs["fill_value"]
    if isinstance(value, (Expr, GraphOperand)):
        return call.operand(value, call.dtype).broadcast_to(call.shape)
    made: V = call.builder.apply(Full(call.shape, value, call.dtype), ())[0]
    return made


@lowers(
    "_efficientzerotensor.default",
    "zeros.default",
    "zeros_like.default",
    "new_zeros.default",
    "empty.memory_format",
    "empty_like.default",
    "empty_strided.default",
    "new_empty.default",
    "new_empty_strided.default",
    "empty_permuted.default",
)
def _zeros(call: OperatorCall, *args: Any, **kwargs: Any) -> V:
    return call.builder.apply(Full(call.shape, 0, call.dtype), ())[0]


@lowers("ones.default", "ones_like.default", "new_ones.default")
def _ones(call: OperatorCall, *args: Any, **kwargs: Any) -> V:
    return call.builder.apply(Full(call.shape, 1, call.dtype), ())[0]


@lowers("scalar_tensor.default")
def _scalar(call: OperatorCall, value: Any, **kwargs: Any) -> V:
    return call.operand(value, call.dtype)


@lowers("arange.start_step")
def _arange(call: OperatorCall, start: Any, end: Any, step: Any = 1, **kwargs: Any) -> V:
    if call.dtype.is_integer:  # The ends are cut to integers, not their sum.
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    made: V = call.builder.apply(Iota(start, step, call.shape[0], call.dtype), ())[0]
    return made


@lowers("arange.default")
def _arange_end(call: OperatorCall, end: Any, **kwargs: Any) -> V:
    made: V = _arange(call, 0, end)
    return made


@lowers("eye.default", "eye.m")
def _eye(call: OperatorCall, *args: Any, **kwargs: Any) -> V:
    rows, columns = call.shape
    made: V = call.builder.apply(Eye(rows, columns, 0, call.dtype), ())[0]
    return made


# -- windows of one axis -----------------------------------------------------------------------


def _windows(extent: int, size: int, step: int) -> Any:
    starts = np.arange(0, extent - size + 1, step, dtype=np.int64)
    return starts[:, None] + np.arange(size, dtype=np.int64)


@lowers("unfold.default", "unfold_copy.default")
@along_axes
def _unfold(call: OperatorCall, x: V, dim: int, size: int, step: int) -> V:
    """Return windows in the place of the axis, with their elements on a new last one."""
    axis, shape, rank = axis_of(dim, x), extents(x), x.type.ndim
    places = _windows(shape[axis], size, step)
    taken = Take(axis)(x, call.builder.constant(places))
    order = (*range(axis + 1), *range(axis + 2, rank + 1), axis + 1)
    return taken.transpose(order)


@lowers("unfold_backward.default")
def _unfold_backward(
    call: OperatorCall, dy: V, sizes: Sequence[int], dim: int, size: int, step: int
) -> V:
    zeros = dy.constant(0).broadcast_to(call.shape or (1,))
    axis, rank = axis_of(dim, zeros), zeros.type.ndim
    places = _windows(extents(zeros)[axis], size, step).reshape(-1)
    back = dy.transpose((*range(axis + 1), rank, *range(axis + 1, rank)))
    lined = back.reshape((*extents(back)[:axis], places.size, *extents(back)[axis + 2 :]))
    return IndexAdd((axis,))(zeros, lined, call.builder.constant(places)).reshape(call.shape)


# -- edges -------------------------------------------------------------------------------------


@lowers(
    "replication_pad1d_backward.default",
    "replication_pad2d_backward.default",
    "replication_pad3d_backward.default",
)
def _replicated_backward(call: OperatorCall, dy: V, x: V, padding: Sequence[int]) -> V:
    """Return dy with the gradients of copies added to the cells at the edge."""
    for i in range(0, len(padding), 2):
        axis = x.type.ndim - 1 - i // 2
        cells = np.arange(extents(dy)[axis], dtype=np.int64) - padding[i]
        inside = np.clip(cells, 0, extents(x)[axis] - 1)
        shape = tuple(extents(x)[axis] if j == axis else d for j, d in enumerate(extents(dy)))
        zeros = dy.constant(0).broadcast_to(shape)
        dy = IndexAdd((axis,))(zeros, dy, call.builder.constant(inside))
    return dy
