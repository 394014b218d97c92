"""The table of translations, which the modules beside this one fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import openvino as ov
from openvino import opset15 as opset

from treadle.backends.api import Support, no, yes
from treadle.backends.openvino.extents import OpenExtents
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.extent import Symbol
from treadle.base.symbol import Dim, Expr
from treadle.base.types import TensorType
from treadle.ops.op import Op

Output = Any
"""A value of an OpenVINO model: a node, or one of its outputs."""
Translate = Callable[..., Any]
"""From the op, and a value per operand, to the value of the result or a list of them."""
Check = Callable[[Any, Sequence[TensorType]], Support]
OpT = TypeVar("OpT", bound=Op)

FLOATS = (dt.float32,)
MOVED = (dt.float32, dt.int32, dt.int8, dt.uint8, dt.bool_)
"""Element types that it can carry around and compare without loss."""
TYPES: dict[DType, Any] = {
    dt.float32: ov.Type.f32,
    dt.int32: ov.Type.i32,
    dt.int64: ov.Type.i64,
    dt.int8: ov.Type.i8,
    dt.uint8: ov.Type.u8,
    dt.bool_: ov.Type.boolean,
}


@dataclass(frozen=True, slots=True)
class Translation:
    """Translation of an op to nodes of a model, and its conditions.

    Attributes:
        make: gives the nodes.
        check: says of which operands.
        is_typed: `make` takes the operands' types behind the op.
    """

    make: Translate
    check: Check
    is_typed: bool = False


TABLE: dict[type[Op], Translation] = {}


def accepted(op: Op, types: Sequence[TensorType]) -> Support:
    """The check of an op that is taken on all operands of its element types."""
    return yes()


def of_types(*kinds: DType, first: int | None = None) -> Check:
    """Takes operands (the first so many of them) of these element types."""

    def check(op: Op, types: Sequence[TensorType]) -> Support:
        for type_ in types[:first]:
            if type_.dtype not in kinds:
                names = ", ".join(k.name for k in kinds)
                return no("dtype", f"{op.name} of {type_.dtype.name}: it is taken for {names}")
        return yes()

    return check


floats = of_types(*FLOATS)
moved = of_types(*MOVED)


def both(*checks: Check) -> Check:
    """The first refusal of several checks."""

    def check(op: Op, types: Sequence[TensorType]) -> Support:
        for one in checks:
            answer = one(op, types)
            if not answer:
                return answer
        return yes()

    return check


def translates(
    *ops: type[Op], when: Check = floats, typed: bool = False
) -> Callable[[Translate], Translate]:
    """Register a translation of some ops."""

    def register(make: Translate) -> Translate:
        for op in ops:
            TABLE[op] = Translation(make, when, typed)
        return make

    return register


_EXTENTS: ContextVar[OpenExtents] = ContextVar("extents of the model that is being written")


@contextmanager
def writing(symbols: Sequence[Symbol]) -> Iterator[OpenExtents]:
    """Begin a model: inside the block `ints` takes extents of these symbols."""
    made = OpenExtents(symbols)
    before = _EXTENTS.set(made)
    try:
        yield made
    finally:
        _EXTENTS.reset(before)


def ints(values: Sequence[Dim]) -> Output:
    """A vector of integers: a constant, unless some of them are open extents."""
    if any(isinstance(v, Expr) for v in values):
        return _EXTENTS.get().vector(values)
    return opset.constant([int(v) for v in values], ov.Type.i64)


def scalar(value: float, like: DType = dt.float32) -> Output:
    """A constant number."""
    return opset.constant(value, TYPES[like])
