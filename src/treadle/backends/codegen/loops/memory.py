"""Memory that a nest keeps for itself: rows between stages, and parts of column reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.backends.codegen.irregular.rows import vector_loop
from treadle.backends.codegen.kernel.ir import KernelError, Value
from treadle.backends.codegen.loops.cells import CellWriter
from treadle.backends.codegen.loops.plan import MOST_LANES, Plan, Stage
from treadle.backends.codegen.loops.reduce import moments, near, reducer_of
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.backends.program import Ref
from treadle.base.estimates import at_most
from treadle.base.shape import product
from treadle.graph.cells import Cell
from treadle.graph.domains import Collected
from treadle.graph.ir import Node
from treadle.graph.positions import Atom, Position
from treadle.ops.families import Reduce

SIZES = (1024, 4096, 16384)
"""Elements of row buffers: few different ones, so that few kernels differ by them."""
SLACK = MOST_LANES
"""Elements that a last, incomplete vector may write past the end of a row buffer."""


class RowBuffers:
    """Elements of a row that one stage computes and later ones read."""

    def __init__(self, writer: CellWriter, plan: Plan) -> None:
        self.writer = writer
        self.plan = plan
        self._buffers: dict[Cell, Value] = {}
        self._first = {
            cell: next(s.number for s in plan.stages if cell in s.needed) for cell in plan.saved
        }

    def reserve(self) -> None:
        """Take memory from the stack, at the top of the kernel."""
        row = at_most(self.plan.row) or int(self.plan.row)
        count = next((n for n in SIZES if n >= row), SIZES[-1])
        for cell in self.plan.saved:
            dtype = compute_dtype(cell.dtype)
            self._buffers[cell] = self.writer.b.stack(dtype, count + SLACK)

    def recall(self, stage: Stage) -> None:
        """Read back what earlier stages kept of the current vector."""
        for cell, memory in self._buffers.items():
            if cell in stage.needed and self._first[cell] < stage.number:
                # Behind a row there is slack, so that its last vector may be read as a whole.
                value = self.writer.b.load(memory, self._place(), self.plan.lanes)
                self.writer.define(cell, value)

    def save(self, stage: Stage) -> None:
        """Keep what later stages read of the current vector."""
        b = self.writer.b
        for cell, memory in self._buffers.items():
            if self._first[cell] == stage.number:
                value = b.splat(self.writer.value(cell), self.plan.lanes)
                b.store(memory, self._place(), value)

    def _place(self) -> Value:
        """The place of the current vector within its row."""
        axes = [*self.plan.loops, self.plan.lane_axis]
        terms, stride = [], 1
        for axis in reversed([a for a in axes if a is not None]):
            terms.append((Atom("counter", axis.number, axis.extent, axis.varies), stride))
            stride *= axis.extent
        return self.writer.place(Position(0, tuple(terms))).base


class Columns:
    """Reductions over rows: every item joins its own rows in memory, element by element.

    Where squares about a mean are among them, the first rows are looked at before the others, for
    a shift near the mean; differences from it and their squares are summed.
    """

    def __init__(
        self,
        writer: CellWriter,
        collected: Sequence[Collected],
        partial: Callable[[Node], Ref],
    ) -> None:
        self.writer = writer
        self.collected = collected
        self.partial = partial
        self.is_looking = False
        means = {c.node: c for c in collected if c.about is None}
        self.pairs = {means[c.about]: c for c in collected if c.about is not None}
        self._shifts: dict[Collected, Value] = {}
        self._item: Value | None = None

    def reserve(self) -> None:
        """Take memory from the stack, at the top of the kernel."""
        for mean in self.pairs:
            kept = product(mean.node.output.type.shape)
            most = at_most(kept) or SIZES[-1]
            count = next((n for n in SIZES if n >= most), SIZES[-1])
            dtype = compute_dtype(mean.cell.dtype)
            self._shifts[mean] = self.writer.b.stack(dtype, count + SLACK)

    def start(self, item: Value) -> None:
        """Begin the part of an item: as yet no row has been joined."""
        self._item = item
        for column in self.collected:
            self._clear(column)

    def _clear(self, column: Collected) -> None:
        b, lanes = self.writer.b, self.writer.lanes
        nothing = reducer_of(_op(column)).start(b, compute_dtype(column.cell.dtype), lanes)
        memory, offset = self._memory(column)

        def clear(i: Value, mask: Value | None) -> None:
            b.store(memory, b.add(offset, i), nothing, mask)

        self._along(column, clear)

    def _along(self, column: Collected, body: Callable[[Value, Value | None], None]) -> None:
        """`body(index, mask)` for every vector of a result."""
        b, lanes = self.writer.b, self.writer.lanes
        vector_loop(b, 0, b.index(self._kept(column)), lanes, body)

    def shift(self, rows: Value) -> None:
        """Make shifts of what has been summed, which is `rows` rows, and begin anew."""
        b, lanes = self.writer.b, self.writer.lanes
        for mean, shifts in self._shifts.items():
            memory, offset = self._memory(mean)

            def divide(
                i: Value,
                mask: Value | None,
                memory: Value = memory,
                offset: Value = offset,
                shifts: Value = shifts,
            ) -> None:
                total = b.load(memory, b.add(offset, i), lanes, mask)
                found = near(b, b.div(total, b.splat(b.cast(rows, total.dtype), lanes)))
                b.store(shifts, i, found, mask)

            self._along(mean, divide)
            self._clear(mean)

    def add(self, column: Collected, tail: Value | None) -> None:
        """Join the current vector of a row; `tail` masks the lanes that exist."""
        b, lanes = self.writer.b, self.writer.lanes
        if column.about is not None:
            return  # It is joined with the mean.
        x = b.splat(self.writer.value(column.cell), lanes)
        if column in self.pairs and not self.is_looking:
            place = self.writer.place(column.place).base
            x = b.sub(x, b.load(self._shifts[column], place, lanes, tail))
            square = self.pairs[column]
            memory, at = self._at(square)
            b.store(memory, at, b.fma(x, x, b.load(memory, at, lanes, tail)), tail)
        memory, at = self._at(column)
        before = b.load(memory, at, lanes, tail)
        b.store(memory, at, reducer_of(_op(column)).join(b, before, x), tail)

    def finish(self, rows: Value) -> None:
        """Turn the sums of differences into means and squares about them."""
        b, lanes = self.writer.b, self.writer.lanes
        for mean, squares in self.pairs.items():
            sums, first = self._memory(mean)
            second, other = self._memory(squares)
            shifts = self._shifts[mean]

            def settle(
                i: Value,
                mask: Value | None,
                sums: Value = sums,
                first: Value = first,
                second: Value = second,
                other: Value = other,
                shifts: Value = shifts,
            ) -> None:
                at, to = b.add(first, i), b.add(other, i)
                shift = b.load(shifts, i, lanes, mask)
                total = b.load(sums, at, lanes, mask)
                square = b.load(second, to, lanes, mask)
                count = b.splat(b.cast(rows, total.dtype), lanes)
                value, about = moments(b, shift, total, square, count)
                b.store(sums, at, value, mask)
                b.store(second, to, about, mask)

            self._along(mean, settle)

    def _at(self, column: Collected) -> tuple[Value, Value]:
        """The memory of a part, and where the current vector is in it."""
        memory, offset = self._memory(column)
        return memory, self.writer.b.add(self.writer.place(column.place).base, offset)

    def _memory(self, column: Collected) -> tuple[Value, Value]:
        """Where the parts are, and the offset of the current item's."""
        if self._item is None:
            raise KernelError("columns are summed outside of an item")
        dtype = compute_dtype(column.cell.dtype)
        memory = self.writer.parameters.pointer(self.partial(column.node), dtype)
        return memory, self.writer.b.mul(self._item, self._kept(column))

    def _kept(self, column: Collected) -> Value | int:
        return self.writer.parameters.size(product(column.node.output.type.shape))


def _op(column: Collected) -> Reduce:
    if not isinstance(column.node.op, Reduce):
        raise KernelError(f"{column.node.op.name} is no reduction")
    return column.node.op
