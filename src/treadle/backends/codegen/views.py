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


@dataclass(frozen=True, slots=True)
class Blocked:
    """A view [N, C, *S] whose channels lie in blocks: `whole` is [N, blocks, block, *S].

    Channels from `channels` on fill up the last block and do not count.
    """

    whole: Strided
    channels: int

    @property
    def index(self) -> int:
        """Number of the body's input, or output."""
        return self.whole.index

    @property
    def block(self) -> int:
        """Channels of a block."""
        return self.whole.shape[2]

    @property
    def shape(self) -> Shape:
        """Without what fills up the last block."""
        return (self.whole.shape[0], self.channels, *self.whole.shape[3:])

    def as_images(self) -> Strided | None:
        """Blocks as images of few channels, [N * blocks, block, *S]; None if they lie apart."""
        n, blocks, block, *spatial = self.whole.shape
        return self.whole.after(Reshape((n * blocks, block, *spatial)))


def blocked_input(body: Graph, value: Value) -> Blocked | None:
    """A value [N, C, *S] as a view of a body's input whose channels are split in two axes.

    None where its channels were not merged from two axes, or where more was moved behind that than
    the first channels picked.
    """
    channels = value.type.shape[1]
    node = value.producer
    if node is not None and isinstance(node.op, Slice) and _takes_first(node):
        node = node.inputs[0].producer
    if node is None or not isinstance(node.op, Reshape):
        return None
    before, after = (extents(v.type.shape) for v in (node.inputs[0], node.output))
    if not _splits(after, before):
        return None
    whole = strided_input(body, node.inputs[0])
    return None if whole is None else Blocked(whole, int(channels))


def split_after(body: Graph, value: Value) -> Node | None:
    """The reshape that splits the channels of [N, C, *S] before blocks of them are put last.

    None where more becomes of the value than that.
    """
    reshape = _only_user(body, value)
    if reshape is None or not isinstance(reshape.op, Reshape):
        return None
    before, after = (extents(v.type.shape) for v in (value, reshape.output))
    move = _only_user(body, reshape.output) if _splits(before, after) else None
    if move is None or not isinstance(move.op, Transpose):
        return None
    return reshape if move.op.permutation == (0, 1, *range(3, len(after)), 2) else None


def _only_user(body: Graph, value: Value) -> Node | None:
    users = [node for node in body.nodes if value in node.inputs]
    return users[0] if len(users) == 1 and value not in body.outputs else None


def _splits(shape: Shape, parts: Shape) -> bool:
    """Whether `parts` are the axes of a shape, the second of which is split in two."""
    return (
        len(parts) == len(shape) + 1
        and parts[0] == shape[0]
        and parts[1] * parts[2] == shape[1]
        and parts[3:] == shape[2:]
    )


def _takes_first(node: Node) -> bool:
    """Whether a slice takes the first channels and leaves the other axes as they are."""
    op, shape = node.op, node.inputs[0].type.shape
    if not isinstance(op, Slice) or any(op.starts) or any(step != 1 for step in op.steps):
        return False
    return all(i == 1 or op.stops[i] == extent for i, extent in enumerate(shape))


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
