"""The table of lowerings: from an op's name to the generator of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from treadle.backends.api import Support
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered
from treadle.base.types import TensorType
from treadle.ops.op import Op

Lowering = Callable[[Any, tuple[TensorType, ...], tuple[bool, ...], Target], "Lowered | Support"]
"""(op, operand types, which operands are frozen, target) -> launches, or why there are none."""

LOWERINGS: dict[str, Lowering] = {}
TAKING_EMPTY: set[str] = set()
"""Names of ops whose lowerings take operands without elements."""
F = TypeVar("F", bound=Lowering)


def lowers(*ops: type[Op], empty: bool = False) -> Callable[[F], F]:
    """Decorator: the function lowers these ops.

    Args:
        ops: their operand types are static.
        empty: operands may have no elements.
    """

    def register(function: F) -> F:
        for op in ops:
            LOWERINGS[op.name] = function
        TAKING_EMPTY.update(op.name for op in ops if empty)
        return function

    return register


def types_of(types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The types without their devices, which lowering does not look at."""
    return tuple(TensorType(t.dtype, t.shape) for t in types)
