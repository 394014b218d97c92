"""Memory that a nest keeps for itself: rows between stages, and parts of column reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from treadle.backends.codegen.irregular.rows import vector_loop
from treadle.backends.codegen.kernel.language import KernelError, Pointer, Value, fma
from treadle.backends.codegen.loops.cells import CellWriter
from treadle.backends.codegen.loops.plan import MOST_LANES, LoopSchedule, Stage
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

    def __init__(self, writer: CellWriter, plan: LoopSchedule) -> None:
        self.writer = writer
        self.plan = plan
        self._buffers: dict[Cell, Pointer] = {}
        self._first = {
            cell: next(s.number for s in plan.stages if cell in s.needed) for cell in plan.saved
        }

    def reserve(self) -> None:
        """Take memory from the stack, at the top of the kernel."""
        row = at_most(self.plan.row) or int(self.plan.row)
        count = next((n for n in SIZES if n >= row), SIZES[-1])
        for cell in self.plan.saved:
            dtype = compute_dtype(cell.dtype)
            self._buffers[cell] = self.writer.e.stack(dtype, count + SLACK)

    def recall(self, stage: Stage) -> None:
        """Read back what earlier stages kept of the current vector."""
        for cell, memory in self._buffers.items():
            if cell in stage.needed and self._first[cell] < stage.number:
                # Behind a row there is slack, so that its last vector may be read as a whole.
                value = memory.load(self._place(), self.plan.lanes)
                self.writer.define(cell, value)

    def save(self, stage: Stage) -> None:
        """Keep what later stages read of the current vector."""
        for cell, memory in self._buffers.items():
            if self._first[cell] == stage.number:
                value = self.writer.value(cell).splat(self.plan.lanes)
                memory[self._place()] = value

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
        self._shifts: dict[Collected, Pointer] = {}
        self._item: Value | None = None

    def reserve(self) -> None:
        """Take memory from the stack, at the top of the kernel."""
        for mean in self.pairs:
            kept = product(mean.node.output.type.shape)
            most = at_most(kept) or SIZES[-1]
            count = next((n for n in SIZES if n >= most), SIZES[-1])
            dtype = compute_dtype(mean.cell.dtype)
            self._shifts[mean] = self.writer.e.stack(dtype, count + SLACK)

    def start(self, item: Value) -> None:
        """Begin the part of an item: as yet no row has been joined."""
        self._item = item
        for column in self.collected:
            self._clear(column)

    def _clear(self, column: Collected) -> None:
        e, lanes = self.writer.e, self.writer.lanes
        nothing = reducer_of(_op(column)).start(e, compute_dtype(column.cell.dtype), lanes)
        memory, offset = self._memory(column)
        for i, mask in self._along(column):
            memory.store(offset + i, nothing, mask)

    def _along(self, column: Collected) -> Iterator[tuple[Value, Value | None]]:
        """Blocks for every vector of a result."""
        e = self.writer.e
        return vector_loop(e, 0, e.index(self._kept(column)), self.writer.lanes)

    def shift(self, rows: Value) -> None:
        """Make shifts of what has been summed, which is `rows` rows, and begin anew."""
        lanes = self.writer.lanes
        for mean, shifts in self._shifts.items():
            memory, offset = self._memory(mean)
            for i, mask in self._along(mean):
                total = memory.load(offset + i, lanes, mask)
                found = near(total / rows.cast(total.dtype).splat(lanes))
                shifts.store(i, found, mask)
            self._clear(mean)

    def add(self, column: Collected, tail: Value | None) -> None:
        """Join the current vector of a row; `tail` masks the lanes that exist."""
        lanes = self.writer.lanes
        if column.about is not None:
            return  # It is joined with the mean.
        x = self.writer.value(column.cell).splat(lanes)
        if column in self.pairs and not self.is_looking:
            place = self.writer.place(column.place).base
            x = x - self._shifts[column].load(place, lanes, tail)
            square = self.pairs[column]
            memory, at = self._at(square)
            memory.store(at, fma(x, x, memory.load(at, lanes, tail)), tail)
        memory, at = self._at(column)
        before = memory.load(at, lanes, tail)
        memory.store(at, reducer_of(_op(column)).join(before, x), tail)

    def finish(self, rows: Value) -> None:
        """Turn the sums of differences into means and squares about them."""
        lanes = self.writer.lanes
        for mean, squares in self.pairs.items():
            sums, first = self._memory(mean)
            second, other = self._memory(squares)
            shifts = self._shifts[mean]
            for i, mask in self._along(mean):
                at, to = first + i, other + i
                shift = shifts.load(i, lanes, mask)
                total = sums.load(at, lanes, mask)
                square = second.load(to, lanes, mask)
                count = rows.cast(total.dtype).splat(lanes)
                value, about = moments(shift, total, square, count)
                sums.store(at, value, mask)
                second.store(to, about, mask)

    def _at(self, column: Collected) -> tuple[Pointer, Value]:
        """The memory of a part, and where the current vector is in it."""
        memory, offset = self._memory(column)
        return memory, self.writer.place(column.place).base + offset

    def _memory(self, column: Collected) -> tuple[Pointer, Value]:
        """Return the memory of the parts, and the offset of the current item's."""
        if self._item is None:
            raise KernelError("columns are summed outside of an item")
        dtype = compute_dtype(column.cell.dtype)
        memory = self.writer.parameters.pointer(self.partial(column.node), dtype)
        return memory, self._item * self._kept(column)

    def _kept(self, column: Collected) -> Value | int:
        return self.writer.parameters.size(product(column.node.output.type.shape))


def _op(column: Collected) -> Reduce:
    if not isinstance(column.node.op, Reduce):
        raise KernelError(f"{column.node.op.name} is not a reduction")
    return column.node.op
