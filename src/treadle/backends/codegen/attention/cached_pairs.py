"""Attention of many queries over a cache, by products of bfloat16.

Keys and values that some query sees become words of two neighboring terms first, once for all
queries of a group (`contraction/pairs/packed.py` says how words lie). An item is a head of keys and
`ROWS` rows as in `cached`, where a row is a query of one head of the group at one position. Blocks
of keys meet all of its rows: scores, weights in scratch as words, and what they weigh, which is
scaled where a row has seen a larger score.

Blocks begin at multiples of their size, and a row's numbers depend on its own keys alone, so a
prompt that is read in other pieces has the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

from treadle.backends.codegen.attention.cached import (
    BLOCK,
    ROWS,
    CachedConfig,
    CachedRows,
    Item,
    PairsParameters,
    Seen,
    first_line,
    scales_of,
    tanh,
)
from treadle.backends.codegen.attention.operands import LOG2_E
from treadle.backends.codegen.attention.softmax import power_of_two
from treadle.backends.codegen.contraction.pairs.packed import GROUP, LINES, PANEL, WIDTH, WORDS
from treadle.backends.codegen.contraction.pairs.tiles import Multiplier, unit_function
from treadle.backends.codegen.irregular.cache import bounded
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, fma, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.base import dtype as dt

STEP = 2 * WORDS
"""Terms of a step, and keys of a panel."""
PANELS = BLOCK // STEP
"""Panels of keys of a block."""
_TILE = ROWS * WIDTH
"""Numbers of all rows in a panel of columns."""


def takes(spec: CachedConfig) -> bool:
    """Return whether products of bfloat16 are instructions, and features fill steps."""
    target = spec.target
    wide = target.dot_bfloat16 and target.vector_bytes == 4 * LINES
    return wide and spec.dtype is dt.float32 and spec.d % STEP == 0 == spec.e % STEP


class WordsParameters(Record[P, S], kw=dt.int32, vw=dt.int32):
    """Parameters of `words_kernel`: sizes of the cache, pages of a sequence, panels of its head."""

    k: P
    v: P
    kw: P
    vw: P
    ends: P
    rows: P
    scales: tuple[P, ...]
    sequences: S
    shared: S
    capacity: S
    pages: S
    panels: S


@cache
def words_kernel(spec: CachedConfig) -> RecordedKernel:
    """A kernel over panels of keys, which makes words of keys and values."""
    made = _Words(spec)
    made.write()
    kernel = made.e.kernel("words_of_cache", (), spec.target.features)
    return RecordedKernel(kernel, made.p)


@cache
def pairs_kernel(spec: CachedConfig) -> RecordedKernel:
    """The kernel that multiplies words."""
    made = _Pairs(spec)
    made.write()
    kernel = made.e.kernel("cached_attention_pairs", [made.function], spec.target.features)
    return RecordedKernel(kernel, made.p)


class _Words:
    """Writes the kernel that makes words."""

    def __init__(self, spec: CachedConfig) -> None:
        self.s = spec
        self.e = e = KernelBuilder()
        self.p = e.record(
            WordsParameters[Pointer, Value],
            k=spec.kept,
            v=spec.kept,
            ends=spec.places[1],
            rows=spec.places[2],
            scales=partial(scales_of, e, spec),
        )

    def write(self) -> None:
        """The entry."""
        e, p = self.e, self.p
        e.flushes = True
        with e.items() as item:
            panel, entry = item % p.panels, item // p.panels
            head, row = entry % p.shared, entry // p.shared
            room = p.capacity if self.s.page is None else p.pages * self.s.page
            end = bounded(p.ends[row], room)
            first = panel * STEP
            here = end - first
            with e.when(here > 0):
                where, extents = (row, head, first), (p.shared, p.capacity, p.pages)
                line = first_line(self.s, p.rows, p.sequences, where, extents)
                self._panel(entry, panel, line + first, here)

    def _panel(self, entry: Value, panel: Value, start: Value, here: Value) -> None:
        """The words of the keys from `start` on, of which `here` have been written."""
        steps = self.s.d // STEP
        into = (entry * self.p.panels + panel) * (steps * PANEL)
        scales = [scale + start for scale in self.p.scales]
        words = self.p.kw + into
        self._keys(start * self.s.d, here, words, scales[:1])
        for column in range(self.s.e // WIDTH):
            place = entry * (self.s.e // WIDTH) + column
            into = (place * self.p.panels + panel) * PANEL
            source = start * self.s.e + column * WIDTH
            self._values(source, here, self.p.vw + into, scales[1:])

    def _line(self, kept: Pointer, at: Value, there: Value, scale: list[Value]) -> Value:
        """Sixteen numbers as bfloat16; 0 behind the last key, where anything may lie."""
        e = self.e
        mask = e.first_lanes(select(there, e.index(LINES), 0), LINES)
        value = kept.load(at, LINES, mask).cast(dt.float32)
        for factor in scale:
            value = value * factor.splat(LINES)
        return value.cast(dt.bfloat16)

    def _scale(self, scales: list[Pointer], key: Value, here: Value) -> list[Value]:
        """Return the scales of a key; those of the last one for keys behind it."""
        return [p[minimum(key, here - 1)] for p in scales]

    def _keys(self, first: Value, here: Value, into: Pointer, scales: list[Pointer]) -> None:
        """Write keys into columns, with the words of a key below each other."""
        with self.e.loop(STEP) as j:
            line, there = first + j * self.s.d, j < here
            scale = self._scale(scales, j, here)
            for at in range(0, self.s.d, LINES):
                words = self._line(self.p.k, line + at, there, scale).bitcast(dt.int32)
                step, word = divmod(at // 2, WORDS)
                for i in range(LINES // 2):
                    place = step * PANEL + (word + i) * WIDTH
                    into.store(j + place, words.extract(i))

    def _values(self, first: Value, here: Value, into: Pointer, scales: list[Pointer]) -> None:
        """Write features into columns, with two neighboring keys in a word."""
        with self.e.loop(WORDS) as w:
            for half in range(2):
                found = []
                for i in range(2):
                    key = w * 2 + i
                    at = first + key * self.s.e + half * LINES
                    scale = self._scale(scales, key, here)
                    line = self._line(self.p.v, at, key < here, scale)
                    found.append(line.bitcast(dt.uint16).cast(dt.int32))
                both = found[0] | (found[1] << 16)
                into.store(w * WIDTH + half * LINES, both)


@dataclass(frozen=True, slots=True)
class _PairScratch(Seen):
    """Rows of an item: queries, scores, weights, results."""

    q: Pointer
    scores: Pointer
    weights: Pointer
    y: Pointer


class _Pairs(CachedRows[_PairScratch]):
    """Writes the kernel of one spec."""

    def __init__(self, spec: CachedConfig) -> None:
        super().__init__(spec)
        self.unit = Multiplier(dt.bfloat16, dt.bfloat16, dt.float32, spec.target.matrices)
        self.function = unit_function(self.unit, self.unit.rows)
        self.steps, self.columns = spec.d // STEP, spec.e // WIDTH
        kind = PairsParameters[Pointer, Value]
        self.p: PairsParameters[Pointer, Value] = self.e.record(kind, **self.given)

    def write(self) -> None:
        """The entry."""
        e = self.e
        e.flushes = True
        scratch = _PairScratch(
            *self.seen(),
            e.stack(dt.int32, ROWS // LINES * self.steps * GROUP),
            e.stack(dt.float32, PANELS * _TILE),
            e.stack(dt.int32, ROWS // LINES * PANELS * GROUP),
            e.stack(dt.float32, self.columns * _TILE),
        )
        if self.unit.matrices:
            e.begin_matrices()
        with e.items() as item:
            self.item(scratch, item)
        if self.unit.matrices:
            e.end_matrices()

    def work(self, scratch: _PairScratch, at: Item) -> None:
        e = self.e
        self.prepare(scratch, at, ROWS)
        scratch.y.zero(self.columns * _TILE)
        lowest, most = self.span(scratch, at)
        lowest = (lowest // BLOCK) * BLOCK
        with e.loop(lowest, most, BLOCK) as begin:
            self._block(scratch, at.entry, begin, most)
        with e.loop(at.meant) as r:
            self._finish(scratch, r, at.place(r))

    def query(self, scratch: _PairScratch, r: Value, place: Value) -> None:
        source = self.p.q + place * self.s.d
        group = (r // LINES) * (self.steps * GROUP)
        into = scratch.q + (group + (r % LINES) * WORDS)
        for at in range(0, self.s.d, LINES):
            value = (source.load(at, LINES) * self.s.factor).cast(dt.bfloat16)
            step, word = divmod(at // 2, WORDS)
            into.store(step * GROUP + word, value.bitcast(dt.int32))

    def _block(self, scratch: _PairScratch, entry: Value, begin: Value, most: Value) -> None:
        """All rows of an item against the keys of a block."""
        e = self.e
        first = begin // STEP
        count = minimum(PANELS, (most - begin + (STEP - 1)) // STEP)
        keys = (entry * self.p.panels + first) * (self.steps * PANEL)
        with e.loop(count) as p:
            words = self.p.kw + (keys + p * (self.steps * PANEL))
            into = scratch.scores + p * _TILE
            self._multiply(scratch.q, self.steps, words, self.steps, into, add=False)
        with e.loop(ROWS) as r:
            self._weigh(scratch, r, begin, count)
        for column in range(self.columns):
            place = (entry * self.columns + column) * self.p.panels
            words = self.p.vw + (place + first) * PANEL
            into = scratch.y + column * _TILE
            self._multiply(scratch.weights, PANELS, words, count, into, add=True)

    def _multiply(
        self,
        a: Pointer,
        pitch: int,
        words: Pointer,
        steps: Value | int,
        into: Pointer,
        *,
        add: bool,
    ) -> None:
        """All rows, whose groups are `pitch` steps long, times words."""
        for first in range(0, ROWS, self.unit.rows):
            group, line = divmod(first, LINES)
            start = a + (group * pitch * GROUP + line * WORDS)
            rows = start, WORDS, GROUP, pitch * GROUP
            self.e.call(self.function, *rows, words, words, steps, into + first * WIDTH, int(add))

    def _weigh(self, scratch: _PairScratch, r: Value, begin: Value, count: Value) -> None:
        """Make a row's scores weights, as words; scale what it has so far."""
        e, s = self.e, self.s
        row = scratch.scores + r * WIDTH
        limits = [x[r].splat(LINES) for x in (scratch.begins, scratch.ends)]
        lanes = e.iota(dt.int32, LINES)
        best = [e.constant(-math.inf, dt.float32, LINES)]
        with e.loop(count, carrying=best) as p:
            for half in range(2):
                at = p * _TILE + half * LINES
                found = row.load(at, LINES)
                if s.softcap is not None:
                    found = tanh(found) * (s.softcap * LOG2_E)
                key = begin + p * STEP + half * LINES
                keys = key.cast(dt.int32).splat(LINES) + lanes
                seen = keys < limits[1]
                if s.window is not None:
                    seen = seen & (limits[0] <= keys)
                found = select(seen, found, -math.inf)
                row[at] = found
                best[0] = maximum(found, best[0])
        before = scratch.largest[r]
        largest = maximum(before, best[0].reduce("max"))
        shifts = select(abs(largest) < math.inf, largest, 0.0).splat(LINES)
        into = (r // LINES) * (PANELS * GROUP)
        words = scratch.weights + (into + (r % LINES) * WORDS)
        total = [e.constant(0.0, dt.float32, LINES)]
        with e.loop(count, carrying=total) as p:
            for half in range(2):
                score = row.load(p * _TILE + half * LINES, LINES)
                weight = power_of_two(score - shifts)
                total[0] = weight + total[0]
                rounded = weight.cast(dt.bfloat16).bitcast(dt.int32)
                words.store(p * GROUP + half * LINES // 2, rounded)
        factor = power_of_two(before.splat(LINES) - shifts)
        single = factor.extract(0)
        scratch.sums[r] = fma(scratch.sums[r], single, total[0].reduce("add"))
        scratch.largest[r] = largest

        with e.when(single != 1.0):
            for column in range(self.columns):
                y = scratch.y + (r * WIDTH + column * _TILE)
                for half in range(2):
                    value = y.load(half * LINES, LINES)
                    y.store(half * LINES, value * factor)

    def _finish(self, scratch: _PairScratch, r: Value, place: Value) -> None:
        """A row's result, divided by its sum."""
        inverse = 1.0 / scratch.sums[r]
        line = self.p.y + place * self.s.e
        source = scratch.y + r * WIDTH
        for at in range(0, self.s.e, LINES):
            column, half = divmod(at, WIDTH)
            value = source.load(column * _TILE + half, LINES)
            line[at] = value * inverse
