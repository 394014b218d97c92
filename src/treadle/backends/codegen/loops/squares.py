"""Squares of elements transposed in registers: loads that are contiguous along another axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treadle.backends.codegen.kernel.language import Pointer, Value, minimum, select, shuffle
from treadle.backends.codegen.loops.cells import CellWriter
from treadle.backends.codegen.loops.plan import LoopSchedule
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.graph.cells import Load
from treadle.graph.domains import CounterAxis

MOST_CODE = 600.0
"""Weight of the work on a square, up to which it is written row by row, without a loop."""


@dataclass(frozen=True, slots=True)
class Square:
    """The square whose first element is (i, j); its axes end at `last` and `stop`.

    A ragged one may reach past the end of either.
    """

    i: Value
    j: Value
    last: Value
    stop: Value
    ragged: bool


class Squares:
    """Writes the work on squares of a nest, `lanes` by `lanes` elements each.

    Args:
        writer: writes the cells.
        plan: says which loads are turned, and how.
    """

    def __init__(self, writer: CellWriter, plan: LoopSchedule) -> None:
        self.writer = writer
        self.plan = plan
        self._scratch: dict[Load, Pointer] = {}

    def reserve(self) -> None:
        """Take memory for squares from the stack, at the top of the kernel, if they go there."""
        lanes = self.plan.lanes
        if self.plan.weight * lanes <= MOST_CODE:
            return
        for cell in self.plan.turned:
            dtype = compute_dtype(cell.dtype)
            self._scratch[cell] = self.writer.e.stack(dtype, lanes * lanes)

    def write(
        self,
        square: Square,
        tile_axis: CounterAxis,
        lane_axis: CounterAxis,
        point: Callable[[], None],
    ) -> None:
        """One square; `point` does the work on one of its rows, a vector."""
        lanes = self.plan.lanes
        turned = {
            cell: transposed(self._rows(cell, square, tile_axis, lane_axis))
            for cell in self.plan.turned
        }

        def row(k: Value | int, vectors: dict[Load, Value]) -> None:
            at, mask = self._row(square, k)
            with self.writer.inside(tile_axis, at), self.writer.inside(lane_axis, square.j, mask):
                for cell, value in vectors.items():
                    self.writer.define(cell, value)
                point()

        if not self._scratch:
            for k in range(lanes):
                row(k, {cell: vectors[k] for cell, vectors in turned.items()})
            return
        for cell, vectors in turned.items():
            for k, value in enumerate(vectors):
                self._scratch[cell].store(k * lanes, value, aligned=True)
        with self.writer.e.loop(lanes) as line:
            place = line * lanes
            found = {c: m.load(place, lanes, aligned=True) for c, m in self._scratch.items()}
            row(line, found)

    def _row(self, square: Square, k: Value | int) -> tuple[Value, Value | None]:
        """Return the place of row k of a square, and the mask of its lanes that exist."""
        at = square.i + k
        if not square.ragged:
            return at, None
        inside = at < square.last
        room = select(inside, square.stop - square.j, 0)
        # What is stored is masked; what is loaded has to exist.
        return minimum(at, square.last - 1), self.writer.e.first_lanes(room, self.plan.lanes)

    def _rows(
        self, cell: Load, square: Square, tile_axis: CounterAxis, lane_axis: CounterAxis
    ) -> list[Value]:
        """The square as it lies in memory: vectors along the tile axis."""
        lanes, writer = self.plan.lanes, self.writer
        ref, dtype, _ = writer.source(cell.source)
        memory = writer.parameters.pointer(ref, dtype)
        with writer.binding(tile_axis, square.i, ()), writer.binding(lane_axis, square.j, ()):
            place = writer.place(cell.place)
        stride = writer.parameters.size(place.step or 0)
        at, rows = place.base, []
        for k in range(lanes):
            mask = None
            if square.ragged:
                inside = square.j + k < square.stop
                mask = writer.e.first_lanes(select(inside, square.last - square.i, 0), lanes)
            rows.append(load_value(memory, at, lanes, mask))
            at = at + stride
        return rows


def transposed(rows: Sequence[Value]) -> list[Value]:
    """A square of vectors, transposed by exchanging blocks of 1, 2, 4, ... elements."""
    side, found = len(rows), list(rows)
    step = 1
    while step < side:
        low = [n if not n & step else side + n - step for n in range(side)]
        high = [n + step if not n & step else side + n for n in range(side)]
        for k in range(side):
            if not k & step:
                x, y = found[k], found[k + step]
                found[k], found[k + step] = shuffle(x, y, low), shuffle(x, y, high)
        step *= 2
    return found
