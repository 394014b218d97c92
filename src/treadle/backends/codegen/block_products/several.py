"""Products of several rows with weights in panels, where 16-bit integers are multiplied.

The levels of a panel are widened to 16 bits once for all rows of an item, some blocks at a time:
they lie in scratch memory, in the first cache, from which every tile of rows multiplies them. The
numbers are those of `kernel.py`, added in the same order, so a row's bits do not depend on how many
rows there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from treadle.backends.codegen.block_products.kernel import LINE, Spec, scaled, starts_of
from treadle.backends.codegen.block_products.levels import Levels
from treadle.backends.codegen.block_products.pairs import ROUTES
from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.base import dtype as dt
from treadle.base.blocks.activations import TERMS
from treadle.base.blocks.panels import ROWS

DEPTH = 512
"""Terms whose levels are in scratch memory at a time, 16 KiB."""
MOST = 512
"""Most rows of an item, whose sums are in scratch memory, 32 KiB."""


@cache
def several_kernel(spec: Spec, name: str) -> Kernel:
    """A kernel with the parameters of `product_kernel`, whose chunks have `MOST` rows at most."""
    writer = _Several(spec, spec.records.tile)
    kind = f"{name}_{spec.records.kind}_several_{spec.records.tile}"
    return builder.kernel(f"blocks_{kind}", writer.parameters, writer.write)


@cache
def several_experts_kernel(spec: Spec, tile: int, name: str) -> Kernel:
    """A kernel over (expert, panel) for the rows that chose the expert, `tile` at a time.

    Its parameters: records of single rows, panels of all experts, y, order and ends of
    `pairs.routes_kernel`, m, n, blocks of the format in a row, the number of panels, and how many
    neighboring rows of y share a row of activations.
    """
    writer = _Experts(spec, tile)
    kind = f"{name}_{spec.records.kind}_several_{tile}"
    return builder.kernel(f"experts_{kind}", writer.parameters, writer.write)


class _Several:
    """Writes the kernel for tiles of so many rows."""

    def __init__(self, spec: Spec, tile: int) -> None:
        self.spec, self.layout, self.records = spec, spec.layout, spec.records
        self.lanes, self.tile = spec.lanes, tile
        self.levels = Levels(spec.layout, spec.lanes)
        self.words = spec.layout.group // 4
        self.some = max(1, DEPTH // spec.layout.elements)
        self.groups = spec.layout.elements // spec.layout.group
        self.each = spec.layout.elements // TERMS * spec.records.units
        self.rows, self.weights = pointer(dt.int32, "records"), pointer(dt.uint8, "panels")
        self.y = pointer(spec.dtype, "y")
        names = ("m", "n", "blocks", "panel_count", "chunk")
        self.m, self.n, self.blocks, self.panels, self.chunk = map(size, names)

    @property
    def parameters(self) -> list[Value]:
        """In order."""
        sizes = [self.m, self.n, self.blocks, self.panels, self.chunk]
        return [self.rows, self.weights, self.y, *sizes]

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """Items: some tiles with one panel."""
        many = self.some * self.groups
        self.wide = e.stack(dt.int16, many * self.words * 4 * ROWS)
        self.scales = e.stack(dt.float32, many * ROWS)
        self.minima = e.stack(dt.float32, many * ROWS) if self.layout.minimum else None
        self.sums = e.stack(dt.float32, MOST * ROWS)
        e.loop(lo, hi, 1, lambda i: self._item(e, i))

    def _item(self, e: Builder, i: Value) -> None:
        first = e.mul(e.div(i, self.panels), self.chunk)
        panel = e.rem(i, self.panels)
        weights = e.offset(self.weights, e.mul(panel, e.mul(self.blocks, self.layout.block)))
        pitch = e.mul(self.blocks, self.each)
        top = e.mul(first, self.tile)
        rows = e.offset(self.rows, e.mul(first, pitch))

        def lines(t: Value) -> list[Value]:
            record = e.offset(rows, e.mul(t, pitch))
            return [e.offset(record, r) for r in range(self.tile)]

        count = e.min(e.mul(self.chunk, self.tile), e.sub(self.m, top))
        self._rows(e, weights, count, lines)
        self._store(e, count, panel, lambda r: e.add(top, r))

    def _rows(
        self, e: Builder, weights: Value, count: Value, lines: Callable[[Value], list[Value]]
    ) -> None:
        """The sums of some rows; `lines` gives where the activations of a tile begin, by row."""
        tiles = e.div(e.add(count, self.tile - 1), self.tile)
        e.zero(self.sums, e.mul(tiles, self.tile * ROWS))

        def part(begin: Value) -> None:
            count = e.min(e.sub(self.blocks, begin), self.some)
            e.loop(0, count, 1, lambda b: self._widen(e, weights, begin, b))
            first = e.mul(begin, self.each)

            def turn(t: Value) -> None:
                given = [e.offset(line, first) for line in lines(t)]
                self._tile(e, given, e.offset(self.sums, e.mul(t, self.tile * ROWS)), count)

            e.loop(0, tiles, 1, turn)

        e.loop(0, self.blocks, self.some, part)

    def _widen(self, e: Builder, weights: Value, begin: Value, block: Value) -> None:
        """Levels, scales and minima of a block."""
        layout = self.layout
        start = e.offset(weights, e.mul(e.add(begin, block), layout.block))
        for line in range(0, layout.block, LINE):
            e.prefetch(start, self.some * layout.block + line)

        def piece(p: Value, at: Value) -> None:
            header = self.levels.header(e, start, at)
            here = e.offset(start, e.add(e.mul(p, layout.piece), layout.header))
            number = e.add(e.mul(block, self.groups), e.mul(p, layout.groups))
            for group in range(layout.groups):
                place = e.add(e.mul(e.add(number, group), ROWS), at)
                scale, minimum = self.levels.scales(e, here, group, at, header)
                e.store(self.scales, place, scale)
                if minimum is not None and self.minima is not None:
                    e.store(self.minima, place, minimum)
                first = e.mul(e.add(number, group), self.words * 4 * ROWS)
                self._words(e, here, group, first, at)

        def pieces(at: Value) -> None:
            e.loop(0, layout.pieces, 1, lambda p: piece(p, at))

        e.loop(0, ROWS, self.lanes, pieces)

    def _words(self, e: Builder, piece: Value, group: int, target: Value, at: Value) -> None:
        """The levels of a group."""
        into = e.offset(self.wide, e.add(target, e.mul(at, 2)))

        def turn(place: Value) -> None:
            found = self.levels.pairs(e, piece, group, place, at)
            line = e.offset(into, e.mul(place, 4 * ROWS))
            for i, halves in enumerate(found):
                for half, level in enumerate(halves):
                    e.store(line, (2 * i * self.levels.places + half) * 2 * ROWS, level)

        e.loop(0, self.levels.places, 1, turn)

    def _tile(self, e: Builder, lines: list[Value], sums: Value, count: Value) -> None:
        """A tile of rows times the levels in scratch memory."""
        records, inner = self.records, self.records.groups

        def term(number: Value) -> None:
            mine = [e.offset(line, e.mul(number, records.units)) for line in lines]
            for group in range(inner):
                self._group(e, mine, group, e.add(e.mul(number, inner), group), sums)

        e.loop(0, e.mul(count, self.layout.elements // TERMS), 1, term)

    def _group(
        self, e: Builder, lines: list[Value], inner: int, number: Value, sums: Value
    ) -> None:
        """Add what a group of weights gives; it has a number in its record and among all."""
        records, lanes = self.records, self.lanes
        columns = range(0, ROWS, lanes)
        wide = e.offset(self.wide, e.mul(number, self.words * 4 * ROWS))

        def word(i: Value, *counts: Value) -> tuple[Value, ...]:
            levels = e.offset(wide, e.mul(i, 4 * ROWS))
            at = e.mul(i, records.tile)
            found = list(counts)
            for half in range(2):
                loaded = [e.load(levels, 2 * (half * ROWS + c), 2 * lanes) for c in columns]
                place = e.add(at, records.word(inner * self.words, half))
                words = [e.splat(e.load(line, place), lanes) for line in lines]
                both = [(level, e.bitcast(w, dt.int16)) for level in loaded for w in words]
                found = [e.dot(n, *pair) for n, pair in zip(found, both, strict=True)]
            return tuple(found)

        begin = starts_of(e, records, lines, inner, lanes) * len(columns)
        counts = e.loop(0, self.words, 1, word, begin)
        at = e.mul(number, ROWS)
        for v, c in enumerate(columns):
            scales: list[Value | None] = [e.load(self.scales, e.add(at, c), lanes), None]
            if self.minima is not None:
                scales[1] = e.load(self.minima, e.add(at, c), lanes)
            for r, line in enumerate(lines):
                total = e.load(sums, r * ROWS + c, lanes)
                given = counts[v * self.tile + r], scales, total
                e.store(sums, r * ROWS + c, scaled(e, records, (line, inner, 0), *given))

    def _store(
        self, e: Builder, count: Value, panel: Value, line: Callable[[Value], Value]
    ) -> None:
        """Sums become results."""
        column = e.mul(panel, ROWS)

        def row(r: Value) -> None:
            start = e.add(e.mul(line(r), self.n), column)
            for c in range(0, ROWS, self.lanes):
                mask = e.first_lanes(e.sub(self.n, e.add(column, c)), self.lanes)
                value = e.load(self.sums, e.add(e.mul(r, ROWS), c), self.lanes)
                e.store(self.y, e.add(start, c), e.cast(value, self.spec.dtype), mask)

        e.loop(0, count, 1, row)


class _Experts(_Several):
    """Writes the kernel for experts."""

    def __init__(self, spec: Spec, tile: int) -> None:
        super().__init__(spec, tile)
        self.order, self.ends = (pointer(dt.int32, name) for name in ROUTES)
        self.sharing = size("sharing")

    @property
    def parameters(self) -> list[Value]:
        sizes = [self.m, self.n, self.blocks, self.panels, self.sharing]
        return [self.rows, self.weights, self.y, self.order, self.ends, *sizes]

    def _item(self, e: Builder, i: Value) -> None:
        expert, panel = e.div(i, self.panels), e.rem(i, self.panels)
        weights = e.offset(self.weights, e.mul(i, e.mul(self.blocks, self.layout.block)))
        end = e.cast(e.load(self.ends, expert), dt.int64)
        before = e.cast(e.load(self.ends, e.max(e.sub(expert, 1), 0)), dt.int64)
        begin = e.select(e.compare("eq", expert, 0), e.index(0), before)
        pitch = e.mul(self.blocks, self.each)

        def some(top: Value) -> None:
            count = e.min(MOST, e.sub(end, top))

            def number(r: Value) -> Value:
                return e.cast(e.load(self.order, e.add(top, r)), dt.int64)

            def lines(t: Value) -> list[Value]:
                """Behind the last row of a tile comes the last one again."""
                places = [e.add(e.mul(t, self.tile), r) for r in range(self.tile)]
                given = [number(e.min(place, e.sub(count, 1))) for place in places]
                return [e.offset(self.rows, e.mul(e.div(r, self.sharing), pitch)) for r in given]

            self._rows(e, weights, count, lines)
            self._store(e, count, panel, number)

        e.loop(begin, end, MOST, some)
