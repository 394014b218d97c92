"""Attention over a cache: one work item is a head of keys and some of the queries that share it.

Queries that stand at neighboring positions, and all heads of a group, are rows; a tile has up to
four of them. Keys are taken in blocks that stay in the caches while every tile of the item meets
them, so memory is read once, nothing is packed, and only positions that some row sees are read.
Running maxima and sums are kept per row as in `forward`.

Scores lie in scratch as [key][row of the tile], so that a vector holds neighboring keys of all rows
and no step needs a sum across lanes but the transposed one that makes the scores.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Generic, TypeVar

from treadle.backends.codegen.attention.operands import LOG2_E, round_up
from treadle.backends.codegen.attention.packing import tail
from treadle.backends.codegen.attention.row import over_features, sum_lanes
from treadle.backends.codegen.attention.softmax import power_of_two
from treadle.backends.codegen.irregular.cache import bounded
from treadle.backends.codegen.kernel.builder import Builder, KernelBuilder
from treadle.backends.codegen.kernel.language import (
    Pointer,
    Value,
    copysign,
    fma,
    maximum,
    minimum,
    select,
    shuffle,
)
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.cache import MOST_POSITIONS
from treadle.ops.precision import compute_type

BLOCK = 128
"""Keys that all tiles of an item meet before the next ones are read."""
ROWS = 32
"""Rows of an item at most."""


@dataclass(frozen=True, slots=True)
class CachedConfig:
    """The constants of a kernel.

    Attributes:
        dtype, kept: element types of queries and results, and of the cache; int8 has scales.
        d, e: features of keys and of values.
        scale, window, softcap, ring, page: of the op, with the scale known.
        sinks: their element type, if there are any.
        places: element types of starts, ends and rows.
        target: for whom.
    """

    dtype: DType
    kept: DType
    d: int
    e: int
    scale: float
    window: int | None
    softcap: float | None
    ring: bool
    page: int | None
    sinks: DType | None
    places: tuple[DType, ...]
    target: Target

    @property
    def factor(self) -> float:
        """The factor of queries: scores are powers of 2, or arguments of tanh."""
        return self.scale * LOG2_E if self.softcap is None else self.scale / self.softcap

    @property
    def scaled(self) -> bool:
        """True where rows of the cache have scales."""
        return self.kept is dt.int8

    @property
    def compute(self) -> DType:
        """The type sums are computed in."""
        return compute_type(self.dtype)

    @property
    def lanes(self) -> int:
        """Lanes of a vector of the compute type."""
        return self.target.lanes(self.compute)

    @property
    def tile(self) -> int:
        """Rows of a tile."""
        return min(4, self.lanes)

    @property
    def together(self) -> int:
        """Keys of which a vector of scores holds those of all rows."""
        return self.lanes // self.tile

    @property
    def columns(self) -> int:
        """Vectors of a row of results that are summed at a time."""
        return 4 if self.target.registers >= 32 else 2


@dataclass(frozen=True, slots=True)
class Seen:
    """Of the rows of an item: largest scores, sums, the first key that is seen and their end."""

    largest: Pointer
    sums: Pointer
    begins: Pointer
    ends: Pointer


@dataclass(frozen=True, slots=True)
class _CachedScratch(Seen):
    """Rows of an item: scaled queries and results; scores of one tile."""

    q: Pointer
    y: Pointer
    scores: Pointer


T = TypeVar("T", bound=Seen)


@dataclass(frozen=True, slots=True)
class Item:
    """Some rows of one head of keys.

    Attributes:
        entry: of the heads of keys of all rows of the batch.
        row, head: which of both this is.
        start: position of the first query.
        first, meant: the first row, and how many follow that are not padding.
        place: by row, which line of q and of the results it is.
    """

    entry: Value
    row: Value
    head: Value
    start: Value
    first: Value
    meant: Value
    place: Callable[[Value], Value]


@dataclass(frozen=True, slots=True)
class _Keys:
    """One head of a cache: keys and values, as if position 0 lay where they point to.

    Of a ring, also what lies in its first slot, and its size: no tile sees positions from before
    `base` or beyond two turns. Caches of int8 have `scales` of keys and of values.
    """

    k: Pointer
    v: Pointer
    scales: tuple[Pointer, ...] = ()
    base: Value | None = None
    slots: Value | None = None

    def slot(self, position: Value) -> Value:
        """Return the place of a position."""
        if self.base is None or self.slots is None:
            return position
        at = position - self.base
        return select(at < self.slots, at, at - self.slots)


class RowSizes(Record[P, S]):
    """Heads of keys, queries of a group, their positions, those of a cache, pages, chunks."""

    shared: S
    group: S
    time: S
    capacity: S
    pages: S
    chunks: S


class CachedParameters(Record[P, S], sizes=RowSizes):
    """Parameters of `cached_kernel`."""

    q: P
    k: P
    v: P
    y: P
    starts: P
    ends: P
    rows: P
    scales: tuple[P, ...]
    sinks: P | None
    sequences: S
    sizes: RowSizes[P, S]


class PairsParameters(Record[P, S], kw=dt.int32, vw=dt.int32, sizes=RowSizes):
    """Parameters of `cached_pairs.pairs_kernel`: `kw`, `vw` are words of keys and values."""

    q: P
    kw: P
    vw: P
    y: P
    starts: P
    ends: P
    sinks: P | None
    sizes: RowSizes[P, S]
    panels: S


class CachedRows(ABC, Generic[T]):
    """Parts that kernels of attention over caches share: a row is (step, head of the group).

    The head is the fastest, so that the rows of an item see nearly the same keys.
    """

    p: CachedParameters[Pointer, Value] | PairsParameters[Pointer, Value]

    def __init__(self, spec: CachedConfig) -> None:
        self.s, self.e = spec, KernelBuilder()
        # The compare of positions has as many lanes as scores.
        self.number = dt.int32 if spec.compute.itemsize == 4 else dt.int64

    @property
    def given(self) -> dict[str, DType | None]:
        """Element types of pointers that all kernels have."""
        s = self.s
        starts, ends, _ = s.places
        return {"q": s.dtype, "y": s.dtype, "starts": starts, "ends": ends, "sinks": s.sinks}

    @abstractmethod
    def work(self, scratch: T, at: Item) -> None:
        """The results of an item's rows."""

    @abstractmethod
    def query(self, scratch: T, r: Value, place: Value) -> None:
        """The scaled query of a row, in scratch."""

    def seen(self) -> tuple[Pointer, Pointer, Pointer, Pointer]:
        """Scratch for `Seen`."""
        e = self.e
        floats = [e.stack(self.s.compute, ROWS) for _ in range(2)]
        numbers = [e.stack(self.number, ROWS) for _ in range(2)]
        return (floats[0], floats[1], numbers[0], numbers[1])

    def item(self, scratch: T, item: Value) -> None:
        """The results of some rows; zeros for padding."""
        e, sizes = self.e, self.p.sizes
        group, time = sizes.group, sizes.time
        chunk, entry = item % sizes.chunks, item // sizes.chunks
        head, row = entry % sizes.shared, entry // sizes.shared
        room = sizes.capacity if self.s.page is None else sizes.pages * self.s.page
        most = MOST_POSITIONS if self.s.ring else room
        start, end = (bounded(places[row], most) for places in (self.p.starts, self.p.ends))
        count = maximum(minimum(end - start, time), 0)
        first = chunk * ROWS
        every = minimum(time * group - first, ROWS)
        meant = maximum(minimum(count * group - first, ROWS), 0)
        queries = entry * (group * time)

        def place(r: Value) -> Value:
            at = first + r
            step, member = at // group, at % group
            return queries + (member * time + step)

        at = Item(entry, row, head, start, first, meant, place)
        with e.when(meant > 0):
            self.work(scratch, at)

        with e.loop(meant, every) as r:
            (self.p.y + place(r) * self.s.e).zero(self.s.e)

    def prepare(self, scratch: T, at: Item, count: Value | int) -> None:
        """Queries, the keys that they see, and nothing summed but sinks; the last fills up."""
        e, group = self.e, self.p.sizes.group
        last, sink = at.meant - 1, at.head * group

        with e.loop(count) as r:
            real = minimum(r, last)
            number = at.first + real
            step, member = number // group, number % group
            self.query(scratch, r, at.place(real))
            self._see(scratch, r, at.start + step, sink + member)

    def span(self, scratch: T, at: Item) -> tuple[Value, Value]:
        """The first key that a row sees, and where those of the last row end."""
        last = scratch.ends[at.meant - 1]
        return scratch.begins[0].cast(dt.int64), last.cast(dt.int64)

    def _see(self, scratch: T, r: Value, position: Value, head: Value) -> None:
        e, s = self.e, self.s
        end = position + 1
        begin = e.index(0) if s.window is None else maximum(end - s.window, 0)
        scratch.begins[r] = begin.cast(self.number)
        scratch.ends[r] = end.cast(self.number)
        largest, total = e.constant(-math.inf, s.compute), e.constant(0.0, s.compute)
        if self.p.sinks is not None:
            largest = self.p.sinks[head].cast(s.compute) * LOG2_E
            total = e.constant(1.0, s.compute)
        scratch.largest[r] = largest
        scratch.sums[r] = total


class _Cached(CachedRows[_CachedScratch]):
    """Writes the kernel of one spec."""

    def __init__(self, spec: CachedConfig) -> None:
        super().__init__(spec)
        self.d_pitch, self.e_pitch = (round_up(n, spec.lanes) for n in (spec.d, spec.e))
        self.p: CachedParameters[Pointer, Value] = self.e.record(
            CachedParameters[Pointer, Value],
            k=spec.kept,
            v=spec.kept,
            rows=spec.places[2],
            scales=partial(scales_of, self.e, spec),
            **self.given,
        )

    def write(self) -> None:
        """The entry."""
        e, s = self.e, self.s
        scratch = _CachedScratch(
            *self.seen(),
            e.stack(s.compute, ROWS * self.d_pitch),
            e.stack(s.compute, ROWS * self.e_pitch),
            e.stack(s.compute, (BLOCK + s.together) * s.tile),
        )
        with e.items() as item:
            self.item(scratch, item)

    def work(self, scratch: _CachedScratch, at: Item) -> None:
        e, s = self.e, self.s
        tiles = ((at.meant + (s.tile - 1)) // s.tile) * s.tile
        self.prepare(scratch, at, tiles)
        scratch.y.zero(tiles * self.e_pitch)
        lowest, most = self.span(scratch, at)

        with e.loop(_aligned(s, lowest, BLOCK), most, BLOCK) as begin:
            stop = minimum(begin + BLOCK, most)
            keys = self.keys(at, begin)
            with e.loop(0, tiles, s.tile) as r:
                self.tile(scratch, keys, r, begin, stop)
        with e.loop(at.meant) as r:
            _finish(e, s, self.p.y, scratch, r, at.place(r))

    def keys(self, at: Item, begin: Value) -> _Keys:
        """Return where the block from `begin` on is read, which lies in one page."""
        s, p = self.s, self.p
        extents = p.sizes.shared, p.sizes.capacity, p.sizes.pages
        line = first_line(s, p.rows, p.sequences, (at.row, at.head, begin), extents)
        return _Keys(p.k + line * s.d, p.v + line * s.e, tuple([n + line for n in p.scales]))

    def query(self, scratch: _CachedScratch, r: Value, place: Value) -> None:
        e, s = self.e, self.s
        source, into = self.p.q + place * s.d, r * self.d_pitch
        for column in range(0, s.d, s.lanes):
            value = source.load(column, s.lanes, tail(e, s.lanes, s.d - column)).cast(s.compute)
            scaled = value * s.factor
            (scratch.q + into).store(column, scaled, aligned=True)

    def tile(
        self, scratch: _CachedScratch, keys: _Keys, r: Value, begin: Value, stop: Value
    ) -> None:
        """The rows from r on against those keys of [begin, stop) that one of them sees."""
        e, s = self.e, self.s
        least = scratch.begins[r].cast(dt.int64)
        most = scratch.ends[r + (s.tile - 1)].cast(dt.int64)
        begin, stop = maximum(begin, _aligned(s, least, s.together)), minimum(stop, most)
        if s.ring:
            base = (least // self.p.sizes.capacity) * self.p.sizes.capacity
            keys = _Keys(keys.k, keys.v, keys.scales, base, self.p.sizes.capacity)

        with e.when(begin < stop):
            largest = self.score(scratch, keys, r, (begin, stop), least)
            factors = self.weigh(scratch, keys, r, largest, (begin, stop), least)
            for column in range(0, self.e_pitch, s.columns * s.lanes):
                self.average(scratch, keys, r, (begin, stop), least, column, factors)

    def score(
        self,
        scratch: _CachedScratch,
        keys: _Keys,
        r: Value,
        span: tuple[Value, Value],
        least: Value,
    ) -> Value:
        """Scores, in units of log 2, in scratch; their largest, by lane."""
        e = self.e
        s, (begin, stop) = self.s, span
        limits = [_per_lane(s, x, r) for x in (scratch.begins, scratch.ends)]
        # What a last vector holds behind the block counts with the next one.
        limits[1] = minimum(limits[1], stop.cast(self.number).splat(s.lanes))
        shift = s.tile.bit_length() - 1
        numbers = e.iota(self.number, s.lanes) >> shift
        queries = [scratch.q + (r + i) * self.d_pitch for i in range(s.tile)]
        last = stop - 1
        largest = [e.constant(-math.inf, s.compute, s.lanes)]
        with e.loop(begin, stop, s.together, carrying=largest) as key:
            slots = self.slots(keys, key, last, least)
            lines = [keys.k + slot * s.d for slot in slots]
            found = sum_lanes(self.products(queries, lines))
            if s.scaled:
                found = found * self.scale(keys.scales[0], slots)
            if s.softcap is not None:
                found = tanh(found) * (s.softcap * LOG2_E)
            at = key.cast(self.number).splat(s.lanes) + numbers
            seen = (limits[0] <= at) & (at < limits[1])
            score = select(seen, found, -math.inf)
            scratch.scores.store((key - begin) * s.tile, score, aligned=True)
            largest[0] = maximum(score, largest[0])
        return largest[0]

    def slots(self, keys: _Keys, key: Value, last: Value, least: Value) -> list[Value]:
        """Return places of the keys of a vector of scores, or of others that are seen."""
        places = [minimum(key + i, last) for i in range(self.s.together)]
        if self.s.window is not None:
            places = [maximum(p, least) for p in places]
        return [keys.slot(p) for p in places]

    def scale(self, scales: Pointer, slots: list[Value]) -> Value:
        """Return the scales of a vector of scores."""
        e, s = self.e, self.s
        if len(slots) == 1:
            return scales[slots[0]].cast(s.compute).splat(s.lanes)
        found = e.constant(0.0, s.compute, len(slots))
        for i, slot in enumerate(slots):
            found = found.insert(i, scales[slot].cast(s.compute))
        return shuffle(found, found, [i // s.tile for i in range(s.lanes)])

    def products(self, queries: list[Pointer], lines: list[Pointer]) -> list[Value]:
        """Sums by lane of each key times each query, keys outside."""
        e, s = self.e, self.s
        sums = [e.constant(0.0, s.compute, s.lanes)] * s.lanes

        def add(column: Value | int, mask: Value | None) -> None:
            loaded = [x.load(column, s.lanes, mask).cast(s.compute) for x in lines]
            rows = [q.load(column, s.lanes, aligned=True) for q in queries]
            pairs = [(x, y) for x in loaded for y in rows]
            sums[:] = [fma(x, y, t) for (x, y), t in zip(pairs, sums, strict=True)]

        over_features(e, s.d, s.lanes, sums, add)
        return sums

    def weigh(
        self,
        scratch: _CachedScratch,
        keys: _Keys,
        r: Value,
        largest: Value,
        span: tuple[Value, Value],
        least: Value,
    ) -> list[Value]:
        """Make scores weights, add them to the rows' sums; what earlier results are scaled by."""
        e = self.e
        s, (begin, stop) = self.s, span
        count, last = stop - begin, stop - 1 if self.s.scaled else stop
        before = _per_lane(s, scratch.largest, r)
        largest = maximum(before, _over_keys(s, largest, maximum))
        shift = select(abs(largest) < math.inf, largest, 0.0)
        total = [e.constant(0.0, s.compute, s.lanes)]
        with e.loop(0, count * s.tile, s.lanes, carrying=total) as at:
            score = scratch.scores.load(at, s.lanes, aligned=True)
            weight = power_of_two(score - shift)
            factor = weight
            if s.scaled:
                slots = self.slots(keys, begin + at // s.tile, last, least)
                factor = weight * self.scale(keys.scales[1], slots)
            scratch.scores.store(at, factor, aligned=True)
            total[0] = weight + total[0]
        factor = power_of_two(before - shift)
        sums = fma(_per_lane(s, scratch.sums, r), factor, _over_keys(s, total[0], operator.add))
        found = []
        for i in range(s.tile):
            at = r + i
            scratch.sums.store(at, sums.extract(i))
            scratch.largest.store(at, largest.extract(i))
            found.append(factor.extract(i))
        return found

    def average(
        self,
        scratch: _CachedScratch,
        keys: _Keys,
        r: Value,
        span: tuple[Value, Value],
        least: Value,
        first: int,
        factors: list[Value],
    ) -> None:
        """Some columns of a tile's results: scaled by the factors, and weighted values added."""
        e = self.e
        s, (begin, stop) = self.s, span
        columns = range(first, min(s.e, first + s.columns * s.lanes), s.lanes)
        places = [
            (scratch.y + (r + i) * self.e_pitch, column)
            for i in range(s.tile)
            for column in columns
        ]
        sums = [
            row.load(column, s.lanes, aligned=True) * factors[i // len(columns)]
            for i, (row, column) in enumerate(places)
        ]
        read = begin if s.window is None else maximum(begin, least)
        with e.loop(read, stop, carrying=sums) as key:
            line = keys.v + keys.slot(key) * s.e
            values = [
                line.load(c, s.lanes, tail(e, s.lanes, s.e - c)).cast(s.compute) for c in columns
            ]
            at = (key - begin) * s.tile
            for i in range(s.tile):
                weight = scratch.scores[at + i].splat(s.lanes)
                mine = slice(i * len(values), (i + 1) * len(values))
                sums[mine] = [fma(weight, v, t) for v, t in zip(values, sums[mine], strict=True)]
        for (row, column), value in zip(places, sums, strict=True):
            row.store(column, value, aligned=True)


def first_line(
    s: CachedConfig,
    rows: Pointer,
    sequences: Value,
    where: tuple[Value, Value, Value],
    extents: tuple[Value, Value, Value],
) -> Value:
    """Return the line in which position 0 would lie, if a head lay as it does at a position.

    Args:
        s: of the kernel.
        rows: the sequences, or their pages.
        sequences: how many there are of what rows name.
        where: row of the batch, head and position.
        extents: heads, positions of the cache, pages of a sequence.
    """
    (row, head, position), (shared, capacity, pages) = where, extents
    if s.page is None:
        return (bounded(rows[row], sequences - 1) * shared + head) * capacity
    index = position // s.page
    number = bounded(rows[row * pages + index], sequences - 1)
    return head * capacity + (number - index) * s.page


def _aligned(s: CachedConfig, position: Value, step: int) -> Value:
    """Round down to a block or vector of keys: a query's sums are the same in any company."""
    return position if s.window is None else (position // step) * step


def _per_lane(s: CachedConfig, source: Pointer, r: Value) -> Value:
    """Numbers of a tile's rows, for each key that a vector holds."""
    vector = source.load(r, s.tile)
    return shuffle(vector, vector, [i % s.tile for i in range(s.lanes)])


def _finish(
    e: Builder, s: CachedConfig, y: Pointer, scratch: _CachedScratch, r: Value, place: Value
) -> None:
    """A row's result, divided by its sum."""
    inverse = 1.0 / scratch.sums[r]
    source = scratch.y + r * round_up(s.e, s.lanes)
    line = y + place * s.e
    for column in range(0, s.e, s.lanes):
        value = source.load(column, s.lanes, aligned=True) * inverse
        line.store(column, value.cast(s.dtype), tail(e, s.lanes, s.e - column))


def _over_keys(s: CachedConfig, x: Value, join: Callable[[Value, Value], Value]) -> Value:
    """Joins what lanes of one row hold; every lane has the result of its row."""
    distance = s.tile
    while distance < s.lanes:
        order = [i ^ distance for i in range(s.lanes)]
        x = join(x, shuffle(x, x, order))
        distance *= 2
    return x


def tanh(x: Value) -> Value:
    """Exact to a unit in the last place of 1, which is all that scores need."""
    power = power_of_two(abs(x) * (-2 * LOG2_E))
    return copysign((1.0 - power) / (1.0 + power), x)


def scales_of(e: KernelBuilder, spec: CachedConfig) -> tuple[Pointer, ...]:
    """Return the pointers to the scales of keys and values; none for caches without scales."""
    names = ("k_scales", "v_scales") if spec.scaled else ()
    return tuple([e.pointer(dt.float32, name) for name in names])


@cache
def cached_kernel(spec: CachedConfig) -> RecordedKernel:
    """The kernel that reads caches as they are."""
    made = _Cached(spec)
    made.write()
    return RecordedKernel(made.e.kernel("cached_attention", (), spec.target.features), made.p)
