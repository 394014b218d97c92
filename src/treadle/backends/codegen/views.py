"""Strided operands: chains of movement ops that need no copy, as an offset and strides.

A kernel that takes strides reads a transposed, sliced, broadcast or head-split operand where it
lies. Extents and strides may be expressions; a view is one if it is at all extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from treadle.base.shape import product, row_major_strides
from treadle.base.symbol import Dim, Expr, is_identical
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.movement import Broadcast, Flip, Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.slicing import Slice
from treadle.ops.transfer import Identity, StopGradient

Shape = tuple[int, ...]
Dims = tuple[Any, ...]
"""Integers or, in products along symbolic axes, expressions; a NumPy table of those is refused."""
SAME: tuple[type[Op], ...] = (Identity, StopGradient)
"""Ops whose result is their operand."""


def is_reversible(op: Op) -> bool:
    """Return whether a movement that may be a view loses no element and repeats none."""
    return op.strided and op.rearranges


@dataclass(frozen=True, slots=True)
class Strided:
    """Elements of a body's input (output) number `index`: `offset` + sum(position * stride).

    Offset and strides count elements of the dense row-major memory; strides may be 0 or negative.
    """

    index: int
    shape: Dims
    offset: Any
    strides: Dims

    @property
    def is_dense(self) -> bool:
        """True where the elements follow one another in row-major order."""
        wanted = row_major_strides(self.shape)
        axes = zip(self.shape, self.strides, wanted, strict=True)
        return all(is_identical(n, 1) or is_identical(a, b) for n, a, b in axes)

    def broadcast_to(self, shape: Dims) -> Strided:
        """The view repeated along new and size-1 axes; the shapes are known to fit."""
        own = zip(self.shape, self.strides, strict=True)
        kept: list[Dim] = [0 if is_identical(n, 1) else stride for n, stride in own]
        return replace(self, shape=shape, strides=(*[0] * (len(shape) - len(kept)), *kept))

    def after(self, op: Op) -> Strided | None:
        """The view of the result of a movement op; None where that takes a copy."""
        if isinstance(op, SAME):
            return self
        if isinstance(op, Reshape):
            return self._reshaped(op.shape)
        if isinstance(op, Broadcast):
            return self.broadcast_to(op.shape)
        if isinstance(op, Transpose):
            return self.transposed(op.permutation)
        if isinstance(op, Flip):
            return self._flipped(op.axes)
        return self._cut(op) if isinstance(op, Slice) else None

    def before(self, node: Node) -> Strided | None:
        """The view of the operand of a reversible movement, given this one of its result."""
        op, shape = node.op, node.inputs[0].type.shape
        if isinstance(op, Reshape):
            return self._reshaped(shape)
        if isinstance(op, Transpose):
            inverse = tuple(op.permutation.index(i) for i in range(len(op.permutation)))
            return self.transposed(inverse)
        return self.after(op) if is_reversible(op) else None

    def transposed(self, permutation: tuple[int, ...]) -> Strided:
        """The axes in another order."""
        shape, strides = ([x[i] for i in permutation] for x in (self.shape, self.strides))
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def _flipped(self, axes: tuple[int, ...]) -> Strided:
        offset, strides = self.offset, list(self.strides)
        for axis in {axis % len(strides) for axis in axes}:
            offset += (self.shape[axis] - 1) * strides[axis]
            strides[axis] = -strides[axis]
        return replace(self, offset=offset, strides=tuple(strides))

    def _cut(self, op: Slice) -> Strided:
        offset, shape, strides = self.offset, [], []
        axes = zip(op.starts, op.stops, op.steps, self.strides, strict=True)
        for start, stop, step, stride in axes:
            offset += start * stride
            reach = stop - start if step > 0 else start - stop
            shape.append((reach + abs(step) - 1) // abs(step))
            strides.append(stride * step)
        return replace(self, offset=offset, shape=tuple(shape), strides=tuple(strides))

    def _reshaped(self, shape: Dims) -> Strided | None:
        if len(shape) == len(self.shape) and all(map(is_identical, shape, self.shape)):
            return self
        if self.is_dense or is_identical(product(shape), 1):
            return replace(self, shape=shape, strides=tuple(row_major_strides(shape)))
        strides = _split_and_joined(self.shape, self.strides, shape)
        return None if strides is None else replace(self, shape=shape, strides=strides)


def _split_and_joined(shape: Dims, strides: Dims, wanted: Dims) -> Dims | None:
    """Strides of the same elements under another shape; None where they need a copy.

    Runs of axes with equal products are the same elements; in each, old axes must follow one
    another as in one axis. Expressions whose products are equal and do not look so need a copy.
    """
    own = [(n, s) for n, s in zip(shape, strides, strict=True) if not is_identical(n, 1)]
    made: list[Dim] = [1] * len(wanted)
    first = at = 0
    while at < len(wanted) and first < len(own):
        end, last = at + 1, first + 1
        new, old = wanted[at], own[first][0]
        while not is_identical(new, old):
            if _is_less(new, old):
                if end == len(wanted):
                    return None
                new, end = new * wanted[end], end + 1
            else:
                if last == len(own):
                    return None
                old, last = old * own[last][0], last + 1
        run = own[first:last]
        if not all(is_identical(x[1], y[0] * y[1]) for x, y in pairwise(run)):
            return None
        made[end - 1] = own[last - 1][1]
        for axis in range(end - 1, at, -1):
            made[axis - 1] = made[axis] * wanted[axis]
        at, first = end, last
    made[at:] = [made[at - 1] if at else 1] * (len(wanted) - at)
    return tuple(made)


def _is_less(x: Dim, y: Dim) -> bool:
    """True if x is the smaller of two different extents; a divisor is, without asking."""
    if isinstance(x, int) and isinstance(y, int):
        return x < y
    if is_identical(y % x, 0):
        return True
    return not is_identical(x % y, 0) and x < y


def extents(shape: tuple[object, ...]) -> Shape:
    """A static shape as plain integers."""
    return tuple(int(d) for d in shape)  # type: ignore[call-overload]


def sizes_of(shape: Sequence[object]) -> Dims:
    """A shape as plain integers and, where it is symbolic, expressions."""
    return tuple(d if isinstance(d, Expr) else int(d) for d in shape)  # type: ignore[call-overload]


def dense(index: int, shape: Dims) -> Strided:
    """All elements of an input or output in row-major order."""
    sizes = sizes_of(shape)
    return Strided(index, sizes, 0, tuple(row_major_strides(sizes)))


def strided_input(body: Graph, value: Value) -> Strided | None:
    """A value as a view of a body's input, None where something is computed or copied between."""
    moves: list[Node] = []
    while value.producer is not None:
        if not value.producer.op.strided:
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
        return int(self.whole.shape[2])

    @property
    def shape(self) -> Dims:
        """Shape [N, C, *S] without the channels that fill up the last block."""
        return sizes_of((self.whole.shape[0], self.channels, *self.whole.shape[3:]))

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
    before, after = (sizes_of(v.type.shape) for v in (node.inputs[0], node.output))
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
    before, after = (sizes_of(v.type.shape) for v in (value, reshape.output))
    move = _only_user(body, reshape.output) if _splits(before, after) else None
    if move is None or not isinstance(move.op, Transpose):
        return None
    return reshape if move.op.permutation == (0, 1, *range(3, len(after)), 2) else None


def _only_user(body: Graph, value: Value) -> Node | None:
    users = [node for node in body.nodes if value in node.inputs]
    return users[0] if len(users) == 1 and value not in body.outputs else None


def _splits(shape: Dims, parts: Dims) -> bool:
    """Return whether `parts` are the axes of a shape, the second of which is split in two."""
    if len(parts) != len(shape) + 1:
        return False
    merged = (parts[0], parts[1] * parts[2], *parts[3:])
    return all(map(is_identical, merged, shape))


def _takes_first(node: Node) -> bool:
    """Return whether a slice takes the first channels and leaves the other axes as they are."""
    op, shape = node.op, node.inputs[0].type.shape
    if not isinstance(op, Slice) or any(op.starts) or any(step != 1 for step in op.steps):
        return False
    return all(i == 1 or is_identical(op.stops[i], extent) for i, extent in enumerate(shape))


def strided_output(body: Graph, index: int) -> tuple[Value, Strided] | None:
    """Return the value computed for output `index`, and where its elements lie in its memory.

    The value is the first one, seen from the output, that no reversible movement made; None where
    the movement behind it takes a copy.
    """
    value = body.outputs[index]
    view = dense(index, value.type.shape)
    while value.producer is not None and is_reversible(value.producer.op):
        moved = view.before(value.producer)
        if moved is None:
            return None
        view, value = moved, value.producer.inputs[0]
    return value, view
