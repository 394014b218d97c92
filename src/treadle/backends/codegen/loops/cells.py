"""Cells of a loop nest as instructions: loads, scalar code, guards."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from treadle.backends.codegen.irregular.rows import resolve
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import (
    KernelError,
    Pointer,
    Value,
    maximum,
    minimum,
    select,
    shuffle,
)
from treadle.backends.codegen.loops.index_map import IndexWriter, LanePosition, Parameters
from treadle.backends.codegen.loops.quotients import Inverse, inverse_of, of_sums
from treadle.backends.codegen.scalars.code import apply, compute_dtype, load_value, store_value
from treadle.backends.codegen.scalars.convert import convert
from treadle.backends.program import Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.symbol import Dim
from treadle.graph.cells import AppliedOp, Cell, Guard, GuardedCell, Literal, Load, Sequence, Total
from treadle.graph.domains import CounterAxis, LoopNest
from treadle.graph.positions import Atom, Position
from treadle.ops.elementwise import Div

T = TypeVar("T")
Source = Callable[[int], tuple[Ref, DType, Dim]]
"""Number of an input or table -> its memory, element type and number of elements."""


class CellWriter(IndexWriter):
    """Writes the cells of a nest where they are needed, each once per scope.

    Cells that do not depend on inner axes are written before the inner loops, by `hoist`.
    `mask` leaves out lanes that are past the end; `stage` is the number of reductions in a row
    that are complete.
    """

    def __init__(
        self,
        e: Builder,
        parameters: Parameters,
        nest: LoopNest,
        source: Source,
        lane_axis: CounterAxis | None,
        lanes: int,
    ) -> None:
        super().__init__(e, parameters, lane_axis, lanes)
        self.nest = nest
        self.source = source
        self.mask: Value | None = None
        self.stage = 0
        self.cells = nest.cells()
        self._values: list[dict[Cell, Value]] = [{}]
        self._inverses: list[dict[Cell, Inverse]] = [{}]

    @contextmanager
    def inside(
        self,
        axis: CounterAxis,
        index: Value | int,
        mask: Value | None = None,
        needed: Collection[Cell] | None = None,
    ) -> Iterator[None]:
        """Bind an axis in a loop; `needed` cells that are known by then are written at once."""
        outer = self.mask
        self.mask = mask if mask is not None else outer
        self._values.append({})
        self._inverses.append({})
        with self.binding(axis, index, self._walked(axis)):
            if axis is not self.lane_axis:
                self.hoist(needed)
            yield
        self._values.pop()
        self._inverses.pop()
        self.mask = outer

    def _walked(self, axis: CounterAxis) -> list[Position]:
        """The positions of loads and stores that the axis moves."""
        found: dict[Position, None] = {}
        for cell in self.cells:
            if isinstance(cell, Load | Sequence) and cell.place.varies & axis.varies:
                found[cell.place] = None
        for output in self.nest.outputs:
            if output.place.varies & axis.varies:
                found[output.place] = None
        return list(found)

    def hoist(self, needed: Collection[Cell] | None = None) -> None:
        """Write every cell, or those of `needed`, that depends on what is known here."""
        bound = self.bound
        for cell in self.cells:
            if cell.varies & ~bound or cell.stage > self.stage or isinstance(cell, Literal | Total):
                continue
            if (needed is None or cell in needed) and self.known(cell) is None:
                self.value(cell)
        self._invert(needed)

    def _invert(self, needed: Collection[Cell] | None) -> None:
        """Divide 1 by what inner loops would divide by again and again, see `quotients`."""
        for cell in self.cells:
            if not (isinstance(cell, AppliedOp) and isinstance(cell.op, Div)):
                continue
            divisor = cell.args[1]
            again = cell.varies & ~self.bound and of_sums(divisor)
            if again and (needed is None or cell in needed):
                value = self.known(divisor)
                if value is not None and _find(self._inverses, divisor) is None:
                    self._inverses[-1][divisor] = inverse_of(divisor, value)

    def known(self, cell: Cell) -> Value | None:
        """The value of a cell, if it has been written."""
        return _find(self._values, cell)

    def define(self, cell: Cell, value: Value) -> None:
        """Say what a cell's value is in this scope."""
        self._values[-1][cell] = value

    def value(self, cell: Cell) -> Value:
        """The value of a cell in its compute type: a vector, or a scalar for all lanes."""
        found = self.known(cell)
        if found is None:
            found = self._values[-1][cell] = self._written(cell)
        return found

    def _written(self, cell: Cell) -> Value:
        if isinstance(cell, AppliedOp):
            inverse = _find(self._inverses, cell.args[-1]) if isinstance(cell.op, Div) else None
            if inverse is not None:
                return inverse.times(self.value(cell.args[0]))
            return apply(cell.op, [self.value(a) for a in cell.args], cell.dtype)
        if isinstance(cell, Load):
            return self._load(cell)
        if isinstance(cell, Literal):
            return self.e.constant(cell.value, compute_dtype(cell.dtype))
        if isinstance(cell, Sequence):
            return self._sequence(cell)
        if isinstance(cell, GuardedCell):
            inside, outside = self.value(cell.inside), self.value(cell.outside)
            return select(self._all(cell.guards), inside, outside)
        raise KernelError("a reduction is read before it is complete")

    # -- memory ----------------------------------------------------------------------------

    def _load(self, cell: Load) -> Value:
        ref, dtype, count = self.source(cell.source)
        memory, place = self.parameters.pointer(ref, dtype), self.place(cell.place)
        if place.step == 0:
            index = place.base
            if cell.guards:
                index = minimum(maximum(index, 0), self.parameters.size(count - 1))
            return load_value(memory, index)
        mask = self.mask
        if cell.guards:
            guarded = self._all(cell.guards).splat(self.lanes)
            mask = guarded if mask is None else mask & guarded
        if place.step == 1:
            return load_value(memory, place.base, self.lanes, mask)
        if place.step == -1 and mask is None:
            start = place.base - (self.lanes - 1)
            found = load_value(memory, start, self.lanes)
            return shuffle(found, found, range(self.lanes - 1, -1, -1))
        return memory.gather(self.vector(place), mask).cast(compute_dtype(dtype))

    def store(
        self, memory: Pointer, position: Position, value: Value, offset: Value | int = 0
    ) -> None:
        """Write a value to its place, moved by `offset`; a scalar goes to all lanes."""
        place = self.place(position)
        if isinstance(offset, Value) or offset:
            place = LanePosition(place.base + offset, place.step)
        if place.step == 0:
            store_value(memory, place.base, value)
            return
        value = value.splat(self.lanes)
        if place.step == 1:
            store_value(memory, place.base, value, self.mask)
        else:
            memory.scatter(self.vector(place), value.cast(memory.dtype), self.mask)

    def fetched(self, atom: Atom) -> Value:
        """An index that a cell holds, inside its extent."""
        extent = self.e.index(self.parameters.size(atom.extent))
        found = self.value(atom.cell)
        return resolve(found, extent)

    # -- numbers and conditions ------------------------------------------------------------

    def _sequence(self, cell: Sequence) -> Value:
        """start + step * place: integers in their own type, floats by way of float64."""
        place, whole = self.place(cell.place), cell.dtype.is_integer
        exact = isinstance(cell.start, int) and isinstance(cell.step, int)
        wide = cell.dtype if whole and exact else dt.float64
        numbers = self._numbers(place, wide)
        if cell.step != 1:
            numbers = numbers * _number(cell.step, wide)
        if cell.start != 0:
            numbers = numbers + _number(cell.start, wide)
        return numbers if wide is cell.dtype else convert(numbers, cell.dtype)

    def _numbers(self, place: LanePosition, dtype: DType) -> Value:
        base = place.base.cast(dtype)
        if place.step is None or place.step == 0:
            return base
        numbers = self.e.iota(dtype, self.lanes)
        if place.step != 1:
            numbers = numbers * _number(int(place.step), dtype)
        return base + numbers

    def _all(self, guards: Iterable[Guard]) -> Value:
        """Return whether every guard holds, per lane where they differ."""
        found: Value | None = None
        for guard in guards:
            holds = self._holds(guard)
            if found is not None:
                lanes = max(found.lanes, holds.lanes)
                holds = found.splat(lanes) & holds.splat(lanes)
            found = holds
        if found is None:
            raise KernelError("a choice has no guards")
        return found

    def _holds(self, guard: Guard) -> Value:
        e, place = self.e, self.place(guard.position)
        low, high = guard.position.bounds
        extent = self.parameters.size(guard.extent)
        tests: list[Value] = []
        if place.step == 1:
            # Lanes count upwards, so those inside are the first ones but the very first.
            if high >= guard.extent:
                tests.append(e.first_lanes(extent - place.base, self.lanes))
            if low < 0:
                tests.append(~e.first_lanes(0 - place.base, self.lanes))
        else:
            position = self.vector(place)
            if low < 0:
                tests.append(position >= 0)
            if high >= guard.extent:
                tests.append(position < extent)
        return functools.reduce(operator.and_, tests)


def _find(scopes: list[dict[Cell, T]], cell: Cell) -> T | None:
    """Return what the innermost scope that knows a cell says of it."""
    for scope in reversed(scopes):
        if cell in scope:
            return scope[cell]
    return None


def _number(value: float, dtype: DType) -> int | float:
    """A number as a literal of a type; integers wrap."""
    if dtype.is_float:
        return float(value)
    number = int(value) & (1 << dtype.bits) - 1
    signed = dtype.kind == "int" and number >> (dtype.bits - 1)
    return number - (1 << dtype.bits) if signed else number
