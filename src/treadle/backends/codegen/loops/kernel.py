"""The kernel of a loop nest: rows outside, stages inside, vectors along one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.backends.codegen.irregular.rows import vector_loop, walk
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Kernel, Value, size
from treadle.backends.codegen.loops.cells import CellWriter, Source
from treadle.backends.codegen.loops.index_map import Parameters
from treadle.backends.codegen.loops.memory import Columns, RowBuffers
from treadle.backends.codegen.loops.plan import Division, Plan, Stage
from treadle.backends.codegen.loops.reduce import finish, reducer_of
from treadle.backends.codegen.loops.squares import Square, Squares
from treadle.backends.codegen.scalars.code import compute_dtype
from treadle.backends.program import Launch, Ref
from treadle.base.dtype import DType
from treadle.base.shape import size_of
from treadle.graph.cells import Apply, Total
from treadle.graph.domains import Axis, LoopNest, Output
from treadle.graph.ir import Node

MOST_NAMES = 6
"""Ops that the name of a kernel lists."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a nest finds and leaves its data.

    Attributes:
        source: memory, element type and number of elements of inputs and tables.
        sink: memory and element type of an output.
        partial: memory of a reduction's parts, one dense result after the other.
    """

    source: Source
    sink: Callable[[Output], tuple[Ref, DType]]
    partial: Callable[[Node], Ref]


class LoopKernel:
    """Writes the kernel of one nest and says how it is launched."""

    def __init__(self, nest: LoopNest, plan: Plan, division: Division, memory: Memory) -> None:
        self.nest = nest
        self.plan = plan
        self.division = division
        self.memory = memory
        self.b = Builder()
        self.parameters = Parameters()
        self.writer = CellWriter(
            self.b, self.parameters, nest, memory.source, plan.lane_axis, plan.lanes
        )
        self.columns = Columns(self.writer, nest.collected, memory.partial)
        self.buffers = RowBuffers(self.writer, plan)
        self.squares = Squares(self.writer, plan)
        # Which part of the reductions is being computed.
        self.part: Value | int = 0
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

    def _kernel(self) -> Kernel:
        b, units, grain = self.b, size("units"), size("grain")
        lo, hi = size("lo"), size("hi")
        self.buffers.reserve()
        self.squares.reserve()
        self.writer.hoist()
        if self.nest.collected:
            b.loop(lo, hi, 1, lambda item: self._collecting(item, units, grain))
        else:
            self._units(b.mul(lo, grain), b.min(b.mul(hi, grain), units))
        parameters = (*self.parameters.values, units, grain, lo, hi)
        name = self._name()
        return Kernel(name, Function(name, parameters, b.block))

    def _name(self) -> str:
        """What profiles call the kernel: the ops it computes."""
        ops = [c.op.name for c in self.writer.cells if isinstance(c, Apply | Total)]
        ops += [c.node.op.name for c in self.nest.collected]
        names = list(dict.fromkeys(ops)) or ["move"]
        return "_".join(["loops", *names[:MOST_NAMES]])

    def _collecting(self, item: Value, units: Value, grain: Value) -> None:
        """One item of a nest that sums columns: its part starts empty and takes in its rows."""
        b = self.b
        self.columns.start(item)
        self._units(b.mul(item, grain), b.min(b.mul(b.add(item, 1), grain), units))

    def _units(self, first: Value, stop: Value) -> None:
        """All units of a range: rows, or parts of rows."""
        extents = [a.extent for a in self.plan.outer]
        division = self.division
        extents += [n for n in (division.bands, division.blocks, division.parts) if n > 1]
        sizes = [self.b.index(self.parameters.size(n)) for n in extents]
        if sizes:
            walk(self.b, first, stop, sizes, self._unit)
        else:
            self.b.loop(first, stop, 1, lambda unit: self._unit(unit))

    def _unit(self, unit: Value, *coordinates: Value) -> None:
        rest = list(coordinates[len(self.plan.outer) :])
        self.band = rest.pop(0) if self.division.bands > 1 else None
        block = rest.pop(0) if self.division.blocks > 1 else None
        if self.division.parts > 1:
            self.part = rest.pop(0)
        self._row(self.plan.outer, coordinates, block)

    def _row(self, axes: Sequence[Axis], at: Sequence[Value], block: Value | None) -> None:
        """One row, or one block of it, once its axes are bound."""
        if axes:
            with self.writer.inside(axes[0], at[0]):
                self._row(axes[1:], at[1:], block)
            return
        axis = self.plan.lane_axis
        if axis is None or axis.reduced:
            self._stages()
            return
        if self.plan.tile_axis is not None:
            self._band(self.plan.tile_axis, axis, block)
            return
        start, stop = self._part_of(
            axis, block if self.division.blocks > 1 else None, self.division.block
        )

        def vector(i: Value, mask: Value | None) -> None:
            with self.writer.inside(axis, i, mask):
                if self.plan.loops:
                    self.writer.hoist()
                self._stages()

        self._vectors(axis, start, stop, vector)

    def _part_of(
        self, axis: Axis, number: Value | int | None, length: int
    ) -> tuple[Value | int, Value | int]:
        """The range of block `number` of an axis; all of it where there are no blocks."""
        extent = self.parameters.size(axis.extent)
        if number is None:
            return 0, extent
        step = self.parameters.size(length)
        start = self.b.mul(self.b.index(number), step)
        return start, self.b.min(self.b.add(start, step), extent)

    def _band(self, tile_axis: Axis, axis: Axis, block: Value | None) -> None:
        """One band of squares, each transposed in registers."""
        b, lanes = self.b, self.plan.lanes
        first, end = self._part_of(tile_axis, self.band, self.division.band)
        start, limit = self._part_of(axis, block, self.division.block)
        last, stop = b.index(end), b.index(limit)
        fits = not tile_axis.extent % lanes and not axis.extent % lanes

        def square(i: Value, j: Value, ragged: bool) -> None:
            at = Square(i, j, last, stop, ragged)
            self.squares.write(at, tile_axis, axis, self._stages)

        def one(i: Value, j: Value) -> None:
            if fits:
                square(i, j, False)
                return
            room = b.min(b.sub(last, i), b.sub(stop, j))
            whole = b.compare("le", b.index(lanes), room)
            b.branch(whole, lambda: square(i, j, False), lambda: square(i, j, True))

        def across(j: Value) -> None:
            b.loop(first, last, lanes, lambda i: one(i, j))

        b.loop(start, stop, lanes, across)

    # -- stages ----------------------------------------------------------------------------

    def _stages(self) -> None:
        for stage in self.plan.stages:
            self.writer.stage = stage.number
            found = self._passed(stage)
            if self.division.parts > 1:
                self._leave(stage, found)
                return
            for total, value in zip(stage.totals, found, strict=True):
                count = self.parameters.size(total.count)
                self.writer.define(total, finish(self.b, total.op, value, count))
            self.writer.stage = stage.number + 1
            if stage.totals:
                self.writer.hoist()
        for output in self.plan.last:
            self._store(output)
        self.writer.stage = 0

    def _leave(self, stage: Stage, found: Sequence[Value]) -> None:
        """Write the part of each reduction for the launch that joins them."""
        for total, value in zip(stage.totals, found, strict=True):
            kept = size_of(total.node.output.type.shape)
            offset = self.b.mul(self.b.index(self.part), self.parameters.size(kept))
            memory = self.parameters.pointer(self.memory.partial(total.node), value.dtype)
            self.writer.store(memory, total.place, value, offset)

    def _passed(self, stage: Stage) -> list[Value]:
        """One pass over the reduced axes; what its reductions give, lanes combined."""
        start = [self._start(t, self.plan.lanes) for t in stage.totals]
        found = self._loops(stage, self.plan.loops, start)
        if not self.plan.rows_reduced:
            return list(found)
        return [
            reducer_of(t.op).across(self.b, v) for t, v in zip(stage.totals, found, strict=True)
        ]

    def _loops(
        self, stage: Stage, axes: Sequence[Axis], totals: Sequence[Value]
    ) -> tuple[Value, ...]:
        """The loops over the reduced axes, outermost first."""
        if not axes:
            return self._innermost(stage, totals)
        start, stop = self._reach(axes[0])

        def step(i: Value, *inner: Value) -> tuple[Value, ...]:
            with self.writer.inside(axes[0], i, needed=stage.needed):
                return self._loops(stage, axes[1:], inner)

        return self.b.loop(start, stop, 1, step, totals)

    def _innermost(self, stage: Stage, totals: Sequence[Value]) -> tuple[Value, ...]:
        axis = self.plan.lane_axis
        if axis is None or not axis.reduced:
            return self._point(stage, None, totals)

        def vector(i: Value, tail: Value | None, *inner: Value) -> tuple[Value, ...]:
            with self.writer.inside(axis, i, tail):
                return self._point(stage, tail, inner)

        start, stop = self._reach(axis)
        return self._vectors(axis, start, stop, vector, totals)

    def _vectors(
        self,
        axis: Axis,
        start: Value | int,
        stop: Value | int,
        body: Callable[..., Any],
        initial: Sequence[Value] = (),
    ) -> tuple[Value, ...]:
        """`body(index, mask, *carried)` for each vector of a range of the lane axis.

        Extents that vectors fill are common, and half the code is about the rest of others.
        """
        b, lanes = self.b, self.plan.lanes
        if axis.extent % lanes:
            return vector_loop(b, start, b.index(stop), lanes, body, initial)
        return b.loop(start, stop, lanes, lambda i, *c: body(i, None, *c), initial)

    def _reach(self, axis: Axis) -> tuple[Value | int, Value | int]:
        """The range of a reduced axis: all of it, or the part that is being reduced."""
        split = self.division.parts > 1 and axis is self.plan.split_axis
        return self._part_of(axis, self.part if split else None, self.division.length)

    def _start(self, total: Total, lanes: int) -> Value:
        return reducer_of(total.op).start(self.b, compute_dtype(total.arg.dtype), lanes)

    def _point(
        self, stage: Stage, tail: Value | None, totals: Sequence[Value]
    ) -> tuple[Value, ...]:
        """The work of one stage on one vector; `tail` masks lanes that are not reduced."""
        b, found = self.b, []
        self.buffers.recall(stage)
        # Everything is computed before anything is stored: an output may lie on an input.
        for output in stage.outputs:
            self.writer.value(output.cell)
        for total, before in zip(stage.totals, totals, strict=True):
            x = b.splat(self.writer.value(total.arg), before.lanes)
            if tail is not None:
                x = b.select(tail, x, self._start(total, before.lanes))
            found.append(reducer_of(total.op).join(b, before, x))
        for column in stage.collected:
            self.columns.add(column, tail)
        for output in stage.outputs:
            self._store(output)
        self.buffers.save(stage)
        return tuple(found)

    def _store(self, output: Output) -> None:
        ref, dtype = self.memory.sink(output)
        memory = self.parameters.pointer(ref, dtype)
        self.writer.store(memory, output.place, self.writer.value(output.cell))
