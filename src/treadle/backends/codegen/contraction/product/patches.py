"""Panels gathered from patches, which make a convolution a product of matrices.

Element (term, column) of a convolution's b lies at `terms[term] + columns[column]` of its source:
two tables of offsets hold all there is to know of kernel, strides, dilation and number of axes.
Cells of the padding are real: `spread` copies the source into zeros first.
"""

from __future__ import annotations

from functools import lru_cache

from treadle.backends.codegen.contraction.shared.pack import transpose
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
from treadle.base import dtype as dt


@lru_cache(maxsize=64)
def patch_function(tile: Tile) -> Function:
    """A function of (source, terms, columns, target, outer, inner) that packs a panel.

    It has `outer` terms and `inner` columns, at most as many as the tile is wide.
    """
    writer = _Patches(tile)
    parameters = (writer.source, writer.terms, writer.columns, writer.target)
    return builder.function("pack_patches", (*parameters, writer.outer, writer.inner), writer.write)


class _Patches:
    """The body of the packing function: runs of neighbors move as vectors."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.lanes = tile, tile.lanes
        self.source, self.target = (ir.pointer(tile.dtype, n) for n in ("source", "target"))
        self.terms, self.columns = (ir.pointer(dt.int32, n) for n in ("terms", "columns"))
        self.outer, self.inner = ir.size("outer"), ir.size("inner")

    def write(self, e: Builder) -> None:
        """As many columns at once as a vector has lanes, the others one by one."""
        whole = e.sub(self.inner, e.rem(self.inner, self.lanes))
        e.loop(0, whole, self.lanes, lambda first: self._several(e, first))
        e.loop(whole, self.inner, 1, lambda column: self._rows(e, column, [column]))

    def _several(self, e: Builder, first: Value) -> None:
        columns = [e.add(first, j) for j in range(self.lanes)]
        offsets = [self._offset(e, self.columns, column) for column in columns]
        # Offsets of columns grow, so this says that they grow by one.
        neighbors = e.compare("eq", e.sub(offsets[-1], offsets[0]), self.lanes - 1)

        def row(k: Value) -> None:
            place = e.add(self._offset(e, self.terms, k), offsets[0])
            self._store(e, k, first, e.load(self.source, place, self.lanes))

        def blocks() -> None:
            whole = e.sub(self.outer, e.rem(self.outer, self.lanes))
            e.loop(0, whole, self.lanes, lambda k: self._block(e, k, columns, offsets))
            e.loop(whole, self.outer, 1, lambda k: self._row(e, k, first, offsets))

        e.branch(neighbors, lambda: e.loop(0, self.outer, 1, row), blocks)

    def _block(self, e: Builder, k: Value, columns: list[Value], offsets: list[Value]) -> None:
        """A square of terms and columns; where the terms are neighbors, it is transposed."""
        first = columns[0]
        steps = e.sub(e.load(self.terms, k, self.lanes), e.iota(dt.int32, self.lanes))
        strays = e.reduce("or", e.sub(steps, e.load(self.terms, k)))

        def square() -> None:
            start = self._offset(e, self.terms, k)
            rows = [e.load(self.source, e.add(start, by), self.lanes) for by in offsets]
            for j, row in enumerate(transpose(e, rows)):
                self._store(e, e.add(k, j), first, row)

        def apart() -> None:
            last = e.add(k, self.lanes)
            e.loop(k, last, 1, lambda i: self._row(e, i, first, offsets))

        e.branch(e.compare("eq", strays, 0), square, apart)

    def _rows(self, e: Builder, first: Value, columns: list[Value]) -> None:
        offsets = [self._offset(e, self.columns, column) for column in columns]
        e.loop(0, self.outer, 1, lambda k: self._row(e, k, first, offsets))

    def _row(self, e: Builder, k: Value, first: Value, offsets: list[Value]) -> None:
        """Element by element."""
        start = self._offset(e, self.terms, k)
        for j, by in enumerate(offsets):
            value = e.load(self.source, e.add(start, by))
            self._store(e, k, e.add(first, j), value)

    def _store(self, e: Builder, k: Value, column: Value, value: Value) -> None:
        e.store(self.target, e.add(e.mul(k, self.tile.width), column), value)

    @staticmethod
    def _offset(e: Builder, table: Value, index: Value) -> Value:
        return e.cast(e.load(table, index), dt.int64)
