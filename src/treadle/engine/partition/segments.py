"""Segments: maximal runs of nodes on one engine that depend on one another in no circle.

Every node gets a number, and a segment is the nodes of one number in one domain. Along an edge the
number never falls, and between domains it rises: so the segments cannot form a cycle. Where nodes
of one number are on several engines of a domain, a second number tells those apart likewise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from treadle.engine.partition.claims import Unit
from treadle.graph.analysis import users
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.constant import Constant

Numbers = dict[Node, int]


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes that one engine runs without a break.

    Attributes:
        engine: its name.
        level: segments of a level do not depend on one another.
        nodes: in program order.
        inputs: values that come from outside, in order of use; the inputs of `graph`.
        outputs: values that are needed outside; the outputs of `graph`.
        graph: the nodes as a program of their own.
    """

    engine: str
    level: int
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    graph: Graph

    def __repr__(self) -> str:
        return f"<Segment {self.engine}.{self.level}: {len(self.nodes)} nodes>"


@dataclass(frozen=True, slots=True)
class Segmented:
    """A program with every node in one segment; segments are in an order in which they can run.

    `graph` has the border ops (`End`, `Placeholder`) where a value changes its memory space;
    `fixed` are those of its values that segment engines may make for themselves.
    """

    graph: Graph
    segments: tuple[Segment, ...]
    fixed: Collection[Value] = ()

    def engines(self) -> Mapping[Node, str]:
        """The engine of every node."""
        return {n: s.engine for s in self.segments for n in s.nodes}


Needs = Sequence[tuple[Unit, Sequence[Node]]]
"""Units in an order in which they can run, each with the nodes it waits for."""


def needs(order: Sequence[Unit], fixed: Collection[Value] = ()) -> Needs:
    """Return the units that units wait for; nobody waits for `fixed` values."""
    return [(unit, tuple(_awaited(unit, fixed))) for unit in order]


def levels(needs: Needs, domains: Mapping[Node, int]) -> Numbers:
    """The number of every node, from the start that gives the fewest; one for each unit."""
    starts = sorted({domains[unit[0]] for unit, _ in needs})
    tries = [_levels(needs, domains, start, len(starts) <= 2) for start in starts] or [{}]
    return min(tries, key=lambda d: max(d.values(), default=0))


def _awaited(unit: Unit, fixed: Collection[Value]) -> Iterator[Node]:
    """The nodes whose results a unit waits for, those of its own left out."""
    for node in unit:
        for value in node.inputs:
            before = value.producer
            if before is None or isinstance(before.op, Constant) or value in fixed:
                continue
            if len(unit) == 1 or before not in unit:
                yield before


def _levels(
    needs: Needs,
    domains: Mapping[Node, int],
    start: int,
    two: bool,
) -> Numbers:
    """d(v) = max(base, d(u) + [domains differ]) over what v depends on.

    With two domains every level then holds one of them, and their number is the least for this
    start.
    """
    found: Numbers = {}
    for unit, before in needs:
        mine = domains[unit[0]]
        level = int(two and mine != start)
        for node in before:
            step = found[node] + (domains[node] != mine)
            level = max(level, step)
        for node in unit:
            found[node] = level
    return found


def sublevels(graph: Graph, level: Mapping[Node, int], engines: Mapping[Node, int]) -> Numbers:
    """A number for nodes of one level, which rises where the engine changes within it."""
    found: Numbers = {}
    for node in graph.nodes:
        sub = 0
        for value in node.inputs:
            before = value.producer
            if before is None or isinstance(before.op, Constant) or level[before] != level[node]:
                continue
            sub = max(sub, found[before] + (engines[before] != engines[node]))
        found[node] = sub
    return found


Key = tuple[int, int, int, int]
"""Key that the nodes of a segment share: level, domain, second number, engine."""


def keys(
    graph: Graph,
    level: Numbers,
    domains: Mapping[Node, int],
    engines: Mapping[Node, int],
    fixed: Collection[Value] = (),
) -> dict[Node, Key]:
    """The segment of every node.

    What is computed once comes before all else; a constant belongs to the earliest segment that
    uses it.
    """
    level = {n: -1 if n.inputs and n.outputs[0] in fixed else d for n, d in level.items()}
    sub = sublevels(graph, level, engines)
    found = {n: (level[n], domains[n], sub[n], engines[n]) for n in graph.nodes}
    uses = users(graph)
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            readers = [found[u.node] for u in uses[node.output] if u.node is not None]
            found[node] = min(readers, default=found[node])
    return found


def segments_of(
    graph: Graph, keys: Mapping[Node, Key], names: Sequence[str]
) -> tuple[Segment, ...]:
    """The segments in an order in which they can run."""
    groups: dict[Key, list[Node]] = {}
    for node in graph.nodes:
        groups.setdefault(keys[node], []).append(node)
    uses = users(graph)
    made = []
    for number, (key, nodes) in enumerate(sorted(groups.items(), key=lambda item: item[0])):
        level, _, _, engine = key
        inside = set(nodes)
        inputs = dict.fromkeys(v for n in nodes for v in n.inputs if v.producer not in inside)
        outputs = tuple(
            v for n in nodes for v in n.outputs if any(u.node not in inside for u in uses[v])
        )
        name = f"{graph.name}.{names[engine]}{number}"
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
