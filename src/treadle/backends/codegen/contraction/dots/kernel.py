"""Products of few rows with a matrix whose columns are contiguous, as in decoding token by token.

Such a product reads the matrix once and computes little, so nothing is packed: one vector of sums
per column, as many columns at once as a vector has lanes, and their sums by one transposition.
Operands of 8 or 16 bits are widened as they are loaded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from treadle.backends.codegen.contraction.shared.epilogue import Epilogue, SumsBlock, finish
from treadle.backends.codegen.contraction.shared.items import (
    Item,
    ItemParameters,
    ItemSpec,
    declare_items,
    locate,
    moved,
)
from treadle.backends.codegen.contraction.shared.pack import transpose
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import Builder, KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, dot, fma, minimum
from treadle.backends.codegen.kernel.records import RecordedKernel
from treadle.base import dtype as dt
from treadle.base.dtype import DType

ROWS = 6
"""Most rows for which this is worth its slower arithmetic."""
_AHEAD = 1024
"""Bytes ahead of the loads that lines are fetched."""
_TURNS = 4096
"""Most additions in a row to a sum that rounds, which is then added to one that waits. With 1,024
of them two rows of 8,192 terms took 13 % longer; most products are shorter than this."""


@dataclass(frozen=True, slots=True)
class Dots:
    """A kernel's constants; the tile gives the type of the sums and the width of a panel."""

    tile: Tile
    a: DType
    b: DType
    batch: int
    epilogue: Epilogue


@lru_cache(maxsize=256)
def dots_kernel(spec: Dots) -> RecordedKernel:
    """The kernel: its items are groups of panels, each with all rows."""
    items = ItemSpec(spec.tile.width, spec.a, spec.b, spec.batch, spec.epilogue)
    e = KernelBuilder()
    p = declare_items(e, items)
    sums = e.stack(spec.tile.dtype, ROWS * spec.tile.width)
    exact = spec.tile.dtype.is_integer
    waiting = sums if exact else e.stack(spec.tile.dtype, spec.tile.lanes**2)
    with e.items() as i:
        item = locate(items, p, i, i)
        with e.loop(item.panels) as number:
            column = (item.panel + number) * spec.tile.width
            _write_panel(e, spec, p, item, (sums, waiting), column)
    return RecordedKernel(e.kernel(f"dots_{spec.b.name}{spec.epilogue.label}"), p)


def _write_panel(
    e: Builder,
    spec: Dots,
    p: ItemParameters[Pointer, Value],
    item: Item,
    room: tuple[Pointer, Pointer],
    column: Value,
) -> None:
    """All rows times the columns of one panel."""
    tile, (sums, waiting) = spec.tile, room
    last = p.n - 1
    with e.loop(0, tile.width, tile.lanes) as first:
        places = [minimum(column + first + j, last) for j in range(tile.lanes)]
        columns = [item.b + place * p.b_column for place in places]
        with e.loop(item.rows) as r:
            a = item.a + r * p.a_row
            totals = _dots(e, spec, a, columns, p.k, waiting)
            sums[r * tile.width + first] = totals
    here = item.sides.map(lambda place: moved(place, 0, column))
    block = SumsBlock(sums, tile.width, item.rows, p.n - column)
    finish(e, tile, spec.epilogue, block, here)


def _dots(
    e: Builder, spec: Dots, a: Pointer, columns: list[Pointer], terms: Value, waiting: Pointer
) -> Value:
    """One sum per column, as a vector."""
    dtype, lanes = spec.tile.dtype, spec.tile.lanes
    # Sums of integers take their terms by twos.
    step, kind = (2 * lanes, dt.int16) if dtype.is_integer else (lanes, dtype)
    whole = terms - terms % step
    ahead = _AHEAD // spec.b.itemsize

    def add(sums: list[Value], k: Value, mask: Value | None = None) -> None:
        x = a.load(k, step, mask).cast(kind)
        loaded = [column.load(k, step, mask).cast(kind) for column in columns]
        sums[:] = [
            dot(s, y, x) if dtype.is_integer else fma(y, x, s)
            for y, s in zip(loaded, sums, strict=True)
        ]

    def turns(start: Value | int, stop: Value) -> list[Value]:
        sums = [e.constant(0, dtype, lanes)] * lanes
        with e.loop(start, stop, step, carrying=sums) as k:
            for column in columns:
                column.prefetch(k + ahead)
            add(sums, k)
        return sums

    # Sums of integers are exact, and never wait.
    long = None if dtype.is_integer else _Long(e, spec.tile, waiting, whole)
    if long is not None:
        long.write(turns)
    sums = turns(0 if long is None else long.end, whole)
    mask = e.first_lanes(terms - whole, step)
    with e.when(whole < terms, changing=sums):
        add(sums, whole, mask)
    if long is not None:
        with e.when(long.some, changing=sums):
            sums[:] = long.with_waiting(sums)
    parts = transpose(sums)
    while len(parts) > 1:
        half = len(parts) // 2
        parts = list(map(operator.add, parts[:half], parts[half:]))
    return parts[0]


class _Long:
    """Sums of so many turns at a time, added to sums that wait in memory.

    `end` is the first term behind them, `some` whether there are any.
    """

    def __init__(self, e: Builder, tile: Tile, waiting: Pointer, whole: Value) -> None:
        self.e, self.tile = e, tile
        self.places = [waiting + j * tile.lanes for j in range(tile.lanes)]
        self.block = _TURNS * tile.lanes
        self.end = whole - whole % self.block
        self.some = self.end > 0

    def write(self, turns: Callable[[Value, Value], list[Value]]) -> None:
        """All of them."""
        e, lanes = self.e, self.tile.lanes
        with e.when(self.some):
            self._wait([e.constant(0, self.tile.dtype, lanes)] * lanes)
        with e.loop(0, self.end, self.block) as k:
            self._wait(self.with_waiting(turns(k, k + self.block)))

    def with_waiting(self, sums: list[Value]) -> list[Value]:
        """Sums, and what waits, together."""
        old = [place.load(0, self.tile.lanes) for place in self.places]
        return list(map(operator.add, old, sums))

    def _wait(self, sums: list[Value]) -> None:
        for place, total in zip(self.places, sums, strict=True):
            place[0] = total
