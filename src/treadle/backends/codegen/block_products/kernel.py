"""The kernel of a product with weights in panels: sums of bytes by group, scaled as they are done.

A tile of rows meets a panel's 16 columns. Of every group of weights the levels are multiplied with
the bytes of activations and summed as integers, exactly (high and low bytes apart); the sum is
scaled by the group's scale times that of the activations, and added to what the result has so far.
Minima are multiplied with the sums of the activations, which are known already.
"""

from __future__ import annotations

from collections.abc import Sequence
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

LINE = 64
"""Bytes of a line of the cache."""
_AHEAD = 24 * LINE
"""How far ahead weights are asked for: processors look ahead themselves, but not far enough."""
_NARROW = 7
"""Most bits of levels whose products with two bytes fit in 16 bits together."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A kernel's constants: the rows of a tile and the weights, the result's type, the lanes.

    Rows meet so many `vectors` of columns at a time.

    With `experts`, an integer type, the weights are several matrices, and an operand of that type
    says which of them a row of the result is computed with. Tiles then have one row.
    """

    records: Records
    dtype: DType
    lanes: int
    experts: DType | None = None
    vectors: int = 1

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
        kind = f"experts_{name}_{spec.records.label}"
        return builder.kernel(kind, routed.parameters, routed.write)
    writer = _Product(spec)
    kind = f"{name}_{spec.records.label}_{spec.records.tile}"
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

                e.loop(0, ROWS, lanes * self.spec.vectors, part)

            e.loop(first, e.min(e.add(first, self.chunk), tiles), 1, turn)

        e.loop(lo, hi, 1, item)

    def _store(self, e: Builder, row: Value, column: Value, sums: tuple[Value, ...]) -> None:
        for v in range(self.spec.vectors):
            mine = sums[v * self.records.tile : (v + 1) * self.records.tile]
            self._store_vector(e, row, e.add(column, v * self.spec.lanes), mine)

    def _store_vector(self, e: Builder, row: Value, column: Value, sums: tuple[Value, ...]) -> None:
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
        """Of all rows of a tile, for the vectors of columns from `at` on, one after the other."""
        layout = self.layout
        columns = [e.add(at, v * self.spec.lanes) for v in range(self.spec.vectors)]
        each = layout.elements // TERMS * self.records.units

        def block(i: Value, *sums: Value) -> tuple[Value, ...]:
            start = e.offset(weights, e.mul(i, layout.block))
            for line in range(0, layout.block, LINE):
                e.prefetch(start, _AHEAD + line)
            headers = [self.levels.header(e, start, column) for column in columns]
            record = e.offset(rows, e.mul(i, each))

            def piece(p: Value, *sums: Value) -> tuple[Value, ...]:
                here = e.offset(start, e.add(e.mul(p, layout.piece), layout.header))
                mine = e.offset(record, e.mul(p, each // layout.pieces))
                return self._piece(e, (here, mine), columns, headers, sums)

            return e.loop(0, layout.pieces, 1, piece, sums)

        none = e.constant(0.0, dt.float32, self.spec.lanes)
        return e.loop(0, self.blocks, 1, block, (none,) * (self.records.tile * len(columns)))

    def _piece(
        self,
        e: Builder,
        given: tuple[Value, Value],
        columns: list[Value],
        headers: list[Header],
        sums: tuple[Value, ...],
    ) -> tuple[Value, ...]:
        """Sums with those of a piece of weights and of the rows there."""
        (here, record), sums_of = given, self._pairs if self.records.pairs else self._bytes
        for group in range(self.layout.groups):
            term, inner = divmod(group, self.records.groups)
            mine = e.offset(record, term * self.records.units)
            sums = sums_of(e, (here, mine), (group, inner), columns, headers, sums)
        return sums

    def _bytes(
        self,
        e: Builder,
        given: tuple[Value, Value],
        groups: tuple[int, int],
        columns: list[Value],
        headers: list[Header],
        sums: tuple[Value, ...],
    ) -> tuple[Value, ...]:
        """Sums with those of a group, which has a number in its piece and one in its record."""
        (here, record), (group, inner), (at,), (header,) = given, groups, columns, headers
        records, lanes = self.records, self.spec.lanes
        scales = self.levels.scales(e, here, group, at, header)
        levels = self.levels.words(e, here, group, at)
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
            made.append(scaled(e, records, (record, inner, r), count, scales, total))
        return tuple(made)

    def _pairs(
        self,
        e: Builder,
        given: tuple[Value, Value],
        groups: tuple[int, int],
        columns: list[Value],
        headers: list[Header],
        sums: tuple[Value, ...],
    ) -> tuple[Value, ...]:
        """As `_bytes`, with integers of 16 bits and several vectors of columns.

        Few registers are in use at a time: levels are made where all rows need them.
        """
        (here, record), (group, inner) = given, groups
        records, rows = self.records, range(self.records.tile)
        lines = [e.offset(record, r) for r in rows]
        begin = starts_of(e, records, lines, inner, self.spec.lanes) * len(columns)
        words = records.word(inner * (records.words // records.groups))

        def turn(place: Value, *counts: Value) -> tuple[Value, ...]:
            at_place = e.add(e.mul(place, records.tile), words)
            levels = [self.levels.pairs(e, here, group, place, at) for at in columns]
            found = list(counts)
            for i, at_once in enumerate(zip(*levels, strict=True)):
                for half in range(2):
                    word = e.add(at_place, records.word(i * self.levels.places, half))
                    given = [e.splat(e.load(line, word), self.spec.lanes) for line in lines]
                    both = [(x[half], e.bitcast(w, dt.int16)) for x in at_once for w in given]
                    found = [e.dot(n, *pair) for n, pair in zip(found, both, strict=True)]
            return tuple(found)

        counts = e.loop(0, self.levels.places, 1, turn, begin)
        made: list[Value] = []
        for at, header in zip(columns, headers, strict=True):
            scales = self.levels.scales(e, here, group, at, header)
            for r in rows:
                place, i = (record, inner, r), len(made)
                made.append(scaled(e, records, place, counts[i], scales, sums[i]))
        return tuple(made)


def starts_of(
    e: Builder, records: Records, lines: Sequence[Value], inner: int, lanes: int
) -> list[Value]:
    """What sums of a part of a record begin with, for rows whose records these are."""
    if not records.starts:
        return [e.constant(0, dt.int32, lanes)] * len(lines)
    return [e.splat(e.load(line, records.start(inner)), lanes) for line in lines]


def scaled(
    e: Builder,
    records: Records,
    place: tuple[Value, int, int],
    count: Value,
    scales: Sequence[Value | None],
    total: Value,
) -> Value:
    """What a row's total becomes with the sum of integers of a group of weights.

    Args:
        records: how activations lie.
        place: a record, the part of it that belongs to the group, and the row.
        count: the sum of integers, of each column.
        scales: the group's scales and minima, of each column.
        total: what the row has so far.
    """
    (record, inner, r), (scale, minimum) = place, scales
    assert scale is not None  # noqa: S101  (every group has a scale)
    floats = e.reinterpret(record, dt.float32)
    factor = e.mul(scale, e.load(floats, records.scale() + r))
    total = e.fma(e.cast(count, dt.float32), factor, total)
    if minimum is None:
        return total
    return e.fma(minimum, e.load(floats, records.total(inner) + r), total)


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

            e.loop(0, ROWS, self.spec.lanes * self.spec.vectors, part)

        e.loop(lo, hi, 1, item)
