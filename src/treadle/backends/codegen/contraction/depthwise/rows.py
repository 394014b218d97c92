"""Rows of tiles: what kernels of depthwise convolutions have in common.

An item is a group of channels of a few rows of positions. Rows of taps are found by a table, which
leaves out those in the padding; what a tile of a row reads is written into the kernel. Channels are
innermost, so memory is read in runs, and the taps of a group stay in the first cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Generic, NamedTuple

from treadle.backends.codegen.contraction.depthwise.taps import Pattern
from treadle.backends.codegen.contraction.shared.epilogue import Sides
from treadle.backends.codegen.kernel.builder import KernelBuilder, numbered
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum
from treadle.backends.codegen.kernel.records import P, S
from treadle.backends.codegen.scalars.code import compute_dtype, load_value
from treadle.base import dtype as dt
from treadle.base.dtype import DType

_LINE = 64
"""Bytes of a cache line."""


class PositionSteps(NamedTuple, Generic[S]):
    """Steps of an operand that lies like the positions; columns are channels.

    Groups of channels are `jump` elements further apart than their channels: where channels lie in
    blocks, each of which is a group.
    """

    batch: S
    depth: S
    height: S
    row: S
    column: S
    jump: S


class RowSizes(NamedTuple, Generic[S]):
    """Rows of positions and how many an item has, steps of x, and of the table of taps.

    From one tap of a position to its next one along an axis, the cell moves by `*_cells` and the
    tap by `*_taps` elements; `tap` and `*_tap` are the steps of the table of taps itself. The cells
    that the next row of positions is the first to read are `ahead_rows` rows from `ahead` elements
    on.
    """

    rows: S
    grain: S
    chunks: S
    channels: S
    group: S
    depths: S
    heights: S
    x_batch: S
    x_depth: S
    x_height: S
    x_jump: S
    depth_cells: S
    height_cells: S
    tap: S
    height_tap: S
    depth_tap: S
    height_taps: S
    depth_taps: S
    ahead: S
    ahead_rows: S


class SumTables(NamedTuple, Generic[S]):
    """Rows of a table of sums, and elements from table to table."""

    taps: S
    table_step: S


class DepthwiseParameters(NamedTuple, Generic[P, S]):
    """Parameters of a kernel; `taps` is the table of taps, [taps][channels].

    `origins` are the channels of x that those of the result have.
    """

    x: P
    taps: P
    table: P
    memory: Sides[P]
    origins: P | None
    sizes: RowSizes[S]
    tables: SumTables[S] | None
    stops: tuple[S, ...]
    steps: Sides[PositionSteps[S]]


@dataclass(frozen=True, slots=True)
class RowsConfig:
    """Constants of a kernel.

    Attributes:
        dtype: element type of the operand of cells, x.
        lanes: channels of a vector.
        width: positions of a tile.
        step: cells by which tiles are apart.
        column: elements from a cell of a row to the next one; in the kernel they are addresses.
        patterns: what the tiles of every run read.
        deep: whether some position has more or fewer taps along depth than one.
        masked: whether vectors may end behind the last channel.
        repeats: channels of the result per channel of x; from 2 on, a table says which one of x.
    """

    dtype: DType
    lanes: int
    width: int
    step: int
    column: int
    patterns: tuple[Pattern, ...]
    deep: bool
    masked: bool
    repeats: int = 1

    @property
    def wide(self) -> DType:
        """Type of the sums."""
        return sums_type(self.dtype)


def sums_type(dtype: DType) -> DType:
    """Return the type in which sums of products of this type are built."""
    return dt.int32 if dtype.is_integer else compute_dtype(dtype)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of positions: (batch, depth, height), and where its first cell and tap are.

    `counts` are the taps along depth and height that fall inside; `group` is that of the channels.
    """

    at: tuple[Value, Value, Value]
    group: Value
    cells: Pointer
    taps: Pointer
    counts: tuple[Value, Value]


@dataclass(frozen=True, slots=True)
class Spot:
    """A vector of channels of a tile: its first position, cell, and tap.

    With `index`, the cell is that of the first channel, and its elements are these.
    """

    pattern: Pattern
    row: Row
    position: Value
    channel: Value
    mask: Value | None
    cells: Pointer
    taps: Pointer
    index: Value | None = None

    @property
    def used(self) -> list[int]:
        """Taps that some position of the tile reads."""
        return sorted({tap for reads in self.pattern for tap, _ in reads})

    @property
    def read(self) -> list[int]:
        """Cells that some position of the tile reads."""
        return sorted({cell for reads in self.pattern for _, cell in reads})


class DepthwiseRows:
    """A kernel's parameters, and the loops over its items.

    `taps` names the table of taps; `operands` are names and element types of what lies like the
    positions. With `sums`, there are several tables.
    """

    def __init__(
        self,
        spec: RowsConfig,
        taps: str,
        operands: Sides[tuple[str, DType]],
        *,
        sums: bool = False,
    ) -> None:
        self.spec = spec
        self.e = e = KernelBuilder()

        def steps(name: str) -> PositionSteps[Value]:
            return PositionSteps(*e.sizes(*[f"{name}_{step}" for step in PositionSteps._fields]))

        self.p = e.record(
            DepthwiseParameters[Pointer, Value],
            x=spec.dtype,
            taps=lambda: e.pointer(spec.wide, taps),
            table=dt.int64,
            memory=lambda: operands.map(lambda given: e.pointer(given[1], given[0])),
            origins=lambda: e.pointer(dt.int64, "index") if spec.repeats > 1 else None,
            sizes=RowSizes,
            tables=SumTables if sums else None,
            stops=numbered("stop", len(spec.patterns)),
            steps=lambda: operands.map(lambda given: steps(given[0])),
        )

    @contextmanager
    def channels(self, item: Value) -> Iterator[tuple[Value, Value | None]]:
        """A loop over the vectors of channels of an item: the first channel, and a mask.

        Without masks the last one ends with the last channel: some are done twice.
        """
        e, lanes, p = self.e, self.spec.lanes, self.p.sizes
        first = (item // p.chunks) * p.group
        stop = minimum(first + p.group, p.channels)
        last = p.channels - lanes
        with e.loop(first, stop, lanes) as c:
            if self.spec.masked:
                yield c, e.first_lanes(p.channels - c, lanes)
            else:
                yield minimum(c, last), None

    def tiles(self, item: Value, taps: Pointer) -> Iterator[Spot]:
        """Loops over all vectors of all tiles of an item, whose table of taps is at `taps`."""
        e, spec, p = self.e, self.spec, self.p.sizes
        first = (item % p.chunks) * p.grain
        stop = minimum(first + p.grain, p.rows)
        group = item // p.chunks
        with e.loop(first, stop) as r:
            row = self._row(r, taps, group)
            begin = e.index(0)
            for pattern, end in zip(spec.patterns, self.p.stops, strict=True):
                with e.loop(begin, end) as t:
                    cells = row.cells + t * (spec.step * spec.column)
                    position = t * spec.width
                    self._fetch(cells + p.ahead)
                    with self.channels(item) as (c, mask):
                        here, there, index = cells + c, row.taps + c, None
                        if self.p.origins is not None:
                            here, index = cells, self.p.origins.load(c, spec.lanes, mask)
                        yield Spot(pattern, row, position, c, mask, here, there, index)
                begin = end

    def cell(self, spot: Spot, cells: Pointer, number: int) -> Value:
        """The elements of a cell that a tile's vector is computed of, in the type of the sums."""
        lanes, at = self.spec.lanes, number * self.spec.column
        if spot.index is None:
            return load_value(cells, at, lanes, spot.mask).cast(self.spec.wide)
        return (cells + at).gather(spot.index, spot.mask).cast(self.spec.wide)

    def _fetch(self, cells: Pointer) -> None:
        """Ask for cells of a later row: channel by channel, they are met in no order of memory."""
        line = _LINE // self.spec.dtype.itemsize
        with self.e.loop(self.p.sizes.ahead_rows) as r:
            start = cells + r * self.p.sizes.x_height
            with self.e.loop(0, self.spec.step * self.spec.column, line) as i:
                start.prefetch(i)

    def _row(self, row: Value, taps: Pointer, group: Value) -> Row:
        p = self.p.sizes
        h, rest = row % p.heights, row // p.heights
        d, n = rest % p.depths, rest // p.depths
        along_d, tap_d, cell_d = self._reads(d)
        along_h, tap_h, cell_h = self._reads(p.depths + h)
        cells = self.p.x + group * p.x_jump + n * p.x_batch
        cells = cells + cell_d * p.x_depth + cell_h * p.x_height
        taps = taps + tap_d * p.depth_tap + tap_h * p.height_tap
        return Row((n, d, h), group, cells, taps, (along_d, along_h))

    def _reads(self, position: Value) -> list[Value]:
        """Number of taps, the first tap, and its cell."""
        at = position * 3
        return [self.p.table[at + i] for i in range(3)]

    @contextmanager
    def lines(self, spot: Spot, sums: list[Value]) -> Iterator[tuple[Pointer, Pointer]]:
        """Loops over the rows of taps of a tile, carrying sums: their cells, and their taps."""
        p, (along_d, along_h) = self.p.sizes, spot.row.counts
        layer = [spot.cells, spot.taps]
        deep = self.e.loop(along_d, carrying=(layer, sums)) if self.spec.deep else nullcontext()
        with deep:
            line = [*layer]
            with self.e.loop(along_h, carrying=(line, sums)):
                cells, taps = line
                yield cells, taps
                line[1] = taps + p.height_taps
                line[0] = cells + p.height_cells
            layer[1] = layer[1] + p.depth_taps
            layer[0] = layer[0] + p.depth_cells

    def offset(self, steps: PositionSteps[Value], row: Row) -> Value:
        """Elements from where an operand begins to this row of positions."""
        at = row.group * steps.jump
        for position, step in zip(row.at, steps, strict=False):
            at = at + position * step
        return at
