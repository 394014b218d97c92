"""One spelling for what can be written in several ways, so that equal computations look equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from treadle.graph.ir import Graph, Node, Value, constant_of, remake
from treadle.graph.passes import register
from treadle.graph.regions import map_regions
from treadle.ops.logic import Greater, GreaterEqual, Less, LessEqual
from treadle.ops.op import Op

MIRRORED: dict[type[Op], Op] = {Greater: Less(), GreaterEqual: LessEqual()}
"""Comparisons that are another one with its operands exchanged."""


@register
@dataclass(frozen=True, slots=True)
class Canonicalize:
    """Exchanges operands: the value defined first comes first, constants come last.

    Only where that changes no bit. `greater` becomes `less`.
    """

    name: ClassVar[str] = "canonicalize"

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph with operands in order."""
        graph = map_regions(graph, self)
        place: dict[Value, int] = {v: i for i, v in enumerate(graph.inputs)}
        instead: dict[Value, Value] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            inputs = tuple([instead.get(v, v) for v in node.inputs])
            op, inputs = _ordered(node.op, inputs, place)
            same = op is node.op and all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            made = node if same else remake(node, op, inputs)
            if made is not node:
                instead.update(zip(node.outputs, made.outputs, strict=True))
            for value in made.outputs:
                place[value] = len(place)
            nodes.append(made)
        if not instead:
            return graph
        return graph.with_nodes(nodes, (instead.get(v, v) for v in graph.outputs))


def _ordered(
    op: Op, inputs: tuple[Value, ...], place: dict[Value, int]
) -> tuple[Op, tuple[Value, ...]]:
    mirrored = MIRRORED.get(type(op))
    if mirrored is not None:
        return mirrored, inputs[::-1]
    if op.commutative:
        inputs = tuple(sorted(inputs, key=lambda v: (constant_of(v) is not None, place[v])))
    return op, inputs
