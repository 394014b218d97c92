"""Statistical and utility functions: reductions, sums on the way, differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.array_api import complex_numbers, dtypes, elementwise
from treadle.array_api.array import Array, apply, as_array, broadcast, converted, require
from treadle.array_api.creation import ones, zeros
from treadle.array_api.dtypes import NumpyType
from treadle.array_api.manipulation import Axes, axes_of, axis_of, concat
from treadle.ops import reduce
from treadle.ops.cumulative import CumProd, CumSum
from treadle.tensor import Tensor

__all__ = [
    "all",
    "any",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]


def _accumulated(dtype: NumpyType, wanted: Any) -> NumpyType:
    """The type of a sum: integers are added in 64 bits unless another type is named."""
    if wanted is not None:
        return dtypes.as_numpy(wanted)
    if dtype in dtypes.UNSIGNED:
        return dtypes.uint64
    return dtypes.int64 if dtype in dtypes.SIGNED else dtype


def _reduced(op: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return lambda t: apply(op(axes, keepdims), t)


def sum(
    x: Array, /, *, axis: Axes | None = None, dtype: Any = None, keepdims: bool = False
) -> Array:
    """Sum over axes; integers in 64 bits unless another type is named."""
    x = as_array(x, "sum")
    require("sum", x, "numeric")
    wide = converted(x, _accumulated(x.dtype, dtype))
    return wide.map(_reduced(reduce.Sum, axes_of(axis, x.ndim, "sum"), keepdims))


def prod(
    x: Array, /, *, axis: Axes | None = None, dtype: Any = None, keepdims: bool = False
) -> Array:
    """Product over axes; integers in 64 bits unless another type is named."""
    x = as_array(x, "prod")
    require("prod", x, "numeric")
    wide, axes = converted(x, _accumulated(x.dtype, dtype)), axes_of(axis, x.ndim, "prod")
    if wide.imag_part is None:
        return wide.map(_reduced(reduce.Prod, axes, keepdims))
    for a in axes:
        wide = _halved(wide, a)
    if keepdims:
        return wide
    return wide.map(lambda t: t.reshape([d for i, d in enumerate(wide.shape) if i not in axes]))


def _halved(x: Array, axis: int) -> Array:
    """The product along an axis, which stays: of halves, of halves of these, ..."""
    before = (slice(None),) * axis
    if not x.shape[axis]:
        return ones((*x.shape[:axis], 1, *x.shape[axis + 1 :]), dtype=x.dtype, device=x.device)
    while (n := x.shape[axis]) > 1:
        half = n // 2
        rest = [x[(*before, slice(2 * half, n))]] if n % 2 else []
        first, second = x[(*before, slice(0, half))], x[(*before, slice(half, 2 * half))]
        x = concat([elementwise.multiply(first, second), *rest], axis=axis)
    return x


def mean(x: Array, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Mean over axes."""
    x = as_array(x, "mean")
    require("mean", x, *elementwise.FLOATING)
    return x.map(_reduced(reduce.Mean, axes_of(axis, x.ndim, "mean"), keepdims))


def var(
    x: Array,
    /,
    *,
    axis: Axes | None = None,
    correction: float = 0.0,
    keepdims: bool = False,
) -> Array:
    """Variance over axes: squares from the mean, divided by the count less the correction."""
    x = as_array(x, "var")
    require("var", x, "real floating")
    axes = axes_of(axis, x.ndim, "var")
    count = 1
    for a in axes:
        count *= x.shape[a]
    apart = elementwise.subtract(x, mean(x, axis=axes, keepdims=True))
    total = sum(elementwise.square(apart), axis=axes, keepdims=keepdims)
    return elementwise.divide(total, float(count) - correction)


def std(
    x: Array,
    /,
    *,
    axis: Axes | None = None,
    correction: float = 0.0,
    keepdims: bool = False,
) -> Array:
    """Standard deviation over axes: the root of `var`."""
    return elementwise.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def _extreme(name: str, op: Any, x: Array, axis: Axes | None, keepdims: bool) -> Array:
    x = as_array(x, name)
    require(name, x, *elementwise.REAL)
    return x.map(_reduced(op, axes_of(axis, x.ndim, name), keepdims))


def max(x: Array, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """The largest element over axes, NaN if there is one."""
    return _extreme("max", reduce.Max, x, axis, keepdims)


def min(x: Array, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """The smallest element over axes, NaN if there is one."""
    return _extreme("min", reduce.Min, x, axis, keepdims)


def truth(x: Array) -> Array:
    """Return whether elements are not zero."""
    return x if x.dtype == dtypes.bool else elementwise.not_equal(x, 0)


def all(x: Array, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Return whether no element over axes is zero."""
    x = truth(as_array(x, "all"))
    return x.map(_reduced(reduce.All, axes_of(axis, x.ndim, "all"), keepdims))


def any(x: Array, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Return whether an element over axes is not zero."""
    x = truth(as_array(x, "any"))
    return x.map(_reduced(reduce.Any, axes_of(axis, x.ndim, "any"), keepdims))


def count_nonzero(x: Array, /, *, axis: Axes | None = None, keepdims: bool = False) -> Array:
    """Count the elements over axes that are not zero."""
    ones_ = converted(truth(as_array(x, "count_nonzero")), dtypes.int64)
    return sum(ones_, axis=axis, keepdims=keepdims)


# -- on the way --------------------------------------------------------------------------------


def _running(
    name: str,
    x: Array,
    axis: int | None,
    dtype: Any,
    initial: Callable[..., Array] | None,
    compute: Callable[[Array, int], Array],
) -> Array:
    x = as_array(x, name)
    require(name, x, "numeric")
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"{name}: an array of {x.ndim} axes needs an axis")
        axis = 0
    at = axis_of(axis, x.ndim, name)
    made = compute(converted(x, _accumulated(x.dtype, dtype)), at)
    if initial is None:
        return made
    shape = (*made.shape[:at], 1, *made.shape[at + 1 :])
    return concat([initial(shape, dtype=made.dtype, device=made.device), made], axis=at)


def cumulative_sum(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
) -> Array:
    """Sums of the elements up to each one, after a zero with `include_initial`."""

    def compute(wide: Array, at: int) -> Array:
        return wide.map(lambda t: apply(CumSum(at), t))

    return _running("cumulative_sum", x, axis, dtype, zeros if include_initial else None, compute)


def cumulative_prod(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
) -> Array:
    """Products of the elements up to each one, after a one with `include_initial`."""

    def compute(wide: Array, at: int) -> Array:
        if wide.imag_part is None:
            return wide.map(lambda t: apply(CumProd(at), t))
        return _doubled(wide, at)

    return _running("cumulative_prod", x, axis, dtype, ones if include_initial else None, compute)


def _doubled(x: Array, axis: int) -> Array:
    """Running products of complex numbers: of 2, 4, 8, ... neighbors (Hillis and Steele 1986)."""
    reach, before = 1, (slice(None),) * axis
    while reach < x.shape[axis]:
        head, tail = x[(*before, slice(0, reach))], x[(*before, slice(reach, None))]
        behind = x[(*before, slice(0, x.shape[axis] - reach))]
        parts: list[tuple[Tensor, Tensor]] = []
        for part in (tail, behind):
            if part.imag_part is not None:
                parts.append((part.real_part, part.imag_part))
        x = concat([head, Array(*complex_numbers.multiply(*parts))], axis=axis)
        reach *= 2
    return x


def diff(
    x: Array,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Array | None = None,
    append: Array | None = None,
) -> Array:
    """Differences of neighbors along an axis, n times over.

    Raises:
        ValueError: n is below 0.
    """
    x = as_array(x, "diff")
    if n < 0:
        raise ValueError(f"diff: n is 0 or more, not {n}")
    at = axis_of(axis, x.ndim, "diff")
    ends = [None if v is None else as_array(v) for v in (prepend, append)]
    if n and (ends[0] is not None or ends[1] is not None):
        parts = [_beside(v, x, at) for v in (ends[0], x, ends[1]) if v is not None]
        x = concat(parts, axis=at)
    before = (slice(None),) * at
    for _ in range(n):
        later, earlier = x[(*before, slice(1, None))], x[(*before, slice(0, max_of(x, at)))]
        x = elementwise.subtract(later, earlier)
    return x


def max_of(x: Array, axis: int) -> int:
    """Return the number of differences along an axis."""
    return x.shape[axis] - 1 if x.shape[axis] else 0


def _beside(v: Array, x: Array, axis: int) -> Array:
    if v.ndim:
        return v
    return broadcast(v, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
