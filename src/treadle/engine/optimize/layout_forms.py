"""Ops that care about layouts, between moves of what they read and make.

Channels-last, an op stands between two transposes. In blocks, a convolution reads its channels
merged, without those that fill up the last block, and splits those of its result, whose last block
the weight's zeros fill up; whatever works channel by channel takes blocks for images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treadle.base.shape import Shape
from treadle.base.symbol import Dim
from treadle.engine.optimize.layout import ROW_MAJOR, Layout, Moves, Sides
from treadle.graph.ir import Node
from treadle.ops.conv import Convolution
from treadle.ops.movement import Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.slicing import Pad, Slice


@dataclass(frozen=True, slots=True)
class LayoutForm:
    """An op on values that are held in layouts.

    Attributes:
        op: what computes the same there.
        operands: for each operand, the moves from how it is held to what the op reads.
        results: for each result, those from what the op makes to how it is held.
    """

    op: Op
    operands: tuple[Moves, ...]
    results: tuple[Moves, ...]


@dataclass(frozen=True, slots=True)
class Remapped:
    """An op to which layouts are all one, on values of another layout.

    Attributes:
        op: what computes the same there.
        operands: for each operand, as how many axes it is to be laid out; 0 leaves it as it is.
        held: whether the result is in the layout; if not, it is what the op would give anyway.
        after: moves that make it that.
    """

    op: Op
    operands: tuple[int, ...]
    held: bool = True
    after: Moves = ()


def form_of(node: Node, layouts: Sides) -> LayoutForm | None:
    """Return the form of an op on these layouts; None if it does not work on them."""
    main = layouts.main
    if not main.block:
        return LayoutForm(
            node.op,
            tuple(_back(v.type.shape, x) for v, x in _pairs(node.inputs, layouts.operands)),
            tuple(_into(v.type.shape, x) for v, x in _pairs(node.outputs, layouts.results)),
        )
    if isinstance(node.op, Convolution):
        return _convolution(node, node.op, layouts, main)
    return LayoutForm(
        node.op,
        tuple(_as_images(v.type.shape, main) for v in node.inputs),
        tuple(_from_images(v.type.shape, main) for v in node.outputs),
    )


def is_depthwise(node: Node) -> bool:
    """Return whether a convolution, or a gradient of one, computes every channel by itself."""
    op = node.op
    if not isinstance(op, Convolution) or op.groups == 1:
        return False
    x, weight, y = op.roles([v.type.shape for v in node.inputs], node.output.type.shape)
    return op.groups == x[1] == y[1] and weight[1] == 1


def _pairs(values: Sequence[Any], layouts: Sequence[Layout | None]) -> Any:
    return zip(values, layouts, strict=True)


def _back(shape: Shape, layout: Layout | None, *, whole: bool = False) -> Moves:
    return () if layout is None else layout.back(shape, whole=whole)


def _into(shape: Shape, layout: Layout | None) -> Moves:
    return () if layout is None else layout.into(shape)


def _convolution(node: Node, op: Convolution, layouts: Sides, main: Layout) -> LayoutForm | None:
    """A convolution or a gradient, some of whose maps are held in blocks."""
    if is_depthwise(node):
        return _depthwise(node, layouts, main)
    if op.side == "weight":
        return None
    x, weight = (v.type.shape for v in node.inputs)
    y = node.output.type.shape
    read, made = layouts.operands[0], layouts.results[0]
    filled = made.filled(y[1]) if made is not None else int(y[1])
    groups = op.groups
    if groups > 1 and (int(x[1]) // groups % main.block or int(y[1]) // groups % main.block):
        return None
    more = _more(weight, 1 if op.side == "input" else 0, filled - int(y[1]))
    return LayoutForm(op, (_back(x, read), more), (_into((y[0], filled, *y[2:]), made),))


def _depthwise(node: Node, layouts: Sides, main: Layout) -> LayoutForm | None:
    """A convolution of as many groups as there are channels: those that fill up are some more."""
    if any(x not in (None, main) for x in (*layouts.operands, *layouts.results)):
        return None
    op: Any = node.op
    first, second = (v.type.shape for v in node.inputs)
    result, channels = node.output.type.shape, int(first[1])
    filled = main.filled(channels)
    op, read = op.replace(groups=filled), _back(first, main, whole=True)
    if op.side == "weight":
        rank = len(result)
        few = (Slice((0,) * rank, result, (1,) * rank),) if filled != channels else ()
        return LayoutForm(op, (read, _back(second, main, whole=True)), (few,))
    made = _into((result[0], filled, *result[2:]), main)
    return LayoutForm(op, (read, _more(second, 0, filled - channels)), (made,))


def _more(weight: Shape, axis: int, count: int) -> Moves:
    """More channels along an axis of a weight, which are zeros."""
    if not count:
        return ()
    return (Pad(tuple((0, count if i == axis else 0) for i in range(len(weight)))),)


def _as_images(shape: Shape, layout: Layout) -> Moves:
    """Blocks, each of which is an image whose channels are last: [N * C / c, c, *S]."""
    held, rank = layout.held(shape), len(shape)
    return Reshape(_images(held)), Transpose((0, rank - 1, *range(1, rank - 1)))


def _from_images(shape: Shape, layout: Layout) -> Moves:
    rank = len(shape)
    return Transpose((0, *range(2, rank), 1)), Reshape(layout.held(shape))


def _images(held: Shape) -> tuple[Dim, ...]:
    return (held[0] * held[1], *held[2:])


def is_row_major(layouts: Sides) -> bool:
    """Return whether nothing is held otherwise."""
    return layouts.main is ROW_MAJOR
