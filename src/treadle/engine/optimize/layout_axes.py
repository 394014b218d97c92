"""Ops to which layouts are all one, on values of another layout; others stay row-major."""

from __future__ import annotations

from treadle.engine.optimize.layout import RANKS, Layout
from treadle.engine.optimize.layout_blocks import in_blocks
from treadle.engine.optimize.layout_forms import Remapped
from treadle.graph.ir import Node


def remapped(node: Node, layout: Layout) -> Remapped | None:
    """Return the node's op on values of a layout; None if it has no such form."""
    if layout.block:
        return in_blocks(node, layout)
    result = node.outputs[0].type
    made = node.op.permuted([v.type for v in node.inputs], result, layout.order)
    if made is None:
        return None
    ranks = (*filter(None, made.operands), *([result.ndim] if made.held else ()))
    if not all(rank in RANKS for rank in ranks):
        return None
    return Remapped(made.op, made.operands, made.held)
