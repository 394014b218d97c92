"""Composite ops: ops whose body is ops.

A composite stays one node (one eager launch) until an engine claims it whole, an exporter names
it, or the optimize stage expands it. Its type rule, oracle and gradient are derived from the body;
a declaration may replace any of them by something better.
"""

from __future__ import annotations

import abc
from typing import Any, Generic

from treadle.base.dtype import DType
from treadle.base.types import TensorType
from treadle.ops.abstract import ArrayOperand, TypeOperand
from treadle.ops.op import Op, Pullback, V
from treadle.ops.operators import Operators
from treadle.ops.reverse import TapeEntry, backpropagate


class Composite(Op):
    """An op defined by `body`."""

    @abc.abstractmethod
    def body(self, *inputs: Any) -> Any:
        """The results in terms of other ops: one operand, or a tuple where there are several."""

    def infer(self, *types: Any) -> tuple[TensorType, ...]:
        results = _tuple(self.body(*(TypeOperand(t) for t in types)))
        return tuple(TensorType(r.type.dtype, r.type.shape) for r in results)

    def reference(self, *arrays: Any) -> Any:
        results = _tuple(self.body(*(ArrayOperand(a) for a in arrays)))
        return results[0].array if len(results) == 1 else tuple(r.array for r in results)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return super().vjp(at) if self.no_gradient else differentiate_body(self, at)


def expand(composite: Composite, inputs: tuple[V, ...]) -> tuple[V, ...]:
    """The body applied to operands: the composite in terms of other ops."""
    return _tuple(composite.body(*inputs))


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


class _Traced(Operators, Generic[V]):
    """Wraps an operand and writes every op applied to it into a list of steps."""

    __slots__ = ("inner", "steps")

    def __init__(self, inner: V, steps: list[TapeEntry[V]]) -> None:
        self.inner = inner
        self.steps = steps

    @property
    def type(self) -> TensorType:
        return self.inner.type

    def apply(self, op: Op, inputs: tuple[_Traced[V], ...], /) -> tuple[_Traced[V], ...]:
        values = tuple(x.inner for x in inputs)
        results = self.inner.apply(op, values)
        done = tuple(_Traced(r, self.steps) for r in results)
        keys = tuple(id(x) for x in inputs), tuple(id(x) for x in done)
        # The closure keeps the wrappers alive, so that their ids stay unique.
        self.steps.append(TapeEntry(op, *keys, lambda: (_inner(inputs), _inner(done))))
        return done

    def constant(self, value: Any, dtype: DType | None = None) -> _Traced[V]:
        return _Traced(self.inner.constant(value, dtype), self.steps)


def _inner(wrapped: tuple[_Traced[V], ...]) -> tuple[V, ...]:
    return tuple(w.inner for w in wrapped)


def differentiate_body(composite: Composite, at: Pullback[V]) -> tuple[V | None, ...]:
    """Run the body on the inputs and walk it backwards."""
    steps: list[TapeEntry[V]] = []
    inputs = tuple(_Traced(x, steps) for x in at.inputs)
    outputs = _tuple(composite.body(*inputs))
    seeds: dict[Any, V] = {}
    for out, dy in zip(outputs, at.dys, strict=True):
        if dy is not None:
            before = seeds.get(id(out))
            seeds[id(out)] = dy if before is None else before + dy
    wanted = [id(x) for x, need in zip(inputs, at.needs, strict=True) if need]
    found = backpropagate(steps, seeds, wanted)
    steps.clear()  # The wrappers and the list hold one another, and all values of the body.
    return tuple(
        found.get(id(x)) if need else None for x, need in zip(inputs, at.needs, strict=True)
    )
