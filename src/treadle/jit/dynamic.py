"""Axes of arguments that may change, and their extents in a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.base.errors import ShapeError
from treadle.base.shape import Shape
from treadle.base.symbol import symbol
from treadle.tensor import Tensor

Axes = Mapping[int, Mapping[int, str]]
"""For arguments by number (flattened, from 0), the names of axes whose extents may change."""
Dynamic = Axes | bool | None
"""Such names; True for all axes, False for none, None for those that are seen to change."""


def checked_axes(given: Any) -> Dynamic:
    """Check and return the value of `dynamic=`.

    Raises:
        ShapeError: it is not a mapping of arguments to mappings of axes to names.
    """
    if given is None or isinstance(given, bool):
        return given
    if isinstance(given, Mapping) and all(_names_axes(n, axes) for n, axes in given.items()):
        return dict(given)
    raise ShapeError(
        "jit.compile",
        "dynamic does not say which axes may change",
        saw=repr(given),
        hint="name axes by argument and axis, as in {0: {0: 'batch', 1: 'length'}}, or say True",
    )


def declared_axes(function: Any, args: Any, kwargs: Any) -> Axes:
    """Axes that an imported model declares to be open; none where a call does not fit them."""
    declared: Axes = getattr(function, "open_axes", {})
    if not declared or kwargs or not all(isinstance(x, Tensor) for x in args):
        return {}
    axes = {i: names for i, names in declared.items() if i < len(args)}
    try:
        extents_of(args, axes)
    except ShapeError:  # The model uses one name for extents that differ, or the call is wrong.
        return {}
    return axes


def _names_axes(argument: Any, axes: Any) -> bool:
    return (
        _is_place(argument)
        and isinstance(axes, Mapping)
        and all(_is_place(axis) and isinstance(name, str) for axis, name in axes.items())
    )


def _is_place(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def extents_of(leaves: Sequence[Any], axes: Axes) -> dict[str, int]:
    """The extent behind every name.

    Raises:
        ShapeError: an argument has no such axis, or one name stands for two extents.
    """
    found: dict[str, int] = {}
    for number, names in axes.items():
        leaf = leaves[number] if number < len(leaves) else None
        if not isinstance(leaf, Tensor) or max(names, default=-1) >= leaf.ndim:
            raise ShapeError(
                "jit.compile",
                f"argument {number} has no axes {sorted(names)} to be dynamic",
                saw=str(leaf.type) if isinstance(leaf, Tensor) else type(leaf).__name__,
                hint="arguments are counted from 0, in the order in which they are flattened",
            )
        for axis, name in names.items():
            extent = leaf.shape[axis]
            if found.setdefault(name, extent) != extent:
                raise ShapeError(
                    "jit.compile",
                    f"dynamic extent {name!r} is {found[name]} and {extent}",
                    saw=f"axis {axis} of argument {number}",
                    hint="give axes that differ different names",
                )
    return found


def symbolic_shapes(leaves: Sequence[Any], axes: Axes) -> dict[int, Shape]:
    """Shapes of the arguments with symbols in place of named extents.

    Extents of 0 and 1 stay numbers, and symbols begin at 2: what is empty or broadcasts takes
    another course.
    """
    return {
        number: tuple(
            symbol(names[i], 2) if i in names and extent > 1 else extent
            for i, extent in enumerate(leaves[number].shape)
        )
        for number, names in axes.items()
    }
