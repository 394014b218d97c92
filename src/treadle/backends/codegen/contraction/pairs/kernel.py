"""The kernel of a product of words: items of rows by panels of b, which lie ready.

An item multiplies all its rows with panel after panel, part by part of a long sum. Rows are read
where they lie if their steps fill matrix registers there; else, and where there are less than a
block of them, words are made of them first. A panel of `depth` steps stays in the first cache while
all rows of the item pass by, which stay in the second one; sums that are not complete lie there,
too.

The order of additions depends on the number of terms alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from treadle.backends.codegen.contraction.pairs.tiles import AHEAD, Unit, unit_function
from treadle.backends.codegen.contraction.pairs.words import (
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
from treadle.backends.codegen.contraction.shared.epilogue import Block, Epilogue, finish
from treadle.backends.codegen.contraction.shared.items import Contraction, Item, Items, moved
from treadle.backends.codegen.contraction.shared.pack import Order
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
from treadle.base import dtype as dt

Rows = Order | Literal["table", "ragged", "words"]
TABLES = ("row_table", "step_table", "terms_table")
"""Tables of rows that lie apart: where they begin, and where their steps do and what they have."""
_LINE = 64
"""Bytes of a line of the cache."""
BLOCK = 2 * LINES
"""Rows that are finished at a time."""


@dataclass(frozen=True, slots=True)
class PairSpec:
    """What a kernel has as constants.

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

    unit: Unit
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
        """Whether tables say where rows and their steps lie."""
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
    b: Value
    follows: Value
    sums: Value
    steps: Value


@lru_cache(maxsize=256)
def pair_kernel(spec: PairSpec) -> Contraction:
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

    spec: PairSpec
    items: Items = field(init=False)
    lines: Function | None = None
    tiles: dict[int, Function] = field(init=False)
    words: Value = field(init=False)
    sums: Value = field(init=False)

    def __post_init__(self) -> None:
        spec, unit = self.spec, self.spec.unit
        tables = TABLES if spec.tabled else ()
        a = dt.int32 if spec.order == "words" else unit.a
        self.items = Items(WIDTH, a, dt.int32, spec.batch, spec.epilogue, tables)
        if spec.shifts:
            self._add_shifts()
        if spec.order == "table" or spec.order == "ragged":
            self.lines = tabled_rows_function(unit.a, ragged=spec.order == "ragged")
        elif spec.order != "words":
            self.lines = lines_function(Lines(unit.a, spec.order, rows=True))
        sizes = (BLOCK, LINES) if unit.matrices else (unit.rows,)
        self.tiles = {rows: unit_function(unit, rows) for rows in sizes}

    def _add_shifts(self) -> None:
        """Parameters of several products: how many, and their steps in operands and results."""
        epilogue = self.spec.epilogue
        names = [f"x{i}_shift" for i in range(len(epilogue.extras))]
        names += [f"c{i}_shift" for i in range(len(epilogue.results))]
        parameters = self.items.parameters
        parameters["shift_table"] = ir.pointer(dt.int32, "shift_table")
        parameters |= {name: ir.size(name) for name in ("shifts", "panel_steps", *names)}

    def name(self) -> str:
        """A name that tells kernels apart in reports."""
        unit = self.spec.unit
        steps = "".join(f"_{s.op.name}" for s in self.spec.epilogue.steps[:3])
        kind = "matrices" if unit.matrices else "pairs"
        order = "in_place" if self.spec.in_place else self.spec.order
        return f"contract_{unit.a.name}_{kind}_{order}{steps}"

    def functions(self) -> list[Function]:
        """What the entry calls."""
        return [f for f in (self.lines, *self.tiles.values()) if f is not None]

    def __getitem__(self, name: str) -> Value:
        return self.items[name]

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        spec = self.spec
        e.flushes = spec.unit.sums is dt.float32  # As its products do; those of bytes are exact.
        if self.lines is not None:
            self.words = e.stack(dt.int32, spec.words)
        self.sums = e.stack(spec.unit.sums, spec.sums)
        many = terms_per_step(spec.unit.a)
        steps = e.div(e.add(self["k"], many - 1), many)
        if spec.unit.matrices:
            e.begin_matrices()

        def item(i: Value) -> None:
            found = self.items.locate(e, i, e.div(i, self["row_items"]))
            if not spec.split:
                self._part(e, found, _Part(e.index(0), steps, None), steps)
                return

            def part(first: Value) -> None:
                rest = e.sub(steps, first)
                last = e.compare("le", rest, self["depth"])
                count = e.min(self["depth"], rest)
                self._part(e, found, _Part(first, count, last), steps)

            e.loop(0, steps, self["depth"], part)

        e.loop(lo, hi, 1, item)
        if spec.unit.matrices:
            e.end_matrices()

    def _part(self, e: Builder, item: Item, part: _Part, steps: Value) -> None:
        """Add some terms to all sums of an item."""
        self._make_words(e, item, part)
        if not self.spec.shifts:
            self._panels(e, item, part, steps, item.b)
            return

        def shift(t: Value) -> None:
            b = e.offset(item.b, e.cast(e.load(self["shift_table"], t), dt.int64))
            results, extras = (
                [
                    replace(at, pointer=e.offset(at.pointer, e.mul(t, self[f"{kind}{i}_shift"])))
                    for i, at in enumerate(places)
                ]
                for kind, places in (("c", item.results), ("x", item.extras))
            )
            size = e.mul(e.mul(self["width"], _whole_blocks(e, self["height"])), WIDTH)
            sums = e.mul(t, size)
            moved_ = replace(item, results=results, extras=extras)
            self._panels(e, moved_, part, steps, b, self["panel_steps"], sums)

        e.loop(0, self["shifts"], 1, shift)

    def _panels(
        self,
        e: Builder,
        item: Item,
        part: _Part,
        steps: Value,
        b: Value,
        panel_steps: Value | None = None,
        sums: Value | None = None,
    ) -> None:
        """All rows of an item times its panels, which lie `panel_steps` apart."""
        size = e.mul(steps if panel_steps is None else panel_steps, PANEL)
        begin = e.offset(b, e.mul(part.first, PANEL))
        made = self.sums if sums is None else e.offset(self.sums, sums)

        def panel(p: Value) -> None:
            place = e.offset(begin, e.mul(e.add(item.panel, p), size))
            at = _Panel(p, place, e.offset(place, size), made, steps)
            e.loop(0, item.rows, BLOCK, lambda r: self._block(e, item, part, at, r))

        e.loop(0, item.panels, 1, panel)

    def _make_words(self, e: Builder, item: Item, part: _Part) -> None:
        """Words of the rows of an item, or of those behind its last whole block."""
        lines = self.lines
        if lines is None:
            return
        many = terms_per_step(self.spec.unit.a)
        first = e.mul(part.first, many)
        terms = e.sub(self["k"], first)
        a = e.offset(item.a, e.mul(first, self["a_term"]))
        size = e.mul(part.count, GROUP)
        start = e.index(0)
        if self.spec.in_place:
            whole = e.sub(item.rows, e.rem(item.rows, BLOCK))
            start = e.select(_is_aligned(e, item), whole, start)

        def group(r: Value) -> None:
            if self.spec.tabled:
                self._make_tabled(e, lines, item, part, r)
                return
            given = e.offset(a, e.mul(e.add(item.row, r), self["a_row"]))
            count = e.min(e.sub(item.rows, r), LINES)
            into = e.offset(self.words, e.mul(e.div(e.sub(r, start), LINES), size))
            steps = self["a_row"], self["a_term"]
            e.call(lines, given, *steps, into, count, terms, part.count)

        e.loop(start, item.rows, LINES, group)

    def _make_tabled(self, e: Builder, lines: Function, item: Item, part: _Part, r: Value) -> None:
        """Words of a group of rows that are found by tables."""
        rows = e.offset(self["row_table"], e.add(item.row, r))
        steps = [e.offset(self[name], part.first) for name in TABLES[1:]]
        count = e.min(e.sub(item.rows, r), LINES)
        into = e.offset(self.words, e.mul(e.div(r, LINES), e.mul(part.count, GROUP)))
        e.call(lines, item.a, rows, *steps, into, count, part.count)

    def _rows(
        self, e: Builder, item: Item, part: _Part, steps: Value, r: Value
    ) -> tuple[Value, ...]:
        """Where a block of rows lies, and the words between rows, steps and groups."""
        if self.spec.order == "words":
            size = e.mul(steps, GROUP)
            group = e.div(e.add(item.row, r), LINES)
            place = e.add(e.mul(group, size), e.mul(part.first, GROUP))
            return e.offset(item.a, place), e.index(WORDS), e.index(GROUP), size
        size = e.mul(part.count, GROUP)
        made = e.index(WORDS), e.index(GROUP), size
        if not self.spec.in_place:
            return e.offset(self.words, e.mul(e.div(r, LINES), size)), *made
        many = terms_per_step(self.spec.unit.a)
        row = e.div(self["a_row"], many // WORDS)

        def there() -> tuple[Value, ...]:
            place = e.mul(e.add(item.row, r), self["a_row"])
            start = e.offset(item.a, e.add(place, e.mul(part.first, many)))
            return e.reinterpret(start, dt.int32), row, e.index(WORDS), e.mul(row, LINES)

        aligned, whole = _is_aligned(e, item), e.compare("le", BLOCK, e.sub(item.rows, r))
        first = e.select(aligned, 0, e.mul(e.div(r, LINES), size))
        given = e.offset(self.words, first), *made
        return e.branch(e.bitwise("and", aligned, whole), there, lambda: given, given)

    def _block(self, e: Builder, item: Item, part: _Part, at: _Panel, r: Value) -> None:
        """A block of rows times one panel."""
        spec = self.spec
        column = e.mul(e.add(item.panel, at.number), WIDTH)
        place, add = e.index(0), e.index(0)
        if spec.split:
            place = e.mul(e.add(e.mul(at.number, _whole_blocks(e, self["height"])), r), WIDTH)
            add = part.first
        sums = e.offset(at.sums, place)
        rows = e.min(e.sub(item.rows, r), BLOCK)
        ahead = e.mul(e.div(r, BLOCK), e.mul(part.count, AHEAD * WORDS))
        given = at.b, e.offset(at.follows, ahead), part.count, sums, add
        self._multiply(e, self._rows(e, item, part, at.steps, r), given, rows)

        def end() -> None:
            results, extras = (
                [moved(e, found, e.add(item.row, r), column) for found in places]
                for places in (item.results, item.extras)
            )
            tile = Tile(spec.unit.sums, BLOCK, LINES, WIDTH // LINES, LINES)
            block = Block(sums, WIDTH, rows, e.sub(self["n"], column))
            finish(e, tile, spec.epilogue, block, extras, results)

        if part.last is None:
            end()
        else:
            e.branch(part.last, end)

    def _multiply(
        self, e: Builder, where: tuple[Value, ...], given: tuple[Value, ...], rows: Value
    ) -> None:
        """The sums of a block."""
        a, row, step, below = where
        b, ahead, steps, c, add = given

        def call(size: int, first: Value | int) -> None:
            # Rows of a tile lie in one group, or make up whole ones.
            group, rest = e.div(e.index(first), LINES), e.rem(e.index(first), LINES)
            start = e.offset(a, e.add(e.mul(group, below), e.mul(rest, row)))
            into = e.offset(c, e.mul(e.index(first), WIDTH))
            e.call(self.tiles[size], start, row, step, below, b, ahead, steps, into, add)

        if self.spec.unit.matrices:
            one = e.compare("le", rows, LINES)
            e.branch(one, lambda: call(LINES, 0), lambda: call(BLOCK, 0))
            return
        size = self.spec.unit.rows
        e.loop(0, rows, size, lambda first: call(size, first))


def _whole_blocks(e: Builder, rows: Value) -> Value:
    """Rows of scratch memory for so many rows: whole blocks."""
    return e.mul(e.div(e.add(rows, BLOCK - 1), BLOCK), BLOCK)


def _is_aligned(e: Builder, item: Item) -> Value:
    """Whether rows of a begin with lines of the cache: else loads take three times as long."""
    return e.compare("eq", e.bitwise("and", e.address(item.a), _LINE - 1), 0)
