"""Kernels written with functions: instructions by name, loops and branches over callbacks.

Tests of the language, its printers and its interpreter choose instructions at random or by name,
for which operators and blocks are no help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel import language as v
from treadle.backends.codegen.kernel.ir import BITWISE, COMPARE, UNARY, KernelModule, KernelRoutine
from treadle.backends.codegen.kernel.language import InstructionOperand, KernelError, Number, Value
from treadle.base.dtype import DType


class Builder(builder.Builder):
    """Builder of functions, with instructions by name."""

    def loop(self, start: Any, stop: Any = None, step: Any = 1, *given: Any, **more: Any) -> Any:
        """Run a block, or a function (`body`, `initial`) whose results go from turn to turn."""
        if not given:
            return super().loop(start, stop, step, **more)
        body, *rest = given
        initial: Sequence[Any] = rest[0] if rest else more.get("initial", ())
        state = list(initial)
        with super().loop(start, stop, step, carrying=state) as index:
            state[:] = _values(body(index, *state), state)
        return tuple(state)

    def branch(
        self,
        condition: Value,
        then: Callable[[], Any],
        otherwise: Callable[[], Any] | None = None,
        like: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        """Run one of two; each returns values of the types of `like`."""
        state = list(like)
        with self.when(condition, changing=state):
            state[:] = _values(then(), state)
        with self.otherwise():
            state[:] = _values(otherwise() if otherwise else None, state)
        return tuple(state)

    def add(self, x: Value | Number, y: Value | Number) -> Value:
        return v.binary("add", x, y)

    def sub(self, x: Value | Number, y: Value | Number) -> Value:
        return v.binary("sub", x, y)

    def mul(self, x: Value | Number, y: Value | Number) -> Value:
        return v.binary("mul", x, y)

    def div(self, x: Value | Number, y: Value | Number) -> Value:
        return v.binary("div", x, y)

    def rem(self, x: Value | Number, y: Value | Number) -> Value:
        return v.binary("rem", x, y)

    def min(self, x: Value | Number, y: Value | Number) -> Value:
        return v.binary("min", x, y)

    def max(self, x: Value | Number, y: Value | Number) -> Value:
        return v.binary("max", x, y)

    def copysign(self, x: Value | Number, y: Value | Number) -> Value:
        return v.binary("copysign", x, y)

    def fma(self, x: Value | Number, y: Value | Number, z: Value | Number) -> Value:
        return v.fma(x, y, z)

    def unary(self, code: str, x: Value) -> Value:
        if code not in UNARY:
            raise KernelError(f"{code} is no unary instruction")
        return v.unary(code, x)

    def neg(self, x: Value) -> Value:
        return v.unary("neg", x)

    def abs(self, x: Value) -> Value:
        return v.unary("abs", x)

    def sqrt(self, x: Value) -> Value:
        return v.unary("sqrt", x)

    def bitwise(self, code: str, x: Value | Number, y: Value | Number) -> Value:
        if code not in BITWISE:
            raise KernelError(f"{code} is no bitwise instruction")
        return v.binary(code, x, y)

    def invert(self, x: Value) -> Value:
        return ~x

    def compare(self, code: str, x: Value | Number, y: Value | Number) -> Value:
        if code not in COMPARE:
            raise KernelError(f"{code} is no comparison")
        return v.compare(code, x, y)

    def select(self, condition: Value, x: Value | Number, y: Value | Number) -> Value:
        return v.select(condition, x, y)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x.cast(dtype)

    def holding(self, x: Value, dtype: DType) -> Value:
        return x.holding(dtype)

    def bitcast(self, x: Value, dtype: DType) -> Value:
        return x.bitcast(dtype)

    def splat(self, x: Value, lanes: int) -> Value:
        return x.splat(lanes)

    def shuffle(self, x: Value, y: Value, order: Sequence[int]) -> Value:
        return v.shuffle(x, y, order)

    def extract(self, x: Value, lane: int) -> Value:
        return x.extract(lane)

    def insert(self, x: Value, lane: int, scalar: Value) -> Value:
        return x.insert(lane, scalar)

    def reduce(self, code: v.Reduction, x: Value) -> Value:
        return x.reduce(code)

    def dot(self, total: Value, x: Value, y: Value, *, narrow: bool = False) -> Value:
        return v.dot(total, x, y, narrow=narrow)

    def lookup(self, x: Value, table: Sequence[int]) -> Value:
        return x.lookup(table)

    def load(
        self,
        pointer: Any,
        index: Value | int,
        lanes: int = 1,
        mask: Value | None = None,
        aligned: bool = False,
    ) -> Value:
        made: Value = pointer.load(index, lanes, mask, aligned=aligned)
        return made

    def store(
        self,
        pointer: Any,
        index: Value | int,
        value: Value,
        mask: Value | None = None,
        aligned: bool = False,
        streaming: bool = False,
    ) -> None:
        pointer.store(index, value, mask, aligned=aligned, streaming=streaming)

    def gather(self, pointer: Any, indices: Value, mask: Value | None = None) -> Value:
        made: Value = pointer.gather(indices, mask)
        return made

    def scatter(
        self, pointer: Any, indices: Value, value: Value, mask: Value | None = None
    ) -> None:
        pointer.scatter(indices, value, mask)

    def offset(self, pointer: Any, index: Value | int) -> Any:
        return pointer + index

    def reinterpret(self, pointer: Any, dtype: DType) -> Any:
        return pointer.reinterpret(dtype)

    def address(self, pointer: Any) -> Value:
        made: Value = pointer.address()
        return made

    def prefetch(self, pointer: Any, index: Value | int, *, write: bool = False) -> None:
        pointer.prefetch(index, write=write)

    def copy(self, target: Any, source: Any, count: Value | int) -> None:
        target.copy_from(source, count)

    def zero(self, target: Any, count: Value | int) -> None:
        target.zero(count)


class _KernelBuilder(Builder, builder.KernelBuilder):
    """Builder of kernels, with instructions by name."""


def function(
    name: str, parameters: Sequence[InstructionOperand], write: Callable[[Builder], None]
) -> KernelRoutine:
    """Return a function whose body `write` builds."""
    made = Builder(parameters)
    write(made)
    return made.function(name)


def kernel(
    name: str,
    parameters: Sequence[InstructionOperand],
    write: Callable[[Builder, Value, Value], Any],
    functions: Sequence[KernelRoutine] = (),
    features: Sequence[str] = (),
) -> KernelModule:
    """Return a kernel whose entry `write(builder, lo, hi)` builds."""
    made = _KernelBuilder(parameters)
    write(made, made.lo, made.hi)
    return made.kernel(name, functions, features)


def _values(given: Any, like: Sequence[InstructionOperand]) -> tuple[Any, ...]:
    """Return a body's results as a tuple of the expected types."""
    values = () if given is None else given if isinstance(given, tuple) else (given,)
    if [v.type for v in values] != [v.type for v in like]:
        found = [str(v.type) for v in values]
        raise KernelError(f"a body yields {found}, not {[str(v.type) for v in like]}")
    return values
