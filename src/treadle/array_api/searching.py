"""Sorting, searching, sets and places of elements."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from treadle.array_api import dtypes, elementwise
from treadle.array_api.array import Array, apply, as_array, cast, promote, require
from treadle.array_api.creation import full, ones, zeros_like
from treadle.array_api.manipulation import (
    astype,
    axis_of,
    concat,
    positions,
    reshape,
    taken,
)
from treadle.array_api.statistics import cumulative_sum, truth
from treadle.ops import reduce
from treadle.ops.gather import Nonzero
from treadle.ops.gather_along import ScatterAlongAxis, TakeAlongAxis
from treadle.ops.sort import Sort

__all__ = [
    "argmax",
    "argmin",
    "argsort",
    "nonzero",
    "searchsorted",
    "sort",
    "take",
    "take_along_axis",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]


def _sorted(name: str, x: Array, axis: int, descending: bool) -> tuple[Array, Array]:
    x = as_array(x, name)
    require(name, x, *elementwise.REAL)
    values, places = Sort(axis_of(axis, x.ndim, name), descending).outputs(x.real_part)
    return Array(values), Array(cast(places, dtypes.int64))


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Sorted elements along an axis; always stable."""
    return _sorted("sort", x, axis, descending)[0]


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """int64 indices that sort an axis; equal elements keep their order."""
    return _sorted("argsort", x, axis, descending)[1]


def _place(name: str, op: Any, x: Array, axis: int | None, keepdims: bool) -> Array:
    x = as_array(x, name)
    require(name, x, *elementwise.REAL)
    flat = reshape(x, (-1,)) if axis is None else x
    at = 0 if axis is None else axis_of(axis, x.ndim, name)
    found = Array(cast(apply(op(at, keepdims and axis is not None), flat.real_part), dtypes.int64))
    return reshape(found, (1,) * x.ndim) if axis is None and keepdims else found


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """int64 index of the first largest element, of the flat array for None."""
    return _place("argmax", reduce.Argmax, x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """int64 index of the first smallest element, of the flat array for None."""
    return _place("argmin", reduce.Argmin, x, axis, keepdims)


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """int64 indices of the elements that are not zero, one array per axis.

    Raises:
        ValueError: the array has no axes.
    """
    x = as_array(x, "nonzero")
    if not x.ndim:
        raise ValueError("nonzero: an array without axes has no indices")
    found = cast(apply(Nonzero(), truth(x).real_part), dtypes.int64)
    return tuple(Array(found[:, i]) for i in range(x.ndim))


def searchsorted(
    x1: Array,
    x2: Array,
    /,
    *,
    side: Literal["left", "right"] = "left",
    sorter: Array | None = None,
) -> Array:
    """Return where elements of x2 would go into the sorted x1: before or behind its equals.

    Raises:
        ValueError: x1 is not one line, or `side` is neither "left" nor "right".
    """
    if side not in ("left", "right"):
        raise ValueError(f'searchsorted: side is "left" or "right", not {side!r}')
    line, wanted = promote(as_array(x1, "searchsorted"), as_array(x2, "searchsorted"))
    require("searchsorted", line, *elementwise.REAL)
    if line.ndim != 1:
        raise ValueError(f"searchsorted: x1 has one axis, not {line.ndim}")
    if sorter is not None:
        line = taken(line, as_array(sorter), 0)
    low = zeros_like(wanted, dtype=dtypes.int64)
    high = full(wanted.shape, line.size, dtype=dtypes.int64, device=wanted.device)
    for _ in range(line.size.bit_length()):
        middle = elementwise.floor_divide(elementwise.add(low, high), 2)
        at = elementwise.clip(middle, 0, line.size - 1)
        found = reshape(taken(line, reshape(at, (-1,)), 0), wanted.shape)
        compare = elementwise.less if side == "left" else elementwise.less_equal
        open_ = elementwise.less(low, high)
        behind = elementwise.logical_and(compare(found, wanted), open_)
        before = elementwise.logical_and(elementwise.logical_not(behind), open_)
        low = elementwise.where(behind, elementwise.add(middle, 1), low)
        high = elementwise.where(before, middle, high)
    return low


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """Elements along an axis by their places.

    Raises:
        ValueError: an array of several axes is given without an axis.
    """
    x, places = as_array(x, "take"), as_array(indices, "take")
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: an array of {x.ndim} axes needs an axis")
        axis = 0
    at = axis_of(axis, x.ndim, "take")
    return taken(x, _counted(places, x.shape[at]), at)


def _counted(places: Array, extent: int) -> Array:
    """Places counted from the front."""
    known = astype(places, dtypes.int64)
    return elementwise.where(elementwise.less(known, 0), elementwise.add(known, extent), known)


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Elements along an axis, at places of their own for each line."""
    x, places = as_array(x, "take_along_axis"), as_array(indices, "take_along_axis")
    at = axis_of(axis, x.ndim, "take_along_axis")
    shape = [
        max(a, b) if i != at else 0
        for i, (a, b) in enumerate(zip(x.shape, places.shape, strict=True))
    ]
    wide = _beside(x, shape, at)
    known = _beside(_counted(places, x.shape[at]), shape, at).real_part
    return wide.map(lambda t: apply(TakeAlongAxis(at), t, known))


def _beside(x: Array, shape: list[int], axis: int) -> Array:
    """An array broadcast along all axes but one."""
    target = tuple(x.shape[i] if i == axis else d for i, d in enumerate(shape))
    return x if x.shape == target else x.map(lambda t: t.broadcast_to(target))


# -- sets --------------------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: Array
    inverse_indices: Array


def unique_all(x: Array, /) -> UniqueAll:
    """Distinct elements, where each is first, where each element went, and how often each is there.

    NaN differs from NaN. Complex numbers are sorted by their real parts, then by the others.
    """
    x = as_array(x, "unique_all")
    flat = reshape(x, (-1,))
    if not flat.size:
        none = positions(0, flat)
        return UniqueAll(flat, none, reshape(none, x.shape), none)
    order = _order(flat)
    line = taken(flat, order, 0)
    differs = elementwise.not_equal(line[1:], line[:-1])
    starts = concat([ones((1,), dtype=dtypes.bool, device=x.device), differs])
    at = nonzero(starts)[0]
    ends = concat([at[1:], full((1,), flat.size, dtype=dtypes.int64, device=x.device)])
    number = elementwise.subtract(cumulative_sum(astype(starts, dtypes.int64)), 1)
    scatter = ScatterAlongAxis(0)
    inverse = apply(scatter, number.real_part, order.real_part, number.real_part)
    return UniqueAll(
        taken(line, at, 0),
        taken(order, at, 0),
        reshape(Array(inverse), x.shape),
        elementwise.subtract(ends, at),
    )


def _order(flat: Array) -> Array:
    if flat.dtype == dtypes.bool:
        return argsort(astype(flat, dtypes.uint8))
    if flat.imag_part is None:
        return argsort(flat)
    second = argsort(Array(flat.imag_part))
    return taken(second, argsort(taken(Array(flat.real_part), second, 0)), 0)


def unique_counts(x: Array, /) -> UniqueCounts:
    """Distinct elements and how often each is there."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Array, /) -> UniqueInverse:
    """Distinct elements and where each element went."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Array, /) -> Array:
    """Distinct elements."""
    return unique_all(x).values
