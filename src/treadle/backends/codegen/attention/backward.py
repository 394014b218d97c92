"""The kernel of attention's gradient: one work item is one entry of the stack.

Weights are made again from q and k, in chunks of query rows small enough for scratch. An item
owns the keys and values of its entry, so the sums over queries are made in one place and in one
order, whatever thread runs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from treadle.backends.codegen.attention.operands import (
    LOG2_E,
    UNROLL,
    AttentionProblem,
    Matrix,
    padded,
    parameters,
)
from treadle.backends.codegen.attention.packing import pack_panels, pack_rows, unpack_rows
from treadle.backends.codegen.attention.product import BlockProduct, product
from treadle.backends.codegen.attention.softmax import (
    MaskRows,
    ScoreRows,
    largest_scores,
    powers,
    shift_of,
)
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum
from treadle.backends.codegen.kernel.records import RecordedKernel

SLACK = 48
"""Zeros behind a row of weights, for tiles of keys that begin below the last one seen."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Sizes of scratch, and which cotangents are asked for.

    Attributes:
        rows: query rows handled at a time, a multiple of `row_multiple`.
        keys: the most keys there may be.
        dq, dk, dv: whether that cotangent is wanted.
    """

    rows: int
    keys: int
    dq: bool = True
    dk: bool = True
    dv: bool = True

    @property
    def pitch(self) -> int:
        """Elements between rows of weights."""
        return self.keys + SLACK


def row_multiple(p: AttentionProblem) -> int:
    """Return the multiple that a chunk's rows are filled up to: whole tiles and turns of a loop."""
    return math.lcm(p.tile_rows, UNROLL)


@dataclass(frozen=True, slots=True)
class _BackwardScratch:
    """Memory of one call: packed operands, weights, their cotangents, and sums."""

    q: Pointer
    dy: Pointer
    k_panels: Pointer
    v_panels: Pointer
    k: Pointer
    weights: Pointer
    dscores: Pointer
    dq: Pointer
    dk: Pointer
    dv: Pointer


@dataclass(frozen=True, slots=True)
class _Item:
    """The matrices of one item."""

    mask: Matrix | None
    q: Matrix
    k: Matrix
    v: Matrix
    dy: Matrix
    dq: Matrix
    dk: Matrix
    dv: Matrix


class _Tiles(NamedTuple):
    """The products of a tile: what a kernel calls."""

    scores: KernelRoutine
    dweights: KernelRoutine
    dq: KernelRoutine
    dk: KernelRoutine
    dv: KernelRoutine

    @staticmethod
    def of(p: AttentionProblem, pitch: int) -> _Tiles:
        """Return the products over weights with `pitch` elements between rows."""
        return _Tiles(
            product(p, "scores_tile", BlockProduct(p.d_pitch, 1, p.tile_columns, pitch, depth=p.d)),
            product(
                p, "dweights_tile", BlockProduct(p.e_pitch, 1, p.tile_columns, pitch, depth=p.e)
            ),
            product(p, "dq_tile", BlockProduct(pitch, 1, p.d_pitch, p.d_pitch)),
            product(p, "dk_tile", BlockProduct(1, pitch, p.d_pitch, p.d_pitch, add=True)),
            product(p, "dv_tile", BlockProduct(1, pitch, p.e_pitch, p.e_pitch, add=True)),
        )


class _Backward:
    """Writes the kernel of one problem."""

    def __init__(self, p: AttentionProblem, chunks: Chunks) -> None:
        self.p = p
        self.chunks = c = chunks
        self.e = e = KernelBuilder()
        names = ("q", "k", "v", "dy", "dq", "dk", "dv")
        self.given = parameters(e, p, names)
        self.queries, self.keys = self.given.queries, self.given.keys
        self.tiles = _Tiles.of(p, chunks.pitch)
        over = c.keys + p.tile_rows
        self.scratch = _BackwardScratch(
            q=p.stack(e, c.rows, p.d_pitch),
            dy=p.stack(e, c.rows, p.e_pitch),
            k_panels=p.stack(e, c.keys, p.d),
            v_panels=p.stack(e, c.keys, p.e),
            k=p.stack(e, c.keys, p.d_pitch),
            weights=p.stack(e, c.rows, c.pitch),
            dscores=p.stack(e, c.rows, c.pitch),
            dq=p.stack(e, p.tile_rows, p.d_pitch),
            dk=p.stack(e, over, p.d_pitch),
            dv=p.stack(e, over, p.e_pitch),
        )

    def kernel(self) -> RecordedKernel:
        """One entry of the stack per item."""
        with self.e.items() as item:
            matrices, mask = self.given.at(self.p, item)
            self.item(_Item(mask, *matrices))
        made = self.e.kernel("attention_grad", self.tiles, self.p.target.features)
        return RecordedKernel(made, self.given)

    def item(self, item: _Item) -> None:
        e, p, scratch, keys = self.e, self.p, self.scratch, self.keys
        zero = e.index(0)
        pack_panels(e, p, item.k, zero, keys, p.d, scratch.k_panels)
        pack_panels(e, p, item.v, zero, keys, p.e, scratch.v_panels)
        if self.chunks.dq:
            counts = (keys, padded(keys, UNROLL))
            pack_rows(e, p, item.k, zero, counts, p.d, scratch.k)
        over = keys + p.tile_rows
        if self.chunks.dk:
            scratch.dk.zero(over * p.d_pitch)
        if self.chunks.dv:
            scratch.dv.zero(over * p.e_pitch)
        with e.loop(0, self.queries, self.chunks.rows) as first:
            rows = minimum(self.queries - first, self.chunks.rows)
            _Chunk(self, scratch, item, first, rows).write()
        if self.chunks.dk:
            # Packed rows of q hold the scale, and a factor that is taken out again.
            unpack_rows(e, p, scratch.dk, item.dk, (zero, keys), p.d, lambda _: 1 / LOG2_E)
        if self.chunks.dv:
            unpack_rows(e, p, scratch.dv, item.dv, (zero, keys), p.e)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some query rows, from `first` on, against all keys."""

    kernel: _Backward
    scratch: _BackwardScratch
    item: _Item
    first: Value
    rows: Value

    @property
    def p(self) -> AttentionProblem:
        return self.kernel.p

    @property
    def pitch(self) -> int:
        return self.kernel.chunks.pitch

    def write(
        self,
    ) -> None:
        e, p, scratch, item = self.kernel.e, self.p, self.scratch, self.item
        filled = padded(self.rows, row_multiple(p))
        counts = (self.rows, filled)
        pack_rows(e, p, item.q, self.first, counts, p.d, scratch.q, p.score_scale)
        pack_rows(e, p, item.dy, self.first, counts, p.e, scratch.dy)
        with e.loop(0, self.rows, p.tile_rows) as row:
            self.tile(row)
        seen = self.seen(self.rows)
        # Products over queries run over the filled rows, whose weights must be numbers.
        left, width = filled - self.rows, seen + SLACK

        with e.loop(left) as r:
            start = (self.rows + r) * self.pitch
            (scratch.weights + start).zero(width)
            (scratch.dscores + start).zero(width)
        with e.loop(0, seen, p.tile_rows) as key:
            self.add_to_keys(key, filled)

    def seen(self, end: Value) -> Value:
        """Return the number of keys that rows before row `end` of the chunk see."""
        keys = self.kernel.keys
        return minimum(keys, self.first + end) if self.p.causal else keys

    def tile(self, row: Value) -> None:
        """Weights, cotangents of scores and dq of a tile's rows."""
        e, p, scratch, tiles = self.kernel.e, self.p, self.scratch, self.kernel.tiles
        height = minimum(self.rows - row, p.tile_rows)
        count = self.seen(row + height)
        q = scratch.q + row * p.d_pitch
        dy = scratch.dy + row * p.e_pitch
        start = row * self.pitch
        weights, dscores = scratch.weights + start, scratch.dscores + start
        with e.loop(0, count, p.tile_columns) as key:
            k, v = scratch.k_panels + key * p.d, scratch.v_panels + key * p.e
            e.call(tiles.scores, q, k, weights + key)
            e.call(tiles.dweights, dy, v, dscores + key)
        self.softmax(row, count)
        if self.kernel.chunks.dq:
            depth = padded(count, UNROLL)
            for column in range(0, p.d_pitch, p.tile_columns):
                k, dq = scratch.k + column, scratch.dq + column
                e.call(tiles.dq, dscores, k, dq, depth)
            rows = (self.first + row, height)
            unpack_rows(e, p, scratch.dq, self.item.dq, rows, p.d, lambda _: p.scale)

    def softmax(self, row: Value, count: Value) -> None:
        """A tile's scores and weights' cotangents become weights and cotangents of scores.

        The scale is left out: q holds it for dk, and dq is multiplied by it at the end.
        """
        e, p = self.kernel.e, self.p
        starts = [(row + r) * self.pitch for r in range(p.tile_rows)]
        weights = [self.scratch.weights + s for s in starts]
        dscores = [self.scratch.dscores + s for s in starts]
        queries = [self.first + row + r for r in range(p.tile_rows)]
        seen = [minimum(count, q + 1) if p.causal else count for q in queries]
        end = padded(count, max(p.lanes, UNROLL))
        lines = ScoreRows(tuple(weights), tuple(seen), end)
        largest = largest_scores(e, p, lines, self.mask_rows(queries))
        shifts = [shift_of(v) for v in largest]
        totals, weighted = powers(e, p, lines, shifts, dscores)
        inverses = [1.0 / t for t in totals]
        means = [w * i for w, i in zip(weighted, inverses, strict=True)]
        with e.loop(0, end, p.lanes) as place:
            for i, (line, other) in enumerate(zip(weights, dscores, strict=True)):
                weight = line.load(place, p.lanes, aligned=True) * inverses[i]
                line.store(place, weight, aligned=True)
                given = other.load(place, p.lanes, aligned=True)
                other.store(place, weight * (given - means[i]), aligned=True)
        # Tiles of keys reach a little beyond what a row sees.
        reach = p.tile_rows + UNROLL
        for line in (*weights, *dscores):
            (line + end).zero(reach)

    def mask_rows(self, queries: Sequence[Value]) -> MaskRows | None:
        """The mask's lines; rows of the tile that do not exist repeat the last one."""
        mask = self.item.mask
        if mask is None:
            return None
        last = self.kernel.queries - 1
        return MaskRows(mask, tuple(mask.row_at(minimum(q, last)) for q in queries), 0)

    def add_to_keys(self, key: Value, filled: Value) -> None:
        """Add the chunk's share to dk and dv of a tile's keys."""
        e, p, scratch = self.kernel.e, self.p, self.scratch
        wanted, tiles = self.kernel.chunks, self.kernel.tiles
        start = e.index(0)
        if p.causal:
            start = maximum(key - self.first, 0)
            start = start - start % UNROLL
        depth = filled - start
        corner = start * self.pitch + key
        sums = []
        if wanted.dv:
            sums.append((tiles.dv, scratch.weights, scratch.dy, scratch.dv, p.e_pitch))
        if wanted.dk:
            sums.append((tiles.dk, scratch.dscores, scratch.q, scratch.dk, p.d_pitch))
        for tile, weights, rows, into, pitch in sums:
            for column in range(0, pitch, p.tile_columns):
                other = rows + (start * pitch + column)
                target = into + (key * pitch + column)
                e.call(tile, weights + corner, other, target, depth)


@cache
def backward_kernel(p: AttentionProblem, chunks: Chunks) -> RecordedKernel:
    """The kernel over (q, k, v, dy, dq, dk, dv[, mask])."""
    return _Backward(p, chunks).kernel()
