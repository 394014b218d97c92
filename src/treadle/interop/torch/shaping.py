"""Shapes, parts, creation, indexing and reductions of ATen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.conventions import from_start
from treadle.interop.torch.elementwise import truth
from treadle.interop.torch.table import Call, lowers
from treadle.ops import reduce, unary
from treadle.ops.creation import Full, Iota
from treadle.ops.cumulative import CumProd, CumSum
from treadle.ops.gather import Index, IndexAdd, IndexUpdate, Take
from treadle.ops.gather_along import AddAlongAxis, ScatterAlongAxis, TakeAlongAxis
from treadle.ops.movement import Concat, Flip, Roll
from treadle.ops.select import Where
from treadle.ops.slicing import Pad, Slice, SliceUpdate
from treadle.ops.sort import Sort, TopK

V = GraphOperand
LAST = (1 << 63) - 1
"""How PyTorch writes the end of an axis."""


def extents(x: V) -> tuple[int, ...]:
    """The shape as numbers."""
    return tuple(int(d) for d in x.type.shape)


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
)
def _view(call: Call, x: V, *args: Any) -> V:
    return x.reshape(call.shape)


@lowers("permute.default")
def _permute(call: Call, x: V, dims: Sequence[int]) -> V:
    return x.transpose(tuple(d % x.type.ndim for d in dims))


@lowers("transpose.int")
def _transpose(call: Call, x: V, a: int, b: int) -> V:
    order = list(range(x.type.ndim))
    order[a], order[b] = order[b], order[a]
    return x.transpose(tuple(order))


@lowers("t.default")
def _t(call: Call, x: V) -> V:
    return x.transpose((1, 0)) if x.type.ndim == 2 else x


@lowers("expand.default")
def _expand(call: Call, x: V, *args: Any, **kwargs: Any) -> V:
    return x.broadcast_to(call.shape)


@lowers("repeat.default")
def _repeat(call: Call, x: V, repeats: Sequence[int]) -> V:
    shape = (*[1] * (len(repeats) - x.type.ndim), *extents(x))
    apart = tuple(n for d in shape for n in (1, d))
    wide = tuple(n for r, d in zip(repeats, shape, strict=True) for n in (r, d))
    return x.reshape(apart).broadcast_to(wide).reshape(call.shape)


# -- parts -------------------------------------------------------------------------------------


def _box(x: V, axis: int, start: int, stop: int, step: int) -> tuple[tuple[int, ...], ...]:
    shape = extents(x)
    axis %= len(shape)
    start, stop, step = slice(start, stop, step).indices(shape[axis])
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(max(stop, start) if i == axis else d for i, d in enumerate(shape))
    steps = tuple(step if i == axis else 1 for i in range(len(shape)))
    return starts, stops, steps


def part(x: V, axis: int, start: int, stop: int, step: int = 1) -> V:
    """x from start to stop along an axis."""
    return Slice(*_box(x, axis, start, stop, step))(x)


@lowers("slice.Tensor", "slice_copy.Tensor")
def _slice(call: Call, x: V, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> V:
    return part(x, dim, 0 if start is None else start, LAST if end is None else end, step)


@lowers("slice_scatter.default")
def _slice_scatter(
    call: Call, x: V, src: V, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> V:
    box = _box(x, dim, 0 if start is None else start, LAST if end is None else end, step)
    return SliceUpdate(*box)(x, src.astype(x.type.dtype))


@lowers("select.int", "select_copy.int")
def _select(call: Call, x: V, dim: int, index: int) -> V:
    index %= extents(x)[dim]
    return part(x, dim, index, index + 1).reshape(call.shape)


@lowers("select_scatter.default")
def _select_scatter(call: Call, x: V, src: V, dim: int, index: int) -> V:
    index %= extents(x)[dim]
    box = _box(x, dim, index, index + 1, 1)
    shape = list(extents(x))
    shape[dim % len(shape)] = 1
    return SliceUpdate(*box)(x, src.astype(x.type.dtype).reshape(tuple(shape)))


@lowers("cat.default")
def _cat(call: Call, xs: Sequence[V], dim: int = 0) -> V:
    rank = len(call.shape)
    given = [x.astype(call.dtype) for x in xs if extents(x) != (0,) or rank == 1]
    return given[0] if len(given) == 1 else Concat(dim % rank)(*given)


@lowers("stack.default")
def _stack(call: Call, xs: Sequence[V], dim: int = 0) -> V:
    axis = dim % len(call.shape)
    shape = tuple(1 if i == axis else d for i, d in enumerate(call.shape))
    given = [x.astype(call.dtype).reshape(shape) for x in xs]
    return given[0] if len(given) == 1 else Concat(axis)(*given)


@lowers("split_with_sizes.default")
def _split(call: Call, x: V, sizes: Sequence[int], dim: int = 0) -> tuple[V, ...]:
    places = np.cumsum([0, *sizes]).tolist()
    return tuple(part(x, dim, a, b) for a, b in pairwise(places))


@lowers("split.Tensor")
def _split_even(call: Call, x: V, size: int, dim: int = 0) -> tuple[V, ...]:
    extent = extents(x)[dim]
    return tuple(part(x, dim, a, min(a + size, extent)) for a in range(0, extent, size))


@lowers("unbind.int")
def _unbind(call: Call, x: V, dim: int = 0) -> tuple[V, ...]:
    shape = [d for i, d in enumerate(extents(x)) if i != dim % x.type.ndim]
    return tuple(part(x, dim, i, i + 1).reshape(tuple(shape)) for i in range(extents(x)[dim]))


@lowers("diagonal.default", "diagonal_copy.default")
def _diagonal(call: Call, x: V, offset: int = 0, dim1: int = 0, dim2: int = 1) -> V:
    """Elements of two axes at equal places, on a new last axis."""
    rank, shape = x.type.ndim, extents(x)
    first, second = dim1 % rank, dim2 % rank
    order = [i for i in range(rank) if i not in (first, second)]
    rows, columns, count = shape[first], shape[second], call.shape[-1]
    wide = (*(shape[i] for i in order), rows * columns)
    lined = x.transpose((*order, first, second)).reshape(wide)
    start = offset if offset >= 0 else -offset * columns
    places = call.builder.constant(start + np.arange(count, dtype=np.int64) * (columns + 1))
    return Take(rank - 2)(lined, places)


@lowers("as_strided.default", "as_strided_copy.default")
def _as_strided(
    call: Call, x: V, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> V:
    """Elements of the memory of x, which has to be row-major there for ours to have the same."""
    if not call.inputs[0].is_contiguous():
        raise NotImplementedError("strides over memory that is not row-major")
    places = np.full((), offset or 0, np.int64)
    for count, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(count, dtype=np.int64) * step
    if places.size and not 0 <= places.min() <= places.max() < math.prod(extents(x)):
        raise NotImplementedError("strides beyond the tensor")
    return Take(0)(flat(x), call.builder.constant(places.reshape(-1))).reshape(call.shape)


@lowers("flip.default")
def _flip(call: Call, x: V, dims: Sequence[int]) -> V:
    return Flip(tuple(sorted(d % x.type.ndim for d in dims)))(x)


@lowers("roll.default")
def _roll(call: Call, x: V, shifts: Sequence[int], dims: Sequence[int] = ()) -> V:
    if not dims:
        return Roll(tuple(shifts), (0,))(flat(x)).reshape(call.shape)
    return Roll(tuple(shifts), tuple(d % x.type.ndim for d in dims))(x)


@lowers("constant_pad_nd.default")
def _pad(call: Call, x: V, pad: Sequence[int], value: float = 0.0) -> V:
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    widths = [(0, 0)] * (x.type.ndim - len(pairs)) + pairs[::-1]
    for axis, (before, after) in enumerate(widths):  # what is negative cuts off
        if before < 0 or after < 0:
            x = part(x, axis, max(-before, 0), extents(x)[axis] + min(after, 0))
    return Pad(tuple((max(b, 0), max(a, 0)) for b, a in widths), "constant", value)(x)


# -- creation ----------------------------------------------------------------------------------


@lowers("full.default", "full_like.default", "new_full.default")
def _full(call: Call, first: Any, *args: Any, **kwargs: Any) -> V:
    value = args[-1] if args else kwargs["fill_value"]
    made: V = call.builder.apply(Full(call.shape, value, call.dtype), ())[0]
    return made


@lowers(
    "zeros.default",
    "zeros_like.default",
    "new_zeros.default",
    "empty.memory_format",
    "empty_like.default",
    "empty_strided.default",
    "new_empty.default",
    "new_empty_strided.default",
)
def _zeros(call: Call, *args: Any, **kwargs: Any) -> V:
    return call.builder.apply(Full(call.shape, 0, call.dtype), ())[0]


@lowers("ones.default", "ones_like.default", "new_ones.default")
def _ones(call: Call, *args: Any, **kwargs: Any) -> V:
    return call.builder.apply(Full(call.shape, 1, call.dtype), ())[0]


@lowers("scalar_tensor.default")
def _scalar(call: Call, value: Any, **kwargs: Any) -> V:
    return call.operand(value, call.dtype)


@lowers("arange.start_step")
def _arange(call: Call, start: Any, end: Any, step: Any = 1, **kwargs: Any) -> V:
    made: V = call.builder.apply(Iota(start, step, call.shape[0], call.dtype), ())[0]
    return made


@lowers("arange.default")
def _arange_end(call: Call, end: Any, **kwargs: Any) -> V:
    made: V = _arange(call, 0, end)
    return made


# -- indexing ----------------------------------------------------------------------------------


@lowers("embedding.default")
def _embedding(call: Call, weight: V, index: V, *args: Any) -> V:
    return Take(0)(weight, index)


@lowers("index_select.default")
def _index_select(call: Call, x: V, dim: int, index: V) -> V:
    return Take(dim % x.type.ndim)(x, index)


@lowers("gather.default")
def _gather(call: Call, x: V, dim: int, index: V, **kwargs: Any) -> V:
    axis = dim % x.type.ndim
    shape = extents(index)
    for i, extent in enumerate(extents(x)):
        if i != axis and extent != shape[i]:
            x = part(x, i, 0, shape[i])
    return TakeAlongAxis(axis)(x, index)


@lowers("scatter.src", "scatter.value")
def _scatter(call: Call, x: V, dim: int, index: V, src: Any) -> V:
    value = call.operand(src, x.type.dtype, x).broadcast_to(extents(index))
    return ScatterAlongAxis(dim % x.type.ndim)(x, index, value)


@lowers("scatter_add.default")
def _scatter_add(call: Call, x: V, dim: int, index: V, src: V) -> V:
    return AddAlongAxis(dim % x.type.ndim)(x, index, src)


def _axes_of(x: V, indices: Sequence[V | None]) -> tuple[tuple[int, ...], list[V]]:
    given = [(i, v) for i, v in enumerate(indices) if v is not None]
    if any(v.type.dtype in (dt.bool_, dt.uint8) for _, v in given):
        raise NotImplementedError("a mask picks as many elements as its data say")
    shape = extents(x)
    return tuple(i for i, _ in given), [from_start(v, shape[i]) for i, v in given]


@lowers("index.Tensor")
def _index(call: Call, x: V, indices: Sequence[V | None]) -> V:
    axes, given = _axes_of(x, indices)
    return Index(axes)(x, *given)


@lowers("index_put.default", "_unsafe_index_put.default")
def _index_put(
    call: Call, x: V, indices: Sequence[V | None], values: V, accumulate: bool = False
) -> V:
    if set(extents(values)) <= {1} and not accumulate and _is_mask(indices):
        return _filled(x, indices[0], values)
    axes, given = _axes_of(x, indices)
    picked = extents(Index(axes)(x, *given))
    op = (IndexAdd if accumulate else IndexUpdate)(axes)
    return op(x, values.astype(x.type.dtype).broadcast_to(picked), *given)


def _is_mask(indices: Sequence[V | None]) -> bool:
    """Whether a boolean tensor alone says which elements are meant."""
    mask, *rest = indices
    return mask is not None and mask.type.dtype is dt.bool_ and all(i is None for i in rest)


def _filled(x: V, mask: Any, value: V) -> V:
    """x with one value where the mask is true; the mask is over the first axes of x."""
    shape = extents(x)
    lined = mask.reshape((*extents(mask), *[1] * (len(shape) - mask.type.ndim)))
    made: V = Where()(lined, value.astype(x.type.dtype).reshape(()), x)
    return made.broadcast_to(shape)


# -- reductions --------------------------------------------------------------------------------


def _dims(x: V, dims: Any) -> tuple[int, ...]:
    if dims is None or dims == []:
        return tuple(range(x.type.ndim))
    given = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(d % x.type.ndim for d in given)) if x.type.ndim else ()


@lowers("sum.dim_IntList", "sum.default")
def _sum(call: Call, x: V, dims: Any = None, keepdim: bool = False, **kwargs: Any) -> V:
    return _over(reduce.Sum, x.astype(call.dtype), dims, keepdim)


def _over(op: Any, x: V, dims: Any, keepdim: bool) -> V:
    axes = _dims(x, dims)
    result: V = op(axes, keepdim)(x) if axes else x
    return result


@lowers("mean.dim", "mean.default")
def _mean(call: Call, x: V, dims: Any = None, keepdim: bool = False, **kwargs: Any) -> V:
    return _over(reduce.Mean, x.astype(call.dtype), dims, keepdim)


@lowers("amax.default", "max.default")
def _amax(call: Call, x: V, dims: Any = None, keepdim: bool = False) -> V:
    return _over(reduce.Max, x, dims, keepdim)


@lowers("amin.default", "min.default")
def _amin(call: Call, x: V, dims: Any = None, keepdim: bool = False) -> V:
    return _over(reduce.Min, x, dims, keepdim)


@lowers("prod.default", "prod.dim_int")
def _prod(call: Call, x: V, dims: Any = None, keepdim: bool = False, **kwargs: Any) -> V:
    return _over(reduce.Prod, x.astype(call.dtype), dims, keepdim)


@lowers("any.default", "any.dim", "any.dims")
def _any(call: Call, x: V, dims: Any = None, keepdim: bool = False) -> V:
    return _over(reduce.Any, truth(x), dims, keepdim)


@lowers("all.default", "all.dim", "all.dims")
def _all(call: Call, x: V, dims: Any = None, keepdim: bool = False) -> V:
    return _over(reduce.All, truth(x), dims, keepdim)


@lowers("var.correction")
def _var(call: Call, x: V, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> V:
    axes = _dims(x, dims)
    centered = x - reduce.Mean(axes, True)(x)
    count = int(np.prod([extents(x)[a] for a in axes]))
    total = reduce.Sum(axes, keepdim)(centered * centered)
    return total / max(count - (1 if correction is None else correction), 0)


@lowers("var_mean.correction")
def _var_mean(
    call: Call, x: V, dims: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> tuple[V, V]:
    found: V = _var(call, x, dims, correction=correction, keepdim=keepdim)
    return found, _over(reduce.Mean, x, dims, keepdim)


def _argument(op: Any) -> Any:
    def lower(call: Call, x: V, dim: Any = None, keepdim: bool = False) -> V:
        line = flat(x) if dim is None else x
        axis = 0 if dim is None else dim % x.type.ndim
        found: V = op(axis, keepdim and dim is not None)(line)
        return found.astype(dt.int64).reshape(call.shape)

    return lower


lowers("argmax.default")(_argument(reduce.Argmax))
lowers("argmin.default")(_argument(reduce.Argmin))


@lowers("max.dim")
def _max_dim(call: Call, x: V, dim: int, keepdim: bool = False) -> tuple[V, V]:
    axis = dim % x.type.ndim
    return reduce.Max((axis,), keepdim)(x), reduce.Argmax(axis, keepdim)(x).astype(dt.int64)


@lowers("min.dim")
def _min_dim(call: Call, x: V, dim: int, keepdim: bool = False) -> tuple[V, V]:
    axis = dim % x.type.ndim
    return reduce.Min((axis,), keepdim)(x), reduce.Argmin(axis, keepdim)(x).astype(dt.int64)


@lowers("topk.default")
def _topk(
    call: Call, x: V, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[V, V]:
    values, places = TopK(dim % x.type.ndim, k, largest, sorted).outputs(x)
    return values, places.astype(dt.int64)


@lowers("sort.default", "sort.stable")
def _sort(call: Call, x: V, dim: int = -1, descending: bool = False, **kwargs: Any) -> Any:
    axis = kwargs.get("dim", dim) % x.type.ndim
    values, places = Sort(axis, kwargs.get("descending", descending)).outputs(x)
    return values, places.astype(dt.int64)


@lowers("cumsum.default")
def _cumsum(call: Call, x: V, dim: int, **kwargs: Any) -> V:
    return CumSum(dim % x.type.ndim)(x.astype(call.dtype))


@lowers("cumprod.default")
def _cumprod(call: Call, x: V, dim: int, **kwargs: Any) -> V:
    return CumProd(dim % x.type.ndim)(x.astype(call.dtype))


@lowers("linalg_vector_norm.default")
def _norm(
    call: Call, x: V, ord: float = 2, dims: Any = None, keepdim: bool = False, **kw: Any
) -> V:
    if ord == 2:
        return unary.Sqrt()(_over(reduce.Sum, x * x, dims, keepdim))
    if ord == 1:
        return _over(reduce.Sum, unary.Abs()(x), dims, keepdim)
    raise NotImplementedError(f"norms of order {ord}")
