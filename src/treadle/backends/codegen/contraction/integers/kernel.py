"""The kernel of a product of words: items of rows by panels, which lie ready.

An item goes through its rows in blocks, each of which is made words, multiplied with panel after
panel, and finished. Long sums are built in steps of `depth` words. Sums are integers, so no order
makes a difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from treadle.backends.codegen.contraction.integers.tile import pitch_of, word_tile_function
from treadle.backends.codegen.contraction.integers.words import (
    BLOCK,
    Words,
    has_high_bits,
    shift_rows,
    widen_rows,
    words_function,
)
from treadle.backends.codegen.contraction.shared.epilogue import Block, Epilogue, finish
from treadle.backends.codegen.contraction.shared.items import Contraction, Item, Items, moved
from treadle.backends.codegen.contraction.shared.tile import Tile, full_tiles
from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
from treadle.base import dtype as dt


@dataclass(frozen=True, slots=True)
class WordSpec:
    """What a kernel has as constants.

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
        """Whether tiles store their sums in the result at once."""
        return self.epilogue.stores_sums(dt.int32)

    @property
    def checked(self) -> bool:
        """Whether it has to be seen which products are exact."""
        return self.words.checked and self.tile.terms == 4


@dataclass(slots=True)
class _Step:
    """Words [first, first + count) of the sums of a block of rows.

    `high` says whether bytes of the block are 128 or more, `last` that the sums are complete.
    """

    first: Value
    count: Value
    last: Value | None
    row: Value
    rows: Value
    high: Value | None = None


Tiles = tuple[Function, Function]
"""The micro-kernel, and that of the last rows."""


@dataclass(frozen=True, slots=True)
class _Given:
    """Micro-kernels, and the rows of a that they read."""

    functions: Tiles
    rows: Value
    pitch: int


@lru_cache(maxsize=256)
def word_kernel(spec: WordSpec) -> Contraction:
    """The kernel of a specification; equal specifications share it."""
    writer = _Writer(spec)
    parameters = writer.items.parameters
    kernel = builder.kernel(
        writer.name(), list(parameters.values()), writer.write, writer.functions()
    )
    return Contraction(kernel, tuple(parameters))


@dataclass(slots=True)
class _Writer:
    """Writes one kernel."""

    spec: WordSpec
    items: Items = field(init=False)
    make_words: Function = field(init=False)
    tiles: Tiles = field(init=False)
    pair_tiles: Tiles = field(init=False)
    rows: Value = field(init=False)
    pairs: Value = field(init=False)
    found: Value = field(init=False)
    zeros: Value = field(init=False)
    sums: Value = field(init=False)

    def __post_init__(self) -> None:
        spec, words = self.spec, self.spec.words
        tables = (*("row_table",) * words.tabled, "run_table")
        self.items = Items(
            spec.tile.width, words.source, dt.int32, spec.batch, spec.epilogue, tables
        )
        self.make_words = words_function(spec.tile, words)
        self.tiles = self.pair_tiles = self._tiles_of(spec.tile)
        if spec.checked:
            self.pair_tiles = self._tiles_of(replace(spec.tile, terms=2))

    def _tiles_of(self, tile: Tile) -> Tiles:
        spec, narrow = self.spec, self.spec.checked and tile.terms == 4
        big, small = (
            word_tile_function(tile, small=small, accumulate=spec.split, narrow=narrow)
            for small in (False, True)
        )
        return big, small

    def name(self) -> str:
        """A name that tells kernels apart in reports."""
        steps = "".join(f"_{s.op.name}" for s in self.spec.epilogue.steps[:3])
        return f"contract_{self.spec.words.source.name}_words{self.spec.tile.terms}{steps}"

    def functions(self) -> list[Function]:
        """What the entry calls."""
        return list(dict.fromkeys((self.make_words, *self.tiles, *self.pair_tiles)))

    def __getitem__(self, name: str) -> Value:
        return self.items[name]

    # -- items -----------------------------------------------------------------------------

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        tile = self.spec.tile
        self.rows = e.stack(dt.int32, (BLOCK + 1) * pitch_of(tile.terms))
        if self.spec.checked:
            self.pairs = e.stack(dt.int32, (BLOCK + 1) * pitch_of(2))
        self.found = e.stack(dt.int32, tile.lanes)
        self.zeros = e.stack(dt.int32, tile.width)
        self.sums = e.stack(dt.int32, self.spec.sums)
        e.zero(self.zeros, tile.width)

        def item(i: Value) -> None:
            found = self.items.locate(e, i, e.div(i, self["row_items"]))
            if not self.spec.split:
                self._blocks(e, found, e.index(0), self["k"], None)
                return

            def terms(first: Value) -> None:
                rest = e.sub(self["k"], first)
                count, last = e.min(self["depth"], rest), e.compare("le", rest, self["depth"])
                self._blocks(e, found, first, count, last)

            e.loop(0, self["k"], self["depth"], terms)

        e.loop(lo, hi, 1, item)

    def _blocks(
        self, e: Builder, item: Item, first: Value, count: Value, last: Value | None
    ) -> None:
        """Add some words to all sums of an item."""

        def block(row: Value) -> None:
            rows = e.min(self["block"], e.sub(item.rows, row))
            step = _Step(first, count, last, row, rows)
            self._make_words(e, item, step)
            e.loop(0, item.panels, 1, lambda p: self._panel(e, item, step, p))

        e.loop(0, item.rows, self["block"], block)

    def _make_words(self, e: Builder, item: Item, step: _Step) -> None:
        """The words of a block of rows."""
        words, lanes = self.spec.words, self.spec.tile.lanes
        row = e.add(item.row, step.row)
        if words.tabled:
            a, place = item.a, e.offset(self["row_table"], row)
        else:
            a, place = e.offset(item.a, e.mul(row, self["a_row"])), self["a_row"]
        run_words = self["run_words"]
        table = e.offset(self["run_table"], e.div(step.first, run_words))
        sizes = step.rows, e.div(step.count, run_words), self["run"], run_words
        e.call(self.make_words, a, place, table, self.rows, self.found, *sizes)
        if not self.spec.checked:
            if self._is_shifted:
                shift_rows(e, self.rows, step.rows, step.count, lanes)
            return
        step.high = has_high_bits(e, self.found, lanes)

        def prepare() -> None:
            given = self.rows, words.source
            widen_rows(e, given, self.pairs, step.rows, step.count, lanes)
            if self._is_shifted:
                shift_rows(e, self.rows, step.rows, step.count, lanes)

        e.branch(step.high, prepare)

    @property
    def _is_shifted(self) -> bool:
        return self.spec.words.shifted and self.spec.tile.terms == 4

    # -- tiles -----------------------------------------------------------------------------

    def _panel(self, e: Builder, item: Item, step: _Step, p: Value) -> None:
        """A block of rows times one panel."""
        spec, width = self.spec, self.spec.tile.width
        column = e.mul(e.add(item.panel, p), width)
        columns = e.sub(self["n"], column)
        place = e.index(0)
        if spec.split:
            place = e.mul(e.add(e.mul(p, self["height"]), step.row), width)
        sums = e.offset(self.sums, place)
        results, extras = (
            [moved(e, place, e.add(item.row, step.row), column) for place in places]
            for places in (item.results, item.extras)
        )
        full, target = e.compare("le", width, columns), (sums, e.index(width))
        if spec.direct:
            there, here = (results[0].pointer, results[0].row_step), target
            pointer, by = e.branch(full, lambda: there, lambda: here, target)
            target = pointer, by
        place = e.mul(e.add(item.panel, p), e.mul(self["panel_terms"], width))
        self._multiply(e, step, e.offset(item.b, place), target)

        def end() -> None:
            block = Block(sums, width, step.rows, columns)
            finish(e, spec.tile, spec.epilogue, block, extras, results, ragged=spec.direct)

        conditions = [] if step.last is None else [step.last]
        conditions += [e.invert(full)] if spec.direct else []
        if len(conditions) == 2:
            conditions = [e.bitwise("and", *conditions)]
        if conditions:
            e.branch(conditions[0], end)
        else:
            end()

    def _multiply(self, e: Builder, step: _Step, panel: Value, target: tuple[Value, Value]) -> None:
        """Tiles over a panel: the fastest ones that are exact."""
        width = self.spec.tile.width
        b = e.offset(panel, e.mul(step.first, width))

        def bytes_() -> None:
            given = _Given(self.tiles, self.rows, pitch_of(self.spec.tile.terms))
            self._tiles(e, step, given, (b, self._first(e, step, panel), step.count), target)

        if step.high is None:
            bytes_()
            return
        wide = e.sub(self["panel_terms"], e.mul(self["k"], 2))
        tame = e.compare("ne", e.load(panel, e.mul(e.sub(wide, 1), width)), 0)

        def pairs() -> None:
            place = e.add(wide, e.mul(step.first, 2))
            operands = e.offset(panel, e.mul(place, width)), self.zeros, e.mul(step.count, 2)
            given = _Given(self.pair_tiles, self.pairs, pitch_of(2))
            self._tiles(e, step, given, operands, target)

        e.branch(e.bitwise("or", tame, e.invert(step.high)), bytes_, pairs)

    def _first(self, e: Builder, step: _Step, panel: Value) -> Value:
        """With which row sums begin."""
        if not self._is_shifted:
            return self.zeros
        row = e.add(self["k"], e.div(step.first, self["depth"]))
        made = e.offset(panel, e.mul(row, self.spec.tile.width))
        if step.high is None:
            return made
        return e.branch(step.high, lambda: made, lambda: self.zeros, (made,))[0]

    def _tiles(
        self,
        e: Builder,
        step: _Step,
        given: _Given,
        operands: tuple[Value, Value, Value],
        target: tuple[Value, Value],
    ) -> None:
        """Full tiles, then small ones for the last rows; the cut is that of `Tile.cut`.

        `operands` are the panel, the row that sums begin with, and how many words there are.
        """
        tile, (big, small) = self.spec.tile, given.functions
        b, first, words = operands
        add = [e.select(e.compare("eq", step.first, 0), 0, e.index(1))] * self.spec.split

        def call(r: Value, function: Function, *count: Value) -> None:
            a = e.offset(given.rows, e.mul(r, given.pitch))
            c = e.offset(target[0], e.mul(r, target[1]))
            e.call(function, a, b, words, first, c, target[1], *count, *add)

        whole = e.mul(full_tiles(e, tile, step.rows), tile.rows)
        e.loop(0, whole, tile.rows, lambda r: call(r, big))
        e.loop(whole, step.rows, tile.small, lambda r: call(r, small, e.sub(step.rows, r)))
