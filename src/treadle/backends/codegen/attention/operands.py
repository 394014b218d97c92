"""Constants of attention kernels, and their operands: strided stacks of matrices.

Head sizes, tile sizes and unit strides are constants of a kernel; the lengths of the two sequences,
the batch and all other strides are parameters, so one kernel serves every sequence length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.backends.codegen.kernel.builder import Builder, builder_of, numbered
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, Record, S
from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.precision import compute_type

LOG2_E = math.log2(math.e)
"""Scores are held times this, so that weights are powers of 2."""
UNROLL = 4
"""Steps of a product's reduction that are written out; its depth is a multiple of this."""


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """The constants of an attention kernel.

    Attributes:
        dtype: element type of q, k, v and the results.
        d, e: columns of q and k, and of v.
        causal, scale: of the op, with the scale known.
        mask: element type of the mask, if there is one.
        rank: number of batch axes.
        unit: for each operand and result in order, whether its columns are adjacent in memory.
        target: for whom.
    """

    dtype: DType
    d: int
    e: int
    causal: bool
    scale: float
    mask: DType | None
    rank: int
    unit: tuple[bool, ...]
    target: Target

    @property
    def compute(self) -> DType:
        """The type products and sums are computed in."""
        return compute_type(self.dtype)

    @property
    def lanes(self) -> int:
        """Lanes of a vector of the compute type."""
        return self.target.lanes(self.compute)

    @property
    def tile_rows(self) -> int:
        """Rows of a product's tile: with two vectors a row it fits the registers."""
        return 6 if self.target.registers < 32 else 8

    @property
    def tile_columns(self) -> int:
        """Columns of a product's tile."""
        return 2 * self.lanes

    @property
    def d_pitch(self) -> int:
        """Elements between packed rows of q or k."""
        return round_up(self.d, self.tile_columns)

    @property
    def e_pitch(self) -> int:
        """Elements between packed rows of v or the result."""
        return round_up(self.e, self.tile_columns)

    @property
    def score_scale(self) -> float:
        """The factor of packed rows of q."""
        return self.scale * LOG2_E

    def stack(self, e: Builder, *extents: int) -> Pointer:
        """Scratch of the compute type."""
        return e.stack(self.compute, math.prod(extents))


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple that is not below n."""
    return -(-n // multiple) * multiple


def padded(n: Value, multiple: int) -> Value:
    """`round_up` of a value that is not negative."""
    return ((n + (multiple - 1)) // multiple) * multiple


class Stack(Record[P, S]):
    """A stack of matrices: first element, stride of each batch axis, strides of rows, columns."""

    pointer: P
    batch: tuple[S, ...]
    row: S
    step: S

    def at(self: Stack[Pointer, Value], place: Sequence[Value], unit: bool) -> Matrix:
        """The matrix at a place in the batch."""
        start = self.pointer
        for index, stride in zip(place, self.batch, strict=True):
            start = start + index * stride
        return Matrix(start, self.row, self.step, unit)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix in memory: `step`, the stride of columns, counts only where `unit` is false."""

    pointer: Pointer
    row: Value
    step: Value
    unit: bool = True

    def row_at(self, index: Value) -> Pointer:
        """Pointer to a row's first element."""
        return self.pointer + index * self.row

    def load(
        self, row: Pointer, column: Value | int, lanes: int, mask: Value | None = None
    ) -> Value:
        """Neighbouring columns of a row that `row_at` gave, in the compute type."""
        if self.unit or lanes == 1:
            start = column if self.unit else self.step * column
            found = row.load(start, lanes, mask)
        else:
            places = (builder_of(row).iota(dt.int64, lanes) + column) * self.step
            found = row.gather(places, mask)
        return found.cast(compute_type(found.dtype))

    def store(self, row: Pointer, column: int, value: Value, mask: Value | None = None) -> None:
        """Write neighbouring columns of a row that `row_at` gave."""
        narrow = value.cast(row.dtype)
        if self.unit:
            row.store(column, narrow, mask)
        else:
            places = (builder_of(row).iota(dt.int64, value.lanes) + column) * self.step
            row.scatter(places, narrow, mask)


class Chunking(Record[P, S]):
    """Rows of a chunk of queries, and chunks of an entry."""

    rows: S
    chunks: S


class Parameters(Record[P, S]):
    """Parameters of an attention kernel.

    Attributes:
        stacks: operands, results and the mask, if there is one.
        extents: of the batch.
    """

    stacks: tuple[Stack[P, S], ...]
    queries: S
    keys: S
    chunking: Chunking[P, S] | None
    extents: tuple[S, ...]

    def at(
        self: Parameters[Pointer, Value], p: AttentionProblem, entry: Value
    ) -> tuple[list[Matrix], Matrix | None]:
        """The matrices and the mask of one entry of the batch."""
        place = split(entry, self.extents)
        mask = None if p.mask is None else self.stacks[-1].at(place, p.unit[-1])
        own = self.stacks if mask is None else self.stacks[:-1]
        return [s.at(place, unit) for s, unit in zip(own, p.unit, strict=False)], mask


def parameters(
    e: Builder, p: AttentionProblem, names: Sequence[str], *, chunks: bool = False
) -> Parameters[Pointer, Value]:
    """Further parameters of a kernel: operands and results of these names, in order."""
    dtypes = {name: p.dtype for name in names} | ({} if p.mask is None else {"mask": p.mask})

    def stack(name: str, dtype: DType) -> Stack[Pointer, Value]:
        start, batch = e.pointer(dtype, name), e.sizes(*numbered(f"{name}_batch", p.rank))
        return Stack(start, (*batch,), *e.sizes(f"{name}_row", f"{name}_step"))

    return e.record(
        Parameters[Pointer, Value],
        stacks=lambda: tuple([stack(*item) for item in dtypes.items()]),
        chunking=Chunking if chunks else None,
        extents=numbered("extent", p.rank),
    )


def split(item: Value, extents: Sequence[Value]) -> tuple[Value, ...]:
    """The row-major place of an item in the batch."""
    place: list[Value] = []
    for extent in reversed(extents[1:]):
        place.append(item % extent)
        item = item // extent
    return (item, *reversed(place))
