"""Cells that every position of a depthwise convolution reads, and their taps.

Padding, strides, dilation and the direction, forward or to the input, are all in these lists: a
kernel that follows them never meets a cell outside. Rows are found by tables; along a row the
lists are written into the kernel, tile by tile, and equal tiles in a row are one loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from treadle.base.array import Array
from treadle.base.symbol import Dim
from treadle.ops.windows import Window

Reads = list[tuple[int, int]]
"""(tap, cell) of one position, in the order of the taps."""

Pattern = tuple[tuple[tuple[int, int], ...], ...]
"""For every position of a tile: (tap, cell counted from the tile's first) of what it reads."""


@dataclass(frozen=True, slots=True)
class Side:
    """One axis of a convolution: positions of the result and cells of the operand.

    Taps of position p read the cells p * stride + tap * dilation - padding; with `transposed`,
    cells and positions change places.
    """

    positions: Dim
    cells: Dim
    kernel: int
    stride: int
    dilation: int
    padding: int
    transposed: bool = False

    @property
    def period(self) -> int:
        """Positions after which the same taps are read again, and the cells moved by then."""
        return self.stride if self.transposed else 1

    @property
    def advance(self) -> int:
        """Cells by which one position is from the next, at least 1."""
        return 1 if self.transposed else self.stride

    @property
    def cell_step(self) -> int:
        """The distance of the cells that neighboring taps of a position read."""
        if not self.transposed:
            return self.dilation
        return -self.dilation // math.gcd(self.stride, self.dilation)

    @property
    def tap_step(self) -> int:
        """The distance of these taps."""
        return self.stride // math.gcd(self.stride, self.dilation) if self.transposed else 1

    def reads(self) -> list[Reads]:
        """Return the cells that every position reads."""
        return [self.reads_of(p) for p in range(int(self.positions))]

    def reads_of(self, position: int) -> Reads:
        """Return the cells that a position reads."""
        found: Reads = []
        for tap in range(self.kernel):
            reach = tap * self.dilation - self.padding
            cell, rest = position * self.stride + reach, 0
            if self.transposed:
                cell, rest = divmod(position - reach, self.stride)
            if not rest and 0 <= cell < self.cells:
                found.append((tap, cell))
        return found

    def table(self) -> Array:
        """(number of taps, first tap, its cell) of every position."""
        rows = [(len(r), *(r[0] if r else (0, 0))) for r in self.reads()]
        return np.array(rows, np.int64)


SINGLE = Side(1, 1, 1, 1, 1, 0)
"""An axis that is not there."""


def sides(
    window: Window, positions: Sequence[int], cells: Sequence[int], *, transposed: bool = False
) -> tuple[Side, Side, Side]:
    """Depth, height and width of a convolution; axes it lacks are `SINGLE`."""
    found = [
        Side(
            positions[i],
            cells[i],
            int(window.kernel[i]),
            window.strides[i],
            window.dilation[i],
            window.padding[i][0],
            transposed,
        )
        for i in range(len(positions))
    ]
    depth, height, width = [SINGLE] * (3 - len(found)) + found
    return depth, height, width


@dataclass(frozen=True, slots=True)
class Tiles:
    """A row of positions in tiles: the patterns, and the tile behind each one's last.

    Tile t begins at position t * `width` and counts its cells from t * `step`.
    """

    width: int
    step: int
    patterns: tuple[Pattern, ...]
    stops: tuple[Dim, ...]


def tiles_of(side: Side, most: int) -> Tiles:
    """The row in tiles of at most `most` positions, of one width but for the last."""
    period = side.period
    positions = int(side.positions)
    count = -(-positions // max(most // period * period, period))
    width = -(-positions // count)
    width = -(-width // period) * period
    step = width // side.stride if side.transposed else width * side.stride
    reads = side.reads()
    patterns = [
        tuple(
            tuple((tap, cell - t * step) for tap, cell in read)
            for read in reads[t * width : (t + 1) * width]
        )
        for t in range(-(-positions // width))
    ]
    ends = [t for t, (one, two) in enumerate(pairwise(patterns), 1) if one != two]
    stops = (*ends, len(patterns))
    return Tiles(width, step, tuple(patterns[stop - 1] for stop in stops), stops)


def open_tiles(side: Side, most: int) -> tuple[Tiles, Tiles]:
    """A row whose positions are as many as an expression says, all of which read every tap.

    Tiles of several positions, and those of one behind them.
    """
    first = [
        tuple((tap, p * side.stride + tap * side.dilation) for tap in range(side.kernel))
        for p in range(most)
    ]
    whole, rest = side.positions // most, side.positions % most
    several = Tiles(most, most * side.stride, (tuple(first),), (whole,))
    return several, Tiles(1, side.stride, (tuple(first[:1]),), (rest,))
