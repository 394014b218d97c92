"""Functions that move elements, and casts."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

from treadle.array_api import dtypes
from treadle.array_api.array import Array, apply, as_array, cast, converted, promote, whole
from treadle.array_api.array import broadcast as broadcast_array
from treadle.array_api.creation import arange, asarray
from treadle.base.dtype import as_dtype
from treadle.base.shape import broadcast_shapes, normalize_axis
from treadle.ops.gather import Take
from treadle.ops.movement import Concat, Flip, Reshape, Roll, Transpose
from treadle.tensor import Tensor

__all__ = [
    "astype",
    "broadcast_arrays",
    "broadcast_to",
    "concat",
    "expand_dims",
    "flip",
    "moveaxis",
    "permute_dims",
    "repeat",
    "reshape",
    "roll",
    "squeeze",
    "stack",
    "tile",
    "unstack",
]

Axes = int | tuple[int, ...]


def axis_of(axis: int, ndim: int, name: str) -> int:
    """An axis counted from the front.

    Raises:
        ShapeError: there is no such axis.
        TypeError: the axis is not an integer.
    """
    return normalize_axis(whole(axis, name), ndim, name)


def some(arrays: Sequence[Array], name: str) -> list[Array]:
    """Return the arrays to be joined, of which there must be some.

    Raises:
        ValueError: there is no array.
    """
    given = [as_array(a, name) for a in arrays]
    if not given:
        raise ValueError(f"{name}: at least one array is needed")
    return given


def _once(places: Sequence[int], axes: Any, name: str) -> None:
    if len(set(places)) != len(places):
        raise ValueError(f"{name}: an axis is named twice: {axes}")


def axes_of(axes: Axes | None, ndim: int, name: str) -> tuple[int, ...]:
    """Axes counted from the front, in order; all of them for None."""
    if axes is None:
        return tuple(range(ndim))
    given = axes if isinstance(axes, (tuple, list)) else (axes,)
    found = tuple(sorted(axis_of(a, ndim, name) for a in given))
    _once(found, axes, name)
    return found


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """x in another type; complex numbers do not become real ones.

    Raises:
        TypeError: complex numbers are to become real ones.
    """
    x = as_array(x, "astype")
    wanted = dtypes.as_numpy(dtype)
    moved = x if device is None else x.to_device(device)
    if wanted == dtypes.bool and moved.imag_part is not None:
        nothing = (t == 0.0 for t in moved.parts)
        return Array(~functools.reduce(operator.and_, nothing))
    made = converted(moved, wanted)
    return made[...] if copy else made


def reshape(x: Array, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Array:
    """The same elements under another shape, of which one extent may be -1.

    Raises:
        ValueError: `copy` is False: a reshaped array is always one of its own; more than one
            extent is -1.
    """
    x = as_array(x, "reshape")
    if copy is False and tuple(shape) != x.shape:
        raise ValueError("reshape: arrays do not share elements; leave copy out")
    extents = [whole(d, "reshape") for d in shape]
    if extents.count(-1) > 1:
        raise ValueError(f"reshape: one extent may be -1, not {extents.count(-1)} of {shape}")
    if -1 in extents:
        known = math.prod(d for d in extents if d != -1)
        extents[extents.index(-1)] = x.size // known if known else 0
    return x.map(lambda t: apply(Reshape(tuple(extents)), t))


def broadcast_to(x: Array, /, shape: tuple[int, ...]) -> Array:
    """x repeated along axes to a larger shape."""
    return broadcast_array(as_array(x), tuple(whole(d, "broadcast_to") for d in shape))


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """Arrays under the shape that all of them broadcast to."""
    given = [as_array(a) for a in arrays]
    shape = broadcast_shapes("broadcast_arrays", *(a.shape for a in given))
    return [broadcast_to(a, tuple(int(d) for d in shape)) for a in given]


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Arrays end to end along an axis; flattened first for None.

    Raises:
        ValueError: there is no array.
    """
    given = promote(*some(arrays, "concat"))
    if axis is None:
        given, axis = [reshape(a, (-1,)) for a in given], 0
    op = Concat(axis_of(axis, given[0].ndim, "concat"))
    real = apply(op, *(a.real_part for a in given))
    parts = [a.imag_part for a in given if a.imag_part is not None]
    return Array(real, apply(op, *parts)) if parts else Array(real)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Arrays of one shape along a new axis.

    Raises:
        ValueError: there is no array, or their shapes differ.
    """
    given = some(arrays, "stack")
    for a in given:
        if a.shape != given[0].shape:
            raise ValueError(f"stack: the shapes {given[0].shape} and {a.shape} differ")
    at = axis_of(axis, given[0].ndim + 1, "stack")
    return concat([expand_dims(a, at) for a in given], axis=at)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices along an axis, without it."""
    x = as_array(x, "unstack")
    at = axis_of(axis, x.ndim, "unstack")
    before = (slice(None),) * at
    return tuple(x[(*before, i)] for i in range(x.shape[at]))


def expand_dims(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """New axes of one element where they are to be in the result.

    Raises:
        IndexError: there is no such place.
        ValueError: a place is named twice.
    """
    x = as_array(x, "expand_dims")
    places = [whole(a, "expand_dims") for a in (axis if isinstance(axis, tuple) else (axis,))]
    rank = x.ndim + len(places)
    if any(not -rank <= a < rank for a in places):
        raise IndexError(f"expand_dims: axis {axis} is not a place in {rank} axes")
    new = [a % rank for a in places]
    _once(new, axis, "expand_dims")
    extents = iter(x.shape)
    return reshape(x, tuple(1 if i in new else next(extents) for i in range(rank)))


def squeeze(x: Array, /, axis: Axes) -> Array:
    """x without axes of one element.

    Raises:
        ValueError: an axis has another extent.
    """
    x = as_array(x, "squeeze")
    dropped = axes_of(axis, x.ndim, "squeeze")
    if any(x.shape[a] != 1 for a in dropped):
        raise ValueError(f"squeeze: an axis of {axis} in {x.shape} is not of extent 1")
    return reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in dropped))


def flip(x: Array, /, *, axis: Axes | None = None) -> Array:
    """The elements in reverse order along axes."""
    x = as_array(x, "flip")
    op = Flip(axes_of(axis, x.ndim, "flip"))
    return x.map(lambda t: apply(op, t)) if op.axes else x[...]


def permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
    """Axes in another order."""
    x = as_array(x, "permute_dims")
    order = tuple(axis_of(a, x.ndim, "permute_dims") for a in axes)
    return x.map(lambda t: apply(Transpose(order), t))


def moveaxis(x: Array, source: Axes, destination: Axes, /) -> Array:
    """Axes moved to other places; the others keep their order.

    Raises:
        ValueError: an axis is named twice, or there are not as many places as axes.
    """
    x = as_array(x, "moveaxis")
    of, to = (
        tuple(axis_of(a, x.ndim, "moveaxis") for a in ((v,) if isinstance(v, int) else v))
        for v in (source, destination)
    )
    _once(of, source, "moveaxis")
    _once(to, destination, "moveaxis")
    if len(of) != len(to):
        raise ValueError(f"moveaxis: {len(of)} axes do not go to {len(to)} places")
    places = dict(zip(to, of, strict=True))
    rest = iter([a for a in range(x.ndim) if a not in places.values()])
    return permute_dims(x, tuple(places[i] if i in places else next(rest) for i in range(x.ndim)))


def roll(x: Array, /, shift: Axes, *, axis: Axes | None = None) -> Array:
    """Elements moved along axes, those that leave an end entering at the other.

    Raises:
        ValueError: there are not as many shifts as axes.
    """
    x = as_array(x, "roll")
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    given = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    shifts = [whole(v, "roll") for v in given]
    if len(shifts) != len(axes):
        raise ValueError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    moved: dict[int, int] = {}
    for a, s in zip(axes, shifts, strict=True):
        at = axis_of(a, x.ndim, "roll")
        moved[at] = moved.get(at, 0) + s
    op = Roll(tuple(moved.values()), tuple(moved))
    return x.map(lambda t: apply(op, t)) if x.size else x[...]


def tile(x: Array, repetitions: tuple[int, ...], /) -> Array:
    """x repeated as a whole along axes.

    Raises:
        ValueError: a count is below 0.
    """
    x = as_array(x, "tile")
    if any(whole(n, "tile") < 0 for n in repetitions):
        raise ValueError(f"tile: counts are 0 or more, not {repetitions}")
    rank = max(x.ndim, len(repetitions))
    counts = (1,) * (rank - len(repetitions)) + tuple(repetitions)
    shape = (1,) * (rank - x.ndim) + x.shape
    apart = tuple(d for pair in zip((1,) * rank, shape, strict=True) for d in pair)
    spread = tuple(d for pair in zip(counts, shape, strict=True) for d in pair)
    made = broadcast_to(reshape(x, apart), spread)
    return reshape(made, tuple(n * d for n, d in zip(counts, shape, strict=True)))


def repeat(x: Array, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Every element several times, next to one another; as often as its count says.

    Raises:
        ValueError: a count is below 0.
        TypeError: counts are not integers.
    """
    x = as_array(x, "repeat")
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    at = axis_of(axis, x.ndim, "repeat")
    if isinstance(repeats, int):
        if repeats < 0:
            raise ValueError(f"repeat: a count is 0 or more, not {repeats}")
        wide = expand_dims(x, at + 1)
        shape = (*x.shape[: at + 1], repeats, *x.shape[at + 1 :])
        made = (*x.shape[:at], x.shape[at] * repeats, *x.shape[at + 1 :])
        return reshape(broadcast_to(wide, shape), made)
    given = asarray(repeats)
    if given.size and not dtypes.isdtype(given.dtype, "integral"):
        raise TypeError(f"repeat: counts are integers, not {given.dtype}")
    counts = broadcast_to(astype(given, dtypes.int64), (x.shape[at],)).numpy().tolist()
    if any(n < 0 for n in counts):
        raise ValueError(f"repeat: a count is 0 or more, not {min(counts)}")
    places = [i for i, n in enumerate(counts) for _ in range(n)]
    return taken(x, asarray(places, dtype=dtypes.int64), at)


def taken(x: Array, indices: Array, axis: int) -> Array:
    """Elements along an axis by their places."""
    places = cast(indices.real_part, dtypes.int64)
    if not places.size:
        shape = (*x.shape[:axis], 0, *x.shape[axis + 1 :])
        return x.map(lambda t: apply(Reshape(shape), _none_of(t, axis)))
    return x.map(lambda t: apply(Take(axis), t, places))


def _none_of(x: Tensor, axis: int) -> Tensor:
    return x[(slice(None),) * axis + (slice(0, 0),)]


def positions(count: int, like: Array) -> Array:
    """0, 1, ... beside an array."""
    return arange(count, dtype=as_dtype("int64"), device=like.device)
