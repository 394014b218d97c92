"""Attention of few queries, as in decoding: one work item is one query of one stack entry.

Each key and value is used once per item, so they are read where they lie and nothing is packed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache

from treadle.backends.codegen.attention.operands import (
    UNROLL,
    AttentionProblem,
    Matrix,
    padded,
    parameters,
)
from treadle.backends.codegen.attention.packing import tail
from treadle.backends.codegen.attention.softmax import (
    MaskRows,
    ScoreRows,
    largest_scores,
    powers,
    shift_of,
)
from treadle.backends.codegen.kernel.builder import Builder, KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, fma, minimum, shuffle
from treadle.backends.codegen.kernel.records import RecordedKernel

_MOST_UNROLLED = 16
"""Vectors of a row up to which a product with it is written without a loop."""
COLUMNS = 4
"""Vectors of the result that are summed at a time: two sums each hide multiply-add's latency."""


class _RowKernel:
    """Writes the kernel of one problem."""

    def __init__(self, p: AttentionProblem, keys: int) -> None:
        self.p = p
        self.e = e = KernelBuilder()
        self.given = parameters(e, p, ("q", "k", "v", "y"))
        self.packed, self.scores = p.stack(e, p.d_pitch), p.stack(e, keys)

    def kernel(self) -> RecordedKernel:
        with self.e.items() as item:
            self.item(item)
        made = self.e.kernel("attention_row", (), self.p.target.features)
        return RecordedKernel(made, self.given)

    def item(self, item: Value) -> None:
        """One query of one entry."""
        e, p, scores = self.e, self.p, self.scores
        queries, keys = self.given.queries, self.given.keys
        (q, k, v, y), mask = self.given.at(p, item // queries)
        query = item % queries
        seen = minimum(keys, query + 1) if p.causal else keys
        row = q.row_at(query)
        for column in range(0, p.d, p.lanes):
            value = q.load(row, column, p.lanes, tail(e, p.lanes, p.d - column))
            self.packed.store(column, value * p.score_scale, aligned=True)
        _score(e, p, k, self.packed, scores, seen)
        line = ScoreRows((scores,), (seen,), padded(seen, p.lanes))
        given = None if mask is None else MaskRows(mask, (mask.row_at(query),), 0)
        (largest,) = largest_scores(e, p, line, given)
        (total,), _ = powers(e, p, line, [shift_of(largest)])
        inverse = 1.0 / total
        result = y.row_at(query)
        for first in range(0, p.e, COLUMNS * p.lanes):
            columns = tuple(range(first, min(p.e, first + COLUMNS * p.lanes), p.lanes))
            sums = _average(e, p, v, scores, columns, seen)
            for column, value in zip(columns, sums, strict=True):
                y.store(result, column, value * inverse, tail(e, p.lanes, p.e - column))


def _score(
    e: Builder, p: AttentionProblem, k: Matrix, q: Pointer, scores: Pointer, count: Value
) -> None:
    """q k^T for a vector of keys at a time; the last vector repeats the last key."""
    distances = [k.row * r for r in range(p.lanes)]
    last = count - 1

    def group(begin: Value, rows: list[Pointer]) -> None:
        scores.store(begin, sum_lanes(_products(e, p, k, q, rows)), aligned=True)

    full_groups = count - count % p.lanes
    with e.loop(0, full_groups, p.lanes) as begin:
        first = k.row_at(begin)
        group(begin, [first + d for d in distances])
    with e.loop(full_groups, count, p.lanes) as begin:
        group(begin, [k.row_at(minimum(begin + r, last)) for r in range(p.lanes)])


def _products(
    e: Builder, p: AttentionProblem, k: Matrix, q: Pointer, rows: Sequence[Pointer]
) -> list[Value]:
    """Products of a query with rows of keys; each is the sum of a vector's lanes."""
    sums = [e.constant(0.0, p.compute, p.lanes)] * p.lanes

    def add(column: Value | int, mask: Value | None) -> None:
        x = q.load(column, p.lanes, aligned=True)
        loaded = [k.load(row, column, p.lanes, mask) for row in rows]
        sums[:] = [fma(x, y, s) for y, s in zip(loaded, sums, strict=True)]

    over_features(e, p.d, p.lanes, sums, add)
    return sums


def over_features(
    e: Builder,
    width: int,
    lanes: int,
    sums: list[Value],
    add: Callable[[Value | int, Value | None], None],
) -> None:
    """Add a row's features to sums, vector by vector: written out, or in a loop if there are many.

    `add` takes the first feature of a vector, and the mask of the last one where it is not full.
    """
    full = width // lanes * lanes
    if full <= _MOST_UNROLLED * lanes:
        for column in range(0, full, lanes):
            add(column, None)
    else:
        with e.loop(0, full, lanes, carrying=sums) as place:
            add(place, None)
    if full < width:
        add(full, tail(e, lanes, width - full))


def sum_lanes(vectors: Sequence[Value]) -> Value:
    """A vector whose lane i is the sum of all lanes of vector i; as many vectors as lanes."""
    lanes = len(vectors)
    found = list(vectors)
    while len(found) > 1:
        h = len(found) // 2
        low = [j if not j & h else lanes + j - h for j in range(lanes)]
        high = [j + h if not j & h else lanes + j for j in range(lanes)]
        found = [
            shuffle(x, y, low) + shuffle(x, y, high)
            for x, y in zip(found[:h], found[h:], strict=True)
        ]
    return found[0]


def _average(
    e: Builder,
    p: AttentionProblem,
    values: Matrix,
    weights: Pointer,
    columns: tuple[int, ...],
    count: Value,
) -> list[Value]:
    """The sum of values times weights, in some columns: one vector each."""
    # Keys take turns between two sums.
    halves = [[e.constant(0.0, p.compute, p.lanes)] * len(columns) for _ in range(2)]

    def add(key: Value, sums: list[Value]) -> None:
        """Add one key's share to the sums."""
        row = values.row_at(key)
        weight = weights[key].splat(p.lanes)
        for i, column in enumerate(columns):
            value = values.load(row, column, p.lanes, tail(e, p.lanes, p.e - column))
            sums[i] = fma(weight, value, sums[i])

    whole = count - count % UNROLL
    with e.loop(0, whole, UNROLL, carrying=(*halves,)) as key:
        for i in range(UNROLL):
            add(key + i, halves[i % 2])
    with e.loop(whole, count, carrying=(*halves,)) as key:
        add(key, halves[0])
    return list(map(operator.add, *halves))


@cache
def row_kernel(p: AttentionProblem, keys: int) -> RecordedKernel:
    """The kernel over (q, k, v, y[, mask])."""
    return _RowKernel(p, keys).kernel()
