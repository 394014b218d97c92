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
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

from treadle.backends.codegen.attention.operands import LOG2_E, round_up
from treadle.backends.codegen.attention.row import MOST_UNROLLED, sum_lanes
from treadle.backends.codegen.attention.softmax import power_of_two
from treadle.backends.codegen.irregular.cache import bounded
from treadle.backends.codegen.kernel.builder import Builder, kernel
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
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
class Spec:
    """The constants of a kernel.

    Attributes:
        dtype, kept: element types of queries and results, and of the cache; int8 has scales.
        d, e: features of keys and of values.
        scale, window, softcap, ring: of the op, with the scale known.
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
    sinks: DType | None
    places: tuple[DType, ...]
    target: Target

    @property
    def factor(self) -> float:
        """What queries are multiplied by: scores are powers of 2, or arguments of tanh."""
        return self.scale * LOG2_E if self.softcap is None else self.scale / self.softcap

    @property
    def scaled(self) -> bool:
        """Whether rows of the cache have scales."""
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

    largest: Value
    sums: Value
    begins: Value
    ends: Value


@dataclass(frozen=True, slots=True)
class _Scratch(Seen):
    """Rows of an item: scaled queries and results; scores of one tile."""

    q: Value
    y: Value
    scores: Value


S = TypeVar("S", bound=Seen)


@dataclass(frozen=True, slots=True)
class Item:
    """Some rows of one head of keys.

    Attributes:
        entry: of the heads of keys of all rows of the batch.
        row, head: which of both this is.
        start: position of the first query.
        first, meant: the first row, and how many follow that are no padding.
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
    """One head of a cache: keys and values; of a ring, what lies in its first slot, and its size.

    No tile sees positions from before `base` or beyond two turns of the ring. Caches of int8 have
    `scales` of keys and of values.
    """

    k: Value
    v: Value
    scales: tuple[Value, ...] = ()
    base: Value | None = None
    slots: Value | None = None

    def slot(self, b: Builder, position: Value) -> Value:
        """Where a position lies."""
        if self.base is None or self.slots is None:
            return position
        at = b.sub(position, self.base)
        return b.select(b.compare("lt", at, self.slots), at, b.sub(at, self.slots))


class Rows(ABC, Generic[S]):
    """What kernels of attention over caches share: a row is (step, head of the group).

    The head is the fastest, so that the rows of an item see nearly the same keys.
    """

    def __init__(self, spec: Spec) -> None:
        self.s = s = spec
        self.q, self.y = pointer(s.dtype, "q"), pointer(s.dtype, "y")
        names = ("starts", "ends", "rows")
        self.places = [pointer(t, n) for t, n in zip(s.places, names, strict=True)]
        self.sinks = None if s.sinks is None else pointer(s.sinks, "sinks")
        sizes = ("shared", "group", "time", "capacity", "chunks")
        self.shared, self.group, self.time, self.capacity, self.chunks = map(size, sizes)
        # The compare of positions has as many lanes as scores.
        self.number = dt.int32 if s.compute.itemsize == 4 else dt.int64

    @abstractmethod
    def work(self, b: Builder, scratch: S, at: Item) -> None:
        """The results of an item's rows."""

    @abstractmethod
    def query(self, b: Builder, scratch: S, r: Value, place: Value) -> None:
        """The scaled query of a row, in scratch."""

    def seen(self, b: Builder) -> tuple[Value, Value, Value, Value]:
        """Scratch for `Seen`."""
        floats = [b.stack(self.s.compute, ROWS) for _ in range(2)]
        numbers = [b.stack(self.number, ROWS) for _ in range(2)]
        return (floats[0], floats[1], numbers[0], numbers[1])

    def item(self, b: Builder, scratch: S, item: Value) -> None:
        """The results of some rows; zeros for padding."""
        chunk, entry = b.rem(item, self.chunks), b.div(item, self.chunks)
        head, row = b.rem(entry, self.shared), b.div(entry, self.shared)
        most = MOST_POSITIONS if self.s.ring else self.capacity
        start, end = (bounded(b.load(p, row), most) for p in self.places[:2])
        count = b.max(b.min(b.sub(end, start), self.time), 0)
        first = b.mul(chunk, ROWS)
        every = b.min(b.sub(b.mul(self.time, self.group), first), ROWS)
        meant = b.max(b.min(b.sub(b.mul(count, self.group), first), ROWS), 0)
        queries = b.mul(entry, b.mul(self.group, self.time))

        def place(r: Value) -> Value:
            at = b.add(first, r)
            step, member = b.div(at, self.group), b.rem(at, self.group)
            return b.add(queries, b.add(b.mul(member, self.time), step))

        at = Item(entry, row, head, start, first, meant, place)
        b.branch(b.compare("lt", 0, meant), lambda: self.work(b, scratch, at))

        def clear(r: Value) -> None:
            b.zero(b.offset(self.y, b.mul(place(r), self.s.e)), self.s.e)

        b.loop(meant, every, 1, clear)

    def prepare(self, b: Builder, scratch: S, at: Item, count: Value | int) -> None:
        """Queries, the keys that they see, and nothing summed but sinks; the last fills up."""
        last, sink = b.sub(at.meant, 1), b.mul(at.head, self.group)

        def prepare(r: Value) -> None:
            real = b.min(r, last)
            number = b.add(at.first, real)
            step, member = b.div(number, self.group), b.rem(number, self.group)
            self.query(b, scratch, r, at.place(real))
            self._see(b, scratch, r, b.add(at.start, step), b.add(sink, member))

        b.loop(0, count, 1, prepare)

    def span(self, b: Builder, scratch: S, at: Item) -> tuple[Value, Value]:
        """The first key that a row sees, and where those of the last row end."""
        last = b.load(scratch.ends, b.sub(at.meant, 1))
        return b.cast(b.load(scratch.begins, 0), dt.int64), b.cast(last, dt.int64)

    def _see(self, b: Builder, scratch: S, r: Value, position: Value, head: Value) -> None:
        s = self.s
        end = b.add(position, 1)
        begin = b.index(0) if s.window is None else b.max(b.sub(end, s.window), 0)
        b.store(scratch.begins, r, b.cast(begin, self.number))
        b.store(scratch.ends, r, b.cast(end, self.number))
        largest, total = b.constant(-math.inf, s.compute), b.constant(0.0, s.compute)
        if self.sinks is not None:
            largest = b.mul(b.cast(b.load(self.sinks, head), s.compute), LOG2_E)
            total = b.constant(1.0, s.compute)
        b.store(scratch.largest, r, largest)
        b.store(scratch.sums, r, total)


class _Cached(Rows[_Scratch]):
    """Writes the kernel of one spec."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.k, self.v = pointer(spec.kept, "k"), pointer(spec.kept, "v")
        self.scales = scales_of(spec)
        self.sequences = size("sequences")
        self.d_pitch, self.e_pitch = (round_up(n, spec.lanes) for n in (spec.d, spec.e))

    @property
    def parameters(self) -> tuple[Value, ...]:
        """In order."""
        more = () if self.sinks is None else (self.sinks,)
        sizes = self.sequences, self.shared, self.group, self.time, self.capacity, self.chunks
        return (self.q, self.k, self.v, self.y, *self.places, *self.scales, *more, *sizes)

    def write(self, b: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        s = self.s
        scratch = _Scratch(
            *self.seen(b),
            b.stack(s.compute, ROWS * self.d_pitch),
            b.stack(s.compute, ROWS * self.e_pitch),
            b.stack(s.compute, (BLOCK + s.together) * s.tile),
        )
        b.loop(lo, hi, 1, lambda item: self.item(b, scratch, item))

    def work(self, b: Builder, scratch: _Scratch, at: Item) -> None:
        s = self.s
        sequence = bounded(b.load(self.places[2], at.row), b.sub(self.sequences, 1))
        line = b.mul(b.add(b.mul(sequence, self.shared), at.head), self.capacity)
        keys = _Keys(
            b.offset(self.k, b.mul(line, s.d)),
            b.offset(self.v, b.mul(line, s.e)),
            tuple(b.offset(p, line) for p in self.scales),
        )
        tiles = b.mul(b.div(b.add(at.meant, s.tile - 1), s.tile), s.tile)
        self.prepare(b, scratch, at, tiles)
        b.zero(scratch.y, b.mul(tiles, self.e_pitch))
        lowest, most = self.span(b, scratch, at)

        def block(begin: Value) -> None:
            stop = b.min(b.add(begin, BLOCK), most)
            b.loop(0, tiles, s.tile, lambda r: self.tile(b, scratch, keys, r, begin, stop))

        b.loop(_aligned(b, s, lowest, BLOCK), most, BLOCK, block)
        b.loop(0, at.meant, 1, lambda r: _finish(b, s, self.y, scratch, r, at.place(r)))

    def query(self, b: Builder, scratch: _Scratch, r: Value, place: Value) -> None:
        s = self.s
        source, into = b.offset(self.q, b.mul(place, s.d)), b.mul(r, self.d_pitch)
        for column in range(0, s.d, s.lanes):
            value = b.cast(b.load(source, column, s.lanes, _tail(b, s, s.d, column)), s.compute)
            scaled = b.mul(value, s.factor)
            b.store(b.offset(scratch.q, into), column, scaled, aligned=True)

    def tile(
        self, b: Builder, scratch: _Scratch, keys: _Keys, r: Value, begin: Value, stop: Value
    ) -> None:
        """The rows from r on against those keys of [begin, stop) that one of them sees."""
        s = self.s
        least = b.cast(b.load(scratch.begins, r), dt.int64)
        most = b.cast(b.load(scratch.ends, b.add(r, s.tile - 1)), dt.int64)
        begin, stop = b.max(begin, _aligned(b, self.s, least, s.together)), b.min(stop, most)
        if s.ring:
            base = b.mul(b.div(least, self.capacity), self.capacity)
            keys = _Keys(keys.k, keys.v, keys.scales, base, self.capacity)

        def work() -> None:
            largest = self.score(b, scratch, keys, r, (begin, stop), least)
            factors = self.weigh(b, scratch, keys, r, largest, (begin, stop), least)
            for column in range(0, self.e_pitch, s.columns * s.lanes):
                self.average(b, scratch, keys, r, (begin, stop), least, column, factors)

        b.branch(b.compare("lt", begin, stop), work)

    def score(
        self,
        b: Builder,
        scratch: _Scratch,
        keys: _Keys,
        r: Value,
        span: tuple[Value, Value],
        least: Value,
    ) -> Value:
        """Scores, in units of log 2, in scratch; their largest, by lane."""
        s, (begin, stop) = self.s, span
        limits = [_per_lane(b, s, x, r) for x in (scratch.begins, scratch.ends)]
        # What a last vector holds behind the block counts with the next one.
        limits[1] = b.min(limits[1], b.splat(b.cast(stop, self.number), s.lanes))
        shift = s.tile.bit_length() - 1
        numbers = b.bitwise("shr", b.iota(self.number, s.lanes), shift)
        queries = [b.offset(scratch.q, b.mul(b.add(r, i), self.d_pitch)) for i in range(s.tile)]
        last = b.sub(stop, 1)

        def turn(key: Value, largest: Value) -> tuple[Value, ...]:
            slots = self.slots(b, keys, key, last, least)
            lines = [b.offset(keys.k, b.mul(slot, s.d)) for slot in slots]
            found = sum_lanes(b, self.products(b, queries, lines))
            if s.scaled:
                found = b.mul(found, self.scale(b, keys.scales[0], slots))
            if s.softcap is not None:
                found = b.mul(tanh(b, found), s.softcap * LOG2_E)
            at = b.add(b.splat(b.cast(key, self.number), s.lanes), numbers)
            seen = b.bitwise("and", b.compare("le", limits[0], at), b.compare("lt", at, limits[1]))
            score = b.select(seen, found, b.constant(-math.inf, s.compute, s.lanes))
            b.store(scratch.scores, b.mul(b.sub(key, begin), s.tile), score, aligned=True)
            return (b.max(score, largest),)

        lowest = b.constant(-math.inf, s.compute, s.lanes)
        return b.loop(begin, stop, s.together, turn, (lowest,))[0]

    def slots(self, b: Builder, keys: _Keys, key: Value, last: Value, least: Value) -> list[Value]:
        """Where the keys of a vector of scores lie, or others that are seen."""
        places = [b.min(b.add(key, i), last) for i in range(self.s.together)]
        if self.s.window is not None:
            places = [b.max(p, least) for p in places]
        return [keys.slot(b, p) for p in places]

    def scale(self, b: Builder, scales: Value, slots: list[Value]) -> Value:
        """Those of a vector of scores."""
        s = self.s
        if len(slots) == 1:
            return b.splat(b.cast(b.load(scales, slots[0]), s.compute), s.lanes)
        found = b.constant(0.0, s.compute, len(slots))
        for i, slot in enumerate(slots):
            found = b.insert(found, i, b.cast(b.load(scales, slot), s.compute))
        return b.shuffle(found, found, [i // s.tile for i in range(s.lanes)])

    def products(self, b: Builder, queries: list[Value], lines: list[Value]) -> tuple[Value, ...]:
        """Sums by lane of each key times each query, keys outside."""
        s = self.s

        def turn(column: Value | int, *sums: Value, mask: Value | None = None) -> tuple[Value, ...]:
            loaded = [b.cast(b.load(x, column, s.lanes, mask), s.compute) for x in lines]
            rows = [b.load(q, column, s.lanes, aligned=True) for q in queries]
            pairs = [(x, y) for x in loaded for y in rows]
            return tuple(b.fma(x, y, t) for (x, y), t in zip(pairs, sums, strict=True))

        full = s.d // s.lanes * s.lanes
        sums = (b.constant(0.0, s.compute, s.lanes),) * s.lanes
        if full <= MOST_UNROLLED * s.lanes:
            for column in range(0, full, s.lanes):
                sums = turn(column, *sums)
        else:
            sums = b.loop(0, full, s.lanes, turn, sums)
        return turn(full, *sums, mask=_tail(b, s, s.d, full)) if full < s.d else sums

    def weigh(
        self,
        b: Builder,
        scratch: _Scratch,
        keys: _Keys,
        r: Value,
        largest: Value,
        span: tuple[Value, Value],
        least: Value,
    ) -> list[Value]:
        """Make scores weights, add them to the rows' sums; what earlier results are scaled by."""
        s, (begin, stop) = self.s, span
        count, last = b.sub(stop, begin), b.sub(stop, 1) if self.s.scaled else stop
        before = _per_lane(b, s, scratch.largest, r)
        largest = b.max(before, _over_keys(b, s, largest, b.max))
        shift = b.select(
            b.compare("lt", b.abs(largest), math.inf),
            largest,
            b.constant(0.0, s.compute, s.lanes),
        )

        def turn(at: Value, total: Value) -> tuple[Value, ...]:
            score = b.load(scratch.scores, at, s.lanes, aligned=True)
            weight = power_of_two(b, b.sub(score, shift))
            factor = weight
            if s.scaled:
                slots = self.slots(b, keys, b.add(begin, b.div(at, s.tile)), last, least)
                factor = b.mul(weight, self.scale(b, keys.scales[1], slots))
            b.store(scratch.scores, at, factor, aligned=True)
            return (b.add(weight, total),)

        zero = b.constant(0.0, s.compute, s.lanes)
        (total,) = b.loop(0, b.mul(count, s.tile), s.lanes, turn, (zero,))
        factor = power_of_two(b, b.sub(before, shift))
        sums = b.fma(_per_lane(b, s, scratch.sums, r), factor, _over_keys(b, s, total, b.add))
        found = []
        for i in range(s.tile):
            at = b.add(r, i)
            b.store(scratch.sums, at, b.extract(sums, i))
            b.store(scratch.largest, at, b.extract(largest, i))
            found.append(b.extract(factor, i))
        return found

    def average(
        self,
        b: Builder,
        scratch: _Scratch,
        keys: _Keys,
        r: Value,
        span: tuple[Value, Value],
        least: Value,
        first: int,
        factors: list[Value],
    ) -> None:
        """Some columns of a tile's results: scaled by the factors, and weighted values added."""
        s, (begin, stop) = self.s, span
        columns = range(first, min(s.e, first + s.columns * s.lanes), s.lanes)
        places = [
            (b.offset(scratch.y, b.mul(b.add(r, i), self.e_pitch)), column)
            for i in range(s.tile)
            for column in columns
        ]
        sums = [
            b.mul(b.load(row, column, s.lanes, aligned=True), factors[i // len(columns)])
            for i, (row, column) in enumerate(places)
        ]

        def turn(key: Value, *sums: Value) -> tuple[Value, ...]:
            line = b.offset(keys.v, b.mul(keys.slot(b, key), s.e))
            values = [
                b.cast(b.load(line, c, s.lanes, _tail(b, s, s.e, c)), s.compute) for c in columns
            ]
            at = b.mul(b.sub(key, begin), s.tile)
            found = []
            for i in range(s.tile):
                weight = b.splat(b.load(scratch.scores, b.add(at, i)), s.lanes)
                mine = sums[i * len(values) : (i + 1) * len(values)]
                found += [b.fma(weight, v, t) for v, t in zip(values, mine, strict=True)]
            return tuple(found)

        read = begin if s.window is None else b.max(begin, least)
        sums = list(b.loop(read, stop, 1, turn, sums))
        for (row, column), value in zip(places, sums, strict=True):
            b.store(row, column, value, aligned=True)


def _aligned(b: Builder, s: Spec, position: Value, step: int) -> Value:
    """Where blocks or vectors of keys begin: a query's sums are the same in any company."""
    return position if s.window is None else b.mul(b.div(position, step), step)


def _per_lane(b: Builder, s: Spec, source: Value, r: Value) -> Value:
    """Numbers of a tile's rows, for each key that a vector holds."""
    vector = b.load(source, r, s.tile)
    return b.shuffle(vector, vector, [i % s.tile for i in range(s.lanes)])


def _finish(b: Builder, s: Spec, y: Value, scratch: _Scratch, r: Value, place: Value) -> None:
    """A row's result, divided by its sum."""
    inverse = b.div(b.constant(1.0, s.compute), b.load(scratch.sums, r))
    source = b.offset(scratch.y, b.mul(r, round_up(s.e, s.lanes)))
    line = b.offset(y, b.mul(place, s.e))
    for column in range(0, s.e, s.lanes):
        value = b.mul(b.load(source, column, s.lanes, aligned=True), inverse)
        b.store(line, column, b.cast(value, s.dtype), _tail(b, s, s.e, column))


def _tail(b: Builder, s: Spec, width: int, column: int) -> Value | None:
    """The mask of a vector of a row's columns; None where all exist."""
    left = width - column
    return None if left >= s.lanes else b.first_lanes(left, s.lanes)


def _over_keys(b: Builder, s: Spec, x: Value, join: Callable[[Value, Value], Value]) -> Value:
    """Joins what lanes of one row hold; every lane has the result of its row."""
    distance = s.tile
    while distance < s.lanes:
        order = [i ^ distance for i in range(s.lanes)]
        x = join(x, b.shuffle(x, x, order))
        distance *= 2
    return x


def tanh(b: Builder, x: Value) -> Value:
    """Exact to a unit in the last place of 1, which is all that scores need."""
    power = power_of_two(b, b.mul(b.abs(x), -2 * LOG2_E))
    one = b.constant(1.0, x.dtype, x.lanes)
    return b.copysign(b.div(b.sub(one, power), b.add(one, power)), x)


def scales_of(spec: Spec) -> tuple[Value, ...]:
    """Parameters."""
    return tuple(pointer(dt.float32, n) for n in ("k_scales", "v_scales")) if spec.scaled else ()


@cache
def cached_kernel(spec: Spec) -> Kernel:
    """The kernel over (q, k, v, y, starts, ends, rows[, two scales][, sinks], sizes)."""
    made = _Cached(spec)
    return kernel("cached_attention", made.parameters, made.write, (), spec.target.features)
