"""Families of nodes: the kinds of work by which pictures color them."""

from __future__ import annotations

from treadle.graph.ir import Graph, Node
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.batch_norm import BatchNormGrad, BatchNormInfer, BatchNormTrain
from treadle.ops.border import Border
from treadle.ops.collective import Collective
from treadle.ops.column_moments import ColumnMoments
from treadle.ops.constant import Constant
from treadle.ops.control import ControlFlow
from treadle.ops.conv import Convolution
from treadle.ops.creation import Creation
from treadle.ops.cumulative import Cumulative
from treadle.ops.families import Elementwise, Movement, Reduce
from treadle.ops.fused import Fused
from treadle.ops.gather import Indexing, OneHot, Take
from treadle.ops.gather_along import Along
from treadle.ops.loss import SoftmaxCrossEntropy
from treadle.ops.matmul import MatrixProduct
from treadle.ops.norm import GroupNorm, LayerNorm, RmsNorm, Standardize, StandardizeGrad
from treadle.ops.op import Op
from treadle.ops.pool import Pooling
from treadle.ops.softmax import AlongAxis
from treadle.ops.sort import Ordering
from treadle.ops.transfer import After, Identity, Transfer
from treadle.ops.update import Update

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

_CLASSES: tuple[tuple[str, tuple[type[Op], ...]], ...] = (
    ("update", (Update,)),
    ("product", (MatrixProduct, Convolution, Attention, AttentionGrad)),
    (
        "reduction",
        (
            *(Reduce, Pooling, AlongAxis, SoftmaxCrossEntropy, Cumulative, ColumnMoments),
            *(BatchNormInfer, BatchNormTrain, BatchNormGrad),
            *(LayerNorm, RmsNorm, GroupNorm, Standardize, StandardizeGrad),
        ),
    ),
    ("data", (Movement, Identity, After, Take, Indexing, OneHot, Along, Creation, Constant)),
    ("data", (Ordering,)),
    ("control", (ControlFlow,)),
    ("collective", (Collective, Transfer, Border)),
    ("elementwise", (Elementwise,)),
)
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
    return next((name for name, classes in _CLASSES if isinstance(op, classes)), "other")


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
