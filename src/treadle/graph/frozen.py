"""Frozen values: what a program computes of frozen inputs alone is the same in every run, so done
once.

Weights of a trained model are frozen, and so is what is made of them: scales of a normalization,
weights in another type or multiplied by such a scale. The optimize stage keeps these nodes apart
from the others, and the compile stage puts them into the part of the program that runs once.
"""

from __future__ import annotations

from collections.abc import Collection

from treadle.graph.analysis import is_opaque
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.constant import Constant
from treadle.ops.control import ControlFlow
from treadle.ops.fused import Fused

SMALL_BYTES = 1 << 20
"""Results that are kept although they are larger than what they are computed from."""


def is_fixed(node: Node, known: Collection[Value]) -> bool:
    """Return whether a node is to be computed once.

    A large result that is larger than its operands is not: it would take memory for good that is
    saved on purpose where weights are held in a narrow type.

    Args:
        node: of any graph.
        known: frozen inputs, constants, and results of nodes that are computed once.
    """
    if not node.inputs:
        return False
    for value in node.inputs:
        if value not in known:
            return False
    if isinstance(node.op, ControlFlow) or is_opaque(node.op):
        return False
    if isinstance(node.op, Fused) and node.op.engine:
        return False
    made = 0
    for value in node.outputs:
        nbytes = value.type.nbytes if value.type.is_static else 0
        if not nbytes:
            return False
        made += nbytes
    if made <= SMALL_BYTES:
        return True
    read = (v.type for v in dict.fromkeys(node.inputs))
    return made <= sum(t.nbytes for t in read if t.is_static)


def fixed_values(graph: Graph, frozen: Collection[Value]) -> frozenset[Value]:
    """Frozen inputs, constants, and all that follows from them and is to be computed once."""
    known = set(frozen)
    for node in graph.nodes:
        if isinstance(node.op, Constant) or is_fixed(node, known):
            known.update(node.outputs)
    return frozenset(known)
