"""Work items of contractions: parameters of their kernels, and where an item lies in each array."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from treadle.backends.codegen.contraction.shared.epilogue import Access, Epilogue, Place
from treadle.backends.codegen.kernel import ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value
from treadle.base import dtype as dt
from treadle.base.dtype import DType

STATISTICS = ("means", "squares")
"""Parameters for statistics of columns: see `Moments`."""


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """A kernel and the names of its parameters, in order."""

    kernel: Kernel
    names: tuple[str, ...]


@dataclass(slots=True)
class Item:
    """One work item: its matrices, and the rows and panels of the result it computes."""

    a: Value
    b: Value
    extras: list[Place]
    results: list[Place]
    row: Value
    rows: Value
    panel: Value
    panels: Value


@dataclass(slots=True)
class Items:
    """Parameters of a kernel, and its items: (batch, group of panels, rows), the last one fastest.

    Attributes:
        width: columns of a panel.
        a, b: element types of the operands.
        batch: number of batch axes.
        epilogue: names the further operands and the results.
        tables: names of the tables of offsets: see `Problem`.
        measured: whether statistics of a result are left beside it, which are of type a.
    """

    width: int
    a: DType
    b: DType
    batch: int
    epilogue: Epilogue
    tables: tuple[str, ...] = ()
    measured: bool = False
    parameters: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        accesses: list[tuple[str, DType]] = [("a", self.a), ("b", self.b)]
        accesses += [(f"x{i}", x.dtype) for i, x in enumerate(self.epilogue.extras)]
        accesses += [(f"c{i}", c.dtype) for i, c in enumerate(self.epilogue.results)]
        for name, dtype in accesses:
            self.parameters[name] = ir.pointer(dtype, name)
        tables = [*self.tables]
        tables += ["places"] if any(c.column == "table" for c in self.epilogue.results) else []
        self.parameters |= {name: ir.pointer(dt.int32, name) for name in tables}
        names = STATISTICS if self.measured else ()
        self.parameters |= {name: ir.pointer(self.a, name) for name in names}
        sizes = ["m", "n", "k", "height", "width", "block", "depth", "row_items", "panel_items"]
        sizes += ["a_row", "a_term", "b_term", "b_column"]
        sizes += ["panel_terms"] if "b_table" in self.tables else []
        sizes += ["panel_terms", "run", "run_words"] if "run_table" in self.tables else []
        sizes += [f"{name}_{axis}" for name, _ in accesses[2:] for axis in ("row", "column")]
        sizes += [f"batch{i}" for i in range(self.batch)]
        sizes += [f"{name}_batch{i}" for i in range(self.batch) for name, _ in accesses]
        for name in sizes:
            self.parameters[name] = ir.size(name)

    def __getitem__(self, name: str) -> Value:
        return self.parameters[name]

    def locate(self, e: Builder, i: Value, group: Value) -> Item:
        """Item `i`, which is one of the `row_items` items of its group of panels."""
        row = e.mul(e.rem(i, self["row_items"]), self["height"])
        batch = e.div(group, self["panel_items"])
        panel = e.mul(e.rem(group, self["panel_items"]), self["width"])
        last = e.div(e.add(self["n"], self.width - 1), self.width)
        offsets = self._batch_offsets(e, batch)

        def place(name: str, access: Access) -> Place:
            pointer = e.offset(self[name], offsets[name])
            steps = self[f"{name}_row"], self[f"{name}_column"]
            table = self["places"] if access.column == "table" else None
            rows = self["positions"] if "positions" in self.tables else None
            return Place(access, pointer, *steps, table, rows)

        return Item(
            a=e.offset(self["a"], offsets["a"]),
            b=e.offset(self["b"], offsets["b"]),
            extras=[place(f"x{j}", x) for j, x in enumerate(self.epilogue.extras)],
            results=[place(f"c{j}", c) for j, c in enumerate(self.epilogue.results)],
            row=row,
            rows=e.min(self["height"], e.sub(self["m"], row)),
            panel=panel,
            panels=e.min(self["width"], e.sub(last, panel)),
        )

    def _batch_offsets(self, e: Builder, batch: Value) -> dict[str, Value]:
        """Elements from each pointer to its part for a position of the batch axes."""
        pointers = [n for n, v in self.parameters.items() if v.type.pointer]
        names = [n for n in pointers if n not in (*self.tables, "places", *STATISTICS)]
        offsets = {name: e.index(0) for name in names}
        for axis in reversed(range(self.batch)):
            position = e.rem(batch, self[f"batch{axis}"]) if axis else batch
            batch = e.div(batch, self[f"batch{axis}"]) if axis else batch
            for name in names:
                step = e.mul(position, self[f"{name}_batch{axis}"])
                offsets[name] = e.add(offsets[name], step)
        return offsets


def moved(e: Builder, place: Place, row: Value, column: Value) -> Place:
    """The place of an operand or result for a block that begins at this row and column."""
    by_row = place.access.by_row and place.rows is None
    start = e.mul(row, place.row_step) if by_row else e.index(0)
    table = None if place.table is None else e.offset(place.table, column)
    rows = None if place.rows is None else e.offset(place.rows, row)
    if place.access.column in ("next", "far"):
        start = e.add(start, e.mul(column, place.column_step))
    return replace(place, pointer=e.offset(place.pointer, start), table=table, rows=rows)
