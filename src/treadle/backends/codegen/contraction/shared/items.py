"""Work items of contractions: parameters of their kernels, and where an item lies in each array."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple

from treadle.backends.codegen.contraction.shared.epilogue import (
    Access,
    Epilogue,
    OperandPlace,
    RowSteps,
    Sides,
    declare_pointers,
    declare_steps,
)
from treadle.backends.codegen.kernel.builder import KernelBuilder, numbered
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum
from treadle.backends.codegen.kernel.records import P, S
from treadle.base import dtype as dt
from treadle.base.dtype import DType


class Division(NamedTuple, Generic[S]):
    """Rows and panels of an item, rows of a block, terms of a step; items by rows and panels."""

    height: S
    width: S
    block: S
    depth: S
    row_items: S
    panel_items: S


class ItemTables(NamedTuple, Generic[P]):
    """Tables of offsets, those that a kernel has.

    Attributes:
        terms, columns: of the elements of patches.
        row_table, term_table: of rows and terms of a.
        b_table: of the terms that are picked of panels.
        positions: numbers of the rows of results.
        step_table, terms_table: of the steps of rows, and how many terms they have.
        run_table: of runs of terms.
        places: of the columns of results.
    """

    terms: P | None = None
    columns: P | None = None
    row_table: P | None = None
    term_table: P | None = None
    b_table: P | None = None
    positions: P | None = None
    step_table: P | None = None
    terms_table: P | None = None
    run_table: P | None = None
    places: P | None = None


class AxisSteps(NamedTuple, Generic[S]):
    """Elements of every array from position to position of a batch axis."""

    a: S
    b: S
    sides: Sides[S]

    @property
    def all(self) -> tuple[S, ...]:
        """Every one."""
        return (self.a, self.b, *self.sides.extras, *self.sides.results)


class ColumnStatistics(NamedTuple, Generic[P]):
    """Statistics of columns: see `Moments`."""

    means: P
    squares: P


class RunSizes(NamedTuple, Generic[S]):
    """Terms and words of a run."""

    run: S
    run_words: S


class Shifts(NamedTuple, Generic[P, S]):
    """Several products: where in b each of them begins, how many, and their steps."""

    shift_table: P
    shifts: S
    panel_steps: S
    steps: Sides[S]


class ItemParameters(NamedTuple, Generic[P, S]):
    """Parameters of a contraction's kernel: c[m, n] = sums of k terms of a and b.

    Attributes:
        memory, steps: of further operands and of results.
        panel_terms: terms of a panel of b, if k of them are picked.
        batch, axes: extents of the batch axes, and the steps along each.
    """

    a: P
    b: P
    memory: Sides[P]
    tables: ItemTables[P]
    statistics: ColumnStatistics[P] | None
    m: S
    n: S
    k: S
    division: Division[S]
    a_row: S
    a_term: S
    b_term: S
    b_column: S
    panel_terms: S | None
    runs: RunSizes[S] | None
    steps: Sides[RowSteps[S]]
    batch: tuple[S, ...]
    axes: tuple[AxisSteps[S], ...]
    shifts: Shifts[P, S] | None


NO_TABLES = ItemTables[Any]()


@dataclass(frozen=True, slots=True)
class ItemSpec:
    """Facts that decide on the parameters of a kernel.

    Attributes:
        width: columns of a panel.
        a, b: element types of the operands.
        batch: number of batch axes.
        epilogue: says which further operands and results there are.
        tables: which tables there are.
        measured: whether statistics of a result are left beside it, which are of type a.
        shifts: whether there are several products.
    """

    width: int
    a: DType
    b: DType
    batch: int
    epilogue: Epilogue
    tables: ItemTables[bool] = NO_TABLES
    measured: bool = False
    shifts: bool = False


def declare_items(e: KernelBuilder, spec: ItemSpec) -> ItemParameters[Pointer, Value]:
    """The parameters of a kernel."""
    axes, sides = range(spec.batch), spec.epilogue.sides
    far = any(c.column == "table" for c in sides.results)
    wanted = spec.tables._replace(places=far)

    def axis_steps(i: int) -> AxisSteps[Value]:
        a, b = e.sizes(f"a_batch{i}", f"b_batch{i}")
        return AxisSteps(a, b, sides.named(lambda name, _: e.size(f"{name}_batch{i}")))

    def tables() -> ItemTables[Pointer]:
        named = zip(ItemTables._fields, wanted, strict=True)
        return ItemTables(*[e.pointer(dt.int32, name) if has else None for name, has in named])

    def statistics() -> ColumnStatistics[Pointer] | None:
        kind = ColumnStatistics[Pointer]
        return e.record(kind, means=spec.a, squares=spec.a) if spec.measured else None

    def shift_steps() -> Sides[Value]:
        return sides.named(lambda name, _: e.size(f"{name}_shift"))

    def shifts() -> Shifts[Pointer, Value] | None:
        kind = Shifts[Pointer, Value]
        return e.record(kind, shift_table=dt.int32, steps=shift_steps) if spec.shifts else None

    return e.record(
        ItemParameters[Pointer, Value],
        a=spec.a,
        b=spec.b,
        memory=lambda: declare_pointers(e, spec.epilogue),
        tables=tables,
        statistics=statistics,
        division=Division,
        panel_terms="panel_terms" if wanted.b_table or wanted.run_table else None,
        runs=RunSizes if wanted.run_table else None,
        steps=lambda: declare_steps(e, spec.epilogue, RowSteps[Value]),
        batch=numbered("batch", spec.batch),
        axes=lambda: tuple([axis_steps(i) for i in axes]),
        shifts=shifts,
    )


@dataclass(slots=True)
class Item:
    """One work item: its matrices, and the rows and panels of the result it computes."""

    a: Pointer
    b: Pointer
    sides: Sides[OperandPlace]
    row: Value
    rows: Value
    panel: Value
    panels: Value

    def places(self, row: Value, column: Value) -> Sides[OperandPlace]:
        """Operands and results at a row and a column."""
        results = [moved(place, row, column) for place in self.sides.results]
        extras = [moved(place, row, column) for place in self.sides.extras]
        return Sides((*extras,), (*results,))


def locate(spec: ItemSpec, p: ItemParameters[Pointer, Value], i: Value, group: Value) -> Item:
    """Item `i`, which is one of the `row_items` items of its group of panels.

    Items are (batch, group of panels, rows), the last one fastest.
    """
    d = p.division
    row = (i % d.row_items) * d.height
    batch = group // d.panel_items
    panel = (group % d.panel_items) * d.width
    last = (p.n + (spec.width - 1)) // spec.width
    offsets = _offsets(p, batch)

    def place(given: tuple[Access, Pointer, RowSteps[Value], Value | int]) -> OperandPlace:
        access, memory, steps, offset = given
        table = p.tables.places if access.column == "table" else None
        return OperandPlace(access, memory + offset, *steps, table, p.tables.positions)

    return Item(
        a=p.a + offsets.a,
        b=p.b + offsets.b,
        sides=spec.epilogue.sides.zip(p.memory, p.steps, offsets.sides).map(place),
        row=row,
        rows=minimum(d.height, p.m - row),
        panel=panel,
        panels=minimum(d.width, last - panel),
    )


def _offsets(p: ItemParameters[Pointer, Value], batch: Value) -> AxisSteps[Value | int]:
    """Elements from every pointer to its part for a position of the batch axes."""
    found: list[Value | int] = [0] * (2 + sum(map(len, p.memory)))
    for axis in reversed(range(len(p.axes))):
        position = batch % p.batch[axis] if axis else batch
        batch = batch // p.batch[axis] if axis else batch
        found = [at + position * step for at, step in zip(found, p.axes[axis].all, strict=True)]
    cut = 2 + len(p.memory.extras)
    return AxisSteps(found[0], found[1], Sides((*found[2:cut],), (*found[cut:],)))


def moved(place: OperandPlace, row: Value | int, column: Value) -> OperandPlace:
    """The place of an operand or result for a block that begins at this row and column."""
    by_row = place.access.by_row and place.rows is None
    start = row * place.row_step if by_row else 0
    table = None if place.table is None else place.table + column
    rows = None if place.rows is None else place.rows + row
    if place.access.column in ("next", "far"):
        start = start + column * place.column_step
    return replace(place, pointer=place.pointer + start, table=table, rows=rows)
