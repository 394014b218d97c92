"""Parts that an op can play in a group."""

from __future__ import annotations

from treadle.graph.cells import RULES, SMALL_BYTES, is_scalar_op
from treadle.graph.ir import Node, Value
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.constant import Constant
from treadle.ops.creation import Creation
from treadle.ops.families import Reduce
from treadle.ops.movement import Transpose
from treadle.ops.op import Op
from treadle.ops.pool import Pooling
from treadle.ops.resample import Interpolation
from treadle.ops.update import Update

WINDOWS: tuple[type[Op], ...] = (Pooling, Interpolation)
"""Ops that compute cells of maps from windows of others, and are not contractions."""


def is_view(op: Op) -> bool:
    """Return whether an op copies nothing when it stands alone."""
    return op.is_view and op.strided


def is_read_through(op: Op) -> bool:
    """Return whether a loop reads through an op: another index in place of a copy."""
    return op.strided and not isinstance(op, Transpose)


def is_static(node: Node) -> bool:
    """Return whether all types are static and no operand or result is empty."""
    values = (*node.inputs, *node.outputs)
    return all(v.type.is_resolved and 0 not in v.type.shape for v in values)


def is_loop(node: Node) -> bool:
    """Return whether a loop nest may compute the node among others."""
    op = node.op
    if isinstance(op, Constant):
        return False
    return is_scalar_op(op) or isinstance(op, Reduce) or type(op) in RULES


def is_closed(node: Node) -> bool:
    """Return whether the node is a loop nest of its own, which is not merged with others.

    Fusing an optimizer's update with the product before it was measured to gain nothing, and
    gradients stay visible for clipping and accumulation.
    """
    return isinstance(node.op, Update)


def is_elementwise(node: Node) -> bool:
    """Return whether the node may stand in the epilogue of a contraction."""
    return is_scalar_op(node.op) and not node.op.is_view


def is_contraction(node: Node) -> bool:
    """Return whether the node is a matrix product or a convolution."""
    return node.op.contraction


def is_attention(node: Node) -> bool:
    """Return whether the node is attention or its gradient."""
    return isinstance(node.op, (Attention, AttentionGrad))


def is_window(node: Node) -> bool:
    """Return whether the node is pooling, resizing or a gradient of one."""
    return isinstance(node.op, WINDOWS)


def is_free(value: Value) -> bool:
    """Return whether any kernel can make the value itself: one number, or a formula of
    the place.
    """
    node = value.producer
    while node is not None and is_read_through(node.op):
        node = node.inputs[0].producer
    if node is None:
        return False
    if isinstance(node.op, Constant):
        return node.op.data.nbytes <= node.op.data.dtype.itemsize
    return isinstance(node.op, Creation)  # It costs less to make the elements than to read them.


def is_clear(value: Value) -> bool:
    """Return whether a loop reads through what made the value."""
    node = value.producer
    if node is None:
        return False
    return is_read_through(node.op) or is_free(value) or _is_uniform(node)


def _is_uniform(node: Node) -> bool:
    """Return whether the node is a small constant of equal elements."""
    if not isinstance(node.op, Constant) or not 0 < node.op.data.nbytes <= SMALL_BYTES:
        return False
    raw = node.op.data.array.tobytes()
    return raw == raw[: node.op.data.dtype.itemsize] * (len(raw) // node.op.data.dtype.itemsize)
