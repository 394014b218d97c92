"""Products of several rows with weights in panels, where 16-bit integers are multiplied.

The levels of a panel are widened to 16 bits once for all rows of an item, some blocks at a time:
they lie in scratch memory, in the first cache, from which every tile of rows multiplies them. The
numbers are those of `kernel.py`, added in the same order, so a row's bits do not depend on how many
rows there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from treadle.backends.codegen.block_products.kernel import (
    LINE,
    BlockConfig,
    MatrixSizes,
    Operands,
    ProductParameters,
    scaled,
    starts_of,
)
from treadle.backends.codegen.block_products.levels import Levels
from treadle.backends.codegen.block_products.pairs import Routes, declare_routes
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, dot, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.base import dtype as dt
from treadle.base.blocks.activations import TERMS
from treadle.base.blocks.panels import ROWS

DEPTH = 512
"""Terms whose levels are in scratch memory at a time, 16 KiB."""
MOST = 512
"""Most rows of an item, whose sums are in scratch memory, 32 KiB."""


class SeveralParameters(Operands[P, S], sizes=MatrixSizes):
    """Parameters of `several_experts_kernel`; see `ExpertParameters`."""

    routes: Routes[P, S]
    sizes: MatrixSizes[P, S]
    sharing: S


@cache
def several_kernel(spec: BlockConfig, name: str) -> RecordedKernel:
    """A kernel with the parameters of `product_kernel`, whose chunks have `MOST` rows at most."""
    return _Several(spec, spec.records.tile).kernel(name)


@cache
def several_experts_kernel(spec: BlockConfig, tile: int, name: str) -> RecordedKernel:
    """A kernel over (expert, panel) for the rows that chose the expert, `tile` at a time."""
    return _Several(spec, tile).routed(name)


class _Several:
    """Writes the kernel for tiles of so many rows."""

    def __init__(self, spec: BlockConfig, tile: int) -> None:
        self.spec, self.layout, self.records = spec, spec.layout, spec.records
        self.lanes, self.tile = spec.lanes, tile
        self.levels = Levels(spec.layout, spec.lanes)
        self.words = spec.layout.group // 4
        self.some = max(1, DEPTH // spec.layout.elements)
        self.groups = spec.layout.elements // spec.layout.group
        self.each = spec.layout.elements // TERMS * spec.records.units
        self.e, many = KernelBuilder(), self.some * self.groups
        self.p: ProductParameters[Pointer, Value] | SeveralParameters[Pointer, Value]
        e = self.e
        self.wide = e.stack(dt.int16, many * self.words * 4 * ROWS)
        self.scales = e.stack(dt.float32, many * ROWS)
        self.minima = e.stack(dt.float32, many * ROWS) if self.layout.minimum else None
        self.sums = e.stack(dt.float32, MOST * ROWS)

    def kernel(self, name: str) -> RecordedKernel:
        """Some tiles with one panel."""
        e = self.e
        self.p = p = e.record(ProductParameters[Pointer, Value], y=self.spec.dtype)
        with e.items() as i:
            first = i // p.sizes.panel_count * p.chunk
            panel = i % p.sizes.panel_count
            weights = p.panels + panel * (p.sizes.blocks * self.layout.block)
            pitch = p.sizes.blocks * self.each
            top = first * self.tile
            rows = p.records + first * pitch

            def lines(t: Value) -> list[Pointer]:
                record = rows + t * pitch
                return [record + r for r in range(self.tile)]

            count = minimum(p.chunk * self.tile, p.sizes.m - top)
            self._rows(weights, count, lines)
            self._store(count, panel, lambda r: top + r)
        name = f"blocks_{name}_{self.records.kind}_several_{self.tile}"
        return RecordedKernel(e.kernel(name), p)

    def routed(self, name: str) -> RecordedKernel:
        """The rows of one expert with one of its panels."""
        e = self.e
        routes, kind = partial(declare_routes, e), SeveralParameters[Pointer, Value]
        self.p = p = e.record(kind, y=self.spec.dtype, routes=routes)
        with e.items() as i:
            expert, panel = i // p.sizes.panel_count, i % p.sizes.panel_count
            weights = p.panels + i * (p.sizes.blocks * self.layout.block)
            end = p.routes.ends[expert].cast(dt.int64)
            before = p.routes.ends[maximum(expert - 1, 0)].cast(dt.int64)
            begin = select(expert == 0, 0, before)
            pitch = p.sizes.blocks * self.each
            with e.loop(begin, end, MOST) as top:
                count = minimum(MOST, end - top)

                def number(r: Value, top: Value = top) -> Value:
                    return p.routes.order[top + r].cast(dt.int64)

                def lines(t: Value, count: Value = count) -> list[Pointer]:
                    """Return pointers to a tile's records; the last one stands for those behind."""
                    places = [t * self.tile + r for r in range(self.tile)]
                    given = [number(minimum(place, count - 1)) for place in places]
                    return [p.records + r // p.sharing * pitch for r in given]

                self._rows(weights, count, lines)
                self._store(count, panel, number)
        name = f"experts_{name}_{self.records.kind}_several_{self.tile}"
        return RecordedKernel(e.kernel(name), p)

    def _rows(
        self, weights: Pointer, count: Value, lines: Callable[[Value], list[Pointer]]
    ) -> None:
        """The sums of some rows; `lines` gives where the activations of a tile begin, by row."""
        e = self.e
        tiles = (count + (self.tile - 1)) // self.tile
        self.sums.zero(tiles * (self.tile * ROWS))
        with e.loop(0, self.p.sizes.blocks, self.some) as begin:
            some = minimum(self.p.sizes.blocks - begin, self.some)
            with e.loop(some) as block:
                self._widen(weights, begin, block)
            first = begin * self.each
            with e.loop(tiles) as t:
                given = [line + first for line in lines(t)]
                self._multiply(given, self.sums + t * (self.tile * ROWS), some)

    def _widen(self, weights: Pointer, begin: Value, block: Value) -> None:
        """Levels, scales and minima of a block."""
        layout = self.layout
        start = weights + (begin + block) * layout.block
        for line in range(0, layout.block, LINE):
            start.prefetch(self.some * layout.block + line)
        with self.e.loop(0, ROWS, self.lanes) as at, self.e.loop(layout.pieces) as p:
            header = self.levels.header(start, at)
            here = start + (p * layout.piece + layout.header)
            number = block * self.groups + p * layout.groups
            for group in range(layout.groups):
                place = (number + group) * ROWS + at
                scale, least = self.levels.scales(here, group, at, header)
                self.scales[place] = scale
                if least is not None and self.minima is not None:
                    self.minima[place] = least
                self._words(here, group, (number + group) * (self.words * 4 * ROWS), at)

    def _words(self, piece: Pointer, group: int, target: Value, at: Value) -> None:
        """The levels of a group."""
        into = self.wide + (target + at * 2)
        with self.e.loop(self.levels.places) as place:
            found = self.levels.pairs(piece, group, place, at)
            line = into + place * (4 * ROWS)
            for i, halves in enumerate(found):
                for half, level in enumerate(halves):
                    line[(2 * i * self.levels.places + half) * 2 * ROWS] = level

    def _multiply(self, lines: list[Pointer], sums: Pointer, count: Value) -> None:
        """A tile of rows times the levels in scratch memory."""
        records, inner = self.records, self.records.groups
        with self.e.loop(count * (self.layout.elements // TERMS)) as number:
            mine = [line + number * records.units for line in lines]
            for group in range(inner):
                self._group(mine, group, number * inner + group, sums)

    def _group(self, lines: list[Pointer], inner: int, number: Value, sums: Pointer) -> None:
        """Add what a group of weights gives; it has a number in its record and among all."""
        records, lanes = self.records, self.lanes
        columns = range(0, ROWS, lanes)
        wide = self.wide + number * (self.words * 4 * ROWS)
        counts = starts_of(self.e, records, lines, inner, lanes) * len(columns)
        with self.e.loop(self.words, carrying=counts) as i:
            levels = wide + i * (4 * ROWS)
            at = i * records.tile
            for half in range(2):
                loaded = [levels.load(2 * (half * ROWS + c), 2 * lanes) for c in columns]
                place = at + records.word(inner * self.words, half)
                words = [line[place].splat(lanes) for line in lines]
                both = [(level, w.bitcast(dt.int16)) for level in loaded for w in words]
                counts[:] = [dot(n, *pair) for n, pair in zip(counts, both, strict=True)]
        at = number * ROWS
        for v, c in enumerate(columns):
            scale = self.scales.load(at + c, lanes)
            least = None if self.minima is None else self.minima.load(at + c, lanes)
            for r, line in enumerate(lines):
                total = sums.load(r * ROWS + c, lanes)
                count = counts[v * self.tile + r]
                made = scaled(records, (line, inner, 0), count, (scale, least), total)
                sums[r * ROWS + c] = made

    def _store(self, count: Value, panel: Value, line: Callable[[Value], Value]) -> None:
        """Store sums as results."""
        column, n = panel * ROWS, self.p.sizes.n
        with self.e.loop(count) as r:
            start = line(r) * n + column
            for c in range(0, ROWS, self.lanes):
                mask = self.e.first_lanes(n - (column + c), self.lanes)
                value = self.sums.load(r * ROWS + c, self.lanes)
                self.p.y.store(start + c, value.cast(self.spec.dtype), mask)
