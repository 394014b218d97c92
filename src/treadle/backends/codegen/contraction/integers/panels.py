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

from treadle.backends.codegen.contraction.integers.tile import WORDS
from treadle.backends.codegen.contraction.shared.items import Contraction
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.base import dtype as dt
from treadle.base.dtype import DType

_TAME = 128
"""Largest magnitude of two neighbors together of which 255 times fits in 16 bits."""
_OFFSET = 128
"""What is added to the bytes of a."""

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


@lru_cache(maxsize=64)
def panel_words_kernel(spec: PanelWords) -> Contraction:
    """The kernel, whose items are panels.

    Term t of word w is order[w * terms + t] elements behind the start of its column; -1 says that
    there is none, and it is 0. Columns beyond the last one repeat it.
    """
    writer = _Writer(spec)
    name = f"pack_words_{spec.source.name}_{spec.tile.terms}"
    kernel = builder.kernel(name, list(writer.values.values()), writer.write)
    return Contraction(kernel, tuple(writer.values))


class _Writer:
    """Writes one kernel."""

    def __init__(self, spec: PanelWords) -> None:
        self.tile, self.batch = spec.tile, range(spec.batch)
        names = ["n", "k", "depth", "panel_terms", "panels", "column_step"]
        steps = ("batch", "source_batch", "target_batch")
        names += [f"{name}{axis}" for axis in self.batch for name in steps]
        self.values = {"source": ir.pointer(spec.source, "source")}
        self.values["order"] = ir.pointer(dt.int32, "order")
        self.values["target"] = ir.pointer(dt.int32, "target")
        self.values |= {name: ir.size(name) for name in names}

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        e.loop(lo, hi, 1, lambda i: self._panel(e, i))

    def _panel(self, e: Builder, i: Value) -> None:
        values, width = self.values, self.tile.width
        panel, position = e.rem(i, values["panels"]), e.div(i, values["panels"])
        source, target = values["source"], values["target"]
        for axis in reversed(self.batch):
            at = e.rem(position, values[f"batch{axis}"]) if axis else position
            position = e.div(position, values[f"batch{axis}"]) if axis else position
            source = e.offset(source, e.mul(at, values[f"source_batch{axis}"]))
            target = e.offset(target, e.mul(at, values[f"target_batch{axis}"]))
        target = e.offset(target, e.mul(panel, e.mul(values["panel_terms"], width)))
        first, last = e.mul(panel, width), e.sub(values["n"], 1)
        columns = [e.min(e.add(first, j), last) for j in range(width)]
        starts = [e.offset(source, e.mul(c, values["column_step"])) for c in columns]
        e.loop(0, values["k"], 1, lambda w: self._word(e, starts, target, w))
        if self.tile.terms == 4:
            self._rows_behind(e, target)

    def _word(self, e: Builder, starts: list[Value], target: Value, w: Value) -> None:
        terms, kind = self.tile.terms, WORDS[self.tile.terms][1]
        bits = 8 * kind.itemsize
        places = [
            e.cast(e.load(self.values["order"], e.add(e.mul(w, terms), t)), dt.int64)
            for t in range(terms)
        ]
        there = [e.compare("le", 0, place) for place in places]
        found = [e.max(place, 0) for place in places]
        row = e.offset(target, e.mul(w, self.tile.width))
        for j, start in enumerate(starts):
            total: Value = e.constant(0, dt.int32)
            for t in range(terms):
                loaded = e.select(there[t], e.cast(e.load(start, found[t]), dt.int32), 0)
                low = e.bitwise("and", loaded, (1 << bits) - 1)
                total = e.bitwise("or", total, e.bitwise("shl", low, t * bits) if t else low)
            e.store(row, j, total)

    # -- rows behind the panel -----------------------------------------------------------------

    def _rows_behind(self, e: Builder, panel: Value) -> None:
        k, depth, width = self.values["k"], self.values["depth"], self.tile.width
        vectors, lanes = range(self.tile.vectors), self.tile.lanes
        none = [e.constant(0, dt.int32, lanes)] * self.tile.vectors

        def over(
            w: Value, change: Callable[[Value, Value], Value], *seen: Value
        ) -> tuple[Value, ...]:
            row = e.offset(panel, e.mul(w, width))
            words = [e.load(row, v * lanes, lanes) for v in vectors]
            return tuple(change(x, s) for x, s in zip(words, seen, strict=True))

        def step(s: Value) -> None:
            first = e.mul(s, depth)
            stop = e.min(k, e.add(first, depth))
            sums = e.loop(first, stop, 1, lambda w, *x: over(w, self._summed(e), *x), none)
            row = e.offset(panel, e.mul(e.add(k, s), width))
            for v, total in enumerate(sums):
                e.store(row, v * lanes, e.mul(total, -_OFFSET))

        e.loop(0, e.div(e.add(k, e.sub(depth, 1)), depth), 1, step)
        most = e.loop(0, k, 1, lambda w, *x: over(w, self._largest(e), *x), none)
        while len(most) > 1:
            most = (*most[:-2], e.max(*most[-2:]))
        tame = e.compare("le", e.reduce("max", most[0]), _TAME)
        wide = e.sub(self.values["panel_terms"], e.mul(k, 2))
        e.store(panel, e.mul(e.sub(wide, 1), width), e.select(tame, 1, e.constant(0, dt.int32)))

        def widened() -> None:
            e.loop(
                0, k, 1, lambda w: self._widened(e, panel, w, e.offset(panel, e.mul(wide, width)))
            )

        e.branch(tame, lambda: None, widened)

    def _widened(self, e: Builder, panel: Value, w: Value, made: Value) -> None:
        """A row of words of bytes as two rows of words of two terms."""
        width, lanes = self.tile.width, self.tile.lanes
        row, into = e.offset(panel, e.mul(w, width)), e.offset(made, e.mul(w, 2 * width))
        for first in range(0, width, lanes):
            terms = e.bitcast(e.load(row, first, lanes), dt.int8)
            for half in range(2):
                order = tuple(4 * j + 2 * half + t for j in range(lanes) for t in range(2))
                pair = e.cast(e.shuffle(terms, terms, order), dt.int16)
                e.store(into, half * width + first, e.bitcast(pair, dt.int32))

    def _summed(self, e: Builder) -> Change:
        """Add the bytes of words up."""
        ones = e.constant(1, dt.uint8, 4 * self.tile.lanes)
        return lambda x, total: e.dot(total, ones, e.bitcast(x, dt.int8))

    def _largest(self, e: Builder) -> Change:
        """The larger of what was seen and of the magnitudes of two neighbors together."""

        def change(x: Value, seen: Value) -> Value:
            wide = e.cast(e.bitcast(x, dt.int8), dt.int16)
            pairs = e.bitcast(e.abs(wide), dt.int32)
            both = e.add(e.bitwise("and", pairs, 0xFFFF), e.bitwise("shr", pairs, 16))
            halves = (
                e.shuffle(both, both, tuple(range(start, 2 * self.tile.lanes, 2)))
                for start in (0, 1)
            )
            return e.max(seen, e.max(*halves))

        return change
