"""Epilogues: what is applied to the sums of a contraction before they are stored.

The sums of a few rows of one panel lie in scratch memory, still in the first cache. `finish` runs
over them, vector by vector: elementwise ops with further operands, then the stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Number, Value
from treadle.backends.codegen.scalars.code import apply, compute_dtype, convert
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.families import Elementwise

Column = Literal["same", "next", "far", "table"]
"""How far apart an operand's elements of neighboring columns are: not at all, by one, by more, or
as a table of offsets says."""


@dataclass(frozen=True, slots=True)
class Access:
    """An operand of the epilogue or a result: its element type, and how it varies."""

    dtype: DType
    column: Column
    by_row: bool = True


@dataclass(frozen=True, slots=True)
class Term:
    """What a step takes: the sums, an operand, an earlier step, or (`kind` "literal") a number.

    `text` is the number's, for 0.0 and -0.0 are equal and terms with them are not.
    """

    kind: Literal["sum", "extra", "step", "literal"]
    index: int = 0
    number: Number = 0
    text: str = ""
    dtype: DType = dt.float32


@dataclass(frozen=True, slots=True)
class Step:
    """An elementwise op and the element type of its result."""

    op: Elementwise
    arguments: tuple[Term, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Steps over the sums, and which of their values are stored where."""

    extras: tuple[Access, ...]
    steps: tuple[Step, ...]
    sources: tuple[Term, ...]
    results: tuple[Access, ...]

    def stores_sums(self, dtype: DType) -> bool:
        """Whether the sums themselves, of this type, are the one result, stored row by row."""
        return (
            not self.steps and len(self.results) == 1 and self.results[0] == Access(dtype, "next")
        )


def plain(dtype: DType, column: Column = "next") -> Epilogue:
    """The sums as they are, stored as `dtype`."""
    return Epilogue((), (), (Term("sum"),), (Access(dtype, column),))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand or result begins in the kernel at hand, and its steps.

    Columns found by a table have no step: `table` points to the offset of the first one. `rows`
    points to the number of the first row, where a table says which ones they are.
    """

    access: Access
    pointer: Value
    row_step: Value
    column_step: Value
    table: Value | None = None
    rows: Value | None = None

    def start(self, e: Builder, row: Value) -> Value:
        """Elements from the pointer to a row."""
        if self.rows is not None:
            row = e.cast(e.load(self.rows, row), dt.int64)
        return e.mul(row, self.row_step)


@dataclass(frozen=True, slots=True)
class Block:
    """Sums in scratch: `rows` by at most the tile's width, `columns` of which count."""

    pointer: Value
    step: Value | int
    rows: Value
    columns: Value


def finish(
    e: Builder,
    tile: Tile,
    epilogue: Epilogue,
    block: Block,
    extras: Sequence[Place],
    results: Sequence[Place],
    *,
    ragged: bool = False,
) -> None:
    """Apply the epilogue to a block of sums; places point to its first element.

    `ragged` says that fewer columns than the tile has count.
    """
    lanes = tile.lanes

    def write(masks: Sequence[Value | None]) -> None:
        fixed = {
            (i, v): load_operand(e, place, None, e.index(v * lanes), lanes, mask)
            for i, place in enumerate(extras)
            if not place.access.by_row
            for v, mask in enumerate(masks)
        }

        def row(r: Value) -> None:
            for v, mask in enumerate(masks):
                start = e.add(e.mul(r, block.step), v * lanes)
                values: dict[Term, Value] = {Term("sum"): e.load(block.pointer, start, lanes)}
                for i, place in enumerate(extras):
                    known = fixed.get((i, v))
                    values[Term("extra", i)] = (
                        load_operand(e, place, r, e.index(v * lanes), lanes, mask)
                        if known is None
                        else known
                    )
                apply_steps(e, epilogue, values)
                for source, place in zip(epilogue.sources, results, strict=True):
                    store_result(e, place, r, e.index(v * lanes), values[source], mask)

        e.loop(0, block.rows, 1, row)

    def write_part() -> None:
        counts = [e.sub(block.columns, v * lanes) for v in range(tile.vectors)]
        write([e.first_lanes(count, lanes) for count in counts])

    if ragged:
        write_part()
    else:
        full = e.compare("le", tile.width, block.columns)
        e.branch(full, lambda: write([None] * tile.vectors), write_part)


def apply_steps(e: Builder, epilogue: Epilogue, values: dict[Term, Value]) -> None:
    """Every step's value, added to `values`."""
    for i, step in enumerate(epilogue.steps):
        given = [
            e.constant(t.number, compute_dtype(t.dtype)) if t.kind == "literal" else values[t]
            for t in step.arguments
        ]
        values[Term("step", i)] = apply(step.op, given, step.dtype)


def load_operand(
    e: Builder,
    place: Place,
    row: Value | None,
    column: Value,
    lanes: int,
    mask: Value | None,
) -> Value:
    """An operand's elements at `lanes` columns, in the compute type."""
    start = place.start(e, row) if row is not None else e.index(0)
    if place.access.column == "same":
        value = e.load(place.pointer, start)
    elif place.access.column == "next":
        value = e.load(place.pointer, e.add(start, column), lanes, mask)
    else:
        value = e.gather(place.pointer, _far(e, place, start, column, lanes, mask), mask)
    value = e.cast(value, compute_dtype(place.access.dtype))
    return e.splat(value, lanes) if row is None else value


def store_result(
    e: Builder, place: Place, row: Value, column: Value, value: Value, mask: Value | None
) -> None:
    """A result's elements at as many columns as the value has lanes."""
    wide = compute_dtype(place.access.dtype)
    made = e.cast(value if value.dtype is wide else convert(value, wide), place.access.dtype)
    start = place.start(e, row)
    if place.access.column == "next":
        e.store(place.pointer, e.add(start, column), made, mask)
    else:
        places = _far(e, place, start, column, made.lanes, mask)
        e.scatter(place.pointer, places, made, mask)


def _far(
    e: Builder, place: Place, start: Value, column: Value, lanes: int, mask: Value | None
) -> Value:
    """Places of elements that are not neighbors."""
    if place.table is not None:
        return e.add(e.cast(e.load(place.table, column, lanes, mask), dt.int64), start)
    first = e.add(start, e.mul(column, place.column_step))
    return e.add(e.mul(e.iota(dt.int64, lanes), place.column_step), first)
