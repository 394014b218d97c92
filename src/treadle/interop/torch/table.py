"""Which ATen operators have a counterpart, and how their arguments reach it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from treadle.base.dtype import DType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.interop.torch.arrays import DTYPES

Lower = Callable[..., Any]
"""Takes a `Call` and the operator's arguments, with operands in the place of tensors."""

LOWERINGS: dict[str, Lower] = {}
"""By name, such as "add.Tensor"."""


@dataclass(frozen=True, slots=True)
class Call:
    """What an operator was called for.

    Attributes:
        builder: of the graph, for constants.
        values: what PyTorch's shape propagation says of the result or results.
        inputs: the same of the arguments, None where one is no tensor.
    """

    builder: GraphBuilder
    values: Any
    inputs: tuple[Any, ...]

    @property
    def dtype(self) -> DType:
        """Element type of the (first) result."""
        first = self.values[0] if isinstance(self.values, (tuple, list)) else self.values
        return DTYPES[first.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the (first) result."""
        first = self.values[0] if isinstance(self.values, (tuple, list)) else self.values
        return tuple(int(d) for d in first.shape)

    def operand(self, value: Any, dtype: DType, like: GraphOperand | None = None) -> GraphOperand:
        """A value as an operand of an element type; numbers become constants."""
        if isinstance(value, GraphOperand):
            return value.astype(dtype)
        if like is not None:
            return like.constant(value, dtype)
        return self.builder.constant(dtype.numpy.type(value))


def lowers(*names: str) -> Callable[[Lower], Lower]:
    """Register how operators are written in ops."""

    def add(lower: Lower) -> Lower:
        LOWERINGS.update(dict.fromkeys(names, lower))
        return lower

    return add


def name_of(target: Any) -> str:
    """`add.Tensor` for `aten.add.Tensor`; "" for what is no ATen operator."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return ""
    overload = target._overloadname
    return f"{target._opname}.{overload}"
