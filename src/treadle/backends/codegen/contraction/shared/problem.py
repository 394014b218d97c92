"""Contractions as index arithmetic: extents, and one offset and stride per axis and array."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from treadle.backends.codegen.contraction.shared.epilogue import Access, Column, Epilogue, Sides
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.backends.codegen.views import Strided
from treadle.backends.program import Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, Expr, is_identical

Kind = Literal["input", "output", "workspace", "kept", "constant"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A stack of matrices in memory: where it lies, and its steps in elements.

    For a and the results the rows are those of the result; the columns of a and the rows of b are
    the terms of the sums. `integer` says that it holds small integers, whose sums are int32;
    `table` that a table of offsets replaces the step of its columns.
    """

    kind: Kind
    index: int
    dtype: DType
    offset: Dim
    batch: tuple[Dim, ...]
    row: Dim
    column: Dim
    integer: bool = False
    table: bool = False
    panels: bool = False

    @staticmethod
    def of(kind: Kind, dtype: DType, view: Strided) -> Matrix:
        """The last two axes of a view as rows and columns."""
        *batch, row, column = view.strides
        integer = dtype in (dt.int8, dt.uint8, dt.int16)
        return Matrix(kind, view.index, dtype, view.offset, tuple(batch), row, column, integer)

    @property
    def place(self) -> Ref:
        """The place of its first element."""
        return Ref(self.kind, self.index, self.offset * self.dtype.itemsize)

    def transposed(self) -> Matrix:
        """Rows and columns change places."""
        return replace(self, row=self.column, column=self.row)

    def access(self) -> Access:
        """Return the access by which an epilogue meets it."""
        column: Column = "table" if self.table else "far"
        if self.panels or (not self.table and is_identical(self.column, 1)):
            column = "next"
        elif not self.table and is_identical(self.column, 0):
            column = "same"
        return Access(self.dtype, column, not is_identical(self.row, 0))


@dataclass(frozen=True, slots=True)
class Moments:
    """Statistics of the columns of a result, by blocks of rows: see `ColumnMoments`.

    Attributes:
        rows: of a block.
        result: which result.
        means, squares: outputs of the body, [blocks, columns], of the result's type.
    """

    rows: int
    result: int
    means: int
    squares: int


@dataclass(frozen=True, slots=True)
class ContractionProblem:
    """c[..., m, n] = epilogue(sum over k of a[..., m, k] * b[..., k, n]).

    With `patches`, b has no rows and columns: tables of offsets say where its elements lie; with
    `tables`, so it is for a. With `positions`, row m of the further operands and the results is
    not their m-th one but the one a table says. With `panel_terms`, b consists of panels of so
    many terms, of which a table picks k.
    """

    batch: tuple[Dim, ...]
    m: Dim
    n: Dim
    k: Dim
    a: Matrix
    b: Matrix
    extras: tuple[Matrix, ...]
    results: tuple[Matrix, ...]
    epilogue: Epilogue
    patches: bool = False
    tables: bool = False
    positions: bool = False
    panel_terms: int = 0
    moments: Moments | None = None

    @property
    def arrays(self) -> tuple[Matrix, ...]:
        """Every array."""
        return (self.a, self.b, *self.extras, *self.results)

    @property
    def sides(self) -> Sides[Matrix]:
        """Further operands, and results."""
        return Sides(self.extras, self.results)

    @property
    def count(self) -> Dim:
        """The number of matrices."""
        return product(self.batch)

    @property
    def flops(self) -> Dim:
        """Multiplications and additions."""
        return 2 * self.count * self.m * self.n * self.k

    @property
    def sums(self) -> DType:
        """The type in which kernels multiply and add."""
        if self.a.dtype.is_integer and not self.a.integer:
            return compute_dtype(self.b.dtype)
        return dt.int32 if self.a.integer else compute_dtype(self.a.dtype)

    @property
    def is_open(self) -> bool:
        """True where an extent is an expression."""
        return any(isinstance(d, Expr) for d in (*self.batch, self.m, self.n, self.k))

    def at_hint(self) -> ContractionProblem:
        """The same at the hints of its extents: for what decides on speed, and asks nothing."""
        if not self.is_open:
            return self
        batch = tuple([estimate(d) for d in self.batch])
        m, n, k = (estimate(d) for d in (self.m, self.n, self.k))
        return replace(self, batch=batch, m=m, n=n, k=k)

    def simplified(self) -> ContractionProblem:
        """The same with as few axes as possible, and with rows that lie in the results' order."""
        found = self._without_units()._with_merged_batch()
        if not self.patches and not self.tables:
            found = found._with_batch_in_rows()
            found = found._transposed() if found._lies_by_columns() else found
        found = found._with_steps_of_units()
        return found.accessed()

    def accessed(self) -> ContractionProblem:
        """The same, whose epilogue says how operands and results lie."""
        extras, results = self.sides.map(Matrix.access)
        return replace(self, epilogue=replace(self.epilogue, extras=extras, results=results))

    def _map(self, batch: tuple[Dim, ...], *arrays: Matrix) -> ContractionProblem:
        count = len(self.extras)
        a, b, *others = arrays
        return replace(
            self, batch=batch, a=a, b=b, extras=(*others[:count],), results=(*others[count:],)
        )

    def _without_units(self) -> ContractionProblem:
        kept = [i for i, extent in enumerate(self.batch) if not is_identical(extent, 1)]
        arrays = (replace(x, batch=tuple(x.batch[i] for i in kept)) for x in self.arrays)
        return self._map(tuple(self.batch[i] for i in kept), *arrays)

    def _with_merged_batch(self) -> ContractionProblem:
        """Neighboring batch axes as one wherever every array allows it."""
        found = self
        axis = 0
        while axis + 1 < len(found.batch):
            extent = found.batch[axis + 1]
            steps = ((x.batch[axis], x.batch[axis + 1] * extent) for x in found.arrays)
            if all(is_identical(*pair) for pair in steps):
                batch = (*found.batch[:axis], found.batch[axis] * extent, *found.batch[axis + 2 :])
                arrays = (
                    replace(x, batch=(*x.batch[:axis], *x.batch[axis + 1 :])) for x in found.arrays
                )
                found = found._map(batch, *arrays)
            else:
                axis += 1
        return found

    def _with_batch_in_rows(self) -> ContractionProblem:
        """A stack of matrices times one matrix is one tall matrix, where the rows follow."""
        if not self.batch or not is_identical(self.b.batch[-1], 0):
            return self
        by_row = (self.a, *self.extras, *self.results)
        if not all(is_identical(x.batch[-1], x.row * self.m) for x in by_row):
            return self
        arrays = (replace(x, batch=x.batch[:-1]) for x in self.arrays)
        found = self._map(self.batch[:-1], *arrays)
        return replace(found, m=self.m * self.batch[-1])._with_batch_in_rows()

    def _lies_by_columns(self) -> bool:
        """Return whether neighbors in the results' columns are neighbors in memory."""
        several = not is_identical(self.m, 1)
        if is_identical(self.n, 1):
            return several
        columns = (is_identical(c.row, 1) and not is_identical(c.column, 1) for c in self.results)
        return several and all(columns)

    def _transposed(self) -> ContractionProblem:
        """The transposed results: a product of the transposed operands in the other order."""
        a, b, *others = (x.transposed() for x in self.arrays)
        found = self._map(self.batch, b, a, *others)
        return replace(found, m=self.n, n=self.m)

    def _with_steps_of_units(self) -> ContractionProblem:
        """Return the problem with steps of axes of one element that choose the best kernel."""
        a, b, *others = self.arrays
        if is_identical(self.k, 1):
            a, b = replace(a, column=1), replace(b, row=self.n)
        if is_identical(self.m, 1):
            a = replace(a, row=self.k)
        if is_identical(self.n, 1):
            b = replace(b, column=1)
            others = [replace(x, column=1 if x in self.results else 0) for x in others]
        return self._map(self.batch, a, b, *others)
