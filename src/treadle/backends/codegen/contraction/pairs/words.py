"""Operands of products as words: what instructions that add several products at a time read.

A word of 32 bits holds neighboring terms of a line: two of 16 bits, or four of 8. A step is
`WORDS` words. Lines, which are rows of a or columns of b, go by groups of `LINES`, so that a step
of a group fills a matrix register: 16 rows of 64 bytes.

    rows of a:     [group][step][line][word]
    columns of b:  [panel][step][word][two groups of lines]

Terms behind the last one are 0 on both sides; lines behind the last one repeat it, or are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from treadle.backends.codegen.contraction.shared.items import Contraction
from treadle.backends.codegen.contraction.shared.pack import Order, transpose
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
from treadle.base import dtype as dt
from treadle.base.dtype import DType

LINES = 16
"""Lines of a group."""
WORDS = 16
"""Words of a step."""
GROUP = LINES * WORDS
"""Words of a step of a group."""
WIDTH = 2 * LINES
"""Columns of a panel."""
PANEL = WIDTH * WORDS
"""Words of a step of a panel."""


def terms_per_step(dtype: DType) -> int:
    """Terms of a step."""
    return WORDS * 4 // dtype.itemsize


@dataclass(frozen=True, slots=True)
class Lines:
    """How a group of lines is made words.

    Attributes:
        source: element type.
        order: "straight" where terms of a line are neighbors, "transposed" where lines are.
        rows: whether they are rows of a; else they are columns of b.
    """

    source: DType
    order: Order
    rows: bool


@lru_cache(maxsize=64)
def lines_function(lines: Lines) -> Function:
    """A function of (source, line_step, term_step, target, count, terms, steps).

    It makes `steps` steps of a group of `count` lines of `terms` terms each.
    """
    writer = _Writer(lines)
    write = {
        ("straight", True): writer.straight_rows,
        ("straight", False): writer.straight_columns,
        ("transposed", True): writer.transposed,
        ("transposed", False): writer.transposed,
        ("strided", True): writer.strided,
        ("strided", False): writer.strided,
    }[lines.order, lines.rows]
    side = "rows" if lines.rows else "columns"
    name = f"words_of_{side}_{lines.order}_{lines.source.name}"
    return builder.function(name, writer.parameters, write)


class _Writer:
    """The bodies, over the same parameters."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.terms = 4 // lines.source.itemsize
        self.source = ir.pointer(lines.source, "source")
        self.target = ir.pointer(dt.int32, "target")
        names = ("line_step", "term_step", "count", "terms", "steps")
        self.line_step, self.term_step, self.count, self.given, self.steps = map(ir.size, names)
        # Words from step to step, from line to line and from word to word of the target.
        self.step = GROUP if lines.rows else PANEL
        self.line, self.word = (WORDS, 1) if lines.rows else (1, WIDTH)

    @property
    def parameters(self) -> list[Value]:
        """In order."""
        first = [self.source, self.line_step, self.term_step, self.target]
        return [*first, self.count, self.given, self.steps]

    def _start(self, e: Builder, line: Value | int) -> Value:
        """Where a line begins."""
        place = e.min(e.index(line), e.sub(self.count, 1))
        return e.offset(self.source, e.mul(place, self.line_step))

    def _load(self, e: Builder, start: Value, step: Value, *, masked: bool) -> Value:
        """The words of a step of a line whose terms are neighbors."""
        many = WORDS * self.terms
        first = e.mul(step, many)
        mask = e.first_lanes(e.sub(self.given, first), many) if masked else None
        return e.bitcast(e.load(start, first, many, mask), dt.int32)

    def _each_step(self, e: Builder, write: Callable[[Value, bool], None]) -> None:
        """Whole steps, then those that lack terms: their loads are masked."""
        whole = e.min(self.steps, e.div(self.given, WORDS * self.terms))
        e.loop(0, whole, 1, lambda s: write(s, False))
        e.loop(whole, self.steps, 1, lambda s: write(s, True))

    def straight_rows(self, e: Builder) -> None:
        """Vectors as they are."""

        def line(r: Value) -> None:
            start, into = self._start(e, r), e.offset(self.target, e.mul(r, self.line))

            def step(s: Value, masked: bool) -> None:
                e.store(into, e.mul(s, self.step), self._load(e, start, s, masked=masked))

            self._each_step(e, step)

        e.loop(0, LINES, 1, line)

    def straight_columns(self, e: Builder) -> None:
        """Squares of words, transposed."""
        starts = [self._start(e, j) for j in range(LINES)]

        def step(s: Value, masked: bool) -> None:
            square = [self._load(e, start, s, masked=masked) for start in starts]
            into = e.offset(self.target, e.mul(s, self.step))
            for w, value in enumerate(transpose(e, square)):
                e.store(into, w * self.word, value)

        self._each_step(e, step)

    def transposed(self, e: Builder) -> None:
        """Neighboring lines as vectors, whose terms are woven into words."""

        def step(s: Value, masked: bool) -> None:
            into = e.offset(self.target, e.mul(s, self.step))
            first = e.mul(s, WORDS)
            words = [self._woven(e, e.add(first, w), masked=masked) for w in range(WORDS)]
            made = transpose(e, words) if self.lines.rows else words
            pitch = self.line if self.lines.rows else self.word
            for i, value in enumerate(made):
                e.store(into, i * pitch, value)

        full = e.compare("eq", self.count, LINES)
        e.branch(
            full,
            lambda: self._each_step(e, step),
            lambda: e.loop(0, self.steps, 1, lambda s: step(s, True)),
        )

    def _woven(self, e: Builder, word: Value, *, masked: bool) -> Value:
        """A word of every line of a group."""
        loaded: list[Value] = []
        for t in range(self.terms):
            term, mask = e.add(e.mul(word, self.terms), t), None
            if masked:
                there = e.select(e.compare("lt", term, self.given), self.count, 0)
                mask = e.first_lanes(there, LINES)
            loaded.append(e.load(self.source, e.mul(term, self.term_step), LINES, mask))
        while len(loaded) > 1:
            whole = tuple(range(2 * loaded[0].lanes))
            loaded = [
                e.shuffle(x, y, whole) for x, y in zip(loaded[::2], loaded[1::2], strict=True)
            ]
        order = tuple(t * LINES + j for j in range(LINES) for t in range(self.terms))
        return e.bitcast(e.shuffle(loaded[0], loaded[0], order), dt.int32)

    def strided(self, e: Builder) -> None:
        """Term after term."""
        bits = 8 * self.lines.source.itemsize
        kind = dt.uint16 if bits == 16 else dt.uint8

        def line(r: Value) -> None:
            start, into = self._start(e, r), e.offset(self.target, e.mul(r, self.line))

            def word(i: Value) -> None:
                total: Value = e.constant(0, dt.int32)
                for t in range(self.terms):
                    term = e.add(e.mul(i, self.terms), t)
                    place = e.mul(e.min(term, e.sub(self.given, 1)), self.term_step)
                    loaded = e.cast(e.bitcast(e.load(start, place), kind), dt.int32)
                    found = e.select(e.compare("lt", term, self.given), loaded, 0)
                    total = e.bitwise("or", total, e.bitwise("shl", found, t * bits))
                step, rest = e.div(i, WORDS), e.rem(i, WORDS)
                e.store(into, e.add(e.mul(step, self.step), e.mul(rest, self.word)), total)

            e.loop(0, e.mul(self.steps, WORDS), 1, word)

        e.loop(0, LINES, 1, line)


@lru_cache(maxsize=16)
def tabled_rows_function(source: DType, *, ragged: bool) -> Function:
    """A function of (source, row_table, step_table, terms_table, target, count, steps).

    Rows begin where `row_table` says, steps where `step_table` says behind that; with `ragged`,
    they have as many terms as `terms_table` says, else they are full.
    """
    given, target = ir.pointer(source, "source"), ir.pointer(dt.int32, "target")
    names = ("row_table", "step_table", "terms_table")
    row_table, step_table, terms_table = (ir.pointer(dt.int32, name) for name in names)
    count, steps = ir.size("count"), ir.size("steps")
    many = terms_per_step(source)

    def write(e: Builder) -> None:
        def line(r: Value) -> None:
            place = e.load(row_table, e.min(r, e.sub(count, 1)))
            start = e.offset(given, e.cast(place, dt.int64))
            into = e.offset(target, e.mul(r, WORDS))

            def step(s: Value) -> None:
                mask = None
                if ragged:
                    mask = e.first_lanes(e.cast(e.load(terms_table, s), dt.int64), many)
                first = e.cast(e.load(step_table, s), dt.int64)
                e.store(
                    into, e.mul(s, GROUP), e.bitcast(e.load(start, first, many, mask), dt.int32)
                )

            e.loop(0, steps, 1, step)

        e.loop(0, LINES, 1, line)

    parameters = [given, row_table, step_table, terms_table, target, count, steps]
    name = f"words_of_rows_table_{source.name}{'_ragged' if ragged else ''}"
    return builder.function(name, parameters, write)


@lru_cache(maxsize=16)
def tabled_columns_function(source: DType) -> Function:
    """A function of (source, column_step, order, target, count, steps).

    Term t of step s of a column lies at `order[s * terms + t]` behind its start; -1 says that there
    is none, and it is 0.
    """
    given, target = ir.pointer(source, "source"), ir.pointer(dt.int32, "target")
    order = ir.pointer(dt.int32, "order")
    column_step, count, steps = ir.size("column_step"), ir.size("count"), ir.size("steps")
    terms, bits = 4 // source.itemsize, 8 * source.itemsize
    kind = dt.uint16 if bits == 16 else dt.uint8

    def write(e: Builder) -> None:
        places = [e.min(e.index(j), e.sub(count, 1)) for j in range(LINES)]
        starts = [e.offset(given, e.mul(place, column_step)) for place in places]

        def word(w: Value) -> None:
            found = [
                e.cast(e.load(order, e.add(e.mul(w, terms), t)), dt.int64) for t in range(terms)
            ]
            there = [e.compare("le", 0, place) for place in found]
            row = e.offset(target, e.mul(w, WIDTH))
            for j, start in enumerate(starts):
                total: Value = e.constant(0, dt.int32)
                for t, place in enumerate(found):
                    loaded = e.bitcast(e.load(start, e.max(place, 0)), kind)
                    one = e.select(there[t], e.cast(loaded, dt.int32), 0)
                    total = e.bitwise("or", total, e.bitwise("shl", one, t * bits) if t else one)
                e.store(row, j, total)

        e.loop(0, e.mul(steps, WORDS), 1, word)

    parameters = [given, column_step, order, target, count, steps]
    return builder.function(f"words_of_columns_table_{source.name}", parameters, write)


# -- panels ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Panels:
    """A kernel that makes panels of b; its constants."""

    source: DType
    order: Order | Literal["table"]
    batch: int


@lru_cache(maxsize=64)
def panels_kernel(spec: Panels) -> Contraction:
    """The kernel, whose items are panels."""
    if spec.order == "table":
        pack = tabled_columns_function(spec.source)
    else:
        pack = lines_function(Lines(spec.source, spec.order, rows=False))
    names = ["n", "k", "steps", "panels", "term_step", "column_step"]
    names += [f"{n}{i}" for i in range(spec.batch) for n in ("batch", "source_batch", "made_batch")]
    values = {"source": ir.pointer(spec.source, "source"), "made": ir.pointer(dt.int32, "made")}
    values |= {"order": ir.pointer(dt.int32, "order")} if spec.order == "table" else {}
    values |= {name: ir.size(name) for name in names}

    def panel(e: Builder, i: Value) -> None:
        place, position = e.rem(i, values["panels"]), e.div(i, values["panels"])
        source, made = values["source"], values["made"]
        for axis in reversed(range(spec.batch)):
            at = e.rem(position, values[f"batch{axis}"]) if axis else position
            position = e.div(position, values[f"batch{axis}"]) if axis else position
            source = e.offset(source, e.mul(at, values[f"source_batch{axis}"]))
            made = e.offset(made, e.mul(at, values[f"made_batch{axis}"]))
        made = e.offset(made, e.mul(place, e.mul(values["steps"], PANEL)))
        if spec.order == "transposed":
            # Both halves of a step, which share lines of the cache, before the next one.
            def step(s: Value) -> None:
                first = e.mul(s, terms_per_step(spec.source))
                rows = e.offset(source, e.mul(first, values["term_step"]))
                sizes = e.sub(values["k"], first), e.index(1)
                halves(e, place, rows, e.offset(made, e.mul(s, PANEL)), sizes)

            e.loop(0, values["steps"], 1, step)
            return
        halves(e, place, source, made, (values["k"], values["steps"]))

    def halves(
        e: Builder, place: Value, source: Value, made: Value, sizes: tuple[Value, Value]
    ) -> None:
        """The columns of a panel, by terms and steps."""
        for half in range(WIDTH // LINES):
            column = e.add(e.mul(place, WIDTH), half * LINES)
            # Columns behind the last one: those of some column that there is.
            first = e.min(column, e.sub(values["n"], 1))
            count = e.min(e.sub(values["n"], first), LINES)
            start = e.offset(source, e.mul(first, values["column_step"]))
            into, step = e.offset(made, half * LINES), values["column_step"]
            if spec.order == "table":
                e.call(pack, start, step, values["order"], into, count, values["steps"])
            else:
                e.call(pack, start, step, values["term_step"], into, count, *sizes)

    def write(e: Builder, lo: Value, hi: Value) -> None:
        e.loop(lo, hi, 1, lambda i: panel(e, i))

    name = f"pack_words_{spec.order}_{spec.source.name}"
    return Contraction(builder.kernel(name, list(values.values()), write, [pack]), tuple(values))


@lru_cache(maxsize=16)
def weaving_kernel(source: DType, *, rows: bool) -> Contraction:
    """A kernel that makes words of a whole matrix whose lines are neighbors.

    Its items are `chunk` steps of a group of lines. A panel, or a group of rows, has `room` steps.
    """
    pack = lines_function(Lines(source, "transposed", rows))
    values = {"source": ir.pointer(source, "source"), "made": ir.pointer(dt.int32, "made")}
    names = ("lines", "terms", "term_step", "room", "chunk", "chunks")
    values |= {name: ir.size(name) for name in names}
    many = terms_per_step(source)

    def item(e: Builder, i: Value) -> None:
        group, first = (
            e.div(i, values["chunks"]),
            e.mul(e.rem(i, values["chunks"]), values["chunk"]),
        )
        place = e.mul(group, LINES)
        line = e.min(place, e.sub(values["lines"], 1))
        count = e.min(e.sub(values["lines"], line), LINES)
        term = e.mul(first, many)
        start = e.offset(values["source"], e.add(line, e.mul(term, values["term_step"])))
        steps = e.min(values["chunk"], e.sub(values["room"], first))
        if rows:
            into = e.mul(e.add(e.mul(group, values["room"]), first), GROUP)
        else:
            halves = WIDTH // LINES
            panel = e.add(e.mul(e.div(group, halves), values["room"]), first)
            into = e.add(e.mul(panel, PANEL), e.mul(e.rem(group, halves), LINES))
        left = e.max(e.sub(values["terms"], term), 0)
        target = e.offset(values["made"], into)
        e.call(pack, start, e.index(1), values["term_step"], target, count, left, steps)

    def write(e: Builder, lo: Value, hi: Value) -> None:
        e.loop(lo, hi, 1, lambda i: item(e, i))

    name = f"weave_{'rows' if rows else 'columns'}_{source.name}"
    return Contraction(builder.kernel(name, list(values.values()), write, [pack]), tuple(values))
