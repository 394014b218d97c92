"""Squares of elements transposed in registers: loads that are contiguous along another axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.backends.codegen.kernel_ir import Builder, Value
from treadle.backends.codegen.loop_cells import CellWriter
from treadle.backends.codegen.loop_plan import Plan
from treadle.backends.codegen.scalar_code import load_value
from treadle.graph.cells import Load
from treadle.graph.domains import Axis


class Squares:
    """Writes the work on squares of a nest, `lanes` by `lanes` elements each.

    Args:
        writer: writes the cells.
        plan: says which loads are turned, and how.
        tile_axis: the axis along which they are contiguous.
        last, stop: where the square's axes end.
    """

    def __init__(
        self, writer: CellWriter, plan: Plan, tile_axis: Axis, last: Value, stop: Value
    ) -> None:
        self.writer = writer
        self.plan = plan
        self.tile_axis = tile_axis
        self.last = last
        self.stop = stop

    def write(self, i: Value, j: Value, ragged: bool, point: Callable[[], None]) -> None:
        """The square at (i, j); `point` does the work on one of its rows, a vector.

        A ragged one may reach past the end of either axis.
        """
        b, axis = self.writer.b, self.plan.lane_axis
        if axis is None:
            return
        columns = {c: transposed(b, self._rows(c, axis, i, j, ragged)) for c in self.plan.turned}
        for k in range(self.plan.lanes):
            row, mask = b.add(i, k), None
            if ragged:
                inside = b.compare("lt", row, self.last)
                room = b.select(inside, b.sub(self.stop, j), 0)
                mask = b.first_lanes(room, self.plan.lanes)
                # What is stored is masked; what is loaded has to exist.
                row = b.min(row, b.sub(self.last, 1))
            with self.writer.inside(self.tile_axis, row), self.writer.inside(axis, j, mask):
                for cell, vectors in columns.items():
                    self.writer.define(cell, vectors[k])
                point()

    def _rows(self, cell: Load, axis: Axis, i: Value, j: Value, ragged: bool) -> list[Value]:
        """The square as it lies in memory: vectors along the tile axis."""
        b, lanes, writer = self.writer.b, self.plan.lanes, self.writer
        ref, dtype, _ = writer.source(cell.source)
        memory = writer.parameters.pointer(ref, dtype)
        with writer.binding(self.tile_axis, i, ()), writer.binding(axis, j, ()):
            place = writer.place(cell.place)
        stride = writer.parameters.size(place.step or 0)
        at, rows = place.base, []
        for k in range(lanes):
            mask = None
            if ragged:
                inside = b.compare("lt", b.add(j, k), self.stop)
                mask = b.first_lanes(b.select(inside, b.sub(self.last, i), 0), lanes)
            rows.append(load_value(b, memory, at, lanes, mask))
            at = b.add(at, stride)
        return rows


def transposed(b: Builder, rows: Sequence[Value]) -> list[Value]:
    """A square of vectors, transposed by exchanging blocks of 1, 2, 4, ... elements."""
    side, found = len(rows), list(rows)
    step = 1
    while step < side:
        low = [n if not n & step else side + n - step for n in range(side)]
        high = [n + step if not n & step else side + n for n in range(side)]
        for k in range(side):
            if not k & step:
                x, y = found[k], found[k + step]
                found[k], found[k + step] = b.shuffle(x, y, low), b.shuffle(x, y, high)
        step *= 2
    return found
