"""Reductions, orders and running sums of ATen."""

from __future__ import annotations

import math
from typing import Any

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.elementwise import truth
from treadle.interop.torch.shaping import extents, flat
from treadle.interop.torch.table import OperatorCall, along_axes, amount, axis_of, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce, unary
from treadle.ops.cumulative import CumProd, CumSum
from treadle.ops.gather_along import TakeAlongAxis
from treadle.ops.select import Where
from treadle.ops.sort import Sort, TopK

V = GraphOperand


def _dims(x: V, dims: Any) -> tuple[int, ...]:
    if dims is None or dims == []:
        return tuple(range(x.type.ndim))
    given = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(axis_of(d, x) for d in given))


def over(op: Any, x: V, dims: Any, keepdim: bool) -> V:
    """A reduction over axes as ATen names them: None and [] are all."""
    result: V = op(_dims(x, dims), keepdim)(x)
    return result


def _reduction(op: Any, *names: str) -> None:
    @along_axes
    def lower(
        call: OperatorCall, x: V, dims: Any = None, keepdim: bool = False, **kwargs: Any
    ) -> V:
        return over(op, x.astype(call.dtype), dims, keepdim)

    lowers(*names)(lower)


_reduction(reduce.Sum, "sum.dim_IntList", "sum.default")
_reduction(reduce.Mean, "mean.dim", "mean.default")
_reduction(reduce.Prod, "prod.default", "prod.dim_int")


def _extremum(op: Any, of_truth: Any, *names: str) -> None:
    @along_axes
    def lower(call: OperatorCall, x: V, dims: Any = None, keepdim: bool = False) -> V:
        return over(of_truth if x.type.dtype is dt.bool_ else op, x, dims, keepdim)

    lowers(*names)(lower)


_extremum(reduce.Max, reduce.Any, "amax.default", "max.default")
_extremum(reduce.Min, reduce.All, "amin.default", "min.default")


def _quantifier(op: Any, *names: str) -> None:
    @along_axes
    def lower(call: OperatorCall, x: V, dims: Any = None, keepdim: bool = False) -> V:
        return over(op, truth(x), dims, keepdim).astype(call.dtype)

    lowers(*names)(lower)


_quantifier(reduce.Any, "any.default", "any.dim", "any.dims")
_quantifier(reduce.All, "all.default", "all.dim", "all.dims")


@lowers("var.correction")
@along_axes
def _var(
    call: OperatorCall, x: V, dims: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> V:
    axes = _dims(x, dims)
    wide = x.astype(dt.float32) if x.type.dtype.itemsize < 4 else x
    centered = wide - reduce.Mean(axes, True)(wide)
    count = math.prod(extents(x)[a] for a in axes)
    total = reduce.Sum(axes, keepdim)(centered * centered)
    least = max(count - (1 if correction is None else correction), 0)
    return (total / amount(total, least)).astype(x.type.dtype)


@lowers("var_mean.correction")
@along_axes
def _var_mean(
    call: OperatorCall, x: V, dims: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> tuple[V, V]:
    found: V = _var(call, x, dims, correction=correction, keepdim=keepdim)
    return found, over(reduce.Mean, x, dims, keepdim)


# -- places ------------------------------------------------------------------------------------


def ordered(x: V) -> V:
    """x as an element type that has an order: truths are 0 and 1."""
    return x.astype(dt.uint8) if x.type.dtype is dt.bool_ else x


def _argument(op: Any) -> Any:
    @along_axes
    def lower(call: OperatorCall, x: V, dim: Any = None, keepdim: bool = False) -> V:
        line = flat(x) if dim is None else x
        axis = 0 if dim is None else axis_of(dim, x)
        found: V = op(axis, keepdim and dim is not None)(ordered(line))
        return found.astype(dt.int64).reshape(call.shape)

    return lower


lowers("argmax.default")(_argument(reduce.Argmax))
lowers("argmin.default")(_argument(reduce.Argmin))


def _extremum_and_place(op: Any, argument: Any) -> Any:
    @along_axes
    def lower(call: OperatorCall, x: V, dim: int, keepdim: bool = False) -> tuple[V, V]:
        axis, y = axis_of(dim, x), ordered(x)
        values = op((axis,), keepdim)(y)
        values = truth(values) if x.type.dtype is dt.bool_ else values
        return values, argument(axis, keepdim)(y).astype(dt.int64)

    return lower


lowers("max.dim")(_extremum_and_place(reduce.Max, reduce.Argmax))
lowers("min.dim")(_extremum_and_place(reduce.Min, reduce.Argmin))


@lowers("topk.default")
@along_axes
def _topk(
    call: OperatorCall, x: V, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[V, V]:
    values, places = TopK(axis_of(dim, x), k, largest, sorted).outputs(ordered(x))
    return values.astype(x.type.dtype), places.astype(dt.int64)


@lowers("sort.default", "sort.stable")
@along_axes
def _sort(call: OperatorCall, x: V, *args: Any, **kwargs: Any) -> Any:
    """`sort.stable` takes its attributes by name."""
    given = dict(zip(("dim", "descending"), args, strict=False)) | kwargs
    dim, descending = given.get("dim", -1), bool(given.get("descending", False))
    values, places = Sort(axis_of(dim, x), descending).outputs(ordered(x))
    return values.astype(x.type.dtype), places.astype(dt.int64)


@lowers("kthvalue.default")
@along_axes
def _kth(call: OperatorCall, x: V, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return call.shaped(_at_place(x, axis_of(dim, x), k - 1))


def _at_place(x: V, axis: int, place: int | V) -> tuple[V, V]:
    """The element that ascending order puts at a place, and where it stood."""
    values, places = Sort(axis, False).outputs(ordered(x))
    index = place
    if not isinstance(index, GraphOperand):
        index = values.constant([[place]], dt.int64).reshape((1,) * x.type.ndim)
        index = index.broadcast_to(tuple(1 if i == axis else d for i, d in enumerate(extents(x))))
    take = TakeAlongAxis(axis)
    return take(values, index).astype(x.type.dtype), take(places, index).astype(dt.int64)


@lowers("median.default")
def _median(call: OperatorCall, x: V) -> V:
    if not math.prod(extents(x)):
        raise NotImplementedError("the median of nothing")
    return _median_and_place(flat(x), 0)[0].reshape(call.shape)


@lowers("median.dim")
@along_axes
def _median_dim(call: OperatorCall, x: V, dim: int, keepdim: bool = False) -> Any:
    return call.shaped(_median_and_place(x, axis_of(dim, x)))


def _median_and_place(x: V, axis: int) -> tuple[V, V]:
    """The lower of two middles; NaN where there is one."""
    found = _at_place(x, axis, (extents(x)[axis] - 1) // 2)
    if not x.type.dtype.is_float:
        return found
    last = reduce.Argmax(axis, True)(x)  # NaN counts as the greatest
    value = TakeAlongAxis(axis)(x, last.astype(dt.int64))
    bad = logic.IsNan()(value)
    return Where()(bad, value, found[0]), Where()(bad, last.astype(dt.int64), found[1])


def _known_median_and_place(x: V, axis: int) -> tuple[V, V]:
    """The lower of two middles of what is a number; NaN where nothing is."""
    if not x.type.dtype.is_float:
        return _median_and_place(x, axis)
    known = logic.LogicalNot()(logic.IsNan()(x)).astype(dt.int64)
    count = reduce.Sum((axis,), True)(known)
    middle = (ew.Maximum()(count, count.constant(1)) - 1) // 2
    return _at_place(x, axis, middle)


@lowers("nanmedian.default")
def _nanmedian(call: OperatorCall, x: V) -> V:
    if not math.prod(extents(x)):
        raise NotImplementedError("the median of nothing")
    return _known_median_and_place(flat(x), 0)[0].reshape(call.shape)


@lowers("nanmedian.dim")
@along_axes
def _nanmedian_dim(call: OperatorCall, x: V, dim: int, keepdim: bool = False) -> Any:
    return call.shaped(_known_median_and_place(x, axis_of(dim, x)))


# -- running -----------------------------------------------------------------------------------


def _running(op: Any, *names: str) -> None:
    @along_axes
    def lower(call: OperatorCall, x: V, dim: int, **kwargs: Any) -> V:
        made: V = op(axis_of(dim, x))(x.astype(call.dtype))
        return made

    lowers(*names)(lower)


_running(CumSum, "cumsum.default")
_running(CumProd, "cumprod.default")


# -- norms -------------------------------------------------------------------------------------


@lowers("linalg_vector_norm.default")
@along_axes
def _norm(
    call: OperatorCall, x: V, ord: float = 2, dims: Any = None, keepdim: bool = False, **kw: Any
) -> V:
    y = x.astype(call.dtype)
    if ord == 2:
        return unary.Sqrt()(over(reduce.Sum, y * y, dims, keepdim))
    size = unary.Abs()(y)
    if ord == 1:
        return over(reduce.Sum, size, dims, keepdim)
    if math.isinf(ord):
        return over(reduce.Max if ord > 0 else reduce.Min, size, dims, keepdim)
    if ord == 0:
        some = logic.NotEqual()(y, y.constant(0)).astype(call.dtype)
        return over(reduce.Sum, some, dims, keepdim)
    total = over(reduce.Sum, ew.Pow()(size, size.constant(ord)), dims, keepdim)
    return ew.Pow()(total, total.constant(1 / ord))
