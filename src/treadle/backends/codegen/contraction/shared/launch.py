"""Launches of contractions: packing where that pays, then the kernel, with all its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from treadle.backends.codegen.contraction.shared.epilogue import RowSteps
from treadle.backends.codegen.contraction.shared.items import (
    NO_TABLES,
    AxisSteps,
    ColumnStatistics,
    Division,
    ItemParameters,
    ItemTables,
)
from treadle.backends.codegen.contraction.shared.offsets import (
    Sums,
    Table,
    columns_of,
    table_launch,
)
from treadle.backends.codegen.contraction.shared.pack import (
    Copies,
    Packing,
    PackingParameters,
    order_of,
    packing_kernel,
)
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem, Matrix
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.records import RecordedKernel
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical


@dataclass(slots=True)
class Launches:
    """Collects what a problem becomes; `tables` are the offsets of patches.

    `unit` says what does the arithmetic of the product: see `Launch`.
    """

    problem: ContractionProblem
    target: Target
    constants: list[Array]
    frozen: tuple[bool, ...] = ()
    launches: list[Launch] = field(default_factory=list)
    prelude: list[Launch] = field(default_factory=list)
    workspaces: list[Dim] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    tables: ItemTables[Ref] = NO_TABLES
    unit: str = ""

    @property
    def dtype(self) -> DType:
        """Type of the sums."""
        return self.problem.sums

    def is_frozen(self, matrix: Matrix) -> bool:
        """True if an operand is the same in all runs, at all extents, so that it is packed once."""
        known = matrix.kind == "input" and matrix.index < len(self.frozen)
        if not known or not self.frozen[matrix.index]:
            return False
        problem = self.problem
        steps = zip(problem.batch, matrix.batch, strict=False)
        sizes = [problem.k, problem.m if matrix is problem.a else problem.n]
        sizes += [extent for extent, step in steps if not is_identical(step, 0)]
        return all(isinstance(d, int) for d in sizes)

    def workspace(self, nbytes: Dim) -> Ref:
        """A new scratch area."""
        self.workspaces.append(nbytes)
        return Ref("workspace", len(self.workspaces) - 1)

    def keep(self, nbytes: Dim) -> Ref:
        """A new area that lives as long as the program."""
        self.kept.append(int(nbytes))
        return Ref("kept", len(self.kept) - 1)

    def pack_rows(self, tile: Tile) -> None:
        """Make a's rows contiguous and of the tile's type."""
        self.problem = replace(self.problem, a=self._packed(tile, self.problem.a, self.problem.m))

    def pack_columns(self, tile: Tile) -> None:
        """Make b's columns contiguous and of the tile's type."""
        made = self._packed(tile, self.problem.b.transposed(), self.problem.n)
        self.problem = replace(self.problem, b=made.transposed())

    def _packed(self, tile: Tile, a: Matrix, count: Dim) -> Matrix:
        """Append the launch that copies a matrix of `count` rows, and return the copy."""
        problem = self.problem
        # Rows a power of two apart would compete for the same few lines of the cache.
        pitch = -(-problem.k // 16) * 16 + 16
        packing = Packing(tile, a.dtype, order_of(a.row, a.column), False, len(problem.batch))
        steps, elements = self.distinct(a, count * pitch)
        frozen, nbytes = self.is_frozen(a), elements * tile.dtype.itemsize + 64
        place = self.keep(nbytes) if frozen else self.workspace(nbytes)
        area = Area(count, problem.k, a.row, a.column, pitch, steps)
        launches = self.prelude if frozen else self.launches
        launches.append(packing_launch(packing, a, place, area))
        made = replace(a, kind=place.kind, index=place.index, dtype=tile.dtype, offset=0)
        return replace(made, batch=tuple(s.target for s in steps), row=pitch, column=1)

    def distinct(self, matrix: Matrix, count: Dim) -> tuple[tuple[Copies[Dim], ...], Dim]:
        """Batch axes of a packed operand, `count` elements per matrix, and all its elements.

        Along axes on which the operand does not vary it is packed once.
        """
        made: list[Copies[Dim]] = []
        for extent, step in zip(reversed(self.problem.batch), reversed(matrix.batch), strict=True):
            made.append(Copies(1, 0, 0) if is_identical(step, 0) else Copies(extent, step, count))
            count *= made[-1].extent
        return tuple(reversed(made)), count

    def constant(self, array: Array) -> Ref:
        """Data that a launch reads."""
        self.constants.append(array)
        return Ref("constant", len(self.constants) - 1)

    def offsets(self, table: Table) -> Ref:
        """A table of offsets: a constant, or what a launch writes; none is without elements."""
        if not isinstance(table, Sums):
            return self.constant((table if len(table) else np.zeros(1, np.int64)).astype(np.int32))
        place = self.workspace(4 * table.count)
        columns = self.constant(columns_of(table).astype(np.int32))
        self.launches.append(table_launch(table, columns, place))
        return place

    def arguments(self, division: Division[Dim]) -> ItemParameters[Ref, Dim]:
        """Return the arguments of a kernel of the product."""
        problem = self.problem
        return ItemParameters(
            a=problem.a.place,
            b=problem.b.place,
            memory=problem.sides.map(lambda matrix: matrix.place),
            tables=self.tables,
            statistics=_statistics(problem),
            m=problem.m,
            n=problem.n,
            k=problem.k,
            division=division,
            a_row=problem.a.row,
            a_term=problem.a.column,
            b_term=problem.b.row,
            b_column=problem.b.column,
            panel_terms=problem.panel_terms,
            runs=None,
            steps=problem.sides.map(lambda matrix: RowSteps(matrix.row, matrix.column)),
            batch=problem.batch,
            axes=tuple([_axis_steps(problem, axis) for axis in range(len(problem.batch))]),
            shifts=None,
        )

    def add(self, made: RecordedKernel, given: ItemParameters[Ref, Dim], items: Dim) -> None:
        """A launch of the product."""
        problem = self.problem
        launch = made.launch(
            given,
            items=items,
            serial=max(estimate(problem.flops), estimate(least_bytes(problem))) < 1 << 17,
            flops=problem.flops,
            nbytes=least_bytes(problem),
            unit=self.unit,
        )
        self.launches.append(launch)

    def lowered(self) -> Lowered:
        """All of it."""
        return Lowered(
            tuple(self.launches),
            workspaces=tuple(self.workspaces),
            constants=tuple(self.constants),
            kept=tuple(self.kept),
            prelude=tuple(self.prelude),
        )


@dataclass(frozen=True, slots=True)
class Area:
    """An area that a packing launch moves; for panels the inner places are those of all panels."""

    outer: Dim
    inner: Dim
    outer_step: Dim
    inner_step: Dim
    pitch: Dim
    batch: Sequence[Copies[Dim]] = ()


def packing_launch(packing: Packing, source: Matrix, place: Ref, area: Area) -> Launch:
    """A launch that packs a source into a place."""
    block = 0
    blocks = -(-area.inner // packing.tile.width)
    if not packing.panels:
        # Transposed rows are read across: a whole line of the cache at a time.
        least = 64 // source.dtype.itemsize if packing.order == "transposed" else 8
        block = max(least, min(32, (1 << 15) // estimate(area.inner) // 8 * 8))
        blocks = -(-area.outer // block)
    given: PackingParameters[Ref, Dim] = PackingParameters(
        source=source.place,
        target=place,
        outer=area.outer,
        inner=area.inner,
        outer_step=area.outer_step,
        inner_step=area.inner_step,
        pitch=area.pitch,
        block=block,
        blocks=blocks,
        batch=(*area.batch,),
    )
    count = product(axis.extent for axis in area.batch)
    kernel = packing_kernel(packing)
    size = source.dtype.itemsize + packing.tile.dtype.itemsize
    nbytes = count * area.outer * area.inner * size
    return kernel.launch(
        given,
        items=count * blocks,
        serial=estimate(nbytes) < 1 << 16,
        nbytes=nbytes,
    )


def _statistics(problem: ContractionProblem) -> ColumnStatistics[Ref] | None:
    found = problem.moments
    if found is None:
        return None
    return ColumnStatistics(Ref("output", found.means), Ref("output", found.squares))


def _axis_steps(problem: ContractionProblem, axis: int) -> AxisSteps[Dim]:
    sides = problem.sides.map(lambda matrix: matrix.batch[axis])
    return AxisSteps(problem.a.batch[axis], problem.b.batch[axis], sides)


def least_bytes(problem: ContractionProblem) -> Dim:
    """Bytes of every array, read or written once."""
    m, n, k = problem.m, problem.n, problem.k
    total: Dim = 0
    shapes = [(m, k), (k, n), *[(m, n)] * (len(problem.arrays) - 2)]
    for matrix, (rows, columns) in zip(problem.arrays, shapes, strict=True):
        axes = [(rows, matrix.row), (columns, matrix.column)]
        axes += zip(problem.batch, matrix.batch, strict=True)
        count = product(extent for extent, step in axes if not is_identical(step, 0))
        total += count * matrix.dtype.itemsize
    return total
