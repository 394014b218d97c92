"""Shapes: tuples of extents, and the rules that ops share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from treadle.base.errors import ShapeError, TreadleError
from treadle.base.guards import is_equal, require
from treadle.base.symbol import D, Dim, Expr, Relation, equal, is_identical

Shape: TypeAlias = tuple[Dim, ...]


def is_static(shape: Iterable[Dim]) -> bool:
    """Return whether every extent is a plain int."""
    return all([type(d) is int or not isinstance(d, Expr) for d in shape])


def size_of(shape: Sequence[Dim]) -> int:
    """Number of elements of a static shape; a symbolic one raises `ShapeError`."""
    return math.prod(int(d) for d in shape)


def product(dims: Iterable[Dim]) -> Dim:
    """Product of extents, symbolic ones included."""
    result: Dim = 1
    for d in dims:
        result = result * d
    return result


def format_shape(shape: Iterable[Dim]) -> str:
    """`[2,n]`: the text form of a shape, as messages and graphs print it."""
    return "[" + ",".join(str(d) for d in shape) + "]"


def require_equal(x: Dim, y: Dim, otherwise: Callable[[], TreadleError]) -> None:
    """State that two extents are equal; see `symbol.require`."""
    if isinstance(x, int) and isinstance(y, int):
        if x != y:
            raise otherwise()
    elif x is not y:
        require(equal(x, y), otherwise)


def require_relation(relation: Relation, op: str, problem: str, hint: str = "") -> None:
    """State a relation between extents; a `ShapeError` of `op` says `problem` if it fails."""
    require(relation, lambda: ShapeError(op, problem, saw=str(relation), hint=hint))


def normalize_axis(axis: int, ndim: int, op: str) -> int:
    """`axis` counted from the front; out of range raises `ShapeError`."""
    if not -ndim <= axis < ndim:
        raise ShapeError(
            op,
            f"axis {axis} is out of range for {ndim} axes",
            saw=f"axis={axis}, ndim={ndim}",
            hint=f"use an axis from {-ndim} to {ndim - 1}" if ndim else "a scalar has no axes",
        )
    return axis % ndim


def normalize_axes(axes: int | Iterable[int] | None, ndim: int, op: str) -> tuple[int, ...]:
    """Sorted non-negative axes; None means all of them, duplicates raise `ShapeError`."""
    if axes is None:
        return tuple(range(ndim))
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    result = sorted(normalize_axis(int(a), ndim, op) for a in given)
    if len(set(result)) != len(result):
        raise ShapeError(
            op,
            f"an axis appears twice in {given}",
            saw=f"axis={given}, ndim={ndim}",
            hint="name every axis once; -1 is the last one",
        )
    return tuple(result)


def is_same(x: Shape, y: Shape) -> bool:
    """Return whether two shapes are equal, as far as the call tells (see `symbol.is_equal`)."""
    return x is y or (len(x) == len(y) and all(map(is_equal, x, y)))


def broadcast_shapes(op: str, *shapes: Shape) -> Shape:
    """NumPy's broadcasting rule over one or more shapes.

    Raises:
        ShapeError: two extents on one axis differ and neither is 1.
    """
    if all(is_same(s, shapes[0]) for s in shapes):
        return shapes[0]
    ndim = max(len(s) for s in shapes)
    result: list[Dim] = []
    for axis in range(-ndim, 0):
        extent: Dim = 1
        for shape in shapes:
            if -axis <= len(shape):
                extent = _broadcast_dim(op, extent, shape[axis], axis, shapes)
        result.append(extent)
    return tuple(result)


def _broadcast_dim(op: str, x: Dim, y: Dim, axis: int, shapes: tuple[Shape, ...]) -> Dim:
    if is_equal(y, 1) or is_equal(x, y):
        return x
    if is_equal(x, 1):
        return y
    require_equal(
        x,
        y,
        lambda: ShapeError(
            op,
            f"cannot broadcast axis {axis}: {x} against {y}",
            saw=", ".join(format_shape(s) for s in shapes),
            hint="reshape one operand so that this axis is equal or 1",
        ),
    )
    return x if isinstance(x, int) else y


def can_broadcast(shape: Shape, target: Shape) -> bool:
    """Return whether `shape` broadcasts to exactly `target` without any guard."""
    if len(shape) > len(target):
        return False
    offset = len(target) - len(shape)
    pairs = zip(shape, target[offset:], strict=True)
    return all(is_equal(d, 1) or is_equal(d, t) for d, t in pairs)


def row_major_strides(shape: Sequence[D]) -> tuple[D, ...]:
    """Strides of a dense row-major array, in elements."""
    strides: list[D] = []
    step: D = 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * (1 if is_identical(extent, 0) else extent)
    return tuple(reversed(strides))
