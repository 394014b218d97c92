"""Reductions as instructions: where they start, how elements join, how lanes become one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import (
    KernelError,
    Number,
    Value,
    fma,
    maximum,
    minimum,
    select,
)
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.base.dtype import DType
from treadle.graph.cells import Cell, Total
from treadle.ops.families import Combine, Reduce, identity
from treadle.ops.reduce import Mean


@dataclass(frozen=True, slots=True)
class Reducer:
    """Instructions of one kind of reduction, in the compute type of its operand."""

    combine: Combine

    def identity(self, dtype: DType) -> Number:
        """The number that changes no element."""
        return identity(self.combine, dtype)

    def start(self, e: Builder, dtype: DType, lanes: int) -> Value:
        """Return the result for no element."""
        return e.constant(self.identity(dtype), dtype, lanes)

    def join(self, total: Value, x: Value) -> Value:
        """Combine the total with an element; an extremum is NaN once an element is."""
        if self.combine in ("max", "min"):
            # The instruction gives its second operand where one is NaN, which keeps a NaN total.
            found = (maximum if self.combine == "max" else minimum)(x, total)
            return select(x != x, x, found) if x.dtype.is_float else found
        return _JOIN[self.combine](total, x)

    def across(self, total: Value) -> Value:
        """The lanes of a vector combined."""
        if total.lanes == 1:
            return total
        found = total.reduce(self.combine)
        if self.combine not in ("min", "max") or not total.dtype.is_float:
            return found
        missing = (total != total).reduce("or")
        return select(missing, float("nan"), found)


_JOIN: dict[Combine, Callable[[Value, Value], Value]] = {
    "add": operator.add,
    "mul": operator.mul,
    "or": operator.or_,
    "and": operator.and_,
}
_ADD = Reducer("add")


def reducer_of(op: Reduce) -> Reducer:
    """The reducer of an op."""
    if op.combine is None:
        raise KernelError(f"no reducer for {op.name}")
    return Reducer(op.combine)


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
        return self.dtype.is_float and self.reducer == _ADD

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
