"""Launches that Winograd's convolutions and their gradients in the weight have in common."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from treadle.backends.codegen.contraction.shared.problem import Matrix
from treadle.backends.codegen.contraction.winograd.kernels import PAD, BlockSizes, SourceSizes
from treadle.backends.codegen.kernel.records import RecordedKernel
from treadle.backends.program import Launch, Ref
from treadle.base.dtype import DType
from treadle.base.symbol import Dim


@dataclass(frozen=True, slots=True)
class Maps:
    """Extents of a convolution by tiles of m x m results.

    `low` is the padding before a column and a line of the source.
    """

    m: int
    images: int
    inputs: int
    outputs: int
    source: tuple[int, int]
    result: tuple[int, int]
    low: tuple[int, int]

    @property
    def points(self) -> int:
        """Products per tile and pair of channels."""
        return (self.m + 2) ** 2

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles per column and per line."""
        height, width = self.result
        return -(-height // self.m), -(-width // self.m)

    @property
    def tiles(self) -> int:
        """All tiles of all images."""
        return self.images * prod(self.grid)

    def weights(self, width: int) -> int:
        """Elements of the transformed weights of one point, in panels of this width."""
        return -(-self.outputs // width) * width * self.inputs + PAD

    def source_sizes(self, panels_point: int = 0) -> SourceSizes[Dim]:
        """Return the sizes of the source that a kernel which reads it takes."""
        (height, width), line = self.source, self.source[1] * self.inputs
        return SourceSizes(self.inputs, height, width, *self.low, height * line, line, panels_point)

    def block_sizes(
        self, tiles: tuple[int, int], block: int, columns: int, pitch: Dim, point: Dim
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


def pitch_of(count: int) -> int:
    """Elements from row to row: whole lines of the cache, and one more."""
    return -(-count // 16) * 16 + PAD


def stack_of(place: Ref, dtype: DType, batch: int, row: int) -> Matrix:
    """One matrix per point, `batch` elements apart."""
    return Matrix(place.kind, place.index, dtype, 0, (batch,), row, 1)


def launch_of(made: RecordedKernel, given: Any, items: int, flops: int, nbytes: int) -> Launch:
    """A launch, which one thread runs alone where there is little to do."""
    serial = max(flops, nbytes) < 1 << 17
    return made.launch(given, items=items, serial=serial, flops=flops, nbytes=nbytes)
