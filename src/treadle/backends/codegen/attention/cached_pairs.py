"""Attention of many queries over a cache, by products of bfloat16.

Keys and values that some query sees become words of two neighboring terms first, once for all
queries of a group (`contraction/pair_words.py` says how words lie). An item is a head of keys and
`ROWS` rows as in `cached`, where a row is a query of one head of the group at one position. Blocks
of keys meet all of its rows: scores, weights in scratch as words, and what they weigh, which is
scaled where a row has seen a larger score.

Blocks begin at multiples of their size, and a row's numbers depend on its own keys alone, so a
prompt that is read in other pieces has the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.attention.cached import (
    BLOCK,
    ROWS,
    Item,
    Rows,
    Seen,
    Spec,
    scales_of,
    tanh,
)
from treadle.backends.codegen.attention.operands import LOG2_E
from treadle.backends.codegen.attention.softmax import power_of_two
from treadle.backends.codegen.contraction.pair_tiles import Unit, unit_function
from treadle.backends.codegen.contraction.pair_words import GROUP, LINES, PANEL, WIDTH, WORDS
from treadle.backends.codegen.irregular.cache import bounded
from treadle.backends.codegen.kernel.builder import Builder, kernel
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.base import dtype as dt

STEP = 2 * WORDS
"""Terms of a step, and keys of a panel."""
PANELS = BLOCK // STEP
"""Panels of keys of a block."""
_TILE = ROWS * WIDTH
"""Numbers of all rows in a panel of columns."""


def takes(spec: Spec) -> bool:
    """Whether products of bfloat16 are instructions, and features fill steps."""
    target = spec.target
    wide = target.dot_bfloat16 and target.vector_bytes == 4 * LINES
    return wide and spec.dtype is dt.float32 and spec.d % STEP == 0 == spec.e % STEP


@cache
def words_kernel(spec: Spec) -> Kernel:
    """A kernel over panels of keys: (k, v, key words, value words, ends, rows[, scales], sizes).

    Sizes are the sequences and heads of the cache, its capacity, and panels of a head.
    """
    made = _Words(spec)
    return kernel("words_of_cache", made.parameters, made.write, (), spec.target.features)


@cache
def pairs_kernel(spec: Spec) -> Kernel:
    """The kernel over (q, key words, value words, y, starts, ends[, sinks], sizes)."""
    made = _Pairs(spec)
    functions = [made.function]
    features = spec.target.features
    return kernel("cached_attention_pairs", made.parameters, made.write, functions, features)


class _Words:
    """Writes the kernel that makes words."""

    def __init__(self, spec: Spec) -> None:
        self.s = spec
        self.k, self.v = pointer(spec.kept, "k"), pointer(spec.kept, "v")
        self.key_words, self.value_words = (pointer(dt.int32, n) for n in ("kw", "vw"))
        self.scales = scales_of(spec)
        self.ends, self.rows = pointer(spec.places[1], "ends"), pointer(spec.places[2], "rows")
        names = ("sequences", "shared", "capacity", "panels")
        self.sizes = [size(n) for n in names]
        self.sequences, self.shared, self.capacity, self.panels = self.sizes

    @property
    def parameters(self) -> tuple[Value, ...]:
        """In order."""
        places = self.ends, self.rows
        words = self.key_words, self.value_words
        return (self.k, self.v, *words, *places, *self.scales, *self.sizes)

    def write(self, b: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        b.flushes = True
        b.loop(lo, hi, 1, lambda item: self._item(b, item))

    def _item(self, b: Builder, item: Value) -> None:
        panel, entry = b.rem(item, self.panels), b.div(item, self.panels)
        head, row = b.rem(entry, self.shared), b.div(entry, self.shared)
        end = bounded(b.load(self.ends, row), self.capacity)
        sequence = bounded(b.load(self.rows, row), b.sub(self.sequences, 1))
        first = b.mul(panel, STEP)
        line = b.mul(b.add(b.mul(sequence, self.shared), head), self.capacity)
        start = b.add(line, first)
        here = b.sub(end, first)

        def work() -> None:
            steps = self.s.d // STEP
            into = b.mul(b.add(b.mul(entry, self.panels), panel), steps * PANEL)
            scales = [b.offset(p, start) for p in self.scales]
            into = b.offset(self.key_words, into)
            self._keys(b, b.mul(start, self.s.d), here, into, scales[:1])
            for column in range(self.s.e // WIDTH):
                place = b.add(b.mul(entry, self.s.e // WIDTH), column)
                into = b.mul(b.add(b.mul(place, self.panels), panel), PANEL)
                source = b.add(b.mul(start, self.s.e), column * WIDTH)
                self._values(b, source, here, b.offset(self.value_words, into), scales[1:])

        b.branch(b.compare("lt", 0, here), work)

    def _line(self, b: Builder, kept: Value, at: Value, there: Value, scale: list[Value]) -> Value:
        """Sixteen numbers as bfloat16; 0 behind the last key, where anything may lie."""
        mask = b.first_lanes(b.select(there, b.index(LINES), b.index(0)), LINES)
        value = b.cast(b.load(kept, at, LINES, mask), dt.float32)
        for factor in scale:
            value = b.mul(value, b.splat(factor, LINES))
        return b.cast(value, dt.bfloat16)

    def _scale(self, b: Builder, scales: list[Value], key: Value, here: Value) -> list[Value]:
        """That of a key; of the last one behind it."""
        return [b.load(p, b.min(key, b.sub(here, 1))) for p in scales]

    def _keys(
        self, b: Builder, first: Value, here: Value, into: Value, scales: list[Value]
    ) -> None:
        """Columns are keys; words lie below each other."""

        def key(j: Value) -> None:
            line, there = b.add(first, b.mul(j, self.s.d)), b.compare("lt", j, here)
            scale = self._scale(b, scales, j, here)
            for at in range(0, self.s.d, LINES):
                words = b.bitcast(self._line(b, self.k, b.add(line, at), there, scale), dt.int32)
                step, word = divmod(at // 2, WORDS)
                for i in range(LINES // 2):
                    place = step * PANEL + (word + i) * WIDTH
                    b.store(into, b.add(j, place), b.extract(words, i))

        b.loop(0, STEP, 1, key)

    def _values(
        self, b: Builder, first: Value, here: Value, into: Value, scales: list[Value]
    ) -> None:
        """Columns are features; a word holds two neighboring keys."""

        def word(w: Value) -> None:
            for half in range(2):
                found = []
                for i in range(2):
                    key = b.add(b.mul(w, 2), i)
                    at = b.add(b.add(first, b.mul(key, self.s.e)), half * LINES)
                    scale = self._scale(b, scales, key, here)
                    line = self._line(b, self.v, at, b.compare("lt", key, here), scale)
                    found.append(b.cast(b.bitcast(line, dt.uint16), dt.int32))
                both = b.bitwise("or", found[0], b.bitwise("shl", found[1], 16))
                b.store(into, b.add(b.mul(w, WIDTH), half * LINES), both)

        b.loop(0, WORDS, 1, word)


@dataclass(frozen=True, slots=True)
class _Scratch(Seen):
    """Rows of an item: queries, scores, weights, results."""

    q: Value
    scores: Value
    weights: Value
    y: Value


class _Pairs(Rows[_Scratch]):
    """Writes the kernel of one spec."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.unit = Unit(dt.bfloat16, dt.bfloat16, dt.float32, spec.target.matrices)
        self.function = unit_function(self.unit, self.unit.rows)
        self.key_words, self.value_words = (pointer(dt.int32, n) for n in ("kw", "vw"))
        self.panels = size("panels")
        self.steps, self.columns = spec.d // STEP, spec.e // WIDTH

    @property
    def parameters(self) -> tuple[Value, ...]:
        """In order."""
        more = () if self.sinks is None else (self.sinks,)
        words = self.key_words, self.value_words
        sizes = self.shared, self.group, self.time, self.capacity, self.chunks, self.panels
        return (self.q, *words, self.y, *self.places[:2], *more, *sizes)

    def write(self, b: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        b.flushes = True
        scratch = _Scratch(
            *self.seen(b),
            b.stack(dt.int32, ROWS // LINES * self.steps * GROUP),
            b.stack(dt.float32, PANELS * _TILE),
            b.stack(dt.int32, ROWS // LINES * PANELS * GROUP),
            b.stack(dt.float32, self.columns * _TILE),
        )
        if self.unit.matrices:
            b.begin_matrices()
        b.loop(lo, hi, 1, lambda item: self.item(b, scratch, item))
        if self.unit.matrices:
            b.end_matrices()

    def work(self, b: Builder, scratch: _Scratch, at: Item) -> None:
        self.prepare(b, scratch, at, ROWS)
        b.zero(scratch.y, self.columns * _TILE)
        lowest, most = self.span(b, scratch, at)
        lowest = b.mul(b.div(lowest, BLOCK), BLOCK)
        b.loop(lowest, most, BLOCK, lambda begin: self._block(b, scratch, at.entry, begin, most))
        b.loop(0, at.meant, 1, lambda r: self._finish(b, scratch, r, at.place(r)))

    def query(self, b: Builder, scratch: _Scratch, r: Value, place: Value) -> None:
        source = b.offset(self.q, b.mul(place, self.s.d))
        group = b.mul(b.div(r, LINES), self.steps * GROUP)
        into = b.offset(scratch.q, b.add(group, b.mul(b.rem(r, LINES), WORDS)))
        for at in range(0, self.s.d, LINES):
            value = b.cast(b.mul(b.load(source, at, LINES), self.s.factor), dt.bfloat16)
            step, word = divmod(at // 2, WORDS)
            b.store(into, step * GROUP + word, b.bitcast(value, dt.int32))

    def _block(
        self, b: Builder, scratch: _Scratch, entry: Value, begin: Value, most: Value
    ) -> None:
        """All rows of an item against the keys of a block."""
        first = b.div(begin, STEP)
        count = b.min(PANELS, b.div(b.add(b.sub(most, begin), STEP - 1), STEP))
        keys = b.mul(b.add(b.mul(entry, self.panels), first), self.steps * PANEL)

        def panel(p: Value) -> None:
            words = b.offset(self.key_words, b.add(keys, b.mul(p, self.steps * PANEL)))
            into = b.offset(scratch.scores, b.mul(p, _TILE))
            self._multiply(b, scratch.q, self.steps, words, self.steps, into, add=False)

        b.loop(0, count, 1, panel)
        b.loop(0, ROWS, 1, lambda r: self._weigh(b, scratch, r, begin, count))
        for column in range(self.columns):
            place = b.mul(b.add(b.mul(entry, self.columns), column), self.panels)
            words = b.offset(self.value_words, b.mul(b.add(place, first), PANEL))
            into = b.offset(scratch.y, column * _TILE)
            self._multiply(b, scratch.weights, PANELS, words, count, into, add=True)

    def _multiply(
        self,
        b: Builder,
        a: Value,
        pitch: int,
        words: Value,
        steps: Value | int,
        into: Value,
        *,
        add: bool,
    ) -> None:
        """All rows, whose groups are `pitch` steps long, times words."""
        below = b.index(pitch * GROUP)
        for first in range(0, ROWS, self.unit.rows):
            group, line = divmod(first, LINES)
            start = b.offset(a, group * pitch * GROUP + line * WORDS)
            b.call(
                self.function,
                *(start, b.index(WORDS), b.index(GROUP), below),
                *(words, words, b.index(steps)),
                *(b.offset(into, first * WIDTH), b.index(int(add))),
            )

    def _weigh(self, b: Builder, scratch: _Scratch, r: Value, begin: Value, count: Value) -> None:
        """Make a row's scores weights, as words; scale what it has so far."""
        s = self.s
        row = b.offset(scratch.scores, b.mul(r, WIDTH))
        limits = [b.splat(b.load(x, r), LINES) for x in (scratch.begins, scratch.ends)]
        lanes = b.iota(dt.int32, LINES)

        def see(p: Value, largest: Value) -> tuple[Value, ...]:
            for half in range(2):
                at = b.add(b.mul(p, _TILE), half * LINES)
                found = b.load(row, at, LINES)
                if s.softcap is not None:
                    found = b.mul(tanh(b, found), s.softcap * LOG2_E)
                key = b.add(b.add(begin, b.mul(p, STEP)), half * LINES)
                keys = b.add(b.splat(b.cast(key, dt.int32), LINES), lanes)
                seen = b.compare("lt", keys, limits[1])
                if s.window is not None:
                    seen = b.bitwise("and", seen, b.compare("le", limits[0], keys))
                found = b.select(seen, found, b.constant(-math.inf, dt.float32, LINES))
                b.store(row, at, found)
                largest = b.max(found, largest)
            return (largest,)

        lowest = b.constant(-math.inf, dt.float32, LINES)
        (found,) = b.loop(0, count, 1, see, (lowest,))
        before = b.load(scratch.largest, r)
        largest = b.max(before, b.reduce("max", found))
        finite = b.compare("lt", b.abs(largest), math.inf)
        shift = b.select(finite, largest, b.constant(0.0, dt.float32))
        shifts = b.splat(shift, LINES)
        into = b.mul(b.div(r, LINES), PANELS * GROUP)
        words = b.offset(scratch.weights, b.add(into, b.mul(b.rem(r, LINES), WORDS)))

        def weigh(p: Value, total: Value) -> tuple[Value, ...]:
            for half in range(2):
                score = b.load(row, b.add(b.mul(p, _TILE), half * LINES), LINES)
                weight = power_of_two(b, b.sub(score, shifts))
                total = b.add(weight, total)
                rounded = b.bitcast(b.cast(weight, dt.bfloat16), dt.int32)
                b.store(words, b.add(b.mul(p, GROUP), half * LINES // 2), rounded)
            return (total,)

        (total,) = b.loop(0, count, 1, weigh, (b.constant(0.0, dt.float32, LINES),))
        factor = power_of_two(b, b.sub(b.splat(before, LINES), shifts))
        single = b.extract(factor, 0)
        b.store(scratch.sums, r, b.fma(b.load(scratch.sums, r), single, b.reduce("add", total)))
        b.store(scratch.largest, r, largest)

        def rescale() -> None:
            for column in range(self.columns):
                y = b.offset(scratch.y, b.add(b.mul(r, WIDTH), column * _TILE))
                for half in range(2):
                    value = b.load(y, half * LINES, LINES)
                    b.store(y, half * LINES, b.mul(value, factor))

        b.branch(b.compare("ne", single, 1.0), rescale)

    def _finish(self, b: Builder, scratch: _Scratch, r: Value, place: Value) -> None:
        """A row's result, divided by its sum."""
        inverse = b.div(b.constant(1.0, dt.float32), b.load(scratch.sums, r))
        line = b.offset(self.y, b.mul(place, self.s.e))
        source = b.offset(scratch.y, b.mul(r, WIDTH))
        for at in range(0, self.s.e, LINES):
            column, half = divmod(at, WIDTH)
            value = b.load(source, column * _TILE + half, LINES)
            b.store(line, at, b.mul(value, inverse))
