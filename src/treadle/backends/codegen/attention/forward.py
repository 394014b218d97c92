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
    Matrix,
    Problem,
    padded,
    parameters,
)
from treadle.backends.codegen.attention.packing import pack_panels, pack_rows, unpack_rows
from treadle.backends.codegen.attention.product import Product, product
from treadle.backends.codegen.attention.softmax import (
    MaskRows,
    Rows,
    largest_scores,
    power_of_two,
    powers,
    shift_of,
)
from treadle.backends.codegen.kernel.builder import Builder, kernel
from treadle.backends.codegen.kernel.ir import Kernel, Value


@dataclass(frozen=True, slots=True)
class Blocks:
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
class _Scratch:
    """Memory of one call: packed operands, scores of a tile, results, and what rows have seen.

    `sums` holds the sums' inverses where there is one block of keys.
    """

    q: Value
    k: Value
    v: Value
    scores: Value
    y: Value
    largest: Value
    sums: Value


class _Forward:
    """Writes the kernel of one problem."""

    def __init__(self, p: Problem, blocks: Blocks) -> None:
        self.p = p
        self.blocks = blocks
        self.given = parameters(p, ("q", "k", "v", "y"), ("queries", "keys", "rows", "chunks"))
        self.queries, self.keys, self.rows, self.chunks = self.given.sizes
        scores = Product(p.d_pitch, 1, p.tile_columns, blocks.pitch, depth=p.d)
        values = Product(blocks.pitch, 1, p.e_pitch, p.e_pitch, add=blocks.several)
        self.score_tile = product(p, "score_tile", scores)
        self.value_tile = product(p, "value_tile", values)

    def kernel(self) -> Kernel:
        tiles = (self.score_tile, self.value_tile)
        return kernel("attention", self.given.all, self.write, tiles, self.p.target.features)

    def write(self, b: Builder, lo: Value, hi: Value) -> None:
        p, blocks = self.p, self.blocks
        held = blocks.rows if blocks.several else p.tile_rows
        scratch = _Scratch(
            p.stack(b, blocks.rows, p.d_pitch),
            p.stack(b, blocks.keys, p.d),
            p.stack(b, blocks.keys, p.e_pitch),
            p.stack(b, p.tile_rows, blocks.pitch),
            p.stack(b, held, p.e_pitch),
            p.stack(b, held),
            p.stack(b, held),
        )
        b.loop(lo, hi, 1, lambda item: self.item(b, scratch, item))

    def item(self, b: Builder, scratch: _Scratch, item: Value) -> None:
        """One chunk of query rows of one entry of the stack."""
        (q, k, v, y), mask = self.given.at(b, b.div(item, self.chunks))
        first = b.mul(b.rem(item, self.chunks), self.rows)
        rows = b.min(self.rows, b.sub(self.queries, first))
        _Chunk(self, scratch, mask, q, k, v, y, first, rows).write(b)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some query rows, from `first` on, against all keys."""

    kernel: _Forward
    scratch: _Scratch
    mask: Matrix | None
    q: Matrix
    k: Matrix
    v: Matrix
    y: Matrix
    first: Value
    rows: Value

    def write(self, b: Builder) -> None:
        p, scratch, kernel = self.kernel.p, self.scratch, self.kernel
        counts = (self.rows, padded(b, self.rows, p.tile_rows))
        pack_rows(b, p, self.q, self.first, counts, p.d, scratch.q, p.score_scale)
        seen = kernel.keys
        if p.causal:
            seen = b.min(seen, b.add(self.first, self.rows))
        if not kernel.blocks.several:
            self.block(b, b.index(0), seen)
            return
        self.start(b, counts[1])
        keys = kernel.blocks.keys
        b.loop(0, seen, keys, lambda key: self.block(b, key, b.min(b.sub(seen, key), keys)))

        def inverse(r: Value) -> Value:
            return b.div(b.constant(1.0, p.compute), b.load(scratch.sums, r))

        unpack_rows(b, p, scratch.y, self.y, (self.first, self.rows), p.e, inverse)

    def start(self, b: Builder, rows: Value) -> None:
        """Nothing summed, nothing seen."""
        p, scratch = self.kernel.p, self.scratch
        b.zero(scratch.y, b.mul(rows, p.e_pitch))
        b.zero(scratch.sums, rows)
        lowest = b.constant(-math.inf, p.compute)
        b.loop(0, rows, 1, lambda r: b.store(scratch.largest, r, lowest))

    def block(self, b: Builder, begin: Value, count: Value) -> None:
        """All rows against `count` keys from `begin` on."""
        p, scratch = self.kernel.p, self.scratch
        pack_panels(b, p, self.k, begin, count, p.d, scratch.k)
        pack_rows(b, p, self.v, begin, (count, padded(b, count, UNROLL)), p.e, scratch.v)
        b.loop(0, self.rows, p.tile_rows, lambda row: self.tile(b, row, begin, count))

    def tile(self, b: Builder, row: Value, begin: Value, count: Value) -> None:
        """A tile's rows against a block of keys; their results, where there is but one block."""
        p, scratch, several = self.kernel.p, self.scratch, self.kernel.blocks.several
        height = b.min(b.sub(self.rows, row), p.tile_rows)
        first = b.add(self.first, row)
        if p.causal:
            count = b.min(count, b.sub(b.add(first, height), begin))
        work = _Tile(self.kernel, scratch, self.mask, row, first, begin, count)
        if p.causal and several:
            b.branch(b.compare("lt", 0, count), lambda: work.write(b))
        else:
            work.write(b)
        if not several:
            unpack_rows(
                b, p, scratch.y, self.y, (first, height), p.e, lambda r: b.load(scratch.sums, r)
            )


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile's rows against one block of keys.

    Attributes:
        row, first: the first row, counted in the chunk and in all queries.
        begin: first key of the block.
        count: keys of the block that at least one row sees.
    """

    kernel: _Forward
    scratch: _Scratch
    mask: Matrix | None
    row: Value
    first: Value
    begin: Value
    count: Value

    def write(self, b: Builder) -> None:
        p, scratch = self.kernel.p, self.scratch
        q = b.offset(scratch.q, b.mul(self.row, p.d_pitch))

        def panel(key: Value) -> None:
            k, scores = b.offset(scratch.k, b.mul(key, p.d)), b.offset(scratch.scores, key)
            b.call(self.kernel.score_tile, q, k, scores)

        b.loop(0, self.count, p.tile_columns, panel)
        self.softmax(b)
        y = scratch.y
        if self.kernel.blocks.several:
            y = b.offset(y, b.mul(self.row, p.e_pitch))
        depth = padded(b, self.count, UNROLL)
        for column in range(0, p.e_pitch, p.tile_columns):
            v = b.offset(scratch.v, column)
            b.call(self.kernel.value_tile, scratch.scores, v, b.offset(y, column), depth)

    def softmax(self, b: Builder) -> None:
        """Make scores weights that are not yet divided by their sums, and note the sums."""
        p, scratch = self.kernel.p, self.scratch
        rows = range(p.tile_rows)
        queries = [b.add(self.first, r) for r in rows]
        scores = [b.offset(scratch.scores, r * self.kernel.blocks.pitch) for r in rows]
        seen = [self.count] * p.tile_rows
        if p.causal:
            bounds = [b.add(b.sub(q, self.begin), 1) for q in queries]
            seen = [b.max(b.min(self.count, bound), 0) for bound in bounds]
        end = padded(b, self.count, max(p.lanes, UNROLL))
        lines = Rows(tuple(scores), tuple(seen), end)
        largest = largest_scores(b, p, lines, self.mask_rows(b, queries))
        if not self.kernel.blocks.several:
            sums, _ = powers(b, p, lines, [shift_of(b, v) for v in largest])
            for r, total in zip(rows, sums, strict=True):
                b.store(scratch.sums, r, b.div(b.constant(1.0, p.compute), total))
            return
        places = [b.add(self.row, r) for r in rows]
        before = [b.load(scratch.largest, place) for place in places]
        largest = [b.max(x, y) for x, y in zip(before, largest, strict=True)]
        shifts = [shift_of(b, v) for v in largest]
        sums, _ = powers(b, p, lines, shifts)
        for r, place in enumerate(places):
            self.rescale(b, place, b.sub(before[r], shifts[r]), sums[r])
            b.store(scratch.largest, place, largest[r])

    def mask_rows(self, b: Builder, queries: Sequence[Value]) -> MaskRows | None:
        """The mask's lines; rows of the tile that do not exist repeat the last one."""
        if self.mask is None:
            return None
        last = b.sub(self.kernel.queries, 1)
        lines = [self.mask.row_at(b, b.min(q, last)) for q in queries]
        return MaskRows(self.mask, tuple(lines), self.begin)

    def rescale(self, b: Builder, place: Value, change: Value, total: Value) -> None:
        """Bring what is summed so far to the new largest score, and add to the sum."""
        p, scratch = self.kernel.p, self.scratch
        factor = b.extract(power_of_two(b, b.splat(change, p.lanes)), 0)
        b.store(scratch.sums, place, b.fma(b.load(scratch.sums, place), factor, total))
        y = b.offset(scratch.y, b.mul(place, p.e_pitch))
        for column in range(0, p.e_pitch, p.lanes):
            value = b.load(y, column, p.lanes, aligned=True)
            b.store(y, column, b.mul(value, factor), aligned=True)


@cache
def forward_kernel(p: Problem, blocks: Blocks) -> Kernel:
    """The kernel over (q, k, v, y[, mask], queries, keys, rows, chunks, batch extents)."""
    return _Forward(p, blocks).kernel()
