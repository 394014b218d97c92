"""A graph for inputs of other shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.base.errors import TreadleError
from treadle.base.shape import Shape
from treadle.base.symbol import Dim
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.movement import Broadcast, Reshape
from treadle.ops.op import Op


def retyped(graph: Graph, shapes: Sequence[Shape]) -> Graph:
    """The same ops on inputs of other shapes.

    Ops that name the shape of their result (reshape, broadcast) name it as it was traced; where
    its first extent is that of an operand and that has another one now, the new one is taken.

    Raises:
        TreadleError: an op does not take the new shapes.
    """
    inputs = tuple(
        Value(v.type.with_shape(tuple(s)), None, v.index, v.name)
        for v, s in zip(graph.inputs, shapes, strict=True)
    )
    known: dict[Value, Value] = dict(zip(graph.inputs, inputs, strict=True))
    batch = {
        old.type.shape[0]: new.type.shape[0]
        for old, new in zip(graph.inputs, inputs, strict=True)
        if old.type.shape and new.type.shape and old.type.shape[0] != new.type.shape[0]
    }
    nodes = []
    for node in graph.nodes:
        operands = tuple(known[v] for v in node.inputs)
        moved = any(a.type != b.type for a, b in zip(operands, node.inputs, strict=True))
        op = fitting(node.op, batch) if moved or not node.inputs else node.op
        try:
            made = Node(op, operands, node.loc, node.names, node.group)
        except TreadleError as error:
            error.add_note(f"in {node.op.name}, which was traced for {_shapes(node.inputs)}")
            raise
        nodes.append(made)
        known.update(zip(node.outputs, made.outputs, strict=True))
    outputs = tuple(known[v] for v in graph.outputs)
    return Graph(graph.name, inputs, tuple(nodes), outputs, graph.guards)


def fitting(op: Op, batch: Mapping[Dim, Dim]) -> Op:
    """An op that names its result's shape, with another first extent where `batch` has one."""
    if isinstance(op, Reshape | Broadcast) and op.shape and op.shape[0] in batch:
        return type(op)((batch[op.shape[0]], *op.shape[1:]))
    return op


def _shapes(values: Sequence[Value]) -> str:
    return ", ".join(str(v.type) for v in values)
