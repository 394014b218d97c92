"""The kernel of a loop nest: rows outside, stages inside, vectors along one axis."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.backends.codegen.irregular.rows import walk
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.language import Value, minimum, size
from treadle.backends.codegen.loops.cells import CellWriter
from treadle.backends.codegen.loops.division import Division
from treadle.backends.codegen.loops.index_map import Parameters
from treadle.backends.codegen.loops.memory import Columns, RowBuffers
from treadle.backends.codegen.loops.plan import LoopSchedule
from treadle.backends.codegen.loops.squares import Square, Squares
from treadle.backends.codegen.loops.stages import LOOK_AHEAD, NestMemory, StageWriter
from treadle.backends.program import Launch
from treadle.base.estimates import estimate, is_many, is_multiple
from treadle.graph.cells import AppliedOp, Total
from treadle.graph.domains import CounterAxis, LoopNest

MOST_NAMES = 6
"""Ops that the name of a kernel lists."""
MOST_AHEAD = 32
"""Rows of a part that are looked at before the others, at most."""


class LoopKernel:
    """Writes the kernel of one nest and says how it is launched."""

    def __init__(
        self, nest: LoopNest, plan: LoopSchedule, division: Division, memory: NestMemory
    ) -> None:
        self.nest = nest
        self.plan = plan
        self.division = division
        self.e = KernelBuilder()
        self.parameters = Parameters(self.e)
        self.writer = CellWriter(
            self.e, self.parameters, nest, memory.source, plan.lane_axis, plan.lanes
        )
        self.columns = Columns(self.writer, nest.collected, memory.partial)
        self.buffers = RowBuffers(self.writer, plan)
        self.squares = Squares(self.writer, plan)
        self.stages = StageWriter(self.writer, plan, division, memory, self.columns, self.buffers)
        self.band: Value | None = None

    def launch(self) -> Launch:
        """The kernel, its arguments, and how its work is divided."""
        division = self.division
        kernel = self._kernel()
        return Launch(
            kernel,
            (*self.parameters.arguments, division.units, division.grain),
            items=division.items,
            serial=division.serial,
            flops=self.plan.flops,
            nbytes=self.plan.nbytes,
        )

    def _kernel(self) -> KernelModule:
        e = self.e
        units, grain = e.adopt(size("units")), e.adopt(size("grain"))
        self.buffers.reserve()
        self.squares.reserve()
        self.columns.reserve()
        self.writer.hoist()
        if self.nest.collected:
            with e.items() as item:
                self._collecting(item, units, grain)
        else:
            self._units(e.lo * grain, minimum(e.hi * grain, units))
        e.parameters = [*self.parameters.values, units, grain]
        return e.kernel(self._name())

    def _name(self) -> str:
        """Return the kernel's name in profiles: the ops it computes."""
        ops = [c.op.name for c in self.writer.cells if isinstance(c, AppliedOp | Total)]
        ops += [c.node.op.name for c in self.nest.collected]
        names = list(dict.fromkeys(ops)) or ["move"]
        return "_".join(["loops", *names[:MOST_NAMES]])

    def _collecting(self, item: Value, units: Value, grain: Value) -> None:
        """One item of a nest that sums columns: its part starts empty and takes in its rows."""
        columns = self.columns
        columns.start(item)
        first, stop = item * grain, minimum((item + 1) * grain, units)
        if columns.pairs:
            share = min(max(estimate(self.division.grain) // LOOK_AHEAD, 1), MOST_AHEAD)
            ahead = minimum(first + self.parameters.size(share), stop)
            columns.is_looking = True
            self._units(first, ahead)
            columns.is_looking = False
            columns.shift(ahead - first)
        self._units(first, stop)
        columns.finish(stop - first)

    def _units(self, first: Value, stop: Value) -> None:
        """All units of a range: rows, or parts of rows."""
        extents = [a.extent for a in self.plan.outer]
        division = self.division
        extents += [n for n in (division.bands, division.parts, division.blocks) if is_many(n)]
        sizes = [self.e.index(self.parameters.size(n)) for n in extents]
        with walk(self.e, first, stop, sizes) as (_, *coordinates):
            self._unit(coordinates)

    def _unit(self, coordinates: Sequence[Value]) -> None:
        rest = list(coordinates[len(self.plan.outer) :])
        self.band = rest.pop(0) if is_many(self.division.bands) else None
        if is_many(self.division.parts):
            self.stages.part = rest.pop(0)
        block = rest.pop(0) if is_many(self.division.blocks) else None
        self._row(self.plan.outer, coordinates, block)

    def _row(self, axes: Sequence[CounterAxis], at: Sequence[Value], block: Value | None) -> None:
        """One row, or one block of it, once its axes are bound."""
        if axes:
            with self.writer.inside(axes[0], at[0]):
                self._row(axes[1:], at[1:], block)
            return
        axis = self.plan.lane_axis
        if axis is None or axis.reduced:
            self.stages.write()
            return
        if self.plan.tile_axis is not None:
            self._band(self.plan.tile_axis, axis, block)
            return
        start, stop = self.stages.part_of(
            axis, block if is_many(self.division.blocks) else None, self.division.block
        )
        for i, mask in self.stages.vectors(axis, start, stop):
            with self.writer.inside(axis, i, mask):
                if self.plan.loops:
                    self.writer.hoist()
                self.stages.write()

    def _band(self, tile_axis: CounterAxis, axis: CounterAxis, block: Value | None) -> None:
        """One band of squares, each transposed in registers."""
        e, lanes = self.e, self.plan.lanes
        first, end = self.stages.part_of(tile_axis, self.band, self.division.band)
        start, limit = self.stages.part_of(axis, block, self.division.block)
        last, stop = e.index(end), e.index(limit)
        fits = is_multiple(tile_axis.extent, lanes) and is_multiple(axis.extent, lanes)

        def square(i: Value, j: Value, ragged: bool) -> None:
            at = Square(i, j, last, stop, ragged)
            self.squares.write(at, tile_axis, axis, self.stages.write)

        with e.loop(start, stop, lanes) as j, e.loop(first, last, lanes) as i:
            if fits:
                square(i, j, False)
            else:
                room = minimum(last - i, stop - j)
                with e.when(lanes <= room):
                    square(i, j, False)
                with e.otherwise():
                    square(i, j, True)
