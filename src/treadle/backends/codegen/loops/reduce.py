"""Reductions as instructions: where they start, how elements join, how lanes become one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelError, Number, Reduction, Value
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.graph.cells import Cell, Total
from treadle.ops.families import Reduce
from treadle.ops.reduce import All, Any, Max, Mean, Min, Prod, Sum


@dataclass(frozen=True, slots=True)
class Reducer:
    """How one kind of reduction is computed, in the compute type of its operand.

    `join` combines what has been reduced with an element; `lanes` names the instruction that
    combines the lanes of a vector.
    """

    identity: Callable[[DType], Number]
    join: Callable[[Builder, Value, Value], Value]
    lanes: Reduction

    def start(self, b: Builder, dtype: DType, lanes: int) -> Value:
        """What no element reduces to."""
        return b.constant(self.identity(dtype), dtype, lanes)

    def across(self, b: Builder, total: Value) -> Value:
        """The lanes of a vector combined."""
        if total.lanes == 1:
            return total
        found = b.reduce(self.lanes, total)
        if self.lanes not in ("min", "max") or not total.dtype.is_float:
            return found
        missing = b.reduce("or", b.compare("ne", total, total))
        return b.select(missing, float("nan"), found)


def _extreme(code: str) -> Callable[[Builder, Value, Value], Value]:
    """Minimum or maximum; NaN once an element is."""

    def join(b: Builder, total: Value, x: Value) -> Value:
        # The instruction gives its second operand where one is NaN, which keeps a NaN total.
        found = b.min(x, total) if code == "min" else b.max(x, total)
        return b.select(b.compare("ne", x, x), x, found) if x.dtype.is_float else found

    return join


def _highest(dtype: DType) -> Number:
    return float("inf") if dtype.is_float else int(np.iinfo(dtype.numpy).max)


def _lowest(dtype: DType) -> Number:
    return float("-inf") if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def _zero(dtype: DType) -> Number:
    return 0.0 if dtype.is_float else 0


def _one(dtype: DType) -> Number:
    return 1.0 if dtype.is_float else 1


_ADD = Reducer(_zero, lambda b, total, x: b.add(total, x), "add")
REDUCERS: dict[type[Reduce], Reducer] = {
    Sum: _ADD,
    Mean: _ADD,
    Prod: Reducer(_one, lambda b, total, x: b.mul(total, x), "mul"),
    Max: Reducer(_lowest, _extreme("max"), "max"),
    Min: Reducer(_highest, _extreme("min"), "min"),
    Any: Reducer(lambda dtype: False, lambda b, total, x: b.bitwise("or", total, x), "or"),
    All: Reducer(lambda dtype: True, lambda b, total, x: b.bitwise("and", total, x), "and"),
}


def reducer_of(op: Reduce) -> Reducer:
    """The reducer of an op."""
    found = REDUCERS.get(type(op))
    if found is None:
        raise KernelError(f"no reducer for {op.name}")
    return found


def finish(b: Builder, op: Reduce, total: Value, count: Value | int) -> Value:
    """What a complete reduction of `count` elements gives."""
    if not isinstance(op, Mean):
        return total
    number = b.cast(b.index(count), dt.int64)
    return b.div(total, b.cast(number, total.dtype))


@dataclass(frozen=True, slots=True)
class Running:
    """A reduction while it runs: of `arg`, of its difference from `shift`, or of that squared."""

    arg: Cell
    reducer: Reducer
    shift: Value | None = None
    squared: bool = False

    @property
    def dtype(self) -> DType:
        """The type it is computed in."""
        return compute_dtype(self.arg.dtype)

    @property
    def is_rounded(self) -> bool:
        """Whether errors add up while it runs."""
        return self.dtype.is_float and self.reducer is _ADD

    def start(self, b: Builder, lanes: int) -> Value:
        """What no element reduces to."""
        return self.reducer.start(b, self.dtype, lanes)

    def join(self, b: Builder, total: Value, x: Value, inside: Value | None) -> Value:
        """The total with one more vector, of which only the lanes `inside` count."""
        x = b.splat(x, total.lanes)
        if self.shift is not None:
            x = b.sub(x, b.splat(self.shift, total.lanes))
        if inside is not None:
            x = b.select(inside, x, self.start(b, total.lanes))
        return b.fma(x, x, total) if self.squared else self.reducer.join(b, total, x)


def running(total: Total) -> Running:
    """A reduction as it stands."""
    return Running(total.arg, reducer_of(total.op))


def sum_of(arg: Cell, shift: Value, *, squared: bool = False) -> Running:
    """The sum of differences from `shift`, or of their squares."""
    return Running(arg, _ADD, shift, squared)


def near(b: Builder, shift: Value) -> Value:
    """A shift; where it is not finite, 0, so that sums say so by themselves."""
    nothing = b.constant(0.0, shift.dtype, shift.lanes)
    return b.select(b.compare("eq", b.sub(shift, shift), nothing), shift, nothing)


def moments(
    b: Builder, shift: Value, total: Value, square: Value, count: Value
) -> tuple[Value, Value]:
    """Mean and squares about it, from the sums of `count` differences from `shift` and squares."""
    ahead = b.div(total, count)
    about = b.sub(square, b.mul(total, ahead))
    # The maximum is its second operand where that is NaN.
    return b.add(shift, ahead), b.max(b.constant(0.0, about.dtype, about.lanes), about)
