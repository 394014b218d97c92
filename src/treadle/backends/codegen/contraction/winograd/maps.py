"""Launches that Winograd's convolutions and their gradients in the weight have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treadle.backends.codegen.contraction.shared.problem import Matrix
from treadle.backends.codegen.contraction.winograd.kernels import PAD, BlockSizes, SourceSizes
from treadle.backends.codegen.kernel.records import RecordedKernel
from treadle.backends.program import Launch, Ref
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, maximum, minimum


@dataclass(frozen=True, slots=True)
class Maps:
    """Extents of a convolution by tiles of m x m results.

    `low` is the padding before a column and a line of the source.
    """

    m: int
    images: Dim
    inputs: int
    outputs: int
    source: tuple[Dim, Dim]
    result: tuple[Dim, Dim]
    low: tuple[int, int]

    @property
    def points(self) -> int:
        """Products per tile and pair of channels."""
        return (self.m + 2) ** 2

    @property
    def grid(self) -> tuple[Dim, Dim]:
        """Tiles per column and per line."""
        height, width = self.result
        return -(-height // self.m), -(-width // self.m)

    @property
    def tiles(self) -> Dim:
        """All tiles of all images."""
        return self.images * product(self.grid)

    def weights(self, width: int) -> int:
        """Elements of the transformed weights of one point, in panels of this width."""
        return -(-self.outputs // width) * width * self.inputs + PAD

    def source_sizes(self, panels_point: int = 0) -> SourceSizes[Dim]:
        """Return the sizes of the source that a kernel which reads it takes."""
        (height, width), line = self.source, self.source[1] * self.inputs
        return SourceSizes(self.inputs, height, width, *self.low, height * line, line, panels_point)

    def block_sizes(
        self, tiles: tuple[Dim, Dim], block: int, columns: int, pitch: Dim, point: Dim
    ) -> BlockSizes[Dim]:
        """Blocks of `tiles`: the first one, and how many."""
        down, across = self.grid
        return BlockSizes(*tiles, across, down, block, columns, pitch, point)


def even_block(tiles: int, most: int, rows: int) -> int:
    """Tiles per item: as many as fit, whole register tiles of them, shared out evenly."""
    if tiles <= most:
        return max(1, tiles)
    items = -(-tiles // max(1, most))
    even = -(-tiles // items)
    rounded = -(-even // rows) * rows
    return rounded if rounded <= most else max(1, most)


def chunks_of(tiles: Dim, most: int, rows: int) -> Sequence[tuple[Dim, Dim]]:
    """First tile and number of tiles of each chunk: at most `most` in one, shared out evenly.

    How many chunks there are of an open number of tiles is decided at the hints of the cell, so
    that sums over chunks do not depend on who called first; chunks grow with the tiles.
    """
    if isinstance(tiles, int):
        chunk = even_block(tiles, most, rows)
        return [(first, min(chunk, tiles - first)) for first in range(0, tiles, chunk)]
    count = -(-estimate(tiles) // max(1, most))
    chunk = -(-tiles // count)
    firsts = [chunk * i for i in range(count)]
    # Where tiles are few, the last chunks have none.
    return [(first, minimum(chunk, maximum(tiles - first, 0))) for first in firsts]


def pitch_of(count: int) -> int:
    """Elements from row to row: whole lines of the cache, and one more."""
    return -(-count // 16) * 16 + PAD


def stack_of(place: Ref, dtype: DType, batch: Dim, row: int) -> Matrix:
    """One matrix per point, `batch` elements apart."""
    return Matrix(place.kind, place.index, dtype, 0, (batch,), row, 1)


def launch_of(made: RecordedKernel, given: Any, items: Dim, flops: Dim, nbytes: Dim) -> Launch:
    """A launch, which one thread runs alone where there is little to do."""
    serial = max(estimate(flops), estimate(nbytes)) < 1 << 17
    return made.launch(given, items=items, serial=serial, flops=flops, nbytes=nbytes)
