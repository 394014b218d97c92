"""Cutting a graph where data decide extents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from treadle.base.guards import recording_guards
from treadle.base.symbol import Dim, Relation, extent_of
from treadle.base.symbol import symbols_of as symbols_of_extent
from treadle.engine.phases.parts import parts_of
from treadle.graph.analysis import (
    changing_in,
    found_by,
    found_in,
    has_effect,
    live_nodes,
    mentioned_by,
    nodes_in,
)
from treadle.graph.builder import GraphBuilder
from treadle.graph.evaluate import specialize
from treadle.graph.ir import Graph, Node, Value, lone_symbol, regions_of, symbols_in, symbols_of
from treadle.ops.check import CheckIndices
from treadle.ops.control import FindingWhile
from treadle.ops.op import Op


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a graph between two times at which data have decided extents.

    Attributes:
        graph: the program, with symbols for extents that are known when it runs.
        inputs, outputs: its ends, as values of the whole; frozen inputs are the last ones.
        frozen: how many of the inputs are frozen.
        deciding: nodes of the whole that decide extents behind it, or in their regions.
        bounded: those of them that are part of the program, which has two more results for each:
            the rows in front of a larger array, and how many there are.
        guards: what must hold before it runs.
    """

    graph: Graph
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    frozen: int
    deciding: tuple[Node, ...]
    bounded: tuple[Node, ...]
    guards: tuple[Relation, ...]


def finds_extents(graph: Graph) -> bool:
    """Return whether data decide an extent of a graph, or one in its loops and branches."""
    return any(found_by(node) or finds_inside(node) for node in graph.nodes)


def finds_inside(node: Node) -> bool:
    """Return whether data decide an extent in a branch or loop, or from turn to turn."""
    return isinstance(node.op, FindingWhile) or any(map(finds_extents, regions_of(node.op)))


def standalone(
    region: Graph, node: Node, whole: Graph, known: Iterable[Value]
) -> tuple[Graph, tuple[Value, ...]]:
    """A branch or body as a program of its own, and which values it is given besides its inputs.

    It gets the guards on extents that are found in it, which its graph states, and a value for each
    extent that it mentions and that none of its inputs has.

    Args:
        region, node, whole: the region, the node that holds it, and the node's graph.
        known: values that are there when the node runs, with all extents that are known then.
    """
    own = found_in(region) | {s.name for s in changing_in(node)}
    more = [g for g in whole.guards if symbols_of_extent(g.expr) & own]
    sources = {lone.name: v for v in known for d in v.type.shape if (lone := lone_symbol(d))}
    given = {s.name for v in region.inputs for s in symbols_in(v.type)}
    missing = sorted({s.name for s in symbols_of(region)} & sources.keys() - given - own)
    carried = tuple(dict.fromkeys(sources[name] for name in missing))
    count = len(region.inputs)
    further = (Value(v.type, None, count + i, "") for i, v in enumerate(carried))
    inputs, guards = (*region.inputs, *further), (*region.guards, *more)
    return Graph(region.name, inputs, region.nodes, region.outputs, guards), carried


def renumbered(graph: Graph) -> Graph:
    """The graph with names of found extents that are the same in every process."""
    names: dict[str, Dim] = {}
    for node in nodes_in(graph):
        for s in (*found_by(node), *changing_in(node)):
            if s.name not in names:  # What a gradient computes once more has the same ones.
                name = f"{node.op.name}_{len(names)}"
                names[s.name] = extent_of(replace(s, name=name))
    with recording_guards():  # Those of the capture stay.
        return specialize(graph, names)


def phases_of(
    graph: Graph,
    frozen: Sequence[bool],
    *,
    inside: bool = True,
    changing: Collection[str] = (),
    apart: bool = False,
    joined: Collection[str] = (),
) -> tuple[Phase, ...]:
    """The phases of a graph, in order.

    A node belongs to the first phase in which all that it needs is known. What depends on constants
    and frozen inputs alone is copied to where it is read, so that it is computed once there.

    Args:
        graph: the whole; see `renumbered`.
        frozen: for each input, whether it is the same in all runs.
        inside: let ops that decide be part of the program before, where they can.
        changing: extents of inputs that are looked at in each run, since a loop changes them.
        apart: let what needs other extents be a phase of its own (`parts`), behind the first.
        joined: names of sums of extents: ops whose results have them do not decide them.
    """
    cut = _Parting(graph, frozen, inside, changing, joined)
    if apart:
        cut.take_apart()
    return cut.phases()


class _Parting:
    """Cuts one graph."""

    def __init__(
        self,
        graph: Graph,
        frozen: Sequence[bool],
        inside: bool,
        changing: Collection[str],
        joined: Collection[str],
    ) -> None:
        self._graph, self._inside, self._changing = graph, inside, changing
        self._joined = joined
        live = live_nodes(graph, deciding=True)
        self._nodes = [n for n in graph.nodes if n in live]
        self._frozen = {v for v, yes in zip(graph.inputs, frozen, strict=False) if yes}
        self._level: dict[Value, int] = dict.fromkeys(graph.inputs, 0)
        self._known: dict[str, int] = {s.name: 0 for v in graph.inputs for s in symbols_in(v.type)}
        self._source: dict[str, Value] = {}
        """For each found extent, a value that has it as an extent."""
        self._fixed: set[Node] = set()
        self._deciding: dict[Node, int] = {}
        self._members: dict[Node, int] = {}
        self._asked: dict[int, Relation] | None = None
        """Guards that are phases of their own, where phases are taken apart."""
        self._place()

    def _place(self) -> None:
        """Find the phase of every node."""
        before = 0
        unchanging = set(self._frozen)
        for node in self._nodes:
            found = () if self._is_join(node) else found_by(node)
            level = max((self._level[v] for v in node.inputs), default=0)
            level = max([level, *(self._known[name] for name in self._needs(node))])
            effect = _is_ordered(node)
            if effect:
                before = level = max(level, before)
            if found or finds_inside(node):
                self._deciding[node] = level
                level += 1
                before = level if effect else before
                for value in node.outputs:
                    for extent in value.type.shape:
                        lone = lone_symbol(extent)
                        if lone is not None and lone.name not in self._known:
                            self._known[lone.name] = level
                            self._source[lone.name] = value
            elif not has_effect(node.op) and unchanging.issuperset(node.inputs) and level == 0:
                self._fixed.add(node)
                unchanging.update(node.outputs)
            else:
                self._members[node] = level
            self._level.update(dict.fromkeys(node.outputs, level))

    def take_apart(self) -> None:
        """Make phases behind the first of parts that need different extents."""
        levels = self._members | self._deciding
        last = max((*levels.values(), *self._known.values()), default=0)
        numbers = dict.fromkeys((n for n, level in levels.items() if not level), 0)
        self._asked = {}
        count = 1
        for level in range(1, last + 1):
            nodes = [n for n in self._nodes if levels.get(n) == level]
            needs = {n: self._needs(n) for n in nodes}
            groups = [nodes] if any(map(_is_ordered, nodes)) else parts_of(nodes, needs)
            there = [frozenset[str]().union(*(needs[n] for n in group)) for group in groups]
            for guard in self._graph.guards:
                names = symbols_of_extent(guard.expr)
                if self._last(names) == level and not any(names <= own for own in there):
                    self._asked[count] = guard
                    count += 1
            for group in groups:
                numbers.update(dict.fromkeys(group, count))
                count += 1
        self._members = {n: numbers[n] for n in self._members}
        self._deciding = {n: numbers[n] for n in self._deciding}

    def phases(self) -> tuple[Phase, ...]:
        """The phases, in order."""
        behind = [n + 1 for n in self._deciding.values()]
        last = max((*self._members.values(), *behind, *(self._asked or ())), default=0)
        members: list[list[Node]] = [[] for _ in range(last + 1)]
        for node, level in self._members.items():
            members[level].append(node)
        read = self._read()
        return tuple(self._phase(i, nodes, read) for i, nodes in enumerate(members))

    def _read(self) -> dict[Value, set[int]]:
        """Return for each value the phases that read another's; -1: the caller, a decision."""
        read: dict[Value, set[int]] = {}
        for node in self._nodes:
            for value in () if node in self._fixed else node.inputs:
                read.setdefault(value, set()).add(self._reader(node))
        for value in self._graph.outputs:
            read.setdefault(value, set()).add(-1)
        for value in self._source.values():  # Phases that only mention an extent take it from here.
            read.setdefault(value, set()).add(-1)
        return read

    def _reader(self, node: Node) -> int:
        """The phase that has a node in it; -1 for none."""
        if node in self._deciding:
            return self._deciding[node] if self._is_inside(node) else -1
        return self._members[node]

    def _is_inside(self, node: Node) -> bool:
        return self._inside and _bounded(node) is not None

    def _phase(self, number: int, nodes: list[Node], read: dict[Value, set[int]]) -> Phase:
        decided = tuple(n for n, level in self._deciding.items() if level == number)
        bounded = tuple(n for n in decided if self._is_inside(n))
        own = set(nodes)
        fixed_outputs = [
            v
            for n in self._graph.nodes
            if number == 0 and n in self._fixed
            for v in n.outputs
            if -1 in read.get(v, ())
        ]
        outputs = [v for n in nodes for v in n.outputs if read.get(v, set()) - {number}]
        outputs += fixed_outputs
        needed = [v for n in (*nodes, *bounded) for v in n.inputs]
        copied = self._copied([*needed, *fixed_outputs])
        inside = own | copied
        order = [n for n in self._graph.nodes if n in inside]
        made = {v for n in order for v in n.outputs}
        ends = (*order, *bounded)
        taken = dict.fromkeys(v for n in ends for v in n.inputs if v not in made)
        symbols = {name for n in order for name in self._needs(n)}
        symbols |= {s.name for n in bounded for v in n.inputs for s in symbols_in(v.type)}
        there = {lone.name for v in taken for d in v.type.shape if (lone := lone_symbol(d))}
        for name in sorted(symbols - there):
            taken[self._source.get(name) or self._input_with(name)] = None
        inputs = [v for v in taken if v not in self._frozen]
        inputs += [v for v in taken if v in self._frozen]
        names = {s.name for v in inputs for s in symbols_in(v.type)}
        guards = [g for g in self._graph.guards if symbols_of_extent(g.expr) <= names]
        graph = _built(self._named(number), order, inputs, outputs, bounded, guards)
        return Phase(
            graph,
            tuple(inputs),
            tuple(outputs),
            sum(v in self._frozen for v in inputs),
            decided,
            bounded,
            self._guards(number),
        )

    def _named(self, number: int) -> str:
        return f"{self._graph.name}.{number + 1}"

    def _guards(self, number: int) -> tuple[Relation, ...]:
        """Guards on extents of which the last has been found before this phase."""
        if self._asked is not None:
            return (self._asked[number],) if number in self._asked else ()
        found = []
        for guard in self._graph.guards:
            names = symbols_of_extent(guard.expr)
            last = self._last(names)
            if last == number and (number or not names.isdisjoint(self._changing)):
                found.append(guard)
        return tuple(found)

    def _last(self, names: Collection[str]) -> int | None:
        """The phase before which the last of some extents is found; None for one of a branch or
        loop, which looks at it.
        """
        if not all(name in self._known for name in names):
            return None
        return max((self._known[name] for name in names), default=0)

    def _is_join(self, node: Node) -> bool:
        """Return whether a node's results have the name of a sum, which another node finds."""
        return _bounded(node) is None and any(s.name in self._joined for s in found_by(node))

    def _needs(self, node: Node) -> frozenset[str]:
        """The extents that a node needs, without those that it finds."""
        own = {s.name for s in found_by(node)}
        return frozenset(s.name for s in mentioned_by(node)) - own

    def _input_with(self, name: str) -> Value:
        return next(v for v in self._graph.inputs if name in {s.name for s in symbols_in(v.type)})

    def _copied(self, values: Iterable[Value]) -> set[Node]:
        """Nodes of what never changes that these values need."""
        found: set[Node] = set()
        waiting = [v.producer for v in values]
        while waiting:
            node = waiting.pop()
            if node is not None and node in self._fixed and node not in found:
                found.add(node)
                waiting += [v.producer for v in node.inputs]
        return found


def _is_ordered(node: Node) -> bool:
    """Return whether a node has an effect that stays in order with others."""
    return has_effect(node.op) and not isinstance(node.op, CheckIndices)


def _built(
    name: str,
    nodes: Iterable[Node],
    inputs: Iterable[Value],
    outputs: Iterable[Value],
    bounded: Iterable[Node],
    guards: Iterable[Relation],
) -> Graph:
    builder = GraphBuilder(name)
    inside = {v: builder.input(v.type, v.name).value for v in inputs}
    for node in nodes:
        made = builder.copy(node, tuple([inside[v] for v in node.inputs]))
        inside.update(zip(node.outputs, made.outputs, strict=True))
    builder.guard(guards)
    builder.output(*(builder.operand(inside[v]) for v in outputs))
    for node in bounded:
        given = tuple([inside[v] for v in node.inputs])
        op = _bounded(node) or node.op
        made = builder.add(op, given, (), node.loc, node.group)
        builder.output(*(builder.operand(v) for v in made.outputs))
    return builder.build()


def _bounded(node: Node) -> Op | None:
    return node.op.bounded(tuple([v.type for v in node.inputs]))


__all__ = [
    "Phase",
    "finds_extents",
    "finds_inside",
    "phases_of",
    "renumbered",
    "standalone",
]
