"""Rows of tiles: what kernels of depthwise convolutions have in common.

An item is a group of channels of a few rows of positions. Rows of taps are found by a table, which
leaves out those in the padding; what a tile of a row reads is written into the kernel. Channels are
innermost, so memory is read in runs, and the taps of a group stay in the first cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treadle.backends.codegen.contraction.depthwise.taps import Pattern
from treadle.backends.codegen.kernel import ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.backends.codegen.scalars.code import compute_dtype, load_value
from treadle.base import dtype as dt
from treadle.base.dtype import DType

STEPS = ("batch", "depth", "height", "row", "column", "jump")
"""The steps of an operand that lies like the positions; columns are channels.

Groups of channels are `jump` elements further apart than their channels: where channels lie in
blocks, each of which is a group.
"""

_LINE = 64
"""Bytes of a cache line."""

SIZES = (
    *("rows", "grain", "chunks", "channels", "group", "depths", "heights"),
    *("x_batch", "x_depth", "x_height", "x_jump", "depth_cells", "height_cells"),
    *("tap", "height_tap", "depth_tap", "height_taps", "depth_taps"),
    *("ahead", "ahead_rows"),
)
"""Rows of positions and how many an item has, steps of x, and of the table of taps.

From one tap of a position to its next one along an axis, the cell moves by `*_cells` and the tap by
`*_taps` elements; `tap` and `*_tap` are the steps of the table of taps itself. The cells that the
next row of positions is the first to read are `ahead_rows` rows from `ahead` elements on.
"""


@dataclass(frozen=True, slots=True)
class Spec:
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
    """In which type sums of products of this type are built."""
    return dt.int32 if dtype.is_integer else compute_dtype(dtype)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of positions: (batch, depth, height), and where its first cell and tap are.

    `counts` are the taps along depth and height that fall inside; `group` is that of the channels.
    """

    at: tuple[Value, Value, Value]
    group: Value
    cells: Value
    taps: Value
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
    cells: Value
    taps: Value
    index: Value | None = None


class Rows:
    """Parameters that every kernel has, and the loops over its items.

    `taps` names the table of taps, [taps][channels]; `operands` have the steps `STEPS`.
    """

    def __init__(
        self, spec: Spec, taps: str, operands: Sequence[tuple[str, DType]], sizes: Sequence[str]
    ) -> None:
        self.spec, self.taps = spec, taps
        pointers = [("x", spec.dtype), (taps, spec.wide), ("table", dt.int64), *operands]
        pointers += [("index", dt.int64)] if spec.repeats > 1 else []
        self.parameters = {name: ir.pointer(dtype, name) for name, dtype in pointers}
        names = [*SIZES, *sizes, *(f"stop{i}" for i in range(len(spec.patterns)))]
        names += [f"{name}_{step}" for name, _ in operands for step in STEPS]
        self.parameters |= {name: ir.size(name) for name in names}

    def __getitem__(self, name: str) -> Value:
        return self.parameters[name]

    def channels(
        self, e: Builder, item: Value, body: Callable[[Value, Value | None], None]
    ) -> None:
        """`body(channel, mask)` for the vectors of an item.

        Without masks the last one ends with the last channel: some are done twice.
        """
        lanes = self.spec.lanes
        first = e.mul(e.div(item, self["chunks"]), self["group"])
        stop = e.min(e.add(first, self["group"]), self["channels"])
        last = e.sub(self["channels"], lanes)

        def vector(c: Value) -> None:
            if self.spec.masked:
                body(c, e.first_lanes(e.sub(self["channels"], c), lanes))
            else:
                body(e.min(c, last), None)

        e.loop(first, stop, lanes, vector)

    def each_tile(self, e: Builder, item: Value, taps: Value, body: Callable[[Spot], None]) -> None:
        """`body` for all vectors of all tiles of an item, whose table of taps is at `taps`."""
        first = e.mul(e.rem(item, self["chunks"]), self["grain"])
        stop = e.min(e.add(first, self["grain"]), self["rows"])
        group = e.div(item, self["chunks"])

        def row(r: Value) -> None:
            here = self._row(e, r, taps, group)
            begin = e.index(0)
            for i, pattern in enumerate(self.spec.patterns):
                self._run(e, item, here, pattern, (begin, self[f"stop{i}"]), body)
                begin = self[f"stop{i}"]

        e.loop(first, stop, 1, row)

    def _run(
        self,
        e: Builder,
        item: Value,
        row: Row,
        pattern: Pattern,
        tiles: tuple[Value, Value],
        body: Callable[[Spot], None],
    ) -> None:
        """Tiles of one pattern."""

        def tile(t: Value) -> None:
            cells = e.offset(row.cells, e.mul(t, self.spec.step * self.spec.column))
            position = e.mul(t, self.spec.width)
            self._fetch(e, e.offset(cells, self["ahead"]))

            def vector(c: Value, mask: Value | None) -> None:
                places, index = (e.offset(cells, c), e.offset(row.taps, c)), None
                if self.spec.repeats > 1:
                    index = e.load(self["index"], c, self.spec.lanes, mask)
                    places = cells, places[1]
                body(Spot(pattern, row, position, c, mask, *places, index))

            self.channels(e, item, vector)

        e.loop(*tiles, 1, tile)

    def cell(self, e: Builder, spot: Spot, cells: Value, number: int) -> Value:
        """The elements of a cell that a tile's vector is computed of, in the type of the sums."""
        lanes, at = self.spec.lanes, number * self.spec.column
        if spot.index is None:
            return e.cast(load_value(cells, at, lanes, spot.mask), self.spec.wide)
        found = e.gather(e.offset(cells, at), spot.index, spot.mask)
        return e.cast(found, self.spec.wide)

    def _fetch(self, e: Builder, cells: Value) -> None:
        """Ask for cells of a later row: channel by channel, they are met in no order of memory."""
        line = _LINE // self.spec.dtype.itemsize

        def row(r: Value) -> None:
            start = e.offset(cells, e.mul(r, self["x_height"]))
            e.loop(0, self.spec.step * self.spec.column, line, lambda i: e.prefetch(start, i))

        e.loop(0, self["ahead_rows"], 1, row)

    def _row(self, e: Builder, row: Value, taps: Value, group: Value) -> Row:
        h, rest = e.rem(row, self["heights"]), e.div(row, self["heights"])
        d, n = e.rem(rest, self["depths"]), e.div(rest, self["depths"])
        along_d, tap_d, cell_d = self._reads(e, d)
        along_h, tap_h, cell_h = self._reads(e, e.add(self["depths"], h))
        cells = e.offset(self["x"], e.mul(group, self["x_jump"]))
        cells = e.offset(cells, e.mul(n, self["x_batch"]))
        cells = e.offset(cells, e.mul(cell_d, self["x_depth"]))
        cells = e.offset(cells, e.mul(cell_h, self["x_height"]))
        taps = e.offset(taps, e.mul(tap_d, self["depth_tap"]))
        taps = e.offset(taps, e.mul(tap_h, self["height_tap"]))
        return Row((n, d, h), group, cells, taps, (along_d, along_h))

    def _reads(self, e: Builder, position: Value) -> tuple[Value, Value, Value]:
        """(number of taps, first tap, its cell)."""
        at = e.mul(position, 3)
        count, tap, cell = (e.load(self["table"], e.add(at, i)) for i in range(3))
        return count, tap, cell

    def each_line(
        self,
        e: Builder,
        spot: Spot,
        body: Callable[..., tuple[Value, ...]],
        initial: tuple[Value, ...] = (),
    ) -> tuple[Value, ...]:
        """`body(cells, taps, *carried)` for every row of taps of a tile."""
        along_d, along_h = spot.row.counts

        def line(_: Value, cells: Value, taps: Value, *carried: Value) -> tuple[Value, ...]:
            made = body(cells, taps, *carried)
            following = e.offset(taps, self["height_taps"])
            return (e.offset(cells, self["height_cells"]), following, *made)

        def layer(_: Value, cells: Value, taps: Value, *carried: Value) -> tuple[Value, ...]:
            made = e.loop(0, along_h, 1, line, (cells, taps, *carried))[2:]
            following = e.offset(taps, self["depth_taps"])
            return (e.offset(cells, self["depth_cells"]), following, *made)

        start = (spot.cells, spot.taps, *initial)
        found = e.loop(0, along_d, 1, layer, start) if self.spec.deep else layer(along_d, *start)
        return found[2:]

    def offset(self, e: Builder, name: str, row: Row) -> Value:
        """Where an operand has this row of positions."""
        at = e.mul(row.group, self[f"{name}_jump"])
        for position, step in zip(row.at, STEPS, strict=False):
            at = e.add(at, e.mul(position, self[f"{name}_{step}"]))
        return at
