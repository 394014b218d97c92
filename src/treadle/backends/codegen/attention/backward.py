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

from treadle.backends.codegen.attention.operands import (
    LOG2_E,
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
    powers,
    shift_of,
)
from treadle.backends.codegen.kernel.builder import Builder, kernel
from treadle.backends.codegen.kernel.ir import Kernel, Value

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


def row_multiple(p: Problem) -> int:
    """Rows of a chunk are filled up to this: whole tiles, and whole turns of a product's loop."""
    return math.lcm(p.tile_rows, UNROLL)


@dataclass(frozen=True, slots=True)
class _Scratch:
    """Memory of one call: packed operands, weights, their cotangents, and sums."""

    q: Value
    dy: Value
    k_panels: Value
    v_panels: Value
    k: Value
    weights: Value
    dscores: Value
    dq: Value
    dk: Value
    dv: Value


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


class _Backward:
    """Writes the kernel of one problem."""

    def __init__(self, p: Problem, chunks: Chunks) -> None:
        self.p = p
        self.chunks = chunks
        names = ("q", "k", "v", "dy", "dq", "dk", "dv")
        self.given = parameters(p, names, ("queries", "keys"))
        self.queries, self.keys = self.given.sizes
        pitch = chunks.pitch
        self.tiles = {
            "scores": Product(p.d_pitch, 1, p.tile_columns, pitch, depth=p.d),
            "dweights": Product(p.e_pitch, 1, p.tile_columns, pitch, depth=p.e),
            "dq": Product(pitch, 1, p.d_pitch, p.d_pitch),
            "dk": Product(1, pitch, p.d_pitch, p.d_pitch, add=True),
            "dv": Product(1, pitch, p.e_pitch, p.e_pitch, add=True),
        }
        self.functions = {n: product(p, f"{n}_tile", form) for n, form in self.tiles.items()}

    def kernel(self) -> Kernel:
        return kernel(
            "attention_grad",
            self.given.all,
            self.write,
            tuple(self.functions.values()),
            self.p.target.features,
        )

    def write(self, b: Builder, lo: Value, hi: Value) -> None:
        p, c = self.p, self.chunks
        over = c.keys + p.tile_rows
        scratch = _Scratch(
            q=p.stack(b, c.rows, p.d_pitch),
            dy=p.stack(b, c.rows, p.e_pitch),
            k_panels=p.stack(b, c.keys, p.d),
            v_panels=p.stack(b, c.keys, p.e),
            k=p.stack(b, c.keys, p.d_pitch),
            weights=p.stack(b, c.rows, c.pitch),
            dscores=p.stack(b, c.rows, c.pitch),
            dq=p.stack(b, p.tile_rows, p.d_pitch),
            dk=p.stack(b, over, p.d_pitch),
            dv=p.stack(b, over, p.e_pitch),
        )
        b.loop(lo, hi, 1, lambda item: self.item(b, scratch, item))

    def item(self, b: Builder, scratch: _Scratch, number: Value) -> None:
        p = self.p
        matrices, mask = self.given.at(b, number)
        item = _Item(mask, *matrices)
        zero = b.index(0)
        keys = self.keys
        pack_panels(b, p, item.k, zero, keys, p.d, scratch.k_panels)
        pack_panels(b, p, item.v, zero, keys, p.e, scratch.v_panels)
        if self.chunks.dq:
            counts = (keys, padded(b, keys, UNROLL))
            pack_rows(b, p, item.k, zero, counts, p.d, scratch.k)
        over = b.add(keys, p.tile_rows)
        if self.chunks.dk:
            b.zero(scratch.dk, b.mul(over, p.d_pitch))
        if self.chunks.dv:
            b.zero(scratch.dv, b.mul(over, p.e_pitch))

        def chunk(first: Value) -> None:
            rows = b.min(b.sub(self.queries, first), self.chunks.rows)
            _Chunk(self, scratch, item, first, rows).write(b)

        b.loop(0, self.queries, self.chunks.rows, chunk)
        if self.chunks.dk:
            # Packed rows of q hold the scale, and a factor that is taken out again.
            factor = b.constant(1 / LOG2_E, p.compute)
            unpack_rows(b, p, scratch.dk, item.dk, (zero, keys), p.d, lambda _: factor)
        if self.chunks.dv:
            unpack_rows(b, p, scratch.dv, item.dv, (zero, keys), p.e)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some query rows, from `first` on, against all keys."""

    kernel: _Backward
    scratch: _Scratch
    item: _Item
    first: Value
    rows: Value

    @property
    def p(self) -> Problem:
        return self.kernel.p

    @property
    def pitch(self) -> int:
        return self.kernel.chunks.pitch

    def write(self, b: Builder) -> None:
        p, scratch, item = self.p, self.scratch, self.item
        filled = padded(b, self.rows, row_multiple(p))
        counts = (self.rows, filled)
        pack_rows(b, p, item.q, self.first, counts, p.d, scratch.q, p.score_scale)
        pack_rows(b, p, item.dy, self.first, counts, p.e, scratch.dy)
        b.loop(0, self.rows, p.tile_rows, lambda row: self.tile(b, row))
        seen = self.seen(b, self.rows)
        # Products over queries run over the filled rows, whose weights must be numbers.
        left, width = b.sub(filled, self.rows), b.add(seen, SLACK)

        def clear(r: Value) -> None:
            start = b.mul(b.add(self.rows, r), self.pitch)
            b.zero(b.offset(scratch.weights, start), width)
            b.zero(b.offset(scratch.dscores, start), width)

        b.loop(0, left, 1, clear)
        b.loop(0, seen, p.tile_rows, lambda key: self.add_to_keys(b, key, filled))

    def seen(self, b: Builder, end: Value) -> Value:
        """How many keys the rows before row `end` of the chunk see."""
        keys = self.kernel.keys
        return b.min(keys, b.add(self.first, end)) if self.p.causal else keys

    def tile(self, b: Builder, row: Value) -> None:
        """Weights, cotangents of scores and dq of a tile's rows."""
        p, scratch, functions = self.p, self.scratch, self.kernel.functions
        height = b.min(b.sub(self.rows, row), p.tile_rows)
        count = self.seen(b, b.add(row, height))
        q = b.offset(scratch.q, b.mul(row, p.d_pitch))
        dy = b.offset(scratch.dy, b.mul(row, p.e_pitch))
        start = b.mul(row, self.pitch)
        weights, dscores = b.offset(scratch.weights, start), b.offset(scratch.dscores, start)

        def panel(key: Value) -> None:
            k, v = (
                b.offset(scratch.k_panels, b.mul(key, p.d)),
                b.offset(scratch.v_panels, b.mul(key, p.e)),
            )
            b.call(functions["scores"], q, k, b.offset(weights, key))
            b.call(functions["dweights"], dy, v, b.offset(dscores, key))

        b.loop(0, count, p.tile_columns, panel)
        self.softmax(b, row, count)
        if self.kernel.chunks.dq:
            depth = padded(b, count, UNROLL)
            for column in range(0, p.d_pitch, p.tile_columns):
                k, dq = b.offset(scratch.k, column), b.offset(scratch.dq, column)
                b.call(functions["dq"], dscores, k, dq, depth)
            rows = (b.add(self.first, row), height)
            scale = b.constant(p.scale, p.compute)
            unpack_rows(b, p, scratch.dq, self.item.dq, rows, p.d, lambda _: scale)

    def softmax(self, b: Builder, row: Value, count: Value) -> None:
        """A tile's scores and weights' cotangents become weights and cotangents of scores.

        The scale is left out: q holds it for dk, and dq is multiplied by it at the end.
        """
        p = self.p
        starts = [b.mul(b.add(row, r), self.pitch) for r in range(p.tile_rows)]
        weights = [b.offset(self.scratch.weights, s) for s in starts]
        dscores = [b.offset(self.scratch.dscores, s) for s in starts]
        queries = [b.add(b.add(self.first, row), r) for r in range(p.tile_rows)]
        seen = [b.min(count, b.add(q, 1)) if p.causal else count for q in queries]
        end = padded(b, count, max(p.lanes, UNROLL))
        lines = Rows(tuple(weights), tuple(seen), end)
        largest = largest_scores(b, p, lines, self.mask_rows(b, queries))
        shifts = [shift_of(b, v) for v in largest]
        totals, weighted = powers(b, p, lines, shifts, dscores)
        inverses = [b.div(b.constant(1.0, p.compute), t) for t in totals]
        means = [b.mul(w, i) for w, i in zip(weighted, inverses, strict=True)]

        def turn(place: Value) -> None:
            for i, (line, other) in enumerate(zip(weights, dscores, strict=True)):
                weight = b.mul(b.load(line, place, p.lanes, aligned=True), inverses[i])
                b.store(line, place, weight, aligned=True)
                given = b.load(other, place, p.lanes, aligned=True)
                b.store(other, place, b.mul(weight, b.sub(given, means[i])), aligned=True)

        b.loop(0, end, p.lanes, turn)
        # Tiles of keys reach a little beyond what a row sees.
        reach = p.tile_rows + UNROLL
        for line in (*weights, *dscores):
            b.zero(b.offset(line, end), reach)

    def mask_rows(self, b: Builder, queries: Sequence[Value]) -> MaskRows | None:
        """The mask's lines; rows of the tile that do not exist repeat the last one."""
        mask = self.item.mask
        if mask is None:
            return None
        last = b.sub(self.kernel.queries, 1)
        return MaskRows(mask, tuple(mask.row_at(b, b.min(q, last)) for q in queries), 0)

    def add_to_keys(self, b: Builder, key: Value, filled: Value) -> None:
        """What the chunk adds to dk and dv of a tile's keys."""
        p, scratch, wanted = self.p, self.scratch, self.kernel.chunks
        start = b.index(0)
        if p.causal:
            start = b.max(b.sub(key, self.first), 0)
            start = b.sub(start, b.rem(start, UNROLL))
        depth = b.sub(filled, start)
        corner = b.add(b.mul(start, self.pitch), key)
        sums = []
        if wanted.dv:
            sums.append(("dv", scratch.weights, scratch.dy, scratch.dv, p.e_pitch))
        if wanted.dk:
            sums.append(("dk", scratch.dscores, scratch.q, scratch.dk, p.d_pitch))
        for name, weights, rows, into, pitch in sums:
            for column in range(0, pitch, p.tile_columns):
                other = b.offset(rows, b.add(b.mul(start, pitch), column))
                target = b.offset(into, b.add(b.mul(key, pitch), column))
                b.call(self.kernel.functions[name], b.offset(weights, corner), other, target, depth)


@cache
def backward_kernel(p: Problem, chunks: Chunks) -> Kernel:
    """The kernel over (q, k, v, dy, dq, dk, dv[, mask], queries, keys, batch extents)."""
    return _Backward(p, chunks).kernel()
