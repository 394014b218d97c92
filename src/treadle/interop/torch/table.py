"""Table of ATen operators that have a counterpart, and how their arguments reach it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.symbol import Expr
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.interop.torch.arrays import DTYPES, PARTS
from treadle.ops.creation import Extent

Lower = Callable[..., Any]
"""Takes a `OperatorCall` and the operator's arguments, with operands in the place of tensors."""

LOWERINGS: dict[str, Lower] = {}
"""By name, such as "add.Tensor"."""


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """Call of an operator.

    Attributes:
        name: of the operator, as in `LOWERINGS`.
        builder: of the graph, for constants.
        values: what PyTorch's shape propagation says of the result or results.
        inputs: the same of the arguments, None where one is not a tensor.
        is_whole: whether the program reads results other than the first; else those may be
            anything, and only the operator's own gradient sees them.
    """

    name: str
    builder: GraphBuilder
    values: Any
    inputs: tuple[Any, ...]
    is_whole: bool = True

    @property
    def rank(self) -> int:
        """Number of axes of an operator whose name says it, as "avg_pool2d"."""
        found = re.search(r"(\d)d", self.name)
        return int(found[1]) if found else 0

    @property
    def dtype(self) -> DType:
        """Element type of the (first) result; of its parts where that is complex."""
        first = self.values[0] if isinstance(self.values, (tuple, list)) else self.values
        return PARTS.get(first.dtype) or DTYPES[first.dtype]

    @property
    def shape(self) -> tuple[Any, ...]:
        """Shape of the (first) result, whose extents may be expressions."""
        first = self.values[0] if isinstance(self.values, (tuple, list)) else self.values
        return tuple(first.shape)

    def operand(self, value: Any, dtype: DType, like: GraphOperand | None = None) -> GraphOperand:
        """A value as an operand of an element type; numbers become constants."""
        if isinstance(value, GraphOperand):
            return value.astype(dtype)
        if isinstance(value, Expr):
            return self.builder.apply(Extent(value, dtype), ())[0]
        if like is not None:
            return like.constant(value, dtype)
        return self.builder.constant(dtype.numpy.type(value))

    def draw(self, op: Any, *operands: GraphOperand) -> GraphOperand:
        """The result of a random op, whose state is a new input of the graph, behind all others."""
        state = self.builder.input(TensorType(dt.uint32, (4,)), f"random_{op.name}")
        made: GraphOperand = self.builder.apply(op, (state, *operands))[0]
        return made

    def shaped(self, results: Any) -> Any:
        """Results in the shapes that PyTorch gives them."""
        if isinstance(results, (tuple, list)):
            pairs = zip(results, self.values, strict=True)
            return tuple(r.reshape(tuple(v.shape)) for r, v in pairs)
        return results.reshape(self.shape)


def amount(like: GraphOperand, count: Any) -> GraphOperand:
    """A count of elements in the operand's element type."""
    if isinstance(count, Expr):
        return like.builder.apply(Extent(count, like.type.dtype), ())[0]
    return like.constant(count)


def axis_of(dim: int, x: GraphOperand) -> int:
    """The axis that an operator means, from the first; see `along_axes` for those without axes."""
    return dim % x.type.ndim


def along_axes(lower: Lower) -> Lower:
    """Wrap an operator along axes, so that tensors without axes count as lines of one element."""

    def lined(value: Any) -> Any:
        alone = isinstance(value, GraphOperand) and not value.type.ndim
        return value.reshape((1,)) if alone else value

    @functools.wraps(lower)
    def run(call: OperatorCall, x: GraphOperand, *args: Any, **kwargs: Any) -> Any:
        if x.type.ndim:
            return lower(call, x, *args, **kwargs)
        named = {k: lined(v) for k, v in kwargs.items()}
        return call.shaped(lower(call, lined(x), *map(lined, args), **named))

    return run


def lowers(*names: str) -> Callable[[Lower], Lower]:
    """Register how operators are written in ops."""

    def add(lower: Lower) -> Lower:
        LOWERINGS.update(dict.fromkeys(names, lower))
        return lower

    return add


def name_of(target: Any) -> str:
    """`add.Tensor` for `aten.add.Tensor`, with the namespace for those of others; "" for no op."""
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    name = f"{target._opname}.{target._overloadname}"
    return name if target.namespace in ("aten", "prims") else f"{target.namespace}.{name}"
