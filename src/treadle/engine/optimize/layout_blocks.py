"""Ops to which layouts are all one, on values [N, C / c, *S, c] whose channels lie in blocks.

Axes of space keep their numbers there, and blocks stand where channels stood. What fills up the
last block is computed like everything else and never read, so ops that would mix it with channels
have no form here. Ops that are not here stay row-major.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from treadle.engine.optimize.layout import RANKS, Layout
from treadle.engine.optimize.layout_forms import Remapped
from treadle.graph.ir import Node
from treadle.ops.creation import Full
from treadle.ops.cumulative import CumProd, CumSum
from treadle.ops.families import Elementwise, Reduce
from treadle.ops.gather import Take
from treadle.ops.movement import Broadcast, Concat, Flip, Reshape, Roll
from treadle.ops.op import Op
from treadle.ops.slicing import Pad, Slice, SliceUpdate
from treadle.ops.update import Update

Rule = Callable[[Node, Any, Layout], "Remapped | None"]


def in_blocks(node: Node, layout: Layout) -> Remapped | None:
    """The node's op on values that lie in blocks; None if it has no such form."""
    rule = _rule(type(node.op))
    return None if rule is None else rule(node, node.op, layout)


@lru_cache(512)
def _rule(cls: type[Op]) -> Rule | None:
    if issubclass(cls, Update):
        return None
    if issubclass(cls, Elementwise) and cls.scalar is not Elementwise.scalar:
        return _elementwise
    return next((rule for base, rule in _RULES.items() if issubclass(cls, base)), None)


def _elementwise(node: Node, op: Op, layout: Layout) -> Remapped | None:
    rank = node.output.type.ndim
    if rank not in RANKS or len(node.outputs) != 1:
        return None
    return Remapped(op, tuple(rank if v.type.ndim else 0 for v in node.inputs))


def _same(node: Node, op: Op) -> Remapped | None:
    """Return the op itself, whose operands and result all have the axes of the first operand."""
    if node.inputs[0].type.ndim not in RANKS:
        return None
    return Remapped(op, tuple(v.type.ndim for v in node.inputs))


def _reduce(node: Node, op: Any, layout: Layout) -> Remapped | None:
    """Sums over space and images, whose result is split like the operand, or over all channels."""
    shape = node.inputs[0].type.shape
    rank = len(shape)
    if rank not in RANKS:
        return None
    axes, filled = tuple(op.axes), layout.filled(shape[1])
    if 1 in axes:
        if filled != shape[1]:
            return None
        return Remapped(op.replace(axes=(*axes, rank)), (rank,), held=op.keepdims)
    if op.keepdims:
        return Remapped(op, (rank,))
    if axes[-(rank - 2) :] != tuple(range(2, rank)):
        return None  # Axes of space would be left between blocks and channels.
    made = node.output.type.shape
    moves: list[Op] = [Reshape((*made[:-1], filled))]
    if filled != shape[1]:
        starts, steps = (0,) * len(made), (1,) * len(made)
        moves.append(Slice(starts, made, steps))
    return Remapped(op, (rank,), held=False, after=tuple(moves))


def _concat(node: Node, op: Any, layout: Layout) -> Remapped | None:
    if op.axis == 1 and any(_is_split(v.type.shape, layout) for v in node.inputs):
        return None
    return _same(node, op)


def _is_split(shape: Any, layout: Layout) -> bool:
    """Return whether channels do not fill blocks of the usual size."""
    return len(shape) < 2 or int(shape[1]) % layout.block != 0


def _beside(node: Node, op: Any, layout: Layout) -> Remapped | None:
    """Ops along one axis other than the channels."""
    return None if op.axis == 1 else _same(node, op)


def _take(node: Node, op: Any, layout: Layout) -> Remapped | None:
    if op.axis == 1 or node.inputs[1].type.ndim != 1 or node.inputs[0].type.ndim not in RANKS:
        return None
    return Remapped(op, (node.inputs[0].type.ndim, 0))


def _box(node: Node, op: Any, layout: Layout) -> Remapped | None:
    """Slices that take all channels, or whole blocks."""
    if node.inputs[0].type.ndim not in RANKS:
        return None
    channels = int(node.inputs[0].type.shape[1])
    count, size = layout.blocks(channels)
    start, stop, step = (int(b[1]) for b in (op.starts, op.stops, op.steps))
    whole = (start, stop, step) == (0, channels, 1)
    if not whole and (step != 1 or start % size or stop % size or stop <= start):
        return None
    first, last = (0, count) if whole else (start // size, stop // size)
    made = op.replace(
        starts=(op.starts[0], first, *op.starts[2:], 0),
        stops=(op.stops[0], last, *op.stops[2:], size),
        steps=(op.steps[0], 1, *op.steps[2:], 1),
    )
    parts = (node.output.type.shape[1], *(v.type.shape[1] for v in node.inputs[1:]))
    if any(layout.blocks(n)[1] != size for n in parts):
        return None  # One channel alone has a block of its own.
    return _same(node, made)


def _pad(node: Node, op: Any, layout: Layout) -> Remapped | None:
    if len(op.widths) < 2 or tuple(op.widths[1]) != (0, 0):
        return None
    return _same(node, op.replace(widths=(*op.widths, (0, 0))))


def _turning(node: Node, op: Any, layout: Layout) -> Remapped | None:
    return None if 1 in op.axes else _same(node, op)


def _shaped(node: Node, op: Any, layout: Layout) -> Remapped | None:
    """Ops that state the shape of their result, and repeat an operand or a number."""
    rank = len(op.shape)
    if rank not in RANKS:
        return None
    ranks = tuple(rank if v.type.ndim else 0 for v in node.inputs)
    return Remapped(op.replace(shape=layout.held(op.shape)), ranks)


def _reshape(node: Node, op: Any, layout: Layout) -> Remapped | None:
    """Other axes of space behind the same batch and channels."""
    before, after = node.inputs[0].type.shape, op.shape
    if len(after) not in RANKS or len(before) not in RANKS or before[:2] != after[:2]:
        return None
    return Remapped(Reshape(layout.held(after)), (len(before),))


_RULES: Mapping[Any, Rule] = {
    Reduce: _reduce,
    Concat: _concat,
    CumSum: _beside,
    CumProd: _beside,
    Take: _take,
    Slice: _box,
    SliceUpdate: _box,
    Pad: _pad,
    Flip: _turning,
    Roll: _turning,
    Broadcast: _shaped,
    Full: _shaped,
    Reshape: _reshape,
}
