"""Segments: maximal runs of nodes on one engine that depend on one another in no circle.

Every node gets a number, and a segment is the nodes of one number on one engine. Along an edge the
number never falls, and between engines it rises: so the segments cannot form a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.engine.types import Segment
from treadle.graph.analysis import producers, users
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.constant import Constant


def levels(graph: Graph, engines: Mapping[Node, int]) -> dict[Node, int]:
    """The number of every node, from the start that gives the fewest."""
    starts = sorted(set(engines.values()))
    tries = [_levels(graph, engines, start) for start in starts] or [{}]
    return min(tries, key=lambda d: max(d.values(), default=0))


def _levels(graph: Graph, engines: Mapping[Node, int], start: int) -> dict[Node, int]:
    """d(v) = max(base, d(u) + [engines differ]) over what v depends on.

    With two engines every level then holds one of them, and their number is the least for this
    start. Constants belong to whoever uses them first.
    """
    two = len(set(engines.values())) <= 2
    found: dict[Node, int] = {}
    for node in graph.nodes:
        level = int(two and engines[node] != start)
        for before in producers(node):
            if not isinstance(before.op, Constant):
                level = max(level, found[before] + (engines[before] != engines[node]))
        found[node] = level
    for node in reversed(graph.nodes):
        if isinstance(node.op, Constant):
            found[node] = 0
    return found


def constants_follow(graph: Graph, engines: dict[Node, int], depth: dict[Node, int]) -> None:
    """Put every constant into the earliest segment that uses it."""
    uses = users(graph)
    order = {n: i for i, n in enumerate(graph.nodes)}
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            readers = [u.node for u in uses[node.output] if u.node is not None]
            if readers:
                first = min(readers, key=lambda n: (depth[n], order[n]))
                engines[node], depth[node] = engines[first], depth[first]


def segments_of(
    graph: Graph, engines: Mapping[Node, int], depth: Mapping[Node, int], names: Sequence[str]
) -> tuple[Segment, ...]:
    """The segments in an order in which they can run."""
    groups: dict[tuple[int, int], list[Node]] = {}
    for node in graph.nodes:
        groups.setdefault((depth[node], engines[node]), []).append(node)
    uses = users(graph)
    made = []
    for (level, engine), nodes in sorted(groups.items(), key=lambda item: item[0]):
        inside = set(nodes)
        inputs = dict.fromkeys(v for n in nodes for v in n.inputs if v.producer not in inside)
        outputs = tuple(
            v for n in nodes for v in n.outputs if any(u.node not in inside for u in uses[v])
        )
        name = f"{graph.name}.{names[engine]}{level}"
        part = _extracted(name, nodes, tuple(inputs), outputs)
        made.append(Segment(names[engine], level, tuple(nodes), tuple(inputs), outputs, part))
    return tuple(made)


def _extracted(
    name: str, nodes: Sequence[Node], inputs: tuple[Value, ...], outputs: tuple[Value, ...]
) -> Graph:
    """Nodes of a graph as a program of their own."""
    builder = GraphBuilder(name)
    inside = {v: builder.input(v.type, v.name).value for v in inputs}
    for node in nodes:
        made = builder.copy(node, tuple(inside[v] for v in node.inputs))
        inside.update(zip(node.outputs, made.outputs, strict=True))
    builder.output(*(builder.operand(inside[v]) for v in outputs))
    return builder.build()
