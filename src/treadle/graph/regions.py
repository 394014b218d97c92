"""Graphs inside of ops, changed together with the graph around them."""

from __future__ import annotations

from collections.abc import Callable

from treadle.graph.evaluate import substitute_attributes
from treadle.graph.ir import Graph, Node, Value, regions_of, remake
from treadle.ops.fused import Fused
from treadle.ops.op import Op


def map_regions(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """The graph with `change` applied to the regions of its control-flow ops."""
    if not any([n.op._fields and regions_of(n.op) for n in graph.nodes]):
        return graph
    return replace_ops(graph, lambda op: substituted_regions(op, change))


def substituted_regions(op: Op, change: Callable[[Graph], Graph]) -> Op:
    """The op with `change` applied to its regions; itself where nothing changes.

    What another engine runs stays as that engine was given it.
    """
    if not op._fields or not regions_of(op) or (isinstance(op, Fused) and op.engine):
        return op
    return substitute_attributes(op, lambda v: _within(v, change))


def _within(value: object, change: Callable[[Graph], Graph]) -> object:
    if isinstance(value, Graph):
        return change(value)
    if isinstance(value, tuple) and any(isinstance(v, Graph) for v in value):
        return tuple(_within(v, change) for v in value)
    return value


def replace_ops(graph: Graph, change: Callable[[Op], Op]) -> Graph:
    """The graph with every op replaced by `change(op)`, which must keep the types."""
    renamed: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        op = change(node.op)
        inputs = tuple([renamed.get(v, v) for v in node.inputs])
        same = op is node.op and all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made = node if same else remake(node, op, inputs)
        if made is not node:
            renamed.update(zip(node.outputs, made.outputs, strict=True))
        nodes.append(made)
    if not renamed:
        return graph
    return graph.with_nodes(nodes, (renamed.get(v, v) for v in graph.outputs))
