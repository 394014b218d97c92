"""Physical layouts: in which order the axes of values lie in memory.

A layout is no attribute. A value held channels-last is a value of the graph with its axes in that
order, and transposes stand where an op or another value wants them otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from treadle.base.shape import Shape, is_static

Order = tuple[int, ...]
"""Axes in the order in which memory has them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """An order of the axes of [N, C, *S]; `name` is all that tells two apart."""

    name: str

    @lru_cache(64)  # noqa: B019, there are only so many layouts
    def order(self, rank: int) -> Order:
        """The axes of a value of this rank, outermost in memory first."""
        if self is CHANNELS_LAST and rank > 2:
            return (0, *range(2, rank), 1)
        return tuple(range(rank))


ROW_MAJOR = Layout("row-major")
CHANNELS_LAST = Layout("channels-last")
LAYOUTS = (ROW_MAJOR, CHANNELS_LAST)
"""The first of equals is taken, so row-major comes first."""


def inverse(order: Order) -> Order:
    """Where in memory each axis is; as a transpose, what undoes one by `order`."""
    return tuple(order.index(axis) for axis in range(len(order)))


def placed(shape: Shape, order: Order) -> Shape:
    """What has an entry per axis, in memory's order."""
    return tuple(shape[axis] for axis in order)


def keeps_place(shape: Shape, order: Order) -> bool:
    """Whether axes in this order are the same memory: only those of extent 1 change places."""
    long = [axis for axis in order if shape[axis] != 1]
    return long == sorted(long)


@lru_cache(1024)
def is_neutral(shape: Shape) -> bool:
    """Whether all layouts of a value are the same memory."""
    return all(keeps_place(shape, layout.order(len(shape))) for layout in LAYOUTS)


RANKS = range(3, 6)
"""Numbers of axes of values that have layouts: batch, channels, one to three of space."""


@lru_cache(1024)
def has_layouts(shape: Shape) -> bool:
    """Whether the layouts of a value of static shape are different memory."""
    return len(shape) in RANKS and is_static(shape) and not is_neutral(shape)


@dataclass(frozen=True, slots=True)
class Sides:
    """The layouts an op works with, one for each operand and each result; None has no layout."""

    operands: tuple[Layout | None, ...]
    results: tuple[Layout | None, ...]

    def count(self, layout: Layout) -> int:
        """How many of the values have this layout."""
        return (*self.operands, *self.results).count(layout)


def sides(layouts: Sequence[Layout], operands: Sequence[bool], results: Sequence[bool]) -> Sides:
    """`layouts` given to those operands, then results, that have one."""
    each = iter(layouts)
    return Sides(
        tuple([next(each) if has else None for has in operands]),
        tuple([next(each) if has else None for has in results]),
    )
