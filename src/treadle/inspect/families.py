"""Families of nodes: the kinds of work by which pictures color them."""

from __future__ import annotations

from treadle.graph.ir import Graph, Node
from treadle.ops.constant import Constant
from treadle.ops.fused import Fused

FAMILIES = {
    "product": "products: matmul, convolution, attention",
    "elementwise": "elementwise",
    "reduction": "reductions, norms, pooling",
    "data": "moves, indexing, constants",
    "control": "branches and loops",
    "update": "optimizer updates",
    "collective": "between processes and devices",
    "host": "run by another engine",
    "other": "other",
}
"""Names of the families in pictures, in the order of their legends."""

_GROUPS = {
    "contraction": "product",
    "attention": "product",
    "loop": "elementwise",
    "window": "reduction",
}


def family_of(node: Node) -> str:
    """One of `FAMILIES`; that of a group is that of what it was built around."""
    op = node.op
    if isinstance(op, Fused):
        return "host" if op.engine else _family_of_group(op)
    return op.work


def _family_of_group(op: Fused) -> str:
    """Loops that reduce or only move are shown as what they do."""
    family = _GROUPS.get(op.kind, "other")
    if op.kind == "loop" and isinstance(op.body, Graph):
        inside = [family_of(n) for n in op.body.nodes if not isinstance(n.op, Constant)]
        if "reduction" in inside:
            return "reduction"
        if inside and set(inside) == {"data"}:
            return "data"
    return family
