"""Stages of a loop nest: passes over the reduced axes, and what is done at each point of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from treadle.backends.codegen.irregular.rows import vector_loop
from treadle.backends.codegen.kernel.language import KernelError, Value, minimum
from treadle.backends.codegen.loops.blocks import ReductionBlocks
from treadle.backends.codegen.loops.cells import CellWriter, Source
from treadle.backends.codegen.loops.division import Division
from treadle.backends.codegen.loops.memory import Columns, RowBuffers
from treadle.backends.codegen.loops.plan import LoopSchedule, Stage
from treadle.backends.codegen.loops.reduce import Running, finish, moments, near, running, sum_of
from treadle.backends.codegen.scalars.convert import rounded
from treadle.backends.program import Ref
from treadle.base.dtype import DType
from treadle.base.estimates import estimate, is_many, is_multiple
from treadle.base.shape import product
from treadle.base.symbol import Dim
from treadle.graph.cells import Total
from treadle.graph.domains import CounterAxis, Output
from treadle.graph.ir import Node

LOOK_AHEAD = 8
"""The share of a part that is looked at before its squares are summed."""


@dataclass(frozen=True, slots=True)
class NestMemory:
    """Memory in which a nest finds and leaves its data.

    Attributes:
        source: memory, element type and number of elements of inputs and tables.
        sink: memory and element type of an output.
        partial: memory of a reduction's parts, one dense result after the other.
    """

    source: Source
    sink: Callable[[Output], tuple[Ref, DType]]
    partial: Callable[[Node], Ref]


class StageWriter:
    """Writes what is done for one row, or for one part of the reductions of a row.

    `part` is which part is being computed.
    """

    def __init__(
        self,
        writer: CellWriter,
        plan: LoopSchedule,
        division: Division,
        memory: NestMemory,
        columns: Columns,
        buffers: RowBuffers,
    ) -> None:
        self.e = writer.e
        self.parameters = writer.parameters
        self.writer = writer
        self.plan = plan
        self.division = division
        self.memory = memory
        self.columns = columns
        self.buffers = buffers
        self.blocks = ReductionBlocks(writer.e, writer.parameters)
        self.blocks.plan(plan, self._extent)
        self.part: Value | int = 0
        # Elements at the start of a part that are looked at before the rest; 0 for all.
        self._ahead = 0

    def write(self) -> None:
        """All stages of a row, or those of a part."""
        if is_many(self.division.parts):
            self._part_stage(self.plan.stages[0])
            return
        for stage in self.plan.stages:
            if self.columns.is_looking:
                stage = replace(stage, outputs=(), collected=tuple(self.columns.pairs))
            self.writer.stage = stage.number
            found = self._passed(stage, [running(t) for t in stage.totals])
            for total, value in zip(stage.totals, found, strict=True):
                count = self.parameters.size(total.count)
                whole = finish(self.e, total.op, value, count)
                self.writer.define(total, rounded(whole, total.dtype))
            self.writer.stage = stage.number + 1
            if stage.totals:
                self.writer.hoist()
        for output in self.plan.last:
            self._store(output)
        self.writer.stage = 0

    def _passed(self, stage: Stage, sums: Sequence[Running]) -> list[Value]:
        """One pass over the reduced axes; what its reductions give, lanes combined."""
        totals = [s.start(self.e, self.plan.lanes) for s in sums]
        self._loops(stage, sums, self.plan.loops, totals)
        if not self.plan.rows_reduced:
            return totals
        return [s.reducer.across(v) for s, v in zip(sums, totals, strict=True)]

    def _loops(
        self,
        stage: Stage,
        sums: Sequence[Running],
        axes: Sequence[CounterAxis],
        totals: list[Value],
    ) -> None:
        """The loops over the reduced axes, outermost first."""
        if not axes:
            self._innermost(stage, sums, totals)
            return
        start, stop = self._reach(axes[0])
        with (
            self.blocks.loop(axes[0], sums, start, stop, 1, carrying=totals) as i,
            self.writer.inside(axes[0], i, needed=stage.needed),
        ):
            self._loops(stage, sums, axes[1:], totals)

    def _innermost(self, stage: Stage, sums: Sequence[Running], totals: list[Value]) -> None:
        axis = self.plan.lane_axis
        if axis is None or not axis.reduced:
            self._point(stage, sums, None, totals)
            return
        loop = partial(self.blocks.loop, axis, sums)
        for i, tail in self.vectors(axis, *self._reach(axis), totals, loop):
            with self.writer.inside(axis, i, tail):
                self._point(stage, sums, tail, totals)

    def vectors(
        self,
        axis: CounterAxis,
        start: Value | int,
        stop: Value | int,
        carrying: list[Value] | None = None,
        loop: Callable[..., AbstractContextManager[Value]] | None = None,
    ) -> Iterator[tuple[Value, Value | None]]:
        """Blocks for the vectors of a range of the lane axis: see `vector_loop`.

        Extents that vectors fill are common, and half the code is about the rest of others.
        """
        e, lanes, loop = self.e, self.plan.lanes, loop or self.e.loop
        state = carrying if carrying is not None else []
        if not is_multiple(axis.extent, lanes):
            yield from vector_loop(e, start, e.index(stop), lanes, state, loop)
            return
        with loop(start, stop, lanes, carrying=state) as i:
            yield i, None

    def part_of(
        self, axis: CounterAxis, number: Value | int | None, length: Dim
    ) -> tuple[Value | int, Value | int]:
        """The range of block `number` of an axis; all of it where there are no blocks."""
        extent = self.parameters.size(axis.extent)
        if number is None:
            return 0, extent
        step = self.parameters.size(length)
        start = self.e.index(number) * step
        return start, minimum(start + step, extent)

    def _extent(self, axis: CounterAxis) -> Dim:
        """Elements of a reduced axis, or of a part of it."""
        is_split = is_many(self.division.parts) and axis is self.plan.split_axis
        return self.division.length if is_split else axis.extent

    def _reach(self, axis: CounterAxis) -> tuple[Value | int, Value | int]:
        """The range of a reduced axis: all of it, or the part that is being reduced."""
        if not is_many(self.division.parts) or axis is not self.plan.split_axis:
            return 0, self.parameters.size(axis.extent)
        start, stop = self.part_of(axis, self.part, self.division.length)
        if self._ahead:
            stop = minimum(start + self.parameters.size(self._ahead), stop)
        return start, stop

    def _point(
        self,
        stage: Stage,
        sums: Sequence[Running],
        tail: Value | None,
        totals: list[Value],
    ) -> None:
        """The work of one stage on one vector; `tail` masks lanes that are not reduced."""
        self.buffers.recall(stage)
        # Everything is computed before anything is stored: an output may lie on an input.
        for output in stage.outputs:
            self.writer.value(output.cell)
        for i, one in enumerate(sums):
            totals[i] = one.join(totals[i], self.writer.value(one.arg), tail)
        for column in stage.collected:
            self.columns.add(column, tail)
        for output in stage.outputs:
            self._store(output)
        self.buffers.save(stage)

    # -- parts of reductions ---------------------------------------------------------------

    def _part_stage(self, stage: Stage) -> None:
        """One part of all reductions, in one pass."""
        pairs = {m.mean: m.squares for m in self.plan.moments}
        self.writer.stage = stage.number
        self.writer.hoist(stage.needed)
        shifts = self._shifts(stage, list(pairs))
        alone = [t for t in stage.totals if t not in pairs]
        sums = [running(t) for t in alone]
        for mean, shift in shifts.items():
            sums += [sum_of(mean.arg, shift), sum_of(mean.arg, shift, squared=True)]
        found = self._passed(stage, sums)
        for total, value in zip(alone, found, strict=False):
            self._leave(total, value)
        rest = iter(found[len(alone) :])
        for (mean, shift), first, second in zip(shifts.items(), rest, rest, strict=True):
            count = self._count(mean, first)
            mean_value, about = moments(shift, first, second, count)
            self._leave(mean, mean_value)
            self._leave(pairs[mean], about)

    def _shifts(self, stage: Stage, means: Sequence[Total]) -> dict[Total, Value]:
        """Return the number to subtract before squares: the mean of the first elements of a part.

        Of n elements, k of them looked at, the squares about such a shift exceed those about the
        mean by a factor of at most 1 + n / k: that is all that cancels, whatever the data.
        """
        if not means:
            return {}
        self._ahead = self._looked_at()
        before = replace(stage, totals=tuple(means), outputs=(), collected=())
        found = self._passed(before, [running(m) for m in means])
        shifts = {}
        for mean, value in zip(means, found, strict=True):
            shifts[mean] = near(value / self._count(mean, value))
        self._ahead = 0
        return shifts

    def _looked_at(self) -> int:
        """Elements of the split axis that shifts are computed from."""
        lanes = self.plan.lanes if self.plan.split_axis is self.plan.lane_axis else 1
        return max(estimate(self.division.length) // LOOK_AHEAD // lanes, 1) * lanes

    def _count(self, total: Total, like: Value) -> Value:
        """Return how many elements of the part are reduced, in the type and lanes of a value."""
        axis = self.plan.split_axis
        if axis is None:
            raise KernelError("no axis is divided")
        start, stop = self._reach(axis)
        rows = self.parameters.size(total.count // axis.extent)
        count = (self.e.index(stop) - start) * rows
        return count.cast(like.dtype).splat(like.lanes)

    def _leave(self, total: Total, value: Value) -> None:
        """Write the part of a reduction for the launch that joins them."""
        kept = product(total.node.output.type.shape)
        offset = self.e.index(self.part) * self.parameters.size(kept)
        memory = self.parameters.pointer(self.memory.partial(total.node), value.dtype)
        self.writer.store(memory, total.place, value, offset)

    def _store(self, output: Output) -> None:
        ref, dtype = self.memory.sink(output)
        memory = self.parameters.pointer(ref, dtype)
        self.writer.store(memory, output.place, self.writer.value(output.cell))
