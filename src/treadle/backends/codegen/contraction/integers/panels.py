"""Panels of words: b as tiles read it, and what they have to know about it.

A panel is [word][width]. Behind those of bytes there is a row for every step of the sums, with
which those begin where 128 was added to the bytes of a, and a row whose first word is not 0 where
products of its bytes with any others may be added in pairs of 16 bits. Where they may not, the
panel follows once more, in twice as many words of two terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple

from treadle.backends.codegen.contraction.integers.tile import WORDS
from treadle.backends.codegen.contraction.shared.pack import Copies, at_position, copies
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import (
    Pointer,
    Value,
    dot,
    maximum,
    minimum,
    select,
    shuffle,
)
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.base import dtype as dt
from treadle.base.dtype import DType

_TAME = 128
"""Largest magnitude of two neighbors together of which 255 times fits in 16 bits."""
_OFFSET = 128
"""The number that is added to the bytes of a."""

Change = Callable[[Value, Value], Value]
"""From words and what was seen before to what is seen then."""


@dataclass(frozen=True, slots=True)
class PanelWords:
    """A kernel that makes panels of words; its constants."""

    tile: Tile
    source: DType
    batch: int


def panel_rows(tile: Tile, k: int, depth: int) -> int:
    """Rows of a panel of `k` words, for which there is room: see above."""
    return k if tile.terms == 2 else pairs_row(k, depth) + 2 * k


def pairs_row(k: int, depth: int) -> int:
    """The row from which on a panel of `k` words consists of words of two terms."""
    return k + -(-k // depth) + 1


class PanelWordsParameters(NamedTuple, Generic[P, S]):
    """Parameters of a kernel that makes words: see `panel_words_kernel`."""

    source: P
    order: P
    target: P
    n: S
    k: S
    depth: S
    panel_terms: S
    panels: S
    column_step: S
    batch: tuple[Copies[S], ...]


@lru_cache(maxsize=64)
def panel_words_kernel(spec: PanelWords) -> RecordedKernel:
    """The kernel, whose items are panels.

    Term t of word w is order[w * terms + t] elements behind the start of its column; -1 says that
    there is none, and it is 0. Columns beyond the last one repeat it.
    """
    writer = _IntegerPanelWriter(spec)
    writer.write()
    name = f"pack_words_{spec.source.name}_{spec.tile.terms}"
    return RecordedKernel(writer.e.kernel(name), writer.p)


class _IntegerPanelWriter:
    """Writes one kernel."""

    def __init__(self, spec: PanelWords) -> None:
        self.tile, self.e = spec.tile, KernelBuilder()
        self.p = self.e.record(
            PanelWordsParameters[Pointer, Value],
            source=spec.source,
            order=dt.int32,
            target=dt.int32,
            batch=lambda: copies(self.e, spec.batch),
        )

    def write(self) -> None:
        """One panel per item."""
        p, width = self.p, self.tile.width
        with self.e.items() as i:
            panel, position = i % p.panels, i // p.panels
            source, target = at_position(position, p.batch, p.source, p.target)
            target = target + panel * (p.panel_terms * width)
            first, last = panel * width, p.n - 1
            columns = [minimum(first + j, last) for j in range(width)]
            starts = [source + c * p.column_step for c in columns]
            with self.e.loop(p.k) as w:
                self._word(starts, target, w)
            if self.tile.terms == 4:
                self._rows_behind(target)

    def _word(self, starts: list[Pointer], target: Pointer, w: Value) -> None:
        terms, kind = self.tile.terms, WORDS[self.tile.terms][1]
        bits = 8 * kind.itemsize
        places = [self.p.order[w * terms + t].cast(dt.int64) for t in range(terms)]
        there = [place >= 0 for place in places]
        found = [maximum(place, 0) for place in places]
        row = target + w * self.tile.width
        for j, start in enumerate(starts):
            total = self.e.constant(0, dt.int32)
            for t in range(terms):
                loaded = select(there[t], start[found[t]].cast(dt.int32), 0)
                low = loaded & ((1 << bits) - 1)
                total = total | (low << (t * bits) if t else low)
            row[j] = total

    # -- rows behind the panel -----------------------------------------------------------------

    def _rows_behind(self, panel: Pointer) -> None:
        e, k, depth, width = self.e, self.p.k, self.p.depth, self.tile.width
        vectors, lanes = range(self.tile.vectors), self.tile.lanes
        none = [e.constant(0, dt.int32, lanes)] * self.tile.vectors

        def change(w: Value, how: Change, seen: list[Value]) -> None:
            row = panel + w * width
            words = [row.load(v * lanes, lanes) for v in vectors]
            seen[:] = map(how, words, seen)

        with e.loop((k + (depth - 1)) // depth) as s:
            first = s * depth
            stop = minimum(k, first + depth)
            ones, sums = e.constant(1, dt.uint8, 4 * lanes), [*none]
            with e.loop(first, stop, carrying=sums) as w:
                change(w, lambda x, total: dot(total, ones, x.bitcast(dt.int8)), sums)
            row = panel + (k + s) * width
            for v, total in enumerate(sums):
                row.store(v * lanes, total * -_OFFSET)
        most = [*none]
        with e.loop(k, carrying=most) as w:
            change(w, _larger, most)
        while len(most) > 1:
            most = [*most[:-2], maximum(*most[-2:])]
        tame = most[0].reduce("max") <= _TAME
        wide = self.p.panel_terms - k * 2
        panel.store((wide - 1) * width, select(tame, 1, e.constant(0, dt.int32)))
        with e.unless(tame), e.loop(k) as w:
            self._widened(panel, w, panel + wide * width)

    def _widened(self, panel: Pointer, w: Value, made: Pointer) -> None:
        """A row of words of bytes as two rows of words of two terms."""
        width, lanes = self.tile.width, self.tile.lanes
        row, into = panel + w * width, made + w * (2 * width)
        for first in range(0, width, lanes):
            terms = row.load(first, lanes).bitcast(dt.int8)
            for half in range(2):
                order = tuple(4 * j + 2 * half + t for j in range(lanes) for t in range(2))
                pair = shuffle(terms, terms, order).cast(dt.int16)
                into.store(half * width + first, pair.bitcast(dt.int32))


def _larger(x: Value, seen: Value) -> Value:
    """The larger of what was seen and of the magnitudes of two neighbors together."""
    wide = x.bitcast(dt.int8).cast(dt.int16)
    pairs = abs(wide).bitcast(dt.int32)
    both = (pairs & 0xFFFF) + (pairs >> 16)
    halves = (shuffle(both, both, tuple(range(start, both.lanes, 2))) for start in (0, 1))
    return maximum(seen, maximum(*halves))
