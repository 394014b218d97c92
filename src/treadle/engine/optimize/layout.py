"""Physical layouts: in which order the axes of values lie in memory.

A layout is not an attribute. A value held channels-last is a value of the graph with its axes in
that order, one held in blocks has its channels as two axes, and moves stand where an op or another
value wants them otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from treadle.backends.program import MapLayout
from treadle.base.errors import GraphError
from treadle.base.shape import Shape
from treadle.base.symbol import Dim, is_identical
from treadle.ops.movement import Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.orders import Order, inverse, placed
from treadle.ops.slicing import Pad, Slice

Moves = tuple[Op, ...]
"""Ops that move elements, the first one first."""


@dataclass(frozen=True, slots=True)
class Layout:
    """An order of [N, C, *S] in memory.

    With a `block` of c channels it is [N, C / c, *S, c]: channels that are not a multiple of c are
    filled up with whatever is at hand, and left out where they are read. Values of one channel have
    blocks of one.

    Attributes:
        name: what reports call it.
        block: channels of a block; 0: the axes are only permuted.
        dense, depthwise, windows: speed of kernels, as shares of that of channels-last ones.
        columns, narrow: channels that a convolution computes side by side, at most and at least.
    """

    name: str
    block: int = 0
    dense: float = 1.0
    depthwise: float = 1.0
    windows: float = 1.0
    columns: int = 16
    narrow: int = 8

    @staticmethod
    def of(given: MapLayout) -> Layout:
        """Return the layout that a target states."""
        name = f"blocks of {given.block} channels" if given.block else given.name
        speeds = given.dense, given.depthwise, given.windows
        made = Layout(name, given.block, *speeds, given.columns, given.narrow)
        return CHANNELS_LAST if made == CHANNELS_LAST else made

    @lru_cache(64)  # noqa: B019, there are only so many layouts
    def order(self, rank: int) -> Order:
        """The axes of a value of this rank, outermost in memory first; blocks count as one."""
        if self is not ROW_MAJOR and not self.block and rank > 2:
            return (0, *range(2, rank), 1)
        return tuple(range(rank))

    def has_blocks(self, rank: int) -> bool:
        """Return whether values of this rank have channels in two axes."""
        return self.block > 0 and rank > 2

    def blocks(self, channels: Dim) -> tuple[int, int]:
        """Return how many blocks channels take, and how many each has."""
        count = int(channels)
        return (1, 1) if count == 1 else (-(-count // self.block), self.block)

    def filled(self, channels: Dim) -> int:
        """Channels, and those that fill up the last block."""
        return prod(self.blocks(channels)) if self.block else int(channels)

    @lru_cache(1024)  # noqa: B019
    def held(self, shape: Shape) -> Shape:
        """The shape of a value of shape [N, C, *S] as it is held."""
        if not self.has_blocks(len(shape)):
            return placed(shape, self.order(len(shape)))
        count, size = self.blocks(shape[1])
        return (shape[0], count, *shape[2:], size)

    @lru_cache(1024)  # noqa: B019
    def into(self, shape: Shape) -> Moves:
        """Return the moves that bring a row-major value into the layout."""
        rank = len(shape)
        if not self.has_blocks(rank):
            order = self.order(rank)
            if order == tuple(range(rank)):
                return ()
            return _move(shape, order)
        (count, size), made = self.blocks(shape[1]), list[Op]()
        if count * size != shape[1]:
            missing = count * size - int(shape[1])
            made.append(Pad(((0, 0), (0, missing), *((0, 0),) * (rank - 2))))
        split = (shape[0], count, size, *shape[2:])
        order = (0, 1, *range(3, rank + 1), 2)
        if keeps_place(split, order):
            return (*made, Reshape(placed(split, order)))
        return (*made, Reshape(split), Transpose(order))

    @lru_cache(1024)  # noqa: B019
    def back(self, shape: Shape, *, whole: bool = False) -> Moves:
        """Return the moves that make a value row-major again; `whole` leaves in what fills up
        blocks.
        """
        rank, held = len(shape), self.held(shape)
        if not self.has_blocks(rank):
            order = inverse(self.order(rank))
            return () if order == tuple(range(rank)) else _move(held, order)
        filled = self.filled(shape[1])
        merged = (shape[0], filled, *shape[2:])
        order, made = (0, 1, rank, *range(2, rank)), list[Op]()
        if not keeps_place(held, order):
            made.append(Transpose(order))
        made.append(Reshape(merged))
        if filled != shape[1] and not whole:
            zeros, ones = (0,) * rank, (1,) * rank
            made.append(Slice(zeros, shape, ones))
        return tuple(made)


def _move(shape: Shape, order: Order) -> Moves:
    """Axes of a shape in another order: as a reshape where that moves nothing."""
    return (Reshape(placed(shape, order)),) if keeps_place(shape, order) else (Transpose(order),)


def across(shape: Shape, before: Layout, after: Layout) -> Moves:
    """Return the moves that bring a value from one layout into another, by one copy."""
    rank = len(shape)
    if before == after:
        return ()
    if ROW_MAJOR in (before, after) or before.block > 0 < after.block or is_neutral(shape):
        return (*before.back(shape), *after.into(shape))
    zeros, ones = (0,) * rank, (1,) * rank
    count, size = (after if after.block else before).blocks(shape[1])
    missing = count * size - int(shape[1])
    last = (shape[0], *shape[2:], count * size)
    made: list[Op] = []
    if after.block:
        if missing:
            made.append(Pad((*((0, 0),) * (rank - 1), (0, missing))))
        split = (shape[0], *shape[2:], count, size)
        return (*made, Reshape(split), Transpose((0, rank - 1, *range(1, rank - 1), rank)))
    made += [Transpose((0, *range(2, rank), 1, rank)), Reshape(last)]
    if missing:
        made.append(Slice(zeros, after.held(shape), ones))
    return tuple(made)


ROW_MAJOR = Layout("row-major")
CHANNELS_LAST = Layout("channels-last")
LAYOUTS = (ROW_MAJOR, CHANNELS_LAST)
"""Layouts to choose from unless the target, or the user, says otherwise. The first of equals is
taken, so row-major comes first."""


def layouts_of(known: Sequence[MapLayout], named: Sequence[str]) -> tuple[Layout, ...]:
    """Row-major, then those of a target's layouts that are named; all that it prefers if none is.

    Raises:
        GraphError: a name is none of the target's.
    """
    for name in named:
        if name not in (ROW_MAJOR.name, *(k.name for k in known)):
            raise GraphError(
                "options",
                f"the target's kernels know no layout {name!r}",
                hint=f"one of {', '.join(k.name for k in known)}, or row-major",
            )
    chosen = [k for k in known if (k.name in named if named else k.preferred)]
    return (ROW_MAJOR, *(Layout.of(k) for k in chosen))


def has_channels_last(domain: Sequence[Layout]) -> bool:
    """Return whether maps may lie channels-last."""
    return any(x.name == CHANNELS_LAST.name for x in domain)


def keeps_place(shape: Shape, order: Order) -> bool:
    """Return whether axes in this order are the same memory: only those of extent 1
    change places.
    """
    long = [axis for axis in order if not is_identical(shape[axis], 1)]
    return long == sorted(long)


@lru_cache(1024)
def is_neutral(shape: Shape) -> bool:
    """Return whether all layouts of a value are the same memory, but for what fills up blocks."""
    return keeps_place(shape, CHANNELS_LAST.order(len(shape)))


RANKS = range(3, 6)
"""Numbers of axes of values that have layouts: batch, channels, one to three of space."""


@lru_cache(1024)
def has_layouts(shape: Shape) -> bool:
    """Return whether the layouts of a value are different memory; channels are to be a number."""
    return len(shape) in RANKS and isinstance(shape[1], int) and not is_neutral(shape)


@dataclass(frozen=True, slots=True)
class Sides:
    """The layouts an op works with, one for each operand and each result; None has no layout."""

    operands: tuple[Layout | None, ...]
    results: tuple[Layout | None, ...]

    @property
    def main(self) -> Layout:
        """The layout that is not row-major, if there is one."""
        every = (x for x in (*self.operands, *self.results) if x not in (None, ROW_MAJOR))
        return next(every, None) or ROW_MAJOR

    def count(self, layout: Layout) -> int:
        """Count the values that have this layout."""
        return (*self.operands, *self.results).count(layout)


def sides(layouts: Sequence[Layout], operands: Sequence[bool], results: Sequence[bool]) -> Sides:
    """`layouts` given to those operands, then results, that have one."""
    each = iter(layouts)
    return Sides(
        tuple([next(each) if has else None for has in operands]),
        tuple([next(each) if has else None for has in results]),
    )
