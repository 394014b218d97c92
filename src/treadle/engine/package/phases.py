"""Models with extents that data decide: a program as far as it goes, then op by op.

Where a detector drops overlapping boxes, how many are left is known only when it runs. What stands
before that is compiled as ever; from there on each op is launched as in eager code, with the
extents that have turned out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.engine.devices.names import CompNode
from treadle.engine.eager.dispatch import eager_type, run, run_nullary
from treadle.graph.evaluate import bind, op_at
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.op import as_tuple


def is_open(graph: Graph) -> bool:
    """Return whether data decide extents in a graph whose inputs are closed."""
    return not all(v.type.is_static for n in graph.nodes for v in n.outputs)


def front_of(graph: Graph) -> Graph:
    """The part that needs no extents that data decide; all that the rest reads is an output."""
    nodes, _ = _split(graph)
    made = {*graph.inputs, *(v for n in nodes for v in n.outputs)}
    read = dict.fromkeys(v for n in _split(graph)[1] for v in n.inputs if v in made)
    read |= dict.fromkeys(v for v in graph.outputs if v in made)
    return Graph(graph.name, graph.inputs, tuple(nodes), tuple(read))


def _split(graph: Graph) -> tuple[list[Node], list[Node]]:
    front: list[Node] = []
    rest: list[Node] = []
    known = set(graph.inputs)
    for node in graph.nodes:
        static = all(v.type.is_static for v in node.outputs)
        if static and known.issuperset(node.inputs):
            front.append(node)
            known.update(node.outputs)
        else:
            rest.append(node)
    return front, rest


class Rest:
    """The part that follows the front of a graph.

    Args:
        graph: the whole.
        front: the graph that `front_of` made of it.
        home: the device that all of it is on.
    """

    def __init__(self, graph: Graph, front: Graph, home: CompNode) -> None:
        self._graph, self._front, self._home = graph, front, home
        self._nodes = _split(graph)[1]

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """The results of the whole, given those of the front."""
        known: dict[Value, Any] = dict(zip(self._front.outputs, arrays, strict=True))
        extents: dict[str, int] = {}
        for node in self._nodes:
            op = op_at(node.op, extents)
            if node.inputs:
                kinds = tuple([eager_type(v.type.dtype, self._home) for v in node.inputs])
                found = run(op, kinds, tuple([known[v] for v in node.inputs]))[1]
            else:
                found = run_nullary(op, self._home)[1]
            for value, array in zip(node.outputs, as_tuple(found), strict=True):
                known[value] = array
                bind(self._graph, value.type, array, extents)
        return [known[v] for v in self._graph.outputs]


__all__ = ["Rest", "front_of", "is_open"]
