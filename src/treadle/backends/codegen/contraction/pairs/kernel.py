"""The kernel of a product of words: items of rows by panels of b, which lie ready.

An item multiplies all its rows with panel after panel, part by part of a long sum. Rows are read
where they lie if their steps fill matrix registers there; else, and where there are less than a
block of them, words are made of them first. A panel of `depth` steps stays in the first cache while
all rows of the item pass by, which stay in the second one; sums that are not complete lie there,
too.

The order of additions depends on the number of terms alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from treadle.backends.codegen.contraction.pairs.packed import (
    GROUP,
    LINES,
    PANEL,
    WIDTH,
    WORDS,
    Lines,
    lines_function,
    tabled_rows_function,
    terms_per_step,
)
from treadle.backends.codegen.contraction.pairs.tiles import AHEAD, Multiplier, unit_function
from treadle.backends.codegen.contraction.shared.epilogue import Epilogue, Sides, SumsBlock, finish
from treadle.backends.codegen.contraction.shared.items import (
    Item,
    ItemSpec,
    ItemTables,
    declare_items,
    locate,
)
from treadle.backends.codegen.contraction.shared.pack import Order
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelModule, KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum, select
from treadle.backends.codegen.kernel.records import RecordedKernel, required
from treadle.base import dtype as dt

Rows = Order | Literal["table", "ragged", "words"]
_LINE = 64
"""Bytes of a line of the cache."""
BLOCK = 2 * LINES
"""Rows that are finished at a time."""


@dataclass(frozen=True, slots=True)
class PairSpec:
    """Constants of a kernel.

    Attributes:
        unit: what multiplies.
        order: how rows of a lie; "table" and "ragged": as tables say, see `tabled_rows_function`;
            "words": they are words already.
        in_place: whether blocks of rows are read where they lie, if that is on lines of the cache.
        batch: number of batch axes.
        split: whether sums are built in several parts of `depth` steps.
        words: words of scratch for rows of a.
        sums: elements of scratch for sums.
        epilogue: what becomes of the sums.
        shifts: whether there are several products with the same rows: `shift_table` says how many
            words of b each of them begins behind the first.
    """

    unit: Multiplier
    order: Rows
    in_place: bool
    batch: int
    split: bool
    words: int
    sums: int
    epilogue: Epilogue
    shifts: bool = False

    @property
    def tabled(self) -> bool:
        """True where tables say where rows and their steps lie."""
        return self.order in ("table", "ragged")


@dataclass(slots=True)
class _Part:
    """Steps [first, first + count) of the sums of an item; `last`: they are complete then."""

    first: Value
    count: Value
    last: Value | None


@dataclass(slots=True)
class _Panel:
    """A panel of an item, the one that follows it, the sums, and steps of whole sums."""

    number: Value
    b: Pointer
    follows: Pointer
    sums: Pointer
    steps: Value


@lru_cache(maxsize=256)
def pair_kernel(spec: PairSpec) -> RecordedKernel:
    """The kernel of a specification; equal specifications share it."""
    writer = _PairWriter(spec)
    return RecordedKernel(writer.kernel(), writer.p)


class _PairWriter:
    """Writes one kernel."""

    def __init__(self, spec: PairSpec) -> None:
        self.spec, unit = spec, spec.unit
        found, a = spec.tabled, dt.int32 if spec.order == "words" else unit.a
        tables = ItemTables(row_table=found, step_table=found, terms_table=found)
        self.items = ItemSpec(
            WIDTH, a, dt.int32, spec.batch, spec.epilogue, tables, shifts=spec.shifts
        )
        self.e = e = KernelBuilder()
        self.p = declare_items(e, self.items)
        e.flushes = unit.sums is dt.float32  # As its products do; those of bytes are exact.
        self.lines: KernelRoutine | None = None
        if spec.order == "table" or spec.order == "ragged":
            self.lines = tabled_rows_function(unit.a, ragged=spec.order == "ragged")
        elif spec.order != "words":
            self.lines = lines_function(Lines(unit.a, spec.order, rows=True))
        sizes = (BLOCK, LINES) if unit.matrices else unit.heights
        self.tiles = {rows: unit_function(unit, rows) for rows in sizes}
        if self.lines is not None:
            self.words = e.stack(dt.int32, spec.words)
        self.sums = e.stack(unit.sums, spec.sums)

    def kernel(self) -> KernelModule:
        """The kernel, whose items are those of `locate`."""
        e, spec, depth = self.e, self.spec, self.p.division.depth
        many = terms_per_step(spec.unit.a)
        steps = (self.p.k + (many - 1)) // many
        if spec.unit.matrices:
            e.begin_matrices()
        with e.items() as i:
            item = locate(self.items, self.p, i, i // self.p.division.row_items)
            if not spec.split:
                self._part(item, _Part(e.index(0), steps, None), steps)
            else:
                with e.loop(0, steps, depth) as first:
                    rest = steps - first
                    last = rest <= depth
                    count = minimum(depth, rest)
                    self._part(item, _Part(first, count, last), steps)
        if spec.unit.matrices:
            e.end_matrices()
        functions = [f for f in (self.lines, *self.tiles.values()) if f is not None]
        return e.kernel(self._name(), functions)

    def _name(self) -> str:
        """A name that tells kernels apart in reports."""
        unit = self.spec.unit
        steps = self.spec.epilogue.label
        kind = "matrices" if unit.matrices else "pairs"
        order = "in_place" if self.spec.in_place else self.spec.order
        return f"contract_{unit.a.name}_{kind}_{order}{steps}"

    def _part(self, item: Item, part: _Part, steps: Value) -> None:
        """Add some terms to all sums of an item."""
        self._make_words(item, part)
        given = self.p.shifts
        if given is None:
            self._panels(item, part, steps, item.b)
            return
        with self.e.loop(given.shifts) as t:
            b = item.b + given.shift_table[t].cast(dt.int64)
            results, extras = [
                [
                    replace(at, pointer=at.pointer + t * by)
                    for at, by in zip(places, moves, strict=True)
                ]
                for places, moves in zip(reversed(item.sides), reversed(given.steps), strict=True)
            ]
            size = self.p.division.width * _whole_blocks(self.p.division.height) * WIDTH
            sums = t * size
            shifted = replace(item, sides=Sides((*extras,), (*results,)))
            self._panels(shifted, part, steps, b, given.panel_steps, sums)

    def _panels(
        self,
        item: Item,
        part: _Part,
        steps: Value,
        b: Pointer,
        panel_steps: Value | None = None,
        sums: Value | None = None,
    ) -> None:
        """All rows of an item times its panels, which lie `panel_steps` apart."""
        e = self.e
        size = (steps if panel_steps is None else panel_steps) * PANEL
        begin = b + part.first * PANEL
        made = self.sums if sums is None else self.sums + sums
        with e.loop(item.panels) as p:
            place = begin + (item.panel + p) * size
            at = _Panel(p, place, place + size, made, steps)
            with e.loop(0, item.rows, BLOCK) as r:
                self._block(item, part, at, r)

    def _make_words(self, item: Item, part: _Part) -> None:
        """Words of the rows of an item, or of those behind its last whole block."""
        e, lines = self.e, self.lines
        if lines is None:
            return
        many = terms_per_step(self.spec.unit.a)
        first = part.first * many
        terms = self.p.k - first
        a = item.a + first * self.p.a_term
        size = part.count * GROUP
        start: Value | int = 0
        if self.spec.in_place:
            whole = item.rows - item.rows % BLOCK
            start = select(_is_aligned(item), whole, 0)
        with e.loop(start, item.rows, LINES) as r:
            if self.spec.tabled:
                self._make_tabled(lines, item, part, r)
            else:
                given = a + (item.row + r) * self.p.a_row
                count = minimum(item.rows - r, LINES)
                into = self.words + ((r - start) // LINES) * size
                steps = self.p.a_row, self.p.a_term
                e.call(lines, given, *steps, into, count, terms, part.count)

    def _make_tabled(self, lines: KernelRoutine, item: Item, part: _Part, r: Value) -> None:
        """Words of a group of rows that are found by tables."""
        rows = required(self.p.tables.row_table) + (item.row + r)
        tables = self.p.tables.step_table, self.p.tables.terms_table
        steps = [required(table) + part.first for table in tables]
        count = minimum(item.rows - r, LINES)
        into = self.words + (r // LINES) * (part.count * GROUP)
        self.e.call(lines, item.a, rows, *steps, into, count, part.count)

    def _rows(self, item: Item, part: _Part, steps: Value, r: Value) -> list[Any]:
        """Return the place of a block of rows, and the words between rows, steps and groups."""
        e = self.e
        if self.spec.order == "words":
            size = steps * GROUP
            group = (item.row + r) // LINES
            place = group * size + part.first * GROUP
            return [item.a + place, e.index(WORDS), e.index(GROUP), size]
        size = part.count * GROUP
        steps_of = [e.index(WORDS), e.index(GROUP), size]
        if not self.spec.in_place:
            return [self.words + (r // LINES) * size, *steps_of]
        many = terms_per_step(self.spec.unit.a)
        row = self.p.a_row // (many // WORDS)
        aligned, whole = _is_aligned(item), item.rows - r >= BLOCK
        first = select(aligned, 0, (r // LINES) * size)
        found: list[Any] = [self.words + first, *steps_of]
        with e.when(aligned & whole, changing=found):
            place = (item.row + r) * self.p.a_row
            start = item.a + (place + part.first * many)
            found[:] = start.reinterpret(dt.int32), row, e.index(WORDS), row * LINES
        return found

    def _block(self, item: Item, part: _Part, at: _Panel, r: Value) -> None:
        """A block of rows times one panel."""
        e, spec = self.e, self.spec
        column = (item.panel + at.number) * WIDTH
        place, add = e.index(0), e.index(0)
        if spec.split:
            place = (at.number * _whole_blocks(self.p.division.height) + r) * WIDTH
            add = part.first
        sums = at.sums + place
        rows = minimum(item.rows - r, BLOCK)
        ahead = (r // BLOCK) * (part.count * (AHEAD * WORDS))
        given = at.b, at.follows + ahead, part.count, sums, add
        self._multiply(self._rows(item, part, at.steps, r), given, rows)
        with e.when_all([part.last]):
            places = item.places(item.row + r, column)
            tile = Tile(spec.unit.sums, BLOCK, LINES, WIDTH // LINES, LINES)
            block = SumsBlock(sums, WIDTH, rows, self.p.n - column)
            finish(e, tile, spec.epilogue, block, places)

    def _multiply(
        self,
        where: Sequence[Any],
        given: tuple[Pointer, Pointer, Value, Pointer, Value],
        rows: Value,
    ) -> None:
        """The sums of a block."""
        e, (a, row, step, below), (b, ahead, steps, c, add) = self.e, where, given

        def call(size: int, first: Value) -> None:
            # Rows of a tile lie in one group, or make up whole ones.
            group, rest = first // LINES, first % LINES
            start = a + (group * below + rest * row)
            into = c + first * WIDTH
            e.call(self.tiles[size], start, row, step, below, b, ahead, steps, into, add)

        if self.spec.unit.matrices:
            with e.when(rows <= LINES):
                call(LINES, e.index(0))
            with e.otherwise():
                call(BLOCK, e.index(0))
            return
        whole, half, least = self.spec.unit.heights
        rest = rows % whole
        begin = rows - rest
        with e.loop(0, begin, whole) as first:
            call(whole, first)
        with e.when(rest > half):
            call(whole, begin)
        with e.otherwise(), e.when(rest > least):
            call(half, begin)
        with e.when((rest > 0) & (rest <= least)):
            call(least, begin)


def _whole_blocks(rows: Value) -> Value:
    """Rows of scratch memory for so many rows: whole blocks."""
    return ((rows + (BLOCK - 1)) // BLOCK) * BLOCK


def _is_aligned(item: Item) -> Value:
    """True if rows of a begin with lines of the cache: else loads take three times as long."""
    return (item.a.address() & (_LINE - 1)) == 0
