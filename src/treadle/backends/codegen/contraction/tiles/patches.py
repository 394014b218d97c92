"""Panels gathered from patches, which make a convolution a product of matrices.

Element (term, column) of a convolution's b lies at `terms[term] + columns[column]` of its source:
two tables of offsets hold all there is to know of kernel, strides, dilation and number of axes.
Cells of the padding are real: `spread` copies the source into zeros first.
"""

from __future__ import annotations

from functools import lru_cache

from treadle.backends.codegen.contraction.shared.pack import transpose
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.base import dtype as dt

_BLOCK = 8
"""Most terms and columns that are transposed at a time: rows of maps are seldom longer than a few
of them, and what crosses the end of one goes element by element."""


@lru_cache(maxsize=64)
def patch_function(tile: Tile) -> KernelRoutine:
    """A function of (source, terms, columns, target, outer, inner) that packs a panel.

    It has `outer` terms and `inner` columns, at most as many as the tile is wide.
    """
    writer = _Patches(Builder(), tile)
    writer.write()
    return writer.e.function("pack_patches")


class _Patches:
    """The body of the packing function: runs of neighbors move as vectors."""

    def __init__(self, e: Builder, tile: Tile) -> None:
        self.e, self.tile, self.block = e, tile, min(tile.lanes, _BLOCK)
        self.source = e.pointer(tile.dtype, "source")
        self.terms, self.columns = e.pointer(dt.int32, "terms"), e.pointer(dt.int32, "columns")
        self.target = e.pointer(tile.dtype, "target")
        self.outer, self.inner = e.sizes("outer", "inner")

    def write(self) -> None:
        """Write vectors of columns, then a block's columns at once, then single ones."""
        e = self.e
        done: Value | int = 0
        for lanes in dict.fromkeys((self.tile.lanes, self.block)):
            whole = self.inner - self.inner % lanes
            with e.loop(done, whole, lanes) as first:
                self._several(first, lanes)
            done = whole
        with e.loop(done, self.inner) as column:
            by = _entry(self.columns, column)
            with e.loop(self.outer) as k:
                self._row(k, column, [by])

    def _several(self, first: Value, lanes: int) -> None:
        e, block = self.e, self.block
        columns = [first + j for j in range(lanes)]
        offsets = [_entry(self.columns, column) for column in columns]
        # Offsets of columns grow, so this says that they grow by one.
        neighbors = offsets[-1] - offsets[0] == lanes - 1
        with e.when(neighbors), e.loop(self.outer) as k:
            place = _entry(self.terms, k) + offsets[0]
            self._store(k, first, self.source.load(place, lanes))
        with e.otherwise():
            whole = self.outer - self.outer % block
            with e.loop(0, whole, block) as k:
                for at in range(0, lanes, block):
                    self._block(k, first + at if at else first, offsets[at : at + block])
            with e.loop(whole, self.outer) as k:
                self._row(k, first, offsets)

    def _block(self, k: Value, first: Value, offsets: list[Value]) -> None:
        """A square of terms and columns; where the terms are neighbors, it is transposed."""
        e, block = self.e, self.block
        steps = self.terms.load(k, block) - e.iota(dt.int32, block)
        strays = (steps - self.terms[k]).reduce("or")
        with e.when(strays == 0):
            start = _entry(self.terms, k)
            rows = [self.source.load(start + by, block) for by in offsets]
            for j, row in enumerate(transpose(rows)):
                self._store(k + j, first, row)
        with e.otherwise(), e.loop(k, k + block) as i:
            self._row(i, first, offsets)

    def _row(self, k: Value, first: Value, offsets: list[Value]) -> None:
        """Element by element."""
        start = _entry(self.terms, k)
        for j, by in enumerate(offsets):
            value = self.source[start + by]
            self._store(k, first + j, value)

    def _store(self, k: Value, column: Value, value: Value) -> None:
        self.target[k * self.tile.width + column] = value


def _entry(table: Pointer, index: Value) -> Value:
    return table[index].cast(dt.int64)
