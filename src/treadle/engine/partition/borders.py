"""Pairs of `End` and `Placeholder` on the ways between memory spaces."""

from __future__ import annotations

from collections.abc import Callable

from treadle.graph.ir import Graph, Node, Value, remake
from treadle.ops.border import End, Placeholder
from treadle.ops.constant import Constant

Place = Callable[["Node | None"], int]
"""The memory space of a node, or of what lies outside the program."""


def with_borders(
    graph: Graph, engines: dict[Node, int], space: Place, home: int
) -> tuple[Graph, dict[Node, int]]:
    """The graph with a pair wherever a value changes its memory space, once per target.

    Args:
        graph: the program.
        engines: of its nodes.
        space: the memory space of a node; None is the outside.
        home: the engine to which the pairs of inputs and outputs belong on the outer side.
    """
    instead: dict[Value, Value] = {}
    sent: dict[tuple[Value, int], Value] = {}
    assigned: dict[Node, int] = {}
    nodes: list[Node] = []

    def add(node: Node, engine: int) -> Node:
        nodes.append(node)
        assigned[node] = engine
        return node

    def reach(value: Value, reader: Node | None) -> Value:
        target = space(reader)
        current = instead.get(value, value)
        if space(value.producer) == target or _is_constant(value):
            return current
        key = value, target
        if key not in sent:
            source = home if value.producer is None else engines[value.producer]
            pair = len(sent)
            end = add(Node(End(pair), (current,)), source)
            engine = home if reader is None else engines[reader]
            sent[key] = add(Node(Placeholder(pair), end.outputs), engine).output
        return sent[key]

    for node in graph.nodes:
        inputs = tuple([reach(v, node) for v in node.inputs])
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made = add(node if same else remake(node, node.op, inputs), engines[node])
        if made is not node:
            instead.update(zip(node.outputs, made.outputs, strict=True))
    outputs = [reach(v, None) for v in graph.outputs]
    return graph.with_nodes(nodes, outputs), assigned


def _is_constant(value: Value) -> bool:
    return value.producer is not None and isinstance(value.producer.op, Constant)
