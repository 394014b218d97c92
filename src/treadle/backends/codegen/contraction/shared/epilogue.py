"""Epilogues: what is applied to the sums of a contraction before they are stored.

The sums of a few rows of one panel lie in scratch memory, still in the first cache. `finish` runs
over them, vector by vector: elementwise ops with further operands, then the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import Builder, builder_of
from treadle.backends.codegen.kernel.language import Number, Pointer, Value
from treadle.backends.codegen.kernel.records import S
from treadle.backends.codegen.scalars.code import apply, compute_dtype, convert
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.families import Elementwise

T = TypeVar("T")
R = TypeVar("R")
Column = Literal["same", "next", "far", "table"]
"""Distance of an operand's elements of neighboring columns: none, one, more, or as a table of
offsets says.
"""


class Sides(NamedTuple, Generic[T]):
    """One thing for every further operand of an epilogue, and one for every result."""

    extras: tuple[T, ...] = ()
    results: tuple[T, ...] = ()

    def map(self, function: Callable[[T], R]) -> Sides[R]:
        """The results of a function, operands first."""
        extras = tuple([function(x) for x in self.extras])
        return Sides(extras, tuple([function(c) for c in self.results]))

    def named(self, function: Callable[[str, T], R]) -> Sides[R]:
        """The same of a function that takes names, too: x0, x1, ... and c0, c1, ..."""
        extras = tuple([function(f"x{i}", x) for i, x in enumerate(self.extras)])
        return Sides(extras, tuple([function(f"c{i}", c) for i, c in enumerate(self.results)]))

    def zip(self, *others: Sides[Any]) -> Sides[Any]:
        """Tuples of what belongs together."""
        pairs = (zip(*given, strict=True) for given in zip(self, *others, strict=True))
        return Sides(*map(tuple, pairs))


@dataclass(frozen=True, slots=True)
class Access:
    """An operand of the epilogue or a result: its element type, and how it varies."""

    dtype: DType
    column: Column
    by_row: bool = True


@dataclass(frozen=True, slots=True)
class Term:
    """An argument of a step: the sums, an operand, an earlier step, or (`kind` "literal") a number.

    `text` is the number's, for 0.0 and -0.0 are equal and terms with them are not.
    """

    kind: Literal["sum", "extra", "step", "literal"]
    index: int = 0
    number: Number = 0
    text: str = ""
    dtype: DType = dt.float32


@dataclass(frozen=True, slots=True)
class EpilogueOp:
    """An elementwise op and the element type of its result."""

    op: Elementwise
    arguments: tuple[Term, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Steps over the sums, and which of their values are stored where."""

    extras: tuple[Access, ...]
    steps: tuple[EpilogueOp, ...]
    sources: tuple[Term, ...]
    results: tuple[Access, ...]

    @property
    def sides(self) -> Sides[Access]:
        """The ways in which operands and results are met."""
        return Sides(self.extras, self.results)

    @property
    def label(self) -> str:
        """Names of the first steps, for that of a kernel."""
        return "".join([f"_{step.op.name}" for step in self.steps[:3]])

    def stores_sums(self, dtype: DType) -> bool:
        """True if the sums themselves, of this type, are the one result, stored row by row."""
        return (
            not self.steps and len(self.results) == 1 and self.results[0] == Access(dtype, "next")
        )


NOTHING = Epilogue((), (), (), ())
"""That of kernels that leave no results."""


def plain(dtype: DType, column: Column = "next") -> Epilogue:
    """The sums as they are, stored as `dtype`."""
    return Epilogue((), (), (Term("sum"),), (Access(dtype, column),))


@dataclass(frozen=True, slots=True)
class OperandPlace:
    """The start of an operand or result in the kernel at hand, and its steps.

    Columns found by a table have no step: `table` points to the offset of the first one. `rows`
    points to the number of the first row, where a table says which ones they are.
    """

    access: Access
    pointer: Pointer
    row_step: Value
    column_step: Value
    table: Pointer | None = None
    rows: Pointer | None = None

    def start(self, row: Value | int) -> Value:
        """Elements from the pointer to a row."""
        if self.rows is not None:
            row = self.rows[row].cast(dt.int64)
        return row * self.row_step


class RowSteps(NamedTuple, Generic[S]):
    """Elements from row to row and from column to column."""

    row: S
    column: S


def declare_pointers(e: Builder, epilogue: Epilogue) -> Sides[Pointer]:
    """Parameters for the memory of operands and results: x0, x1, ... and c0, c1, ..."""
    return epilogue.sides.named(lambda name, access: e.pointer(access.dtype, name))


def declare_steps(e: Builder, epilogue: Epilogue, kind: type[R]) -> Sides[R]:
    """Parameters for their steps, in records of a kind: x0_row, ..., c0_row, ..."""
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return epilogue.sides.named(lambda name, _: kind(*e.sizes(*[f"{name}_{f}" for f in fields])))


@dataclass(frozen=True, slots=True)
class SumsBlock:
    """Sums in scratch: `rows` by at most the tile's width, `columns` of which count."""

    pointer: Pointer
    step: Value | int
    rows: Value
    columns: Value


def finish(
    e: Builder,
    tile: Tile,
    epilogue: Epilogue,
    block: SumsBlock,
    places: Sides[OperandPlace],
    *,
    ragged: bool = False,
) -> None:
    """Apply the epilogue to a block of sums; places point to its first element.

    `ragged` says that fewer columns than the tile has count.
    """
    lanes = tile.lanes

    def write(masks: Sequence[Value | None]) -> None:
        fixed = {
            (i, v): load_operand(place, None, v * lanes, lanes, mask)
            for i, place in enumerate(places.extras)
            if not place.access.by_row
            for v, mask in enumerate(masks)
        }
        with e.loop(block.rows) as r:
            for v, mask in enumerate(masks):
                start = r * block.step + v * lanes
                values: dict[Term, Value] = {Term("sum"): block.pointer.load(start, lanes)}
                for i, place in enumerate(places.extras):
                    known = fixed.get((i, v))
                    values[Term("extra", i)] = (
                        load_operand(place, r, v * lanes, lanes, mask) if known is None else known
                    )
                apply_steps(e, epilogue, values)
                for source, place in zip(epilogue.sources, places.results, strict=True):
                    store_result(place, r, v * lanes, values[source], mask)

    def write_part() -> None:
        counts = [block.columns - v * lanes for v in range(tile.vectors)]
        write([e.first_lanes(count, lanes) for count in counts])

    if ragged:
        write_part()
        return
    with e.when(tile.width <= block.columns):
        write([None] * tile.vectors)
    with e.otherwise():
        write_part()


def apply_steps(e: Builder, epilogue: Epilogue, values: dict[Term, Value]) -> None:
    """Every step's value, added to `values`."""
    for i, step in enumerate(epilogue.steps):
        given = [
            e.constant(t.number, compute_dtype(t.dtype)) if t.kind == "literal" else values[t]
            for t in step.arguments
        ]
        values[Term("step", i)] = apply(step.op, given, step.dtype)


def load_operand(
    place: OperandPlace,
    row: Value | int | None,
    column: Value | int,
    lanes: int,
    mask: Value | None,
) -> Value:
    """An operand's elements at `lanes` columns, in the compute type."""
    start = place.start(row) if row is not None else 0
    if place.access.column == "same":
        value = place.pointer[start]
    elif place.access.column == "next":
        value = place.pointer.load(start + column, lanes, mask)
    else:
        value = place.pointer.gather(_far(place, start, column, lanes, mask), mask)
    value = value.cast(compute_dtype(place.access.dtype))
    return value.splat(lanes) if row is None else value


def store_result(
    place: OperandPlace, row: Value | int, column: Value | int, value: Value, mask: Value | None
) -> None:
    """A result's elements at as many columns as the value has lanes."""
    wide = compute_dtype(place.access.dtype)
    made = (value if value.dtype is wide else convert(value, wide)).cast(place.access.dtype)
    start = place.start(row)
    if place.access.column == "next":
        place.pointer.store(start + column, made, mask)
    else:
        places = _far(place, start, column, made.lanes, mask)
        place.pointer.scatter(places, made, mask)


def _far(
    place: OperandPlace, start: Value | int, column: Value | int, lanes: int, mask: Value | None
) -> Value:
    """Places of elements that are not neighbors."""
    if place.table is not None:
        return place.table.load(column, lanes, mask).cast(dt.int64) + start
    first = start + column * place.column_step
    return builder_of(place.pointer).iota(dt.int64, lanes) * place.column_step + first
