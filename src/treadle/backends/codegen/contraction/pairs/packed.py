"""Operands of products, packed into words that instructions with several products a lane read.

A word of 32 bits holds neighboring terms of a line: two of 16 bits, or four of 8. A step is
`WORDS` words. Lines, which are rows of a or columns of b, go by groups of `LINES`, so that a step
of a group fills a matrix register: 16 rows of 64 bytes.

    rows of a:     [group][step][line][word]
    columns of b:  [panel][step][word][two groups of lines]

Terms behind the last one are 0 on both sides; lines behind the last one repeat it, or are 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Literal, NamedTuple

from treadle.backends.codegen.contraction.shared.pack import (
    Copies,
    Order,
    at_position,
    copies,
    transpose,
)
from treadle.backends.codegen.kernel.builder import Builder, KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import (
    Pointer,
    Value,
    maximum,
    minimum,
    select,
    shuffle,
)
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
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
    """Writer of the code that makes words of a group of lines.

    Attributes:
        source: element type.
        order: "straight" where terms of a line are neighbors, "transposed" where lines are.
        rows: whether they are rows of a; else they are columns of b.
    """

    source: DType
    order: Order
    rows: bool


@lru_cache(maxsize=64)
def lines_function(lines: Lines) -> KernelRoutine:
    """A function of (source, line_step, term_step, target, count, terms, steps).

    It makes `steps` steps of a group of `count` lines of `terms` terms each.
    """
    writer = _PackedPairWriter(Builder(), lines)
    {
        ("straight", True): writer.straight_rows,
        ("straight", False): writer.straight_columns,
        ("transposed", True): writer.transposed,
        ("transposed", False): writer.transposed,
        ("strided", True): writer.strided,
        ("strided", False): writer.strided,
    }[lines.order, lines.rows]()
    side = "rows" if lines.rows else "columns"
    return writer.e.function(f"words_of_{side}_{lines.order}_{lines.source.name}")


class _PackedPairWriter:
    """The bodies, over the same parameters."""

    def __init__(self, e: Builder, lines: Lines) -> None:
        self.e, self.lines, self.terms = e, lines, 4 // lines.source.itemsize
        self.source = e.pointer(lines.source, "source")
        self.line_step, self.term_step = e.sizes("line_step", "term_step")
        self.target = e.pointer(dt.int32, "target")
        self.count, self.given, self.steps = e.sizes("count", "terms", "steps")
        # Words from step to step, from line to line and from word to word of the target.
        self.step = GROUP if lines.rows else PANEL
        self.line, self.word = (WORDS, 1) if lines.rows else (1, WIDTH)

    def _start(self, line: Value | int) -> Pointer:
        """Return the start of a line."""
        place = minimum(line, self.count - 1)
        return self.source + place * self.line_step

    def _load(self, start: Pointer, step: Value, *, masked: bool) -> Value:
        """The words of a step of a line whose terms are neighbors."""
        many = WORDS * self.terms
        first = step * many
        mask = self.e.first_lanes(self.given - first, many) if masked else None
        return start.load(first, many, mask).bitcast(dt.int32)

    def _each_step(self) -> Iterator[tuple[Value, bool]]:
        """Blocks for whole steps, and for those that lack terms, whose loads are masked."""
        whole = minimum(self.steps, self.given // (WORDS * self.terms))
        with self.e.loop(whole) as s:
            yield s, False
        with self.e.loop(whole, self.steps) as s:
            yield s, True

    def straight_rows(self) -> None:
        """Vectors as they are."""
        with self.e.loop(LINES) as r:
            start, into = self._start(r), self.target + r * self.line
            for s, masked in self._each_step():
                into.store(s * self.step, self._load(start, s, masked=masked))

    def straight_columns(self) -> None:
        """Squares of words, transposed."""
        starts = [self._start(j) for j in range(LINES)]
        for s, masked in self._each_step():
            square = [self._load(start, s, masked=masked) for start in starts]
            into = self.target + s * self.step
            for w, value in enumerate(transpose(square)):
                into[w * self.word] = value

    def transposed(self) -> None:
        """Neighboring lines as vectors, whose terms are woven into words."""
        e, rows = self.e, self.lines.rows

        def weave(s: Value, masked: bool) -> None:
            into = self.target + s * self.step
            first = s * WORDS
            words = [self._woven(first + w, masked=masked) for w in range(WORDS)]
            made = transpose(words) if rows else words
            pitch = self.line if rows else self.word
            for i, value in enumerate(made):
                into[i * pitch] = value

        with e.when(self.count == LINES):
            for s, masked in self._each_step():
                weave(s, masked)
        with e.otherwise(), e.loop(self.steps) as s:
            weave(s, True)

    def _woven(self, word: Value, *, masked: bool) -> Value:
        """A word of every line of a group."""
        loaded: list[Value] = []
        for t in range(self.terms):
            term, mask = word * self.terms + t, None
            if masked:
                there = select(term < self.given, self.count, 0)
                mask = self.e.first_lanes(there, LINES)
            loaded.append(self.source.load(term * self.term_step, LINES, mask))
        while len(loaded) > 1:
            whole = tuple(range(2 * loaded[0].lanes))
            loaded = [shuffle(x, y, whole) for x, y in zip(loaded[::2], loaded[1::2], strict=True)]
        order = tuple(t * LINES + j for j in range(LINES) for t in range(self.terms))
        return shuffle(loaded[0], loaded[0], order).bitcast(dt.int32)

    def strided(self) -> None:
        """Term after term."""
        e, bits = self.e, 8 * self.lines.source.itemsize
        kind = dt.uint16 if bits == 16 else dt.uint8
        with e.loop(LINES) as r:
            start, into = self._start(r), self.target + r * self.line
            with e.loop(self.steps * WORDS) as i:
                total = e.constant(0, dt.int32)
                for t in range(self.terms):
                    term = i * self.terms + t
                    place = minimum(term, self.given - 1) * self.term_step
                    loaded = start[place].bitcast(kind).cast(dt.int32)
                    found = select(term < self.given, loaded, 0)
                    total = total | (found << (t * bits))
                step, rest = i // WORDS, i % WORDS
                into[step * self.step + rest * self.word] = total


@lru_cache(maxsize=16)
def tabled_rows_function(source: DType, *, ragged: bool) -> KernelRoutine:
    """A function of (source, row_table, step_table, terms_table, target, count, steps).

    Rows begin where `row_table` says, steps where `step_table` says behind that; with `ragged`,
    they have as many terms as `terms_table` says, else they are full.
    """
    e, many = Builder(), terms_per_step(source)
    given = e.pointer(source, "source")
    names = ("row_table", "step_table", "terms_table")
    row_table, step_table, terms_table = (e.pointer(dt.int32, name) for name in names)
    target, count, steps = e.pointer(dt.int32, "target"), e.size("count"), e.size("steps")
    with e.loop(LINES) as r:
        place = row_table[minimum(r, count - 1)]
        start = given + place.cast(dt.int64)
        into = target + r * WORDS
        with e.loop(steps) as s:
            mask = e.first_lanes(terms_table[s].cast(dt.int64), many) if ragged else None
            first = step_table[s].cast(dt.int64)
            into.store(s * GROUP, start.load(first, many, mask).bitcast(dt.int32))
    return e.function(f"words_of_rows_table_{source.name}{'_ragged' if ragged else ''}")


@lru_cache(maxsize=16)
def tabled_columns_function(source: DType) -> KernelRoutine:
    """A function of (source, column_step, order, target, count, steps).

    Term t of step s of a column lies at `order[s * terms + t]` behind its start; -1 says that there
    is none, and it is 0.
    """
    e = Builder()
    given, column_step = e.pointer(source, "source"), e.size("column_step")
    order, target = e.pointer(dt.int32, "order"), e.pointer(dt.int32, "target")
    count, steps = e.sizes("count", "steps")
    terms, bits = 4 // source.itemsize, 8 * source.itemsize
    kind = dt.uint16 if bits == 16 else dt.uint8
    places = [minimum(j, count - 1) for j in range(LINES)]
    starts = [given + place * column_step for place in places]
    with e.loop(steps * WORDS) as w:
        found = [order[w * terms + t].cast(dt.int64) for t in range(terms)]
        there = [place >= 0 for place in found]
        row = target + w * WIDTH
        for j, start in enumerate(starts):
            total = e.constant(0, dt.int32)
            for t, place in enumerate(found):
                loaded = start[maximum(place, 0)].bitcast(kind)
                one = select(there[t], loaded.cast(dt.int32), 0)
                total = total | (one << (t * bits) if t else one)
            row[j] = total
    return e.function(f"words_of_columns_table_{source.name}")


# -- panels ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Panels:
    """A kernel that makes panels of b; its constants."""

    source: DType
    order: Order | Literal["table"]
    batch: int


class PanelsParameters(NamedTuple, Generic[P, S]):
    """Parameters of a kernel that makes panels: see `panels_kernel`."""

    source: P
    made: P
    order: P | None
    n: S
    k: S
    steps: S
    panels: S
    term_step: S
    column_step: S
    batch: tuple[Copies[S], ...]


@lru_cache(maxsize=64)
def panels_kernel(spec: Panels) -> RecordedKernel:
    """The kernel, whose items are panels."""
    tabled = spec.order == "table"
    if spec.order == "table":
        pack = tabled_columns_function(spec.source)
    else:
        pack = lines_function(Lines(spec.source, spec.order, rows=False))
    e = KernelBuilder()
    p = e.record(
        PanelsParameters[Pointer, Value],
        source=spec.source,
        made=dt.int32,
        order=dt.int32 if tabled else None,
        batch=lambda: copies(e, spec.batch),
    )

    def halves(
        place: Value, source: Pointer, made: Pointer, terms: Value, steps: Value | int
    ) -> None:
        """The columns of a panel."""
        for half in range(WIDTH // LINES):
            column = place * WIDTH + half * LINES
            # Columns behind the last one: those of some column that there is.
            first = minimum(column, p.n - 1)
            count = minimum(p.n - first, LINES)
            start = source + first * p.column_step
            into, step = made + half * LINES, p.column_step
            if p.order is not None:
                e.call(pack, start, step, p.order, into, count, p.steps)
            else:
                e.call(pack, start, step, p.term_step, into, count, terms, steps)

    with e.items() as i:
        place, position = i % p.panels, i // p.panels
        source, made = at_position(position, p.batch, p.source, p.made)
        made = made + place * (p.steps * PANEL)
        if spec.order == "transposed":
            with e.loop(p.steps) as s:
                first = s * terms_per_step(spec.source)
                rows = source + first * p.term_step
                terms = p.k - first
                halves(place, rows, made + s * PANEL, terms, 1)
        else:
            halves(place, source, made, p.k, p.steps)
    name = f"pack_words_{spec.order}_{spec.source.name}"
    return RecordedKernel(e.kernel(name, [pack]), p)


class WeavingParameters(NamedTuple, Generic[P, S]):
    """Parameters of a kernel that weaves words: see `weaving_kernel`."""

    source: P
    made: P
    lines: S
    terms: S
    term_step: S
    room: S
    chunk: S
    chunks: S


@lru_cache(maxsize=16)
def weaving_kernel(source: DType, *, rows: bool) -> RecordedKernel:
    """A kernel that makes words of a whole matrix whose lines are neighbors.

    Its items are `chunk` steps of a group of lines. A panel, or a group of rows, has `room` steps.
    """
    pack = lines_function(Lines(source, "transposed", rows))
    many = terms_per_step(source)
    e = KernelBuilder()
    p = e.record(WeavingParameters[Pointer, Value], source=source, made=dt.int32)
    with e.items() as i:
        group, first = i // p.chunks, (i % p.chunks) * p.chunk
        place = group * LINES
        line = minimum(place, p.lines - 1)
        count = minimum(p.lines - line, LINES)
        term = first * many
        start = p.source + (line + term * p.term_step)
        steps = minimum(p.chunk, p.room - first)
        if rows:
            into = (group * p.room + first) * GROUP
        else:
            halves = WIDTH // LINES
            panel = (group // halves) * p.room + first
            into = panel * PANEL + (group % halves) * LINES
        left = maximum(p.terms - term, 0)
        target = p.made + into
        e.call(pack, start, 1, p.term_step, target, count, left, steps)
    name = f"weave_{'rows' if rows else 'columns'}_{source.name}"
    return RecordedKernel(e.kernel(name, [pack]), p)
