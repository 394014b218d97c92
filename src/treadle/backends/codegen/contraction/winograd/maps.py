"""What Winograd's convolutions and their gradients in the weight have in common as launches."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from treadle.backends.codegen.contraction.shared.items import Contraction
from treadle.backends.codegen.contraction.shared.problem import Matrix
from treadle.backends.codegen.contraction.winograd.kernels import PAD
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

    def sizes(self) -> dict[str, int]:
        """What a kernel that reads the source is told about it."""
        (down, across), (height, width) = self.grid, self.source
        line = width * self.inputs
        found = {"across": across, "down": down, "channels": self.inputs}
        found |= {"height": height, "width": width, "top": self.low[0], "left": self.low[1]}
        return found | {"x_image": height * line, "x_line": line}


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


def place_of(matrix: Matrix) -> Ref:
    """Where an operand begins."""
    return Ref(matrix.kind, matrix.index, matrix.offset * matrix.dtype.itemsize)


def stack_of(place: Ref, dtype: DType, batch: int, row: int) -> Matrix:
    """One matrix per point, `batch` elements apart."""
    return Matrix(place.kind, place.index, dtype, 0, (batch,), row, 1)


def launch_of(
    made: Contraction, arguments: dict[str, Ref | Dim], items: int, flops: int, nbytes: int
) -> Launch:
    """A launch that takes what its kernel names."""
    return Launch(
        made.kernel,
        tuple(arguments[name] for name in made.names),
        items=items,
        serial=max(flops, nbytes) < 1 << 17,
        flops=flops,
        nbytes=nbytes,
    )
