"""Reductions as instructions: where they start, how elements join, how lanes become one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import (
    KernelError,
    Number,
    Reduction,
    Value,
    fma,
    maximum,
    minimum,
    select,
)
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.base.dtype import DType
from treadle.graph.cells import Cell, Total
from treadle.ops.families import Reduce
from treadle.ops.reduce import All, Any, Max, Mean, Min, Prod, Sum


@dataclass(frozen=True, slots=True)
class Reducer:
    """One kind of reduction, in the compute type of its operand.

    `join` combines what has been reduced with an element; `lanes` names the instruction that
    combines the lanes of a vector.
    """

    identity: Callable[[DType], Number]
    join: Callable[[Value, Value], Value]
    lanes: Reduction

    def start(self, e: Builder, dtype: DType, lanes: int) -> Value:
        """Return the result for no element."""
        return e.constant(self.identity(dtype), dtype, lanes)

    def across(self, total: Value) -> Value:
        """The lanes of a vector combined."""
        if total.lanes == 1:
            return total
        found = total.reduce(self.lanes)
        if self.lanes not in ("min", "max") or not total.dtype.is_float:
            return found
        missing = (total != total).reduce("or")
        return select(missing, float("nan"), found)


def _extreme(combine: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """`minimum` or `maximum`; NaN once an element is."""

    def join(total: Value, x: Value) -> Value:
        # The instruction gives its second operand where one is NaN, which keeps a NaN total.
        found = combine(x, total)
        return select(x != x, x, found) if x.dtype.is_float else found

    return join


def _highest(dtype: DType) -> Number:
    return float("inf") if dtype.is_float else int(np.iinfo(dtype.numpy).max)


def _lowest(dtype: DType) -> Number:
    return float("-inf") if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def _zero(dtype: DType) -> Number:
    return 0.0 if dtype.is_float else 0


def _one(dtype: DType) -> Number:
    return 1.0 if dtype.is_float else 1


_ADD = Reducer(_zero, operator.add, "add")
REDUCERS: dict[type[Reduce], Reducer] = {
    Sum: _ADD,
    Mean: _ADD,
    Prod: Reducer(_one, operator.mul, "mul"),
    Max: Reducer(_lowest, _extreme(maximum), "max"),
    Min: Reducer(_highest, _extreme(minimum), "min"),
    Any: Reducer(lambda dtype: False, operator.or_, "or"),
    All: Reducer(lambda dtype: True, operator.and_, "and"),
}


def reducer_of(op: Reduce) -> Reducer:
    """The reducer of an op."""
    found = REDUCERS.get(type(op))
    if found is None:
        raise KernelError(f"no reducer for {op.name}")
    return found


def finish(e: Builder, op: Reduce, total: Value, count: Value | int) -> Value:
    """Return the result of a complete reduction of `count` elements."""
    if not isinstance(op, Mean):
        return total
    return total / e.index(count).cast(total.dtype)


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
        """True where errors add up while it runs."""
        return self.dtype.is_float and self.reducer is _ADD

    def start(self, e: Builder, lanes: int) -> Value:
        """Return the result for no element."""
        return self.reducer.start(e, self.dtype, lanes)

    def join(self, total: Value, x: Value, inside: Value | None) -> Value:
        """The total with one more vector, of which only the lanes `inside` count."""
        x = x.splat(total.lanes)
        if self.shift is not None:
            x = x - self.shift.splat(total.lanes)
        if inside is not None:
            x = select(inside, x, self.reducer.identity(self.dtype))
        return fma(x, x, total) if self.squared else self.reducer.join(total, x)


def running(total: Total) -> Running:
    """A reduction as it stands."""
    return Running(total.arg, reducer_of(total.op))


def sum_of(arg: Cell, shift: Value, *, squared: bool = False) -> Running:
    """The sum of differences from `shift`, or of their squares."""
    return Running(arg, _ADD, shift, squared)


def near(shift: Value) -> Value:
    """A shift; where it is not finite, 0, so that sums say so by themselves."""
    return select(shift - shift == 0.0, shift, 0.0)


def moments(shift: Value, total: Value, square: Value, count: Value) -> tuple[Value, Value]:
    """Mean and squares about it, from the sums of `count` differences from `shift` and squares."""
    ahead = total / count
    about = square - total * ahead
    # The maximum is its second operand where that is NaN.
    return shift + ahead, maximum(0.0, about)
