"""Ops to which layouts are all one: the same op on axes in another order.

What is here says how attributes that name axes change, and which operands and results have their
axes in the new order. Ops that are not here stay row-major.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from treadle.engine.optimize.layout import RANKS, Layout, Order, inverse, placed
from treadle.engine.optimize.layout_blocks import in_blocks
from treadle.engine.optimize.layout_forms import Remapped
from treadle.graph.ir import Node
from treadle.ops.creation import Full
from treadle.ops.cumulative import CumProd, CumSum
from treadle.ops.families import Elementwise, Reduce
from treadle.ops.gather import Take
from treadle.ops.movement import Broadcast, Concat, Flip, Reshape, Roll
from treadle.ops.op import Op
from treadle.ops.reduce import ArgExtremum
from treadle.ops.slicing import Pad, Slice, SliceUpdate
from treadle.ops.update import Update


def remapped(node: Node, layout: Layout) -> Remapped | None:
    """The node's op on values of a layout; None if it has no such form."""
    if layout.block:
        return in_blocks(node, layout)
    rule = _rule(type(node.op))
    return None if rule is None else rule(node, node.op, layout)


Rule = Callable[[Node, Any, Layout], "Remapped | None"]


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


def _order(node: Node, layout: Layout) -> Order:
    return layout.order(node.inputs[0].type.ndim)


def _same(node: Node, op: Op) -> Remapped | None:
    """All operands and the result have the axes of the first operand."""
    if node.inputs[0].type.ndim not in RANKS:
        return None
    return Remapped(op, tuple(v.type.ndim for v in node.inputs))


def _reduce(node: Node, op: Any, layout: Layout) -> Remapped | None:
    order = _order(node, layout)
    if len(order) not in RANKS:
        return None
    place = inverse(order)
    if isinstance(op, ArgExtremum):
        gone, made = (op.axis,), op.replace(axis=place[op.axis])
    else:
        gone, made = op.axes, op.replace(axes=tuple(sorted(place[a] for a in op.axes)))
    left = [axis for axis in order if axis not in gone]
    if not op.keepdims and left != sorted(left):
        return None
    return Remapped(made, (len(order),), held=op.keepdims)


def _axis(node: Node, op: Any, layout: Layout) -> Remapped | None:
    return _same(node, op.replace(axis=inverse(_order(node, layout))[op.axis]))


def _take(node: Node, op: Any, layout: Layout) -> Remapped | None:
    if node.inputs[1].type.ndim != 1 or node.inputs[0].type.ndim not in RANKS:
        return None
    order = _order(node, layout)
    return Remapped(op.replace(axis=inverse(order)[op.axis]), (len(order), 0))


def _box(node: Node, op: Any, layout: Layout) -> Remapped | None:
    order = _order(node, layout)
    names = ("starts", "stops", "steps")
    return _same(node, op.replace(**{n: placed(getattr(op, n), order) for n in names}))


def _pad(node: Node, op: Any, layout: Layout) -> Remapped | None:
    return _same(node, op.replace(widths=tuple(op.widths[a] for a in _order(node, layout))))


def _flip(node: Node, op: Any, layout: Layout) -> Remapped | None:
    place = inverse(_order(node, layout))
    return _same(node, op.replace(axes=tuple(sorted(place[a] for a in op.axes))))


def _roll(node: Node, op: Any, layout: Layout) -> Remapped | None:
    place = inverse(_order(node, layout))
    return _same(node, op.replace(axes=tuple(place[a] for a in op.axes)))


def _shaped(node: Node, op: Any, layout: Layout) -> Remapped | None:
    """Ops that state the shape of their result, and repeat an operand or a number."""
    rank = len(op.shape)
    if rank not in RANKS:
        return None
    ranks = tuple(rank if v.type.ndim else 0 for v in node.inputs)
    return Remapped(op.replace(shape=placed(op.shape, layout.order(rank))), ranks)


def _reshape(node: Node, op: Any, layout: Layout) -> Remapped | None:
    """Other axes of space behind the same batch and channels."""
    before, after = node.inputs[0].type.shape, op.shape
    if len(after) not in RANKS or len(before) not in RANKS or before[:2] != after[:2]:
        return None
    return Remapped(Reshape(placed(after, layout.order(len(after)))), (len(before),))


_RULES: Mapping[Any, Rule] = {
    Reduce: _reduce,
    ArgExtremum: _reduce,
    Concat: _axis,
    CumSum: _axis,
    CumProd: _axis,
    Take: _take,
    Slice: _box,
    SliceUpdate: _box,
    Pad: _pad,
    Flip: _flip,
    Roll: _roll,
    Broadcast: _shaped,
    Full: _shaped,
    Reshape: _reshape,
}
