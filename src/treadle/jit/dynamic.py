"""Axes of arguments that may change, and their extents in a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.base.errors import ShapeError
from treadle.base.shape import Shape
from treadle.base.symbol import Expr, symbol
from treadle.tensor import Tensor

Axes = Mapping[int, Mapping[int, str]]
"""For arguments by number (flattened, from 0), the names of axes whose extents may change."""


@dataclass(frozen=True, slots=True)
class Extent:
    """An extent that may change, and what is known of it, for `jit.compile(dynamic=...)`.

    What is declared is checked at each call, and spares programs questions: they are compiled for
    what is left of their ranges, and a multiple divides.

    Args:
        name: axes of one name have equal extents.
        low, high: the least and the largest extent; None: there is no largest.
        multiple: extents are multiples of it.
        hint: the extent for which the program of its range is tuned, in place of one in the middle.
        edges: rising extents at which ranges with programs of their own begin, in place of 16, 128,
            1024 and so on. The last range ends with `high`; without, ranges go on by eighths.

    Raises:
        ShapeError: no extent of two or more fits, or a number is out of range or order.

    Example:
        >>> import treadle as mge
        >>> import treadle.functional as F
        >>> length = mge.jit.Extent("length", low=8, high=512, multiple=8)
        >>> halves = mge.jit.compile(dynamic={0: {0: length}})(lambda x: x.reshape(2, -1))
        >>> [halves(F.zeros(n)).shape for n in (8, 16, 64)]
        [(2, 4), (2, 8), (2, 32)]

        Programs for 2 to 31, and for 32 to 512, which is tuned for 64:

        >>> length = mge.jit.Extent("length", high=512, hint=64, edges=(32,))
    """

    name: str
    low: int = 0
    high: int | None = None
    multiple: int = 1
    hint: int | None = None
    edges: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        name: Any = self.name
        given: Any = self.edges
        edges: Any = tuple(given) if isinstance(given, list | tuple) else (None,)
        numbers: tuple[Any, ...] = self.low, self.multiple, self.high or 0, self.hint or 0, *edges
        are_whole = all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
        if not (isinstance(name, str) and name and are_whole):
            hint = "use a name, and whole numbers"
            raise ShapeError("jit.Extent", "no extent is declared so", saw=repr(self), hint=hint)
        if self.low < 0:
            raise ShapeError("jit.Extent", f"the least extent is {self.low}", hint="use 0 or more")
        try:
            symbol(self.name, max(2, self.low), self.high, self.multiple)
        except ShapeError:
            hint = "low and high are inclusive, high is 2 or more, multiple 1 or more"
            problem = "no extent of two or more fits"
            raise ShapeError("jit.Extent", problem, saw=repr(self), hint=hint) from None
        object.__setattr__(self, "edges", edges)
        ends = f"{self.low} to {'any' if self.high is None else self.high}"
        if list(edges) != sorted(set(edges)) or not all(map(self._holds, edges)):
            problem = f"edges {', '.join(map(str, edges))} do not rise from {ends}"
            hint = "an edge is the first extent of a range"
            raise ShapeError("jit.Extent", problem, saw=repr(self), hint=hint)
        tuned = self.hint
        if tuned is not None and (tuned < 2 or not self._holds(tuned) or tuned % self.multiple):
            problem = f"the hint {tuned} is not among the extents from {ends}"
            hint = "use one that calls have, of 2 or more"
            raise ShapeError("jit.Extent", problem, saw=repr(self), hint=hint)

    def _holds(self, extent: int) -> bool:
        return self.low <= extent and (self.high is None or extent <= self.high)

    def symbol(self) -> Expr:
        """The extent where it is two or more."""
        low, edges = max(2, self.low), tuple(e for e in self.edges if e > 2)
        return symbol(self.name, low, self.high, self.multiple, edges, self.hint)

    def check(self, extent: int) -> None:
        """Raise ShapeError for an extent that is not among those declared."""
        if extent < self.low or (self.high is not None and extent > self.high):
            most = "" if self.high is None else f" to {self.high}"
            problem = f"the extent {self.name!r} is {extent}, and declared as {self.low}{most}"
        elif extent % self.multiple:
            problem = f"the extent {self.name!r} is {extent}, and declared as a multiple of "
            problem += str(self.multiple)
        else:
            return
        raise ShapeError("jit.compile", problem, hint="pad the argument, or declare another range")


OpenAxes = Mapping[int, Mapping[int, str | Extent]]
Dynamic = OpenAxes | bool | None
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


def named_axes(given: OpenAxes) -> tuple[Axes, dict[str, Extent]]:
    """The names of axes, and by name what is declared of them.

    Raises:
        ShapeError: one name is declared in two ways.
    """
    bounds: dict[str, Extent] = {}
    for extent in (e for names in given.values() for e in names.values()):
        if isinstance(extent, Extent) and bounds.setdefault(extent.name, extent) != extent:
            known = bounds[extent.name]
            raise ShapeError(
                "jit.compile",
                f"dynamic extent {extent.name!r} is declared in two ways",
                saw=f"{known} and {extent}",
                hint="give one jit.Extent to all axes of a name",
            )
    names = {
        i: {a: e.name if isinstance(e, Extent) else e for a, e in axes.items()}
        for i, axes in given.items()
    }
    return names, bounds


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
        and all(_is_place(axis) and isinstance(name, str | Extent) for axis, name in axes.items())
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
        shape = leaf._data.shape if isinstance(leaf, Tensor) else ()
        if not isinstance(leaf, Tensor) or max(names, default=-1) >= len(shape):
            raise ShapeError(
                "jit.compile",
                f"argument {number} has no axes {sorted(names)} to be dynamic",
                saw=str(leaf.type) if isinstance(leaf, Tensor) else type(leaf).__name__,
                hint="arguments are counted from 0, in the order in which they are flattened",
            )
        for axis, name in names.items():
            extent = shape[axis]
            if found.setdefault(name, extent) != extent:
                raise ShapeError(
                    "jit.compile",
                    f"dynamic extent {name!r} is {found[name]} and {extent}",
                    saw=f"axis {axis} of argument {number}",
                    hint="give axes that differ different names",
                )
    return found


def symbolic_shapes(
    leaves: Sequence[Any], axes: Axes, bounds: Mapping[str, Extent]
) -> dict[int, Shape]:
    """Shapes of the arguments with symbols in place of named extents.

    Extents of 0 and 1 stay numbers, and symbols begin at 2: what is empty or broadcasts takes
    another course.
    """
    return {
        number: tuple(
            bounds.get(names[i], Extent(names[i])).symbol() if i in names and extent > 1 else extent
            for i, extent in enumerate(leaves[number].shape)
        )
        for number, names in axes.items()
    }
