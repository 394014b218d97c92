"""Rules that every partition keeps to."""

from __future__ import annotations

from treadle.base.errors import GraphError
from treadle.engine.partition.segments import Segmented
from treadle.graph.ir import Graph, Node, Value, remake
from treadle.ops.border import Border, End, Placeholder


def check_partition(parts: Segmented, before: Graph) -> None:
    """Raise `GraphError` unless every node is in one segment, segments can run in their order,
    border ops come in pairs, and the program without them is the one that was partitioned.
    """
    where = f"partition of {before.name}"
    number: dict[Node, int] = {}
    for i, segment in enumerate(parts.segments):
        for node in segment.nodes:
            if node in number:
                raise GraphError(where, f"{node!r} is in two segments", at=node.loc)
            number[node] = i
    for node in parts.graph.nodes:
        if node not in number:
            raise GraphError(where, f"{node!r} is in no segment", at=node.loc)
        for value in node.inputs:
            if value.producer is not None and number[value.producer] > number[node]:
                raise GraphError(where, f"{node!r} needs a later segment", at=node.loc)
    if len(number) != len(parts.graph.nodes):
        raise GraphError(where, "a segment has a node that is not in the program")
    _check_pairs(parts.graph, where)
    if without_borders(parts.graph) != before:
        raise GraphError(where, "without its borders it differs from the program")


def _check_pairs(graph: Graph, where: str) -> None:
    ends = [n for n in graph.nodes if isinstance(n.op, End)]
    arrivals = [n for n in graph.nodes if isinstance(n.op, Placeholder)]
    numbers = [n.op.pair for n in ends if isinstance(n.op, End)]
    if len(set(numbers)) != len(numbers) or len(ends) != len(arrivals):
        raise GraphError(where, "border ops do not come in pairs")
    for node in arrivals:
        source = node.inputs[0].producer
        op = None if source is None else source.op
        if not isinstance(op, End) or op.pair != getattr(node.op, "pair", None):
            raise GraphError(where, f"{node!r} does not follow its end", at=node.loc)


def without_borders(graph: Graph) -> Graph:
    """The program with every border op replaced by its operand."""
    instead: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple([instead.get(v, v) for v in node.inputs])
        if isinstance(node.op, Border):
            instead[node.output] = inputs[0]
            continue
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made = node if same else remake(node, node.op, inputs)
        if made is not node:
            instead.update(zip(node.outputs, made.outputs, strict=True))
        nodes.append(made)
    return graph.with_nodes(nodes, (instead.get(v, v) for v in graph.outputs))
