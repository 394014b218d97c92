"""The kernel of a product of words: items of rows by panels, which lie ready.

An item goes through its rows in blocks, each of which is made words, multiplied with panel after
panel, and finished. Long sums are built in steps of `depth` words. Sums are integers, so no order
makes a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from treadle.backends.codegen.contraction.integers.packed import (
    BLOCK,
    Words,
    has_high_bits,
    shift_rows,
    widen_rows,
    words_function,
)
from treadle.backends.codegen.contraction.integers.tile import pitch_of, word_tile_function
from treadle.backends.codegen.contraction.shared.epilogue import Epilogue, SumsBlock, finish
from treadle.backends.codegen.contraction.shared.items import (
    Item,
    ItemSpec,
    ItemTables,
    declare_items,
    locate,
)
from treadle.backends.codegen.contraction.shared.tile import Tile, full_tiles
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelModule, KernelRoutine
from treadle.backends.codegen.kernel.language import (
    InstructionOperand,
    Pointer,
    Value,
    minimum,
    select,
)
from treadle.backends.codegen.kernel.records import RecordedKernel, required
from treadle.base import dtype as dt


@dataclass(frozen=True, slots=True)
class WordSpec:
    """Constants of a kernel.

    Attributes:
        tile: its register tile.
        words: how rows of a are made words.
        batch: number of batch axes.
        split: whether sums are built in steps of `depth` words.
        sums: elements of scratch for sums.
        epilogue: what becomes of the sums.
    """

    tile: Tile
    words: Words
    batch: int
    split: bool
    sums: int
    epilogue: Epilogue

    @property
    def direct(self) -> bool:
        """True where tiles store their sums in the result at once."""
        return self.epilogue.stores_sums(dt.int32)

    @property
    def checked(self) -> bool:
        """True where the kernel has to find out which products are exact."""
        return self.words.checked and self.tile.terms == 4


@dataclass(slots=True)
class _WordStep:
    """Words [first, first + count) of the sums of a block of rows.

    `high` says whether bytes of the block are 128 or more, `last` that the sums are complete.
    """

    first: Value
    count: Value
    last: Value | None
    row: Value
    rows: Value
    high: Value | None = None


Tiles = tuple[KernelRoutine, KernelRoutine]
"""The micro-kernel, and that of the last rows."""


@dataclass(frozen=True, slots=True)
class _Given:
    """Micro-kernels, and the rows of a that they read."""

    functions: Tiles
    rows: Pointer
    pitch: int


@lru_cache(maxsize=256)
def word_kernel(spec: WordSpec) -> RecordedKernel:
    """The kernel of a specification; equal specifications share it."""
    writer = _IntegerWriter(spec)
    return RecordedKernel(writer.kernel(), writer.p)


class _IntegerWriter:
    """Writes one kernel."""

    def __init__(self, spec: WordSpec) -> None:
        self.spec, words, tile = spec, spec.words, spec.tile
        tables = ItemTables(row_table=words.tabled, run_table=True)
        self.items = ItemSpec(tile.width, words.source, dt.int32, spec.batch, spec.epilogue, tables)
        self.e = e = KernelBuilder()
        self.p = declare_items(e, self.items)
        self.make_words = words_function(tile, words)
        self.tiles = self.pair_tiles = self._tiles_of(tile)
        self.rows = e.stack(dt.int32, (BLOCK + 1) * pitch_of(tile.terms))
        if spec.checked:
            self.pair_tiles = self._tiles_of(replace(tile, terms=2))
            self.pairs = e.stack(dt.int32, (BLOCK + 1) * pitch_of(2))
        self.found = e.stack(dt.int32, tile.lanes)
        self.zeros = e.stack(dt.int32, tile.width)
        self.sums = e.stack(dt.int32, spec.sums)

    def _tiles_of(self, tile: Tile) -> Tiles:
        spec, narrow = self.spec, self.spec.checked and tile.terms == 4
        big, small = (
            word_tile_function(tile, small=small, accumulate=spec.split, narrow=narrow)
            for small in (False, True)
        )
        return big, small

    def kernel(self) -> KernelModule:
        """The kernel, whose items are those of `locate`."""
        e, k, depth = self.e, self.p.k, self.p.division.depth
        self.zeros.zero(self.spec.tile.width)
        with e.items() as i:
            item = locate(self.items, self.p, i, i // self.p.division.row_items)
            if not self.spec.split:
                self._blocks(item, e.index(0), k, None)
            else:
                with e.loop(0, k, depth) as first:
                    rest = k - first
                    count, last = minimum(depth, rest), rest <= depth
                    self._blocks(item, first, count, last)
        steps = self.spec.epilogue.label
        name = f"contract_{self.spec.words.source.name}_words{self.spec.tile.terms}{steps}"
        functions = dict.fromkeys((self.make_words, *self.tiles, *self.pair_tiles))
        return e.kernel(name, list(functions))

    def _blocks(self, item: Item, first: Value, count: Value, last: Value | None) -> None:
        """Add some words to all sums of an item."""
        e = self.e
        with e.loop(0, item.rows, self.p.division.block) as row:
            rows = minimum(self.p.division.block, item.rows - row)
            step = _WordStep(first, count, last, row, rows)
            self._make_words(item, step)
            with e.loop(item.panels) as p:
                self._panel(item, step, p)

    def _make_words(self, item: Item, step: _WordStep) -> None:
        """The words of a block of rows."""
        e, words, lanes = self.e, self.spec.words, self.spec.tile.lanes
        row = item.row + step.row
        place: tuple[Pointer, InstructionOperand]
        if words.tabled:
            place = item.a, required(self.p.tables.row_table) + row
        else:
            place = item.a + row * self.p.a_row, self.p.a_row
        run_words = required(self.p.runs).run_words
        table = required(self.p.tables.run_table) + step.first // run_words
        sizes = step.rows, step.count // run_words, required(self.p.runs).run, run_words
        e.call(self.make_words, *place, table, self.rows, self.found, *sizes)
        if not self.spec.checked:
            if self._is_shifted:
                shift_rows(e, self.rows, step.rows, step.count, lanes)
            return
        step.high = has_high_bits(self.found, lanes)
        with e.when(step.high):
            given = self.rows, words.source
            widen_rows(e, given, self.pairs, step.rows, step.count, lanes)
            if self._is_shifted:
                shift_rows(e, self.rows, step.rows, step.count, lanes)

    @property
    def _is_shifted(self) -> bool:
        return self.spec.words.shifted and self.spec.tile.terms == 4

    # -- tiles -----------------------------------------------------------------------------

    def _panel(self, item: Item, step: _WordStep, p: Value) -> None:
        """A block of rows times one panel."""
        e, spec, width = self.e, self.spec, self.spec.tile.width
        column = (item.panel + p) * width
        columns = self.p.n - column
        sums = self.sums + ((p * self.p.division.height + step.row) * width if spec.split else 0)
        places = item.places(item.row + step.row, column)
        full = width <= columns
        target: list[Any] = [sums, e.index(width)]
        if spec.direct:
            with e.when(full, changing=target):
                target[:] = places.results[0].pointer, places.results[0].row_step
        place = (item.panel + p) * (required(self.p.panel_terms) * width)
        self._multiply(step, item.b + place, target)
        with e.when_all([step.last, ~full if spec.direct else None]):
            block = SumsBlock(sums, width, step.rows, columns)
            finish(e, spec.tile, spec.epilogue, block, places, ragged=spec.direct)

    def _multiply(self, step: _WordStep, panel: Pointer, target: Sequence[Any]) -> None:
        """Tiles over a panel: the fastest ones that are exact."""
        e, width = self.e, self.spec.tile.width
        b = panel + step.first * width

        def multiply_bytes() -> None:
            given = _Given(self.tiles, self.rows, pitch_of(self.spec.tile.terms))
            self._tiles(step, given, (b, self._first(step, panel), step.count), target)

        if step.high is None:
            multiply_bytes()
            return
        wide = required(self.p.panel_terms) - self.p.k * 2
        tame = panel[(wide - 1) * width] != 0
        with e.when(tame | ~step.high):
            multiply_bytes()
        with e.otherwise():
            place = wide + step.first * 2
            operands = panel + place * width, self.zeros, step.count * 2
            given = _Given(self.pair_tiles, self.pairs, pitch_of(2))
            self._tiles(step, given, operands, target)

    def _first(self, step: _WordStep, panel: Pointer) -> Pointer:
        """Return the row with which the sums of a step begin."""
        if not self._is_shifted:
            return self.zeros
        row = self.p.k + step.first // self.p.division.depth
        first = [panel + row * self.spec.tile.width]
        if step.high is not None:
            with self.e.unless(step.high, changing=first):
                first[0] = self.zeros
        return first[0]

    def _tiles(
        self,
        step: _WordStep,
        given: _Given,
        operands: tuple[Pointer, Pointer, Value],
        target: Sequence[Any],
    ) -> None:
        """Full tiles, then small ones for the last rows; the cut is that of `Tile.cut`.

        `operands` are the panel, the row that sums begin with, and how many words there are.
        """
        e, tile, (big, small) = self.e, self.spec.tile, given.functions
        (b, first, words), (start, by) = operands, target
        add = [select(step.first == 0, 0, e.index(1))] * self.spec.split

        def call(r: Value, function: KernelRoutine, *count: Value) -> None:
            a = given.rows + r * given.pitch
            c = start + r * by
            e.call(function, a, b, words, first, c, by, *count, *add)

        whole = full_tiles(tile, step.rows) * tile.rows
        with e.loop(0, whole, tile.rows) as r:
            call(r, big)
        with e.loop(whole, step.rows, tile.small) as r:
            call(r, small, step.rows - r)
