"""Counts of a node's arithmetic and of its values' bytes, as far as they are known."""

from __future__ import annotations

from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.graph.ir import Node, Value, regions_of
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.control import ControlFlow
from treadle.ops.conv import Convolution
from treadle.ops.fused import Fused
from treadle.ops.matmul import MatrixProduct

UNKNOWN = 1 << 20
"""Elements that a symbolic shape is taken to have."""
_INNER = 256
"""Terms that a sum over a symbolic axis is taken to have."""


def elements(value: Value) -> int:
    """Number of elements, a guess where it is symbolic."""
    return estimate(product(value.type.shape)) if value.type.is_resolved else UNKNOWN


def nbytes(value: Value) -> int:
    """Bytes of a value, a guess where its shape is symbolic."""
    return elements(value) * value.type.dtype.itemsize


def flops(node: Node) -> int:
    """Arithmetic operations of a node, roughly: what dominates is exact."""
    op, results = node.op, sum(map(elements, node.outputs))
    if isinstance(op, Fused):
        return sum(flops(inner) for body in regions_of(op) for inner in body.nodes)
    if isinstance(op, MatrixProduct):
        inner = node.inputs[0].type.shape[-2 if op.transpose_x else -1]
        return 2 * results * (estimate(inner) if node.inputs[0].type.is_resolved else _INNER)
    if isinstance(op, Convolution):
        return 2 * _products(node)
    if isinstance(op, (Attention, AttentionGrad)):
        keys = node.inputs[1].type.shape[-2]
        return 4 * results * (estimate(keys) if node.inputs[1].type.is_resolved else _INNER)
    if isinstance(op, ControlFlow):
        return 100 * results
    return max(results, sum(map(elements, node.inputs)))


def _products(node: Node) -> int:
    """Products of a convolution: a kernel per place of its result, from whichever side.

    `dy` has the extents of the result of the convolution that a gradient belongs to.
    """
    of_weight = node.op.operands[1] == "dy"
    weight = node.outputs[0] if of_weight else node.inputs[1]
    at = node.op.operands.index("dy") if "dy" in node.op.operands else -1
    result = node.outputs[0] if at < 0 else node.inputs[at]
    channels = weight.type.shape[0]
    per_channel = elements(weight) // channels if isinstance(channels, int) and channels else 0
    return elements(result) * per_channel
