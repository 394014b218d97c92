"""The attention kernel: one work item is a stack entry's chunk of query rows.

Keys and values are packed a block at a time; every tile of query rows then makes its scores, their
softmax and its share of the result while they lie in the first-level cache. Where there is more
than one block of keys, running maxima and sums are kept per row and earlier shares are rescaled
(Dao et al. 2022, arXiv:2205.14135).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.attention.operands import (
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
    power_of_two,
    powers,
    shift_of,
)
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, fma, maximum, minimum
from treadle.backends.codegen.kernel.records import RecordedKernel, required


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """Sizes of scratch.

    Attributes:
        rows: query rows an item holds at most, a multiple of the tile's.
        keys: keys that are packed at a time, a multiple of the tile's columns.
        several: whether there may be more keys than that.
    """

    rows: int
    keys: int
    several: bool

    @property
    def pitch(self) -> int:
        """Elements between rows of scores; no power of two, which would crowd a few cache sets."""
        return self.keys + 16


@dataclass(frozen=True, slots=True)
class _ForwardScratch:
    """Memory of one call: packed operands, scores of a tile, results, and what rows have seen.

    `sums` holds the sums' inverses where there is one block of keys.
    """

    q: Pointer
    k: Pointer
    v: Pointer
    scores: Pointer
    y: Pointer
    largest: Pointer
    sums: Pointer


class _Forward:
    """Writes the kernel of one problem."""

    def __init__(self, p: AttentionProblem, blocks: AttentionBlocks) -> None:
        self.p = p
        self.blocks = blocks
        self.e = e = KernelBuilder()
        self.given = parameters(e, p, ("q", "k", "v", "y"), chunks=True)
        scores = BlockProduct(p.d_pitch, 1, p.tile_columns, blocks.pitch, depth=p.d)
        values = BlockProduct(blocks.pitch, 1, p.e_pitch, p.e_pitch, add=blocks.several)
        self.score_tile = product(p, "score_tile", scores)
        self.value_tile = product(p, "value_tile", values)
        held = blocks.rows if blocks.several else p.tile_rows
        self.scratch = _ForwardScratch(
            p.stack(e, blocks.rows, p.d_pitch),
            p.stack(e, blocks.keys, p.d),
            p.stack(e, blocks.keys, p.e_pitch),
            p.stack(e, p.tile_rows, blocks.pitch),
            p.stack(e, held, p.e_pitch),
            p.stack(e, held),
            p.stack(e, held),
        )

    def kernel(self) -> RecordedKernel:
        """One chunk of query rows of one entry of the stack per item."""
        given, chunking = self.given, required(self.given.chunking)
        with self.e.items() as item:
            (q, k, v, y), mask = given.at(self.p, item // chunking.chunks)
            first = (item % chunking.chunks) * chunking.rows
            rows = minimum(chunking.rows, given.queries - first)
            _Chunk(self, self.scratch, mask, q, k, v, y, first, rows).write()
        tiles = (self.score_tile, self.value_tile)
        return RecordedKernel(self.e.kernel("attention", tiles, self.p.target.features), given)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some query rows, from `first` on, against all keys."""

    kernel: _Forward
    scratch: _ForwardScratch
    mask: Matrix | None
    q: Matrix
    k: Matrix
    v: Matrix
    y: Matrix
    first: Value
    rows: Value

    def write(
        self,
    ) -> None:
        e, p, scratch, kernel = self.kernel.e, self.kernel.p, self.scratch, self.kernel
        counts = (self.rows, padded(self.rows, p.tile_rows))
        pack_rows(e, p, self.q, self.first, counts, p.d, scratch.q, p.score_scale)
        seen = kernel.given.keys
        if p.causal:
            seen = minimum(seen, self.first + self.rows)
        if not kernel.blocks.several:
            self.block(e.index(0), seen)
            return
        self.start(counts[1])
        keys = kernel.blocks.keys
        with e.loop(0, seen, keys) as key:
            self.block(key, minimum(seen - key, keys))
        rows = self.first, self.rows
        unpack_rows(e, p, scratch.y, self.y, rows, p.e, lambda r: 1.0 / scratch.sums[r])

    def start(self, rows: Value) -> None:
        """Clear sums and results of `rows` rows, and set their largest scores to -inf."""
        e, p, scratch = self.kernel.e, self.kernel.p, self.scratch
        scratch.y.zero(rows * p.e_pitch)
        scratch.sums.zero(rows)
        with e.loop(rows) as r:
            scratch.largest[r] = -math.inf

    def block(self, begin: Value, count: Value) -> None:
        """All rows against `count` keys from `begin` on."""
        e, p, scratch = self.kernel.e, self.kernel.p, self.scratch
        pack_panels(e, p, self.k, begin, count, p.d, scratch.k)
        pack_rows(e, p, self.v, begin, (count, padded(count, UNROLL)), p.e, scratch.v)
        with e.loop(0, self.rows, p.tile_rows) as row:
            self.tile(row, begin, count)

    def tile(self, row: Value, begin: Value, count: Value) -> None:
        """A tile's rows against a block of keys; their results, where there is but one block."""
        e = self.kernel.e
        p, scratch, several = self.kernel.p, self.scratch, self.kernel.blocks.several
        height = minimum(self.rows - row, p.tile_rows)
        first = self.first + row
        if p.causal:
            count = minimum(count, first + height - begin)
        work = _Tile(self.kernel, scratch, self.mask, row, first, begin, count)
        if p.causal and several:
            with e.when(count > 0):
                work.write()
        else:
            work.write()
        if not several:
            unpack_rows(e, p, scratch.y, self.y, (first, height), p.e, lambda r: scratch.sums[r])


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile's rows against one block of keys.

    Attributes:
        row, first: the first row, counted in the chunk and in all queries.
        begin: first key of the block.
        count: keys of the block that at least one row sees.
    """

    kernel: _Forward
    scratch: _ForwardScratch
    mask: Matrix | None
    row: Value
    first: Value
    begin: Value
    count: Value

    def write(
        self,
    ) -> None:
        e, p, scratch = self.kernel.e, self.kernel.p, self.scratch
        q = scratch.q + self.row * p.d_pitch

        with e.loop(0, self.count, p.tile_columns) as key:
            k, scores = scratch.k + key * p.d, scratch.scores + key
            e.call(self.kernel.score_tile, q, k, scores)
        self.softmax()
        y = scratch.y
        if self.kernel.blocks.several:
            y = y + self.row * p.e_pitch
        depth = padded(self.count, UNROLL)
        for column in range(0, p.e_pitch, p.tile_columns):
            v = scratch.v + column
            e.call(self.kernel.value_tile, scratch.scores, v, y + column, depth)

    def softmax(
        self,
    ) -> None:
        """Make scores weights that are not yet divided by their sums, and note the sums."""
        e, p, scratch = self.kernel.e, self.kernel.p, self.scratch
        rows = range(p.tile_rows)
        queries = [self.first + r for r in rows]
        scores = [scratch.scores + r * self.kernel.blocks.pitch for r in rows]
        seen = [self.count] * p.tile_rows
        if p.causal:
            bounds = [q - self.begin + 1 for q in queries]
            seen = [maximum(minimum(self.count, bound), 0) for bound in bounds]
        end = padded(self.count, max(p.lanes, UNROLL))
        lines = ScoreRows(tuple(scores), tuple(seen), end)
        largest = largest_scores(e, p, lines, self.mask_rows(queries))
        if not self.kernel.blocks.several:
            sums, _ = powers(e, p, lines, [shift_of(v) for v in largest])
            for r, total in zip(rows, sums, strict=True):
                scratch.sums[r] = 1.0 / total
            return
        places = [self.row + r for r in rows]
        before = [scratch.largest[place] for place in places]
        largest = [maximum(x, y) for x, y in zip(before, largest, strict=True)]
        shifts = [shift_of(v) for v in largest]
        sums, _ = powers(e, p, lines, shifts)
        for r, place in enumerate(places):
            self.rescale(place, before[r] - shifts[r], sums[r])
            scratch.largest[place] = largest[r]

    def mask_rows(self, queries: Sequence[Value]) -> MaskRows | None:
        """The mask's lines; rows of the tile that do not exist repeat the last one."""
        if self.mask is None:
            return None
        last = self.kernel.given.queries - 1
        lines = [self.mask.row_at(minimum(q, last)) for q in queries]
        return MaskRows(self.mask, tuple(lines), self.begin)

    def rescale(self, place: Value, change: Value, total: Value) -> None:
        """Bring what is summed so far to the new largest score, and add to the sum."""
        p, scratch = self.kernel.p, self.scratch
        factor = power_of_two(change.splat(p.lanes)).extract(0)
        scratch.sums[place] = fma(scratch.sums[place], factor, total)
        y = scratch.y + place * p.e_pitch
        for column in range(0, p.e_pitch, p.lanes):
            value = y.load(column, p.lanes, aligned=True)
            y.store(column, value * factor, aligned=True)


@cache
def forward_kernel(p: AttentionProblem, blocks: AttentionBlocks) -> RecordedKernel:
    """The kernel over (q, k, v, y[, mask])."""
    return _Forward(p, blocks).kernel()
