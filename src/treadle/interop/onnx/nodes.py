"""The view of an ONNX operator that converters get: the node, and values that ops can be applied
to.

A value is an operand (a tensor, a value of a graph, or an array that is known on the host), None
(left out, or an empty optional), or a list of values (a sequence).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import DTypeError, TraceError, UnsupportedOp
from treadle.ops.abstract import ArrayOperand

Value = Any
"""An operand, None, or a list of values."""
T = TypeVar("T")
MOST_BYTES = 1 << 35
"""Of an array made from its extents alone: more is a damaged model."""


def is_known(value: Value) -> bool:
    """Return whether a value is an array on the host (or nothing), rather than computed by the
    model.
    """
    return value is None or type(value) is ArrayOperand


def known(array: Any) -> ArrayOperand:
    """An array as a value."""
    return ArrayOperand(np.asarray(array))


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node on its way into ops.

    Attributes:
        op_type, domain: the operator.
        opset: version of its domain that the model imports.
        attributes: decoded; tensors are arrays, graphs are ONNX graphs.
        name: of the node, or of its first result, for messages.
        n_inputs: how many are listed, those that are left out in the middle included.
        n_outputs: how many results are listed.
        wanted: which results have a name.
        run: runs a graph of an attribute on values; names outside of it are visible inside.
        ask: raises where so many bytes are more than the model may take while it is read.
    """

    op_type: str
    domain: str
    opset: int
    attributes: dict[str, Any]
    name: str
    n_inputs: int
    n_outputs: int
    wanted: tuple[bool, ...] = ()
    run: Callable[[Any, Sequence[Value]], list[Value]] = field(default=lambda graph, inputs: [])
    ask: Callable[[int, str], None] | None = None

    def made(self, shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
        """The shape of an array that is about to be made on the host.

        Raises:
            LoadError, UnsupportedOp: it is larger than memory, or than a model may take.
        """
        extents = tuple(int(d) for d in shape)
        count = math.prod(extents) * itemsize
        if count > MOST_BYTES or any(d < 0 for d in extents):
            raise self.refuse(f"extents {list(extents)} are more than memory holds")
        if self.ask is not None:
            self.ask(count, f"the result of {self.op_type} {self.name!r}")
        return extents

    def attr(self, name: str, default: T) -> T:
        """An attribute, or its default."""
        found: T = self.attributes.get(name, default)
        return found

    def ints(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """A list of integers."""
        return tuple(int(i) for i in self.attributes.get(name, default))

    def place(self, axis: Any, rank: int) -> int:
        """Return an axis of so many, counted from the first.

        Raises:
            UnsupportedOp: there is no such axis.
        """
        if not -rank <= axis < rank:
            raise self.refuse(f"there is no axis {axis} of {rank}", "check the model")
        return int(axis) % rank

    def wants(self, output: int) -> bool:
        """Return whether somebody uses this result."""
        return output < len(self.wanted) and self.wanted[output]

    def refuse(self, problem: str, hint: str = "register a converter of your own") -> UnsupportedOp:
        """An error that names the node."""
        return UnsupportedOp(f"onnx {self.op_type}", f"{problem} (node {self.name!r})", hint=hint)


def concrete(value: Value, node: OnnxNode, what: str) -> Array:
    """The array of a value that decides shapes or results of this node.

    Raises:
        UnsupportedOp: a program that is being captured computes it.
    """
    if type(value) is ArrayOperand:
        return value.array
    problem = f"{what} must be known when the model is converted"
    hint = "make it an initializer, or run the model eagerly"
    read = getattr(value, "numpy", None)
    if read is None:
        raise node.refuse(problem, hint)
    try:
        return np.asarray(read())
    except TraceError as error:
        raise node.refuse(problem, hint) from error


def is_concrete(value: Value) -> bool:
    """Return whether `concrete` gives an array: no program that is being captured computes the
    value.
    """
    if type(value) is ArrayOperand:
        return True
    read = getattr(value, "numpy", None)
    if read is None:
        return False
    try:
        read()
    except TraceError:
        return False
    return True


def dtype_of(value: Value) -> DType:
    """Element type of an operand."""
    found: DType = value.type.dtype
    return found


def supported(dtype: np.dtype[Any]) -> bool:
    """Return whether tensors can have this element type."""
    try:
        as_dtype(dtype)
    except DTypeError:
        return False
    return True


def together(values: Sequence[Value]) -> list[Value]:
    """The values with arrays made constants of the first operand that is none, if there is one."""
    flat = [v for x in values for v in (x if isinstance(x, list) else (x,))]
    anchor = next((v for v in flat if not is_known(v)), None)
    if anchor is None:
        return list(values)

    def lift(value: Value) -> Value:
        if isinstance(value, list):
            return [lift(v) for v in value]
        if type(value) is ArrayOperand and supported(value.array.dtype):
            return anchor.constant(value.array, as_dtype(value.array.dtype))
        return value

    return [lift(v) for v in values]


ALIGNED = frozenset(
    ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "PRelu", "Pow", "Sub", "Xor")
)
"""Operators whose second operand was placed by an attribute before version 7 of the standard."""


def aligned(node: OnnxNode, x: Value, y: Value) -> Value:
    """The second operand of such an operator, with axes of 1 behind it so that NumPy places it."""
    rank, own = len(x.type.shape), len(y.type.shape)
    first = node.attr("axis", 1 if node.op_type == "PRelu" and own == 1 else rank - own)
    behind = rank - first - own
    return y.reshape((*y.type.shape, *(1,) * behind)) if behind > 0 else y


def extent_of(dim: Any) -> int | str:
    """A declared extent, its name where it is open, "?" without one.

    Some exporters (PaddlePaddle's) write -1 for what is open.
    """
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return dim.dim_param or "?"
