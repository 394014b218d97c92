"""Strided operands: chains of movement ops that need no copy, as an offset and strides.

A kernel that takes strides reads a transposed, sliced, broadcast or head-split operand where it
lies. NumPy does the stride algebra here, on arrays that have strides and no memory behind them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treadle.graph.ir import Graph, Node, Value
from treadle.ops.movement import Broadcast, Flip, Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.slicing import Slice
from treadle.ops.transfer import Identity, StopGradient

Shape = tuple[int, ...]
SAME: tuple[type[Op], ...] = (Identity, StopGradient)
"""Ops whose result is their operand."""
REVERSIBLE: tuple[type[Op], ...] = (Reshape, Transpose, Flip, *SAME)
"""Movements that lose no element and repeat none."""
MOVES: tuple[type[Op], ...] = (Broadcast, Slice, *REVERSIBLE)
"""Ops whose result is, or may be, a strided view of their operand."""


@dataclass(frozen=True, slots=True)
class Strided:
    """Elements of a body's input (output) number `index`: `offset` + sum(position * stride).

    Offset and strides count elements of the dense row-major memory; strides may be 0 or negative.
    """

    index: int
    shape: Shape
    offset: int
    strides: Shape

    @property
    def is_dense(self) -> bool:
        """Whether the elements follow one another in row-major order."""
        wanted = dense(0, self.shape).strides
        return all(
            n == 1 or a == b for n, a, b in zip(self.shape, self.strides, wanted, strict=True)
        )

    def broadcast_to(self, shape: Shape) -> Strided:
        """The view repeated along new and size-1 axes; the shapes are known to fit."""
        return self._of(np.broadcast_to(self._array(), shape))

    def after(self, op: Op) -> Strided | None:
        """The view of the result of a movement op; None where that takes a copy."""
        if isinstance(op, SAME):
            return self
        if isinstance(op, Reshape):
            return self._reshaped(extents(op.shape))
        return self._of(op.reference(self._array())) if isinstance(op, MOVES) else None

    def before(self, node: Node) -> Strided | None:
        """The view of the operand of a reversible movement, given this one of its result."""
        op, shape = node.op, extents(node.inputs[0].type.shape)
        if isinstance(op, Reshape):
            return self._reshaped(shape)
        if isinstance(op, Transpose):
            inverse = tuple(op.permutation.index(i) for i in range(len(op.permutation)))
            return self.after(Transpose(inverse))
        return self.after(op) if isinstance(op, REVERSIBLE) else None

    def _array(self) -> npt.NDArray[np.int8]:
        """An array of one-byte elements with these strides; its elements do not exist."""
        return np.lib.stride_tricks.as_strided(_ORIGIN, self.shape, self.strides)

    def _of(self, array: npt.NDArray[np.int8]) -> Strided:
        offset = self.offset + array.ctypes.data - _ORIGIN.ctypes.data
        return Strided(self.index, array.shape, offset, array.strides)

    def _reshaped(self, shape: Shape) -> Strided | None:
        try:
            return self._of(self._array().reshape(shape, copy=False))
        except ValueError:  # NumPy says so where a copy is needed.
            return None


_ORIGIN = np.zeros(1, np.int8)


def extents(shape: tuple[object, ...]) -> Shape:
    """A static shape as plain integers."""
    return tuple(int(d) for d in shape)  # type: ignore[call-overload]


def dense(index: int, shape: tuple[object, ...]) -> Strided:
    """All elements of an input or output in row-major order."""
    sizes = extents(shape)
    strides = [1] * len(sizes)
    for axis in range(len(sizes) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    return Strided(index, sizes, 0, tuple(strides))


def strided_input(body: Graph, value: Value) -> Strided | None:
    """A value as a view of a body's input, None where something is computed or copied between."""
    moves: list[Node] = []
    while value.producer is not None:
        if not isinstance(value.producer.op, MOVES):
            return None
        moves.append(value.producer)
        value = value.producer.inputs[0]
    view: Strided | None = dense(body.inputs.index(value), value.type.shape)
    for node in reversed(moves):
        view = None if view is None else view.after(node.op)
    return view


def strided_output(body: Graph, index: int) -> tuple[Value, Strided] | None:
    """What is computed for output `index`, and where its elements lie in that output's memory.

    The value is the first one, seen from the output, that no reversible movement made; None where
    the movement behind it takes a copy.
    """
    value = body.outputs[index]
    view = dense(index, value.type.shape)
    while value.producer is not None and isinstance(value.producer.op, REVERSIBLE):
        moved = view.before(value.producer)
        if moved is None:
            return None
        view, value = moved, value.producer.inputs[0]
    return value, view
