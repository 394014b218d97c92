"""The kernel of a product with weights in panels: sums of bytes by group, scaled as they are done.

A tile of rows meets a panel's 16 columns. Of every group of weights the levels are multiplied with
the bytes of activations and summed as integers, exactly (high and low bytes apart); the sum is
scaled by the group's scale times that of the activations, and added to what the result has so far.
Minima are multiplied with the sums of the activations, which are known already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.block_products.levels import Header, Levels
from treadle.backends.codegen.block_products.rows import Records
from treadle.backends.codegen.irregular.rows import resolve
from treadle.backends.codegen.kernel.builder import Builder, KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, dot, fma, minimum, shuffle
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.base import dtype as dt
from treadle.base.blocks.activations import TERMS
from treadle.base.blocks.panels import ROWS, PanelLayout
from treadle.base.dtype import DType

LINE = 64
"""Bytes of a line of the cache."""
_AHEAD = 24 * LINE
"""Distance at which weights are fetched ahead: processors look ahead, but not far enough."""
_BY_PLACE = 4
"""Lanes of vectors whose words are spread from loaded ones."""
_NARROW = 7
"""Most bits of levels whose products with two bytes fit in 16 bits together."""


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """A kernel's constants: the rows of a tile and the weights, the result's type, the lanes.

    Rows meet so many `vectors` of columns at a time.

    With `experts`, an integer type, the weights are several matrices, and an operand of that type
    says which of them a row of the result is computed with. Tiles then have one row.
    An item has all columns of a panel or, `apart`, some vectors of them.
    """

    records: Records
    dtype: DType
    lanes: int
    experts: DType | None = None
    vectors: int = 1
    apart: bool = False

    @property
    def parts(self) -> int:
        """Items of a panel."""
        return ROWS // (self.lanes * self.vectors) if self.apart else 1

    @property
    def layout(self) -> PanelLayout:
        """Layout of the weights."""
        return self.records.layout


class MatrixSizes(Record[P, S]):
    """Extents of y [m, n], blocks of the format in a row, and panels of a matrix."""

    m: S
    n: S
    blocks: S
    panel_count: S


class Operands(Record[P, S], records=dt.int32, panels=dt.uint8):
    """Records of rows, panels of weights, and the result y."""

    records: P
    panels: P
    y: P


class ProductParameters(Operands[P, S], sizes=MatrixSizes):
    """Parameters of a product with one matrix; `chunk` tiles of rows are an item."""

    sizes: MatrixSizes[P, S]
    chunk: S


class ExpertParameters(Operands[P, S], sizes=MatrixSizes):
    """Parameters of one with several, which the numbers of experts [m] say.

    So many neighboring rows of y are `sharing` a row of activations.
    """

    numbers: P
    sizes: MatrixSizes[P, S]
    experts: S
    sharing: S


@cache
def product_kernel(spec: BlockConfig, name: str) -> RecordedKernel:
    """A kernel over (chunk of tiles, panel), the panel fastest, of `ProductParameters`.

    With experts it is one over (panel, row), the row fastest, so that a panel's weights are met
    again soon, of `ExpertParameters`. Where a panel has several items, they are neighbors.
    """
    writer = _Product(spec)
    return writer.kernel(name) if spec.experts is None else writer.routed(name, spec.experts)


class _Product:
    """Writes the kernel."""

    def __init__(self, spec: BlockConfig) -> None:
        self.spec, self.layout, self.records = spec, spec.layout, spec.records
        self.levels = Levels(spec.layout, spec.lanes, spec.records.signed)
        self.e = KernelBuilder()
        self.p: ProductParameters[Pointer, Value] | ExpertParameters[Pointer, Value]

    def kernel(self, name: str) -> RecordedKernel:
        """Items and their tiles."""
        e, tile = self.e, self.records.tile
        self.p = p = e.record(ProductParameters[Pointer, Value], y=self.spec.dtype)
        tiles = (p.sizes.m + (tile - 1)) // tile
        terms = p.sizes.blocks * (self.layout.elements // TERMS)
        with e.items() as i:
            i, place = self._place(i)
            first = i // p.sizes.panel_count * p.chunk
            panel = i % p.sizes.panel_count
            weights = p.panels + panel * (p.sizes.blocks * self.layout.block)
            with e.loop(first, minimum(first + p.chunk, tiles)) as t:
                rows = p.records + t * (terms * self.records.units)
                self._columns(rows, weights, t * tile, (panel, place))
        return RecordedKernel(e.kernel(f"blocks_{name}_{self.records.label}_{tile}"), p)

    def routed(self, name: str, dtype: DType) -> RecordedKernel:
        """One row with the panels of its expert."""
        e, kind = self.e, ExpertParameters[Pointer, Value]
        self.p = p = e.record(kind, y=self.spec.dtype, numbers=dtype)
        terms = p.sizes.blocks * (self.layout.elements // TERMS)
        with e.items() as i:
            i, part = self._place(i)
            row, panel = i % p.sizes.m, i // p.sizes.m
            expert = resolve(p.numbers[row], p.experts)
            place = expert * p.sizes.panel_count + panel
            weights = p.panels + place * (p.sizes.blocks * self.layout.block)
            source = row // p.sharing * (terms * self.records.units)
            self._columns(p.records + source, weights, row, (panel, part))
        return RecordedKernel(e.kernel(f"experts_{name}_{self.records.label}"), p)

    def _place(self, item: Value) -> tuple[Value, Value | None]:
        """Return an item's number among those of the same part, and its first column."""
        parts = self.spec.parts
        if parts == 1:
            return item, None
        return item // parts, item % parts * (self.spec.lanes * self.spec.vectors)

    def _columns(
        self, rows: Pointer, weights: Pointer, row: Value, place: tuple[Value, Value | None]
    ) -> None:
        """A tile of rows, the first of which is `row`, with the vectors of a panel: those from a
        column on, or all.
        """
        vectors, tile, (panel, first) = self.spec.vectors, self.records.tile, place

        def some(at: Value) -> None:
            sums = self._sums(rows, weights, at)
            column = panel * ROWS + at
            for v in range(vectors):
                self._store(row, column + v * self.spec.lanes, sums[v * tile : (v + 1) * tile])

        if first is not None:
            some(first)
            return
        with self.e.loop(0, ROWS, self.spec.lanes * vectors) as at:
            some(at)

    def _store(self, row: Value, column: Value, sums: list[Value]) -> None:
        sizes = self.p.sizes
        mask = self.e.first_lanes(sizes.n - column, self.spec.lanes)
        for r, value in enumerate(sums):
            place = row + r
            with self.e.when_all([place < sizes.m] if r else []):
                self.p.y.store(place * sizes.n + column, value.cast(self.spec.dtype), mask)

    def _sums(self, rows: Pointer, weights: Pointer, at: Value) -> list[Value]:
        """Return the sums of a tile's rows, for the vectors of columns from `at` on in turn."""
        e, layout = self.e, self.layout
        columns = [at + v * self.spec.lanes for v in range(self.spec.vectors)]
        each = layout.elements // TERMS * self.records.units
        none = e.constant(0.0, dt.float32, self.spec.lanes)
        sums = [none] * (self.records.tile * len(columns))
        with e.loop(self.p.sizes.blocks, carrying=sums) as i:
            start = weights + i * layout.block
            for line in range(0, layout.block, LINE):
                start.prefetch(_AHEAD + line)
            headers = [self.levels.header(start, column) for column in columns]
            record = rows + i * each
            with e.loop(layout.pieces, carrying=sums) as p:
                here = start + (p * layout.piece + layout.header)
                mine = record + p * (each // layout.pieces)
                self._piece(here, mine, columns, headers, sums)
        return sums

    def _piece(
        self,
        here: Pointer,
        record: Pointer,
        columns: list[Value],
        headers: list[Header],
        sums: list[Value],
    ) -> None:
        """Add to sums what a piece of weights and the rows there give."""
        add = self._pairs if self.records.pairs else self._bytes
        for group in range(self.layout.groups):
            term, inner = divmod(group, self.records.groups)
            mine = record + term * self.records.units
            add((here, mine), (group, inner), columns, headers, sums)

    def _bytes(
        self,
        given: tuple[Pointer, Pointer],
        groups: tuple[int, int],
        columns: list[Value],
        headers: list[Header],
        sums: list[Value],
    ) -> None:
        """Add what a group gives, which has a number in its piece and one in its record."""
        (here, record), (group, inner), (at,), (header,) = given, groups, columns, headers
        e, records, lanes = self.e, self.records, self.spec.lanes
        scales = self.levels.scales(here, group, at, header)
        levels = self.levels.words(here, group, at)
        narrow = self.layout.bits <= _NARROW
        first = inner * (records.words // records.groups)
        word = self._spread(record)
        for r, total in enumerate(sums):
            none = e.constant(0, dt.int32, lanes)
            start = none
            if records.starts:
                start = record[records.start(inner) + r].splat(lanes)
            counts = []
            for byte, count in enumerate((none, start)[-records.bytes :]):
                for i, level in enumerate(levels):
                    four = word(records.word(first + i, byte) + r).bitcast(dt.int8)
                    count = dot(count, level, four, narrow=narrow)
                counts.append(count)
            count = counts[-1]
            if records.bytes == 2:
                count = (counts[0] << 8) + count
            sums[r] = scaled(records, (record, inner, r), count, scales, total)

    def _spread(self, record: Pointer) -> Callable[[int], Value]:
        """Return what gives words of a record, by place, in every lane.

        Four neighbors are loaded at a time into vectors of four lanes: Arm's instructions name one
        of them, where a load into all lanes takes as long as a product.
        """
        lanes, loaded = self.spec.lanes, dict[int, Value]()
        if lanes != _BY_PLACE:
            return lambda place: record[place].splat(lanes)

        def word(place: int) -> Value:
            first, lane = place - place % lanes, place % lanes
            if first not in loaded:
                loaded[first] = record.load(first, lanes)
            return shuffle(loaded[first], loaded[first], (lane,) * lanes)

        return word

    def _pairs(
        self,
        given: tuple[Pointer, Pointer],
        groups: tuple[int, int],
        columns: list[Value],
        headers: list[Header],
        sums: list[Value],
    ) -> None:
        """Add what a group gives, as `_bytes` does, in 16-bit integers for several vectors.

        Few registers are in use at a time: levels are made where all rows need them.
        """
        (here, record), (group, inner) = given, groups
        records, rows, lanes = self.records, range(self.records.tile), self.spec.lanes
        lines = [record + r for r in rows]
        counts = starts_of(self.e, records, lines, inner, lanes) * len(columns)
        words = records.word(inner * (records.words // records.groups))
        with self.e.loop(self.levels.places, carrying=counts) as place:
            start = place * records.tile + words
            levels = [self.levels.pairs(here, group, place, at) for at in columns]
            for i, at_once in enumerate(zip(*levels, strict=True)):
                for half in range(2):
                    word = start + records.word(i * self.levels.places, half)
                    splat = [line[word].splat(lanes) for line in lines]
                    both = [(x[half], w.bitcast(dt.int16)) for x in at_once for w in splat]
                    counts[:] = [dot(n, *pair) for n, pair in zip(counts, both, strict=True)]
        made: list[Value] = []
        for at, header in zip(columns, headers, strict=True):
            scales = self.levels.scales(here, group, at, header)
            for r in rows:
                i = len(made)
                made.append(scaled(records, (record, inner, r), counts[i], scales, sums[i]))
        sums[:] = made


def starts_of(
    e: Builder, records: Records, lines: Sequence[Pointer], inner: int, lanes: int
) -> list[Value]:
    """First terms of the sums of a part of a record, for rows whose records these are."""
    if not records.starts:
        return [e.constant(0, dt.int32, lanes)] * len(lines)
    return [line[records.start(inner)].splat(lanes) for line in lines]


def scaled(
    records: Records,
    place: tuple[Pointer, int, int],
    count: Value,
    scales: Sequence[Value | None],
    total: Value,
) -> Value:
    """Add the sum of integers of a group of weights, scaled, to a row's total.

    Args:
        records: how activations lie.
        place: a record, the part of it that belongs to the group, and the row.
        count: the sum of integers, of each column.
        scales: the group's scales and minima, of each column.
        total: what the row has so far.
    """
    (record, inner, r), (scale, least) = place, scales
    assert scale is not None  # noqa: S101  (every group has a scale)
    floats = record.reinterpret(dt.float32)
    factor = scale * floats[records.scale() + r]
    total = fma(count.cast(dt.float32), factor, total)
    return total if least is None else fma(least, floats[records.total(inner) + r], total)
