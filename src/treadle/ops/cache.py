"""Keys and values that decoders keep: writing them at run-time positions, and attention over them.

A cache is [N, H, S, D]: N sequences of at most S positions. Row b of a call works on sequence
rows[b], which holds starts[b] positions before and ends[b] after it; tokens that a call has beyond
are padding: nothing is written for them and their results are zeros.

A cache of pages is [1, H, N page, D], and rows are a table [B, P]: position p of row b is
cache[0, :, page rows[b, p // page] + p mod page]. Sequences may share pages that none of them
writes; pages in order lie as a sequence of its own does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, IndexRangeError, ShapeError
from treadle.base.shape import require_equal
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.attention import Attention
from treadle.ops.composite import Composite
from treadle.ops.creation import Extent, Iota
from treadle.ops.elementwise import Mod
from treadle.ops.gather import Index, Take, check_index
from treadle.ops.index_numpy import check_indices, writable
from treadle.ops.logic import Equal, LogicalAnd
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Concat
from treadle.ops.op import BadSample, IndexRange, Op, Sample, op
from treadle.ops.precision import compute_type, widen
from treadle.ops.reduce import Argmax, Max
from treadle.ops.select import Where
from treadle.ops.slicing import along
from treadle.ops.softmax import Softmax
from treadle.ops.unary import Tanh


def _check_places(
    op: Op, types: tuple[TensorType, ...], first: int, batch: Dim, page: int | None
) -> None:
    """Raise unless starts, ends and rows, from operand `first` on, are indices [batch].

    Of a cache of pages, rows are a table [batch, pages].
    """
    for i in range(first, first + 3):
        check_index(op, types, i)
        op.check_ndim(types, i, 1 if page is None or i < first + 2 else 2)
        require_equal(
            types[i].shape[0],
            batch,
            lambda: op.error("starts, ends and rows are [B]", types, "give one for each row"),
        )


def _check_pages(
    op: Op, types: tuple[TensorType, ...], cache: TensorType, page: int | None, *, ring: bool
) -> None:
    """Raise unless a cache consists of pages, where it is one of these."""
    if page is None:
        return
    if ring or page < 1:
        raise op.error(f"has pages of {page} positions", types, "rings have None")
    positions = cache.shape[2]
    if cache.shape[0] != 1 or (isinstance(positions, int) and positions % page):
        saw = f"a cache of pages of {page} is [1, H, N {page}, D]"
        raise op.error(saw, types, "put pages beside each other")


MOST_POSITIONS = 1 << 30
"""Most positions of sequences whose caches are rings."""


def _ranges(
    types: tuple[TensorType, ...], cache: TensorType, first: int, page: int | None, *, ring: bool
) -> tuple[IndexRange, ...]:
    """Return the ranges of starts, ends and rows, the operands from `first` on."""
    sequences = cache.shape[0]
    end = MOST_POSITIONS if ring else cache.shape[2] + 1
    if page is not None:
        sequences, end = cache.shape[2] // page, types[first + 2].shape[1] * page + 1
    return ((first, 0, end), (first + 1, 0, end), (first + 2, 0, sequences))


def _counter(like: Any, n: Dim) -> Any:
    """0, 1, ... as an operand beside `like`."""
    return like.apply(Iota(0, 1, n, dt.int32), ())[0]


def _lines(row: Array, positions: Array, size: int, page: int | None) -> Any:
    """An index of what a cache has at positions of a sequence: [n, H, D]."""
    if page is not None:
        return 0, slice(None), row[positions // page] * page + positions % page
    return np.broadcast_to(row, positions.shape), slice(None), positions % size


def _check_ring(op: Op, types: tuple[TensorType, ...], capacity: Dim, least: Dim) -> None:
    """Raise unless a ring has room for what a call writes and sees."""
    if isinstance(capacity, int) and isinstance(least, int) and capacity < least:
        raise op.error(
            f"a ring of {capacity} positions, where a call takes {least}",
            types,
            "make the cache longer, or give fewer tokens at a time",
        )


def _far(count: int, time: int) -> tuple[Arg, Arg]:
    """Places around the end of a ring of four: starts and ends."""
    return (
        Arg((count,), dt.int32, values=tuple(6 + 3 * i for i in range(count))),
        Arg((count,), dt.int32, values=tuple(6 + time + 2 * i for i in range(count))),
    )


@op
class CacheUpdate(Composite):
    """cache [N, H, S, D] with x [B, H, T, D] at positions from starts[b] on of sequence rows[b].

    cache[rows[b], :, starts[b] + t] = x[b, :, t] for starts[b] + t < ends[b]; what else x holds is
    padding and goes nowhere. Rows and pages that are written are distinct; of two that are not, the
    first one counts. Of a `ring`, position p lies at p mod S, and T is at most S. A cache of pages
    of `page` positions is [1, H, N page, D], and rows [B, P].
    """

    ring: bool = False
    page: int | None = None

    name = "cache_update"
    operands = ("cache", "x", "starts", "ends", "rows")
    dtypes = (*dt.FLOATS, *dt.INTEGERS)
    selects = "any"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        if len(types) != 5:
            raise self.error("takes cache, x, starts, ends and rows", types, "pass all five")
        cache, x = types[:2]
        self.check_dtype((cache, x))
        self.check_same_dtype((cache, x))
        for i in (0, 1):
            self.check_ndim(types, i, 4)
        _check_places(self, types, 2, x.shape[0], self.page)
        _check_pages(self, types, cache, self.page, ring=self.ring)
        for axis in (1, 3):
            require_equal(
                cache.shape[axis],
                x.shape[axis],
                lambda: self.error(
                    "cache is [N, H, S, D] and x [B, H, T, D]", types, "reshape x like the cache"
                ),
            )
        if self.ring:
            _check_ring(self, types, cache.shape[2], x.shape[2])
        return (cache.with_shape(cache.shape),)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        return _ranges(types, types[0], 2, self.page, ring=self.ring)

    def body(self, cache: Any, x: Any, starts: Any, ends: Any, rows: Any) -> Any:
        (sequences, heads, capacity, features), (batch, _, time, _) = cache.shape, x.shape
        shape, pages = cache.shape, 1
        if self.page is not None:
            sequences, capacity, pages = capacity // self.page, self.page, rows.shape[1]
            cache = cache.reshape((heads, sequences, capacity, features)).transpose((1, 0, 2, 3))
        flat, both = (batch * pages,), LogicalAnd()
        room, limit = (cache.apply(Extent(n, dt.int32), ())[0] for n in (capacity, time))

        def by_page(v: Any) -> Any:  # of every row, or what every page has
            return v.broadcast_to((batch, pages)).reshape(flat)

        starts, ends = (v.astype(dt.int32).reshape((batch, 1)) for v in (starts, ends))
        # Where x begins, counted from the beginning of a page.
        origins = by_page(starts - _counter(cache, pages).reshape((1, pages)) * room)
        counts = by_page(Where()(ends - starts < limit, ends - starts, limit))
        writes = counts > 0
        if not self.ring:
            writes = both(writes, both(origins < room, origins + counts > 0))
        every = _counter(cache, sequences).reshape((sequences, 1))
        named = both(Equal()(rows.astype(dt.int32).reshape((1, *flat)), every), writes)
        named = named.astype(dt.int32)
        whose = Argmax(1)(named).reshape((sequences,))
        is_named = Max((1,))(named).reshape((sequences, 1))
        of_batch = by_page(_counter(cache, batch).reshape((batch, 1)))
        origin, count, row = (
            Take(0)(v, whose).reshape((sequences, 1)) for v in (origins, counts, of_batch)
        )
        step = _counter(cache, capacity).reshape((1, capacity)) - origin
        if self.ring:
            step = Mod()(step, room)
        written = both(both(step >= 0, step < count), is_named > 0)
        taken = Where()(written, step, step.constant(0))
        values = Index((0, 2))(x, row, taken).transpose((0, 2, 1, 3))
        made = Where()(written.reshape((sequences, 1, capacity, 1)), values, cache)
        return made if self.page is None else made.transpose((1, 0, 2, 3)).reshape(shape)

    def reference(self, cache: Array, x: Array, starts: Array, ends: Array, rows: Array) -> Array:
        check_indices(self, (cache, x, starts, ends, rows))
        made = writable(cache)
        for b in reversed(range(len(rows))):
            count = min(int(ends[b]) - int(starts[b]), x.shape[2])
            if count > 0:
                positions = int(starts[b]) + np.arange(count)
                at = _lines(rows[b], positions, made.shape[2], self.page)
                made[at] = x[b, :, :count].swapaxes(0, 1)
        return made

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        starts = Arg((2,), dt.int32, values=(3, 1))
        ends, rows = (Arg((2,), dt.int32, values=v) for v in ((5, 2), (2, 0)))
        one, zero = (Arg((1,), dt.int64, values=(v,)) for v in (1, 0))
        pages = Arg((2, 3), dt.int32, values=((1, 3, 4), (1, 0, 2)))
        ahead = Arg((2,), dt.int32, values=(5, 4))
        return (
            Sample(cls(), (Arg((3, 2, 6, 4)), Arg((2, 2, 3, 4)), starts, ends, rows)),
            Sample(cls(page=2), (Arg((1, 2, 10, 4)), Arg((2, 2, 3, 4)), starts, ahead, pages)),
            Sample(cls(), (Arg((1, 1, 1, 1)), Arg((1, 1, 1, 1)), zero, one, zero)),
            Sample(cls(), (Arg((1, 2, 3, 2)), Arg((1, 2, 2, 2)), one, one, zero)),
            Sample(cls(ring=True), (Arg((3, 2, 4, 2)), Arg((2, 2, 3, 2)), *_far(2, 3), rows)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        cache, x = Arg((3, 2, 6, 4)), Arg((2, 2, 3, 4))
        good, beyond = (Arg((2,), dt.int32, values=v) for v in ((2, 0), (7, 0)))
        rows = Arg((2,), dt.int32, values=(3, 0))
        other, short = Arg((2, 2, 3, 4), dt.int32), Arg((1,), dt.int32, values=(0,))
        pool, table = Arg((1, 2, 9, 4)), Arg((2, 2), dt.int32, values=((0, 1), (2, 0)))
        return (
            BadSample(cls, (cache, x, good, beyond, good), IndexRangeError, "7"),
            BadSample(cls, (cache, x, good, good, rows), IndexRangeError, "3"),
            BadSample(cls, (cache, Arg((2, 1, 3, 4)), good, good, good), ShapeError, "cache is"),
            BadSample(cls, (cache, x, good, good, short), ShapeError, "are [B]"),
            BadSample(cls, (cache, x, good, good, table), ShapeError, "expects 1 axes"),
            BadSample(lambda: cls(page=3), (pool, x, good, beyond, table), IndexRangeError, "7"),
            BadSample(lambda: cls(page=3), (cache, x, good, good, table), ShapeError, "of pages"),
            BadSample(lambda: cls(page=4), (pool, x, good, good, table), ShapeError, "of pages"),
            BadSample(
                lambda: cls(ring=True, page=3), (pool, x, good, good, table), ShapeError, "rings"
            ),
            BadSample(cls, (cache, other, good, good, good), DTypeError, "differ in"),
            BadSample(cls, (cache, x, good, good), ShapeError, "takes cache"),
            BadSample(
                lambda: cls(ring=True),
                (Arg((3, 2, 2, 4)), x, *_far(2, 3), good),
                ShapeError,
                "ring",
            ),
        )


Given = TypeVar("Given")


def split_more(more: Sequence[Given]) -> tuple[Sequence[Given], Sequence[Given]]:
    """Scales and sinks of `CachedAttention`, of what is given behind rows."""
    count = len(more) // 2 * 2
    return more[:count], more[count:]


@op
class CachedAttention(Composite):
    """Attention of q [B, Hq, T, D] over the caches k [N, Hkv, S, D] and v [N, Hkv, S, E].

    Query t of row b stands at position starts[b] + t of sequence rows[b] and sees the keys up to
    there, with a `window` only so many of them. Hq is a multiple of Hkv: neighboring query heads
    share a head of keys. Scores are scaled (None: by 1 / sqrt(D)), and with a `softcap` c become
    c tanh(s / c). `sinks` [Hq] adds one more score to each softmax, which has no value. Queries
    from ends[b] on are padding and give zeros. Caches may have another float type than q; weights
    and sums are computed in that of q, at least float32. Caches of int8 have two `scales`
    [N, Hkv, S, 1], of keys and of values: a number is an integer times the scale of its row.
    `rounded` allows operands of products to be rounded to bfloat16, where that is faster. Of a
    `ring`, position p lies at p mod S; it has a window, and S is at least window + T - 1. Caches of
    pages of `page` positions are [1, Hkv, N page, D], and rows [B, P].
    """

    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    rounded: bool = False
    ring: bool = False
    page: int | None = None

    name = "cached_attention"
    operands = ("q", "k", "v", "starts", "ends", "rows", "*scales_and_sinks")
    dtypes = dt.FLOATS
    amp = "low"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        if len(types) not in (6, 7, 8, 9):
            raise self.error(
                "takes q, k, v, starts, ends, rows, scales of int8 and at most sinks",
                types,
                "pass rows",
            )
        self.check_dtype(types)
        q, k, v = types[:3]
        for i in range(3):
            self.check_ndim(types, i, 4)
        scales, sinks = split_more(types[6:])
        wanted = (dt.int8,) if scales else self.dtypes
        if k.dtype not in wanted or v.dtype is not k.dtype:
            raise DTypeError(
                self.name,
                f"caches are {k.dtype.name} and {v.dtype.name}",
                saw=self.saw(types),
                hint="give both one type of floats, or int8 and scales",
            )
        _check_places(self, types, 3, q.shape[0], self.page)
        _check_pages(self, types, k, self.page, ring=self.ring)

        def mismatch() -> ShapeError:
            problem = "q is [B, Hq, T, D], k [N, Hkv, S, D], v [N, Hkv, S, E]"
            return self.error(problem, types, "Hq is a multiple of Hkv")

        require_equal(q.shape[3], k.shape[3], mismatch)
        for axis in range(3):
            require_equal(k.shape[axis], v.shape[axis], mismatch)
        heads, shared = q.shape[1], k.shape[1]
        if isinstance(heads, int) and isinstance(shared, int) and heads % max(shared, 1):
            raise mismatch()
        self._check_window(types)
        for scale in scales:
            self._check_scale(types, scale)
        for given in sinks:
            self._check_sinks(types, given)
        return (TensorType(q.dtype, (*q.shape[:3], v.shape[3])),)

    def _check_window(self, types: tuple[TensorType, ...]) -> None:
        if self.window is not None and self.window < 1:
            raise self.error(f"has a window of {self.window}", types, "None: no window")
        if self.ring and self.window is None:
            raise self.error("a ring without a window", types, "say which keys are seen")
        if self.ring and self.window is not None:
            _check_ring(self, types, types[1].shape[2], types[0].shape[2] + (self.window - 1))

    def _check_scale(self, types: tuple[TensorType, ...], scale: TensorType) -> None:
        problem = self.error("scales are float32 [N, Hkv, S, 1]", types, "give one for each row")
        if scale.ndim != 4 or scale.dtype is not dt.float32:
            raise problem
        for extent, wanted in zip(scale.shape, (*types[1].shape[:3], 1), strict=True):
            require_equal(extent, wanted, lambda: problem)

    def _check_sinks(self, types: tuple[TensorType, ...], sinks: TensorType) -> None:
        q = types[0]
        if sinks.dtype not in (q.dtype, compute_type(q.dtype)):
            raise DTypeError(
                self.name, f"sinks are {sinks.dtype.name}", saw=self.saw(types), hint="cast them"
            )
        problem = self.error("sinks are [Hq]", types, "give one for each query head")
        if sinks.ndim != 1:
            raise problem
        require_equal(sinks.shape[0], q.shape[1], lambda: problem)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        return _ranges(types, types[1], 3, self.page, ring=self.ring)

    def scale_of(self, d: Dim) -> float:
        """Return the factor of the products of queries and keys."""
        return self.scale if self.scale is not None else 1.0 / math.sqrt(max(int(d), 1))

    def body(self, q: Any, k: Any, v: Any, starts: Any, ends: Any, rows: Any, *more: Any) -> Any:
        batch, heads, time, d = q.shape
        _, shared, slots, e = v.shape
        capacity = slots if self.page is None else rows.shape[1] * self.page
        group, wide = heads // shared, compute_type(q.type.dtype)
        scales, sinks = split_more(more)
        starts, ends = (x.astype(dt.int32).reshape((batch, 1, 1, 1, 1)) for x in (starts, ends))
        places = _counter(q, time).reshape((1, 1, 1, time, 1)) + starts
        keys = _counter(q, capacity).reshape((1, 1, 1, 1, capacity))
        if self.ring:  # the last position before `ends` that lies in a slot
            around = q.apply(Extent(capacity, dt.int32), ())[0]
            keys = ends - 1 - Mod()(ends - 1 - keys, around)
        # What lies behind the last position may be anything, NaN as well.
        held = LogicalAnd()(keys >= 0, keys < ends).reshape((batch, 1, capacity, 1))
        zero = q.constant(0.0, wide)

        def taken(x: Any) -> Any:
            if self.page is None:
                return Take(0)(x, rows).astype(wide)
            width = x.shape[3]
            pages = x.reshape((shared, slots // self.page, self.page, width))
            lines = Take(1)(pages, rows).transpose((1, 0, 2, 3, 4))
            return lines.reshape((batch, shared, capacity, width)).astype(wide)

        k, v = taken(k), taken(v)
        if scales:
            k, v = (x * taken(s) for x, s in zip((k, v), scales, strict=True))
        k, v = (Where()(held, x, zero) for x in (k, v))
        queries = (
            Attention(False, self.scale)
            .scaled(widen(q), d)
            .reshape((batch, shared, group * time, d))
        )
        scores = Matmul(False, True)(queries, k).reshape((batch, shared, group, time, capacity))
        if self.softcap is not None:
            scores = Tanh()(scores * (1 / self.softcap)) * self.softcap
        seen = LogicalAnd()(keys <= places, keys >= 0) if self.ring else keys <= places
        if self.window is not None:
            seen = LogicalAnd()(seen, keys > places - self.window)
        # Padding sees all keys, so that no row of weights is NaN.
        meant = places < ends
        seen = Where()(meant, seen, keys <= keys if self.ring else keys >= 0)
        scores = Where()(seen, scores, scores.constant(-math.inf))
        if sinks:
            column = sinks[0].astype(wide).reshape((1, shared, group, 1, 1))
            column = column.broadcast_to((batch, shared, group, time, 1))
            weights = along(Softmax(4)(Concat(4)(scores, column)), 4, 0, capacity)
        else:
            weights = Softmax(4)(scores)
        y = Matmul()(weights.reshape((batch, shared, group * time, capacity)), v)
        y = y.reshape((batch, shared, group, time, e))
        y = Where()(meant, y, zero).reshape((batch, heads, time, e))
        return y.astype(q.type.dtype)

    def reference(
        self, q: Array, k: Array, v: Array, starts: Array, ends: Array, rows: Array, *more: Array
    ) -> Array:
        check_indices(self, (q, k, v, starts, ends, rows, *more))
        scales, sinks = split_more(more)
        wide = compute_type(dt.as_dtype(q.dtype)).numpy
        if scales:
            k, v = (x.astype(wide) * s for x, s in zip((k, v), scales, strict=True))
        _, heads, time, d = q.shape
        shared, e = k.shape[1], v.shape[3]
        y = np.zeros((*q.shape[:3], e), q.dtype)
        for b, row in enumerate(rows):
            first, end = int(starts[b]), min(int(ends[b]), int(starts[b]) + time)
            count = end - first
            if count <= 0:
                continue
            queries = q[b, :, :count].astype(wide).reshape(shared, -1, d)
            held = np.arange(max(end - k.shape[2], 0) if self.ring else 0, end)
            lines = _lines(row, held, k.shape[2], self.page)
            keys, values = (x[lines].swapaxes(0, 1).astype(wide) for x in (k, v))
            scores = queries @ keys.transpose(0, 2, 1) * wide.type(self.scale_of(d))
            scores = scores.reshape(heads, count, len(held))
            if self.softcap is not None:
                scores = np.tanh(scores / wide.type(self.softcap)) * wide.type(self.softcap)
            places = first + np.arange(count)[:, None]
            hidden = held > places
            if self.window is not None:
                hidden |= held <= places - self.window
            scores[:, hidden] = -np.inf
            if sinks:
                column = np.broadcast_to(sinks[0].astype(wide)[:, None, None], (heads, count, 1))
                scores = np.concatenate([scores, column], -1)
            weights = Softmax(2).reference(scores)[..., : len(held)]
            weights = weights.reshape(shared, -1, len(held))
            y[b, :, :count] = (weights @ values).reshape(heads, count, e).astype(q.dtype)
        return y

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        q, k, v = Arg((2, 4, 3, 4)), Arg((3, 2, 6, 4)), Arg((3, 2, 6, 2))
        starts = Arg((2,), dt.int32, values=(3, 1))
        ends, rows = (Arg((2,), dt.int32, values=x) for x in ((6, 3), (2, 0)))
        one, zero = (Arg((1,), dt.int64, values=(x,)) for x in (1, 0))
        small = Arg((1, 1, 1, 1))
        whole = (Arg((3, 2, 6, 4), dt.int8), Arg((3, 2, 6, 2), dt.int8))
        scale = Arg((3, 2, 6, 1), dt.float32)
        pages = Arg((2, 3), dt.int32, values=((1, 3, 4), (1, 0, 2)))
        paged = (q, Arg((1, 2, 10, 4)), Arg((1, 2, 10, 2)), starts, ends, pages)
        return (
            Sample(cls(), (q, k, v, starts, ends, rows)),
            Sample(cls(page=2), paged),
            Sample(cls(window=2, page=2), (*paged, Arg((4,)))),
            Sample(cls(0.3, 2, 1.5), (q, k, v, starts, ends, rows, Arg((4,)))),
            Sample(cls(window=1), (small, small, small, zero, one, zero)),
            Sample(
                cls(window=2, ring=True),
                (q, Arg((3, 2, 4, 4)), Arg((3, 2, 4, 2)), *_far(2, 3), rows),
            ),
            Sample(cls(0.01), (q, *whole, starts, ends, rows, *(scale,) * 2, Arg((4,)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        q, k, v = Arg((2, 4, 3, 4)), Arg((3, 2, 6, 4)), Arg((3, 2, 6, 2))
        at, late = (Arg((2,), dt.int32, values=x) for x in ((0, 1), (0, 7)))
        rows = Arg((2,), dt.int32, values=(0, -1))
        odd, three = Arg((2, 3, 3, 4)), Arg((3,))
        table = Arg((2, 2), dt.int32, values=((0, 1), (2, 3)))
        pool = Arg((1, 2, 6, 4)), Arg((1, 2, 6, 2))
        whole = Arg((3, 2, 6, 2), dt.int32)
        bytes_ = Arg((3, 2, 6, 4), dt.int8), Arg((3, 2, 6, 2), dt.int8)
        return (
            BadSample(cls, (q, k, v, at, late, at), IndexRangeError, "7"),
            BadSample(cls, (q, k, v, at, at, rows), IndexRangeError, "-1"),
            BadSample(lambda: cls(page=2), (q, *pool, at, at, table), IndexRangeError, "3"),
            BadSample(lambda: cls(page=2), (q, k, v, at, at, table), ShapeError, "of pages"),
            BadSample(cls, (odd, k, v, at, at, at), ShapeError, "q is [B, Hq, T, D]"),
            BadSample(cls, (q, v, v, at, at, at), ShapeError, "q is [B, Hq, T, D]"),
            BadSample(cls, (q, k, v, at, at, at, three), ShapeError, "sinks are [Hq]"),
            BadSample(cls, (q, k, whole, at, at, at), DTypeError, "caches are"),
            BadSample(cls, (q, k, v, at, at, at, three, three), DTypeError, "caches are"),
            BadSample(cls, (q, *bytes_, at, at, at, *(three,) * 2), ShapeError, "scales are"),
            BadSample(lambda: cls(window=0), (q, k, v, at, at, at), ShapeError, "a window of 0"),
            BadSample(cls, (q, k, v), ShapeError, "takes q, k, v"),
            BadSample(
                lambda: cls(ring=True), (q, k, v, at, at, at), ShapeError, "without a window"
            ),
            BadSample(
                lambda: cls(window=5, ring=True), (q, k, v, at, at, at), ShapeError, "a ring of 6"
            ),
        )
