"""Attention of few queries, as in decoding: one work item is one query of one stack entry.

Each key and value is used once per item, so they are read where they lie and nothing is packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.attention.operands import (
    UNROLL,
    Matrix,
    Problem,
    padded,
    parameters,
)
from treadle.backends.codegen.attention.packing import tail
from treadle.backends.codegen.attention.softmax import (
    MaskRows,
    Rows,
    largest_scores,
    powers,
    shift_of,
)
from treadle.backends.codegen.kernel.builder import Builder, kernel
from treadle.backends.codegen.kernel.ir import Kernel, Value

MOST_UNROLLED = 16
"""Vectors of a row up to which a product with it is written without a loop."""
COLUMNS = 4
"""Vectors of the result that are summed at a time: two sums each hide multiply-add's latency."""


class _RowKernel:
    """Writes the kernel of one problem."""

    def __init__(self, p: Problem, keys: int) -> None:
        self.p = p
        self.most_keys = keys
        self.given = parameters(p, ("q", "k", "v", "y"), ("queries", "keys"))
        self.queries, self.keys = self.given.sizes

    def kernel(self) -> Kernel:
        return kernel("attention_row", self.given.all, self.write, (), self.p.target.features)

    def write(self, b: Builder, lo: Value, hi: Value) -> None:
        q = self.p.stack(b, self.p.d_pitch)
        scores = self.p.stack(b, self.most_keys)
        b.loop(lo, hi, 1, lambda item: self.item(b, q, scores, item))

    def item(self, b: Builder, packed: Value, scores: Value, item: Value) -> None:
        """One query of one entry."""
        p = self.p
        (q, k, v, y), mask = self.given.at(b, b.div(item, self.queries))
        query = b.rem(item, self.queries)
        seen = b.min(self.keys, b.add(query, 1)) if p.causal else self.keys
        row = q.row_at(b, query)
        for column in range(0, p.d, p.lanes):
            value = q.load(b, row, column, p.lanes, tail(b, p, p.d - column))
            b.store(packed, column, b.mul(value, p.score_scale), aligned=True)
        _score(b, p, k, packed, scores, seen)
        line = Rows((scores,), (seen,), padded(b, seen, p.lanes))
        given = None if mask is None else MaskRows(mask, (mask.row_at(b, query),), 0)
        (largest,) = largest_scores(b, p, line, given)
        (total,), _ = powers(b, p, line, [shift_of(b, largest)])
        inverse = b.div(b.constant(1.0, p.compute), total)
        result = y.row_at(b, query)
        for first in range(0, p.e, COLUMNS * p.lanes):
            columns = tuple(range(first, min(p.e, first + COLUMNS * p.lanes), p.lanes))
            sums = _Average(p, v, scores, columns).write(b, seen)
            for column, value in zip(columns, sums, strict=True):
                y.store(b, result, column, b.mul(value, inverse), tail(b, p, p.e - column))


def _score(b: Builder, p: Problem, k: Matrix, q: Value, scores: Value, count: Value) -> None:
    """q k^T for a vector of keys at a time; the last vector repeats the last key."""
    distances = [b.mul(k.row, r) for r in range(p.lanes)]
    last = b.sub(count, 1)

    def whole(begin: Value) -> None:
        first = k.row_at(b, begin)
        group(begin, [b.offset(first, d) for d in distances])

    def part(begin: Value) -> None:
        group(begin, [k.row_at(b, b.min(b.add(begin, r), last)) for r in range(p.lanes)])

    def group(begin: Value, rows: list[Value]) -> None:
        def turn(column: Value | int, *sums: Value, mask: Value | None = None) -> tuple[Value, ...]:
            x = b.load(q, column, p.lanes, aligned=True)
            loaded = [k.load(b, row, column, p.lanes, mask) for row in rows]
            return tuple(b.fma(x, y, s) for y, s in zip(loaded, sums, strict=True))

        full = p.d // p.lanes * p.lanes
        sums = (b.constant(0.0, p.compute, p.lanes),) * p.lanes
        if full <= MOST_UNROLLED * p.lanes:
            for column in range(0, full, p.lanes):
                sums = turn(column, *sums)
        else:
            sums = b.loop(0, full, p.lanes, turn, sums)
        if full < p.d:
            sums = turn(full, *sums, mask=tail(b, p, p.d - full))
        b.store(scores, begin, sum_lanes(b, sums), aligned=True)

    full_groups = b.sub(count, b.rem(count, p.lanes))
    b.loop(0, full_groups, p.lanes, whole)
    b.loop(full_groups, count, p.lanes, part)


def sum_lanes(b: Builder, vectors: tuple[Value, ...]) -> Value:
    """A vector whose lane i is the sum of all lanes of vector i; as many vectors as lanes."""
    lanes = len(vectors)
    found = list(vectors)
    while len(found) > 1:
        h = len(found) // 2
        low = [j if not j & h else lanes + j - h for j in range(lanes)]
        high = [j + h if not j & h else lanes + j for j in range(lanes)]
        found = [
            b.add(b.shuffle(x, y, low), b.shuffle(x, y, high))
            for x, y in zip(found[:h], found[h:], strict=True)
        ]
    return found[0]


@dataclass(frozen=True, slots=True)
class _Average:
    """The sum of values times weights, in some columns."""

    p: Problem
    values: Matrix
    weights: Value
    columns: tuple[int, ...]

    def write(self, b: Builder, count: Value) -> list[Value]:
        """One vector per column."""
        p, many = self.p, len(self.columns)

        def several(key: Value, *sums: Value) -> tuple[Value, ...]:
            found = sums
            for i in range(UNROLL):
                found = self.step(b, b.add(key, i), found, i % 2)
            return found

        def one(key: Value, *sums: Value) -> tuple[Value, ...]:
            return self.step(b, key, sums, 0)

        whole = b.sub(count, b.rem(count, UNROLL))
        sums = b.loop(0, whole, UNROLL, several, [b.constant(0.0, p.compute, p.lanes)] * 2 * many)
        sums = b.loop(whole, count, 1, one, sums)
        return [b.add(x, y) for x, y in zip(sums[:many], sums[many:], strict=True)]

    def step(self, b: Builder, key: Value, sums: tuple[Value, ...], half: int) -> tuple[Value, ...]:
        """One key's share, added to the first or second half of the sums."""
        p, found = self.p, list(sums)
        row = self.values.row_at(b, key)
        weight = b.splat(b.load(self.weights, key), p.lanes)
        for i, column in enumerate(self.columns, half * len(self.columns)):
            value = self.values.load(b, row, column, p.lanes, tail(b, p, p.e - column))
            found[i] = b.fma(weight, value, found[i])
        return tuple(found)


@cache
def row_kernel(p: Problem, keys: int) -> Kernel:
    """The kernel over (q, k, v, y[, mask], queries, keys, batch extents)."""
    return _RowKernel(p, keys).kernel()
