"""The kernel of a product with weights in panels: sums of bytes by group, scaled as they are done.

A tile of rows meets a panel's 16 columns. Of every group of weights the levels are multiplied with
the bytes of activations and summed as integers, exactly (high and low bytes apart); the sum is
scaled by the group's scale times that of the activations, and added to what the result has so far.
Minima are multiplied with the sums of the activations, which are known already.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.block_products.levels import Header, Levels
from treadle.backends.codegen.block_products.rows import Records
from treadle.backends.codegen.irregular.rows import resolve
from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.base import dtype as dt
from treadle.base.blocks.activations import TERMS
from treadle.base.blocks.panels import ROWS, Layout
from treadle.base.dtype import DType

_LINE = 64
"""Bytes of a line of the cache."""
_AHEAD = 24 * _LINE
"""How far ahead weights are asked for: processors look ahead themselves, but not far enough."""
_NARROW = 7
"""Most bits of levels whose products with two bytes fit in 16 bits together."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A kernel's constants: the rows of a tile and the weights, the result's type, the lanes.

    With `experts`, an integer type, the weights are several matrices, and an operand of that type
    says which of them a row of the result is computed with. Tiles then have one row.
    """

    records: Records
    dtype: DType
    lanes: int
    experts: DType | None = None

    @property
    def layout(self) -> Layout:
        """That of the weights."""
        return self.records.layout


@cache
def product_kernel(spec: Spec, name: str) -> Kernel:
    """A kernel over (chunk of tiles, panel), the panel fastest.

    Its parameters: records, panels, y [m, n], m, n, blocks of the format in a row, the number of
    panels, and the tiles of a chunk. With experts it is one over (panel, row), the row fastest, so
    that a panel's weights are met again soon; further parameters are the numbers of experts [m],
    how many there are, and how many neighboring rows of y share a row of activations.
    """
    if spec.experts is not None:
        routed = _Routed(spec, spec.experts)
        return builder.kernel(
            f"experts_{name}_{spec.records.kind}", routed.parameters, routed.write
        )
    writer = _Product(spec)
    kind = f"{name}_{spec.records.kind}_{spec.records.tile}"
    return builder.kernel(f"blocks_{kind}", writer.parameters, writer.write)


class _Product:
    """Writes the kernel."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.layout, self.records = spec, spec.layout, spec.records
        self.levels = Levels(spec.layout, spec.lanes)
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
        """Items, their tiles, and the parts of a panel that fill a vector."""
        tile, lanes = self.records.tile, self.spec.lanes
        tiles = e.div(e.add(self.m, tile - 1), tile)
        terms = e.mul(self.blocks, self.layout.elements // TERMS)

        def item(i: Value) -> None:
            first = e.mul(e.div(i, self.panels), self.chunk)
            panel = e.rem(i, self.panels)
            weights = e.offset(self.weights, e.mul(panel, e.mul(self.blocks, self.layout.block)))

            def turn(t: Value) -> None:
                rows = e.offset(self.rows, e.mul(t, e.mul(terms, self.records.units)))

                def part(at: Value) -> None:
                    sums = self._sums(e, rows, weights, at)
                    column = e.add(e.mul(panel, ROWS), at)
                    self._store(e, e.mul(t, tile), column, sums)

                e.loop(0, ROWS, lanes, part)

            e.loop(first, e.min(e.add(first, self.chunk), tiles), 1, turn)

        e.loop(lo, hi, 1, item)

    def _store(self, e: Builder, row: Value, column: Value, sums: tuple[Value, ...]) -> None:
        mask = e.first_lanes(e.sub(self.n, column), self.spec.lanes)
        for r, value in enumerate(sums):
            place = e.add(row, r)

            def put(place: Value = place, value: Value = value) -> None:
                at = e.add(e.mul(place, self.n), column)
                e.store(self.y, at, e.cast(value, self.spec.dtype), mask)

            if r:
                e.branch(e.compare("lt", place, self.m), put)
            else:
                put()

    def _sums(self, e: Builder, rows: Value, weights: Value, at: Value) -> tuple[Value, ...]:
        """Of all rows of a tile, for the columns from `at` on."""
        layout = self.layout
        each = layout.elements // TERMS * self.records.units

        def block(i: Value, *sums: Value) -> tuple[Value, ...]:
            start = e.offset(weights, e.mul(i, layout.block))
            for line in range(0, layout.block, _LINE):
                e.prefetch(start, _AHEAD + line)
            header = self.levels.header(e, start, at)
            record = e.offset(rows, e.mul(i, each))

            def piece(p: Value, *sums: Value) -> tuple[Value, ...]:
                here = e.offset(start, e.add(e.mul(p, layout.piece), layout.header))
                mine = e.offset(record, e.mul(p, each // layout.pieces))
                return self._piece(e, here, mine, at, header, sums)

            return e.loop(0, layout.pieces, 1, piece, sums)

        none = e.constant(0.0, dt.float32, self.spec.lanes)
        return e.loop(0, self.blocks, 1, block, (none,) * self.records.tile)

    def _piece(
        self,
        e: Builder,
        here: Value,
        record: Value,
        at: Value,
        header: Header,
        sums: tuple[Value, ...],
    ) -> tuple[Value, ...]:
        for group in range(self.layout.groups):
            scale, minimum = self.levels.scales(e, here, group, at, header)
            levels = self.levels.words(e, here, group, at)
            term, inner = divmod(group, self.records.groups)
            mine = e.offset(record, term * self.records.units)
            sums = self._group(e, mine, inner, (levels, scale, minimum), sums)
        return sums

    def _group(
        self,
        e: Builder,
        record: Value,
        inner: int,
        weights: tuple[list[Value], Value, Value | None],
        sums: tuple[Value, ...],
    ) -> tuple[Value, ...]:
        """Sums with those of a group, whose part of the record is `inner`."""
        levels, scale, minimum = weights
        records, lanes = self.records, self.spec.lanes
        floats = e.reinterpret(record, dt.float32)
        made = []
        narrow = self.layout.bits <= _NARROW
        first = inner * (records.words // records.groups)
        for r, total in enumerate(sums):
            none = e.constant(0, dt.int32, lanes)
            start = none
            if records.starts:
                start = e.splat(e.load(record, records.start(inner) + r), lanes)
            counts = []
            for byte, count in enumerate((none, start)[-records.bytes :]):
                for i, level in enumerate(levels):
                    place = records.word(first + i, byte) + r
                    word = e.bitcast(e.splat(e.load(record, place), lanes), dt.int8)
                    count = e.dot(count, level, word, narrow=narrow)
                counts.append(count)
            count = counts[-1]
            if records.bytes == 2:
                count = e.add(e.bitwise("shl", counts[0], 8), count)
            factor = e.mul(scale, e.load(floats, records.scale() + r))
            total = e.fma(e.cast(count, dt.float32), factor, total)
            if minimum is not None:
                total = e.fma(minimum, e.load(floats, records.total(inner) + r), total)
            made.append(total)
        return tuple(made)


class _Routed(_Product):
    """Writes the kernel for experts."""

    def __init__(self, spec: Spec, dtype: DType) -> None:
        super().__init__(spec)
        self.numbers = pointer(dtype, "numbers")
        self.experts, self.sharing = size("experts"), size("sharing")

    @property
    def parameters(self) -> list[Value]:
        sizes = [self.m, self.n, self.blocks, self.panels, self.experts, self.sharing]
        return [self.rows, self.weights, self.y, self.numbers, *sizes]

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        terms = e.mul(self.blocks, self.layout.elements // TERMS)

        def item(i: Value) -> None:
            row, panel = e.rem(i, self.m), e.div(i, self.m)
            expert = resolve(e.load(self.numbers, row), self.experts)
            place = e.add(e.mul(expert, self.panels), panel)
            weights = e.offset(self.weights, e.mul(place, e.mul(self.blocks, self.layout.block)))
            source = e.mul(e.div(row, self.sharing), e.mul(terms, self.records.units))

            def part(at: Value) -> None:
                sums = self._sums(e, e.offset(self.rows, source), weights, at)
                self._store(e, row, e.add(e.mul(panel, ROWS), at), sums)

            e.loop(0, ROWS, self.spec.lanes, part)

        e.loop(lo, hi, 1, item)
