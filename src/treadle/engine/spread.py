"""Programs over several devices: a graph cut by device into parts, each a program of its own.

A part is everything on one device between two arrivals of values from others. Within it, what
others wait for comes first, as a part of its own, so that they can start while the rest runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.base.errors import EngineError
from treadle.engine.devices.names import CompNode
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.constant import Constant
from treadle.ops.transfer import Transfer

Memory = tuple[str, int]
"""Key of devices that share memory."""


@dataclass(frozen=True, slots=True)
class ValuePlaces:
    """Places of a program's values.

    Attributes:
        inputs: the device of each input; None for what Python gives, which can be anywhere.
        nodes: the device of each node; None for constants.
        outputs: the device of each output.
    """

    inputs: tuple[CompNode | None, ...]
    nodes: tuple[CompNode | None, ...]
    outputs: tuple[CompNode, ...]


@dataclass(frozen=True, slots=True)
class PartInput:
    """A value from outside of a part: input number `index` of the program, or of part `part`."""

    part: int
    """Number of the part whose output it is; -1 for the program's inputs."""
    index: int


@dataclass(frozen=True, slots=True)
class DevicePart:
    """A part that runs on one device at a time.

    Attributes:
        graph: the program.
        home: its device.
        sources: of its inputs.
    """

    graph: Graph
    home: CompNode
    sources: tuple[PartInput, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """A program in parts, each after those whose results it takes, and where its outputs are."""

    parts: tuple[DevicePart, ...]
    outputs: tuple[PartInput | Value, ...]
    """A value: one that nobody computes, a constant."""
    free: frozenset[int] = frozenset()
    """Inputs that Python gives, which can be anywhere."""


def cut(graph: Graph, places: ValuePlaces) -> Spread:
    """The parts of a program.

    Args:
        graph: as it was captured.
        places: of its values.

    Raises:
        EngineError: the places are not those of this graph.
    """
    if len(places.nodes) != len(graph.nodes) or len(places.inputs) != len(graph.inputs):
        raise EngineError(
            "several devices",
            "the program was rewritten before it was cut by device",
            saw=f"{len(graph.nodes)} nodes, {len(places.nodes)} places",
            hint="leave out what rewrites captured programs, such as dynamic axes",
        )
    return _Cutter(graph, places).spread()


class _Cutter:
    """Cuts one graph."""

    def __init__(self, graph: Graph, places: ValuePlaces) -> None:
        self._graph = graph
        self._places = places
        self._at: dict[Node, CompNode] = {
            n: p for n, p in zip(graph.nodes, places.nodes, strict=True) if p is not None
        }
        self._same: dict[Value, Value] = {}
        """Copies on other devices, and the value they are copies of: moving is not computing."""
        for node in graph.nodes:
            if isinstance(node.op, Transfer) and node in self._at:
                self._same[node.output] = self._root(node.inputs[0])
        self._nodes = [
            n for n in graph.nodes if not isinstance(n.op, Constant) and n.output not in self._same
        ]

    def _root(self, value: Value) -> Value:
        return self._same.get(value, value)

    def _inputs(self, node: Node) -> tuple[Value, ...]:
        return tuple([self._root(v) for v in node.inputs])

    def _memory(self, node: Node) -> Memory:
        device = self._at.get(node)
        if device is None:
            raise EngineError("several devices", f"the device of {node.op.name} is not known")
        return device.memory

    def spread(self) -> Spread:
        """The parts."""
        keys = self._keys()
        order = sorted(set(keys.values()), key=lambda k: (k[1], k[2], k[0]))
        number = {key: i for i, key in enumerate(order)}
        members: list[list[Node]] = [[] for _ in order]
        for node in self._nodes:
            members[number[keys[node]]].append(node)
        part_of = {v: number[keys[n]] for n in self._nodes for v in n.outputs}
        exported = self._exported(part_of)
        parts = [self._part(i, nodes, part_of, exported) for i, nodes in enumerate(members)]
        outputs = [self._source(self._root(v), part_of, exported) for v in self._graph.outputs]
        free = frozenset(i for i, place in enumerate(self._places.inputs) if place is None)
        return Spread(tuple(parts), tuple(outputs), free)

    def _keys(self) -> dict[Node, tuple[Memory, int, int]]:
        """The part of every node: memory, how many moves came before, whether others wait."""
        level: dict[Node, int] = {}
        for node in self._nodes:
            here, found = self._memory(node), 0
            for value in self._inputs(node):
                made_by = value.producer
                if made_by is not None and made_by in level:
                    away = self._memory(made_by) != here
                    found = max(found, level[made_by] + away)
            level[node] = found
        awaited: set[Node] = set()
        for node in reversed(self._nodes):
            for value in self._inputs(node):
                made_by = value.producer
                if made_by is None or made_by not in level:
                    continue
                same = (self._memory(made_by), level[made_by]) == (self._memory(node), level[node])
                if self._memory(made_by) != self._memory(node) or (same and node in awaited):
                    awaited.add(made_by)
        return {n: (self._memory(n), level[n], int(n not in awaited)) for n in self._nodes}

    def _exported(self, part_of: dict[Value, int]) -> list[list[Value]]:
        """The values of each part that others, or the caller, take."""
        found: list[dict[Value, None]] = [{} for _ in range(max(part_of.values(), default=-1) + 1)]
        for node in self._nodes:
            for value in self._inputs(node):
                if value in part_of and part_of[value] != part_of[node.output]:
                    found[part_of[value]][value] = None
        for value in map(self._root, self._graph.outputs):
            if value in part_of:
                found[part_of[value]][value] = None
        return [list(values) for values in found]

    def _part(
        self,
        number: int,
        nodes: Sequence[Node],
        part_of: dict[Value, int],
        exported: Sequence[Sequence[Value]],
    ) -> DevicePart:
        """One part as a graph; constants are copied into every part that reads them."""
        home = self._at[nodes[0]]
        builder = GraphBuilder(f"{self._graph.name}.{number}")
        inside: dict[Value, Value] = {}
        sources: list[PartInput] = []
        for value in dict.fromkeys(v for n in nodes for v in self._inputs(n)):
            made_by = value.producer
            if part_of.get(value) == number:
                continue
            if made_by is not None and isinstance(made_by.op, Constant):
                inside[value] = builder.copy(made_by, ()).output
                continue
            inside[value] = builder.input(value.type, value.name).value
            sources.append(self._outside(value, part_of, exported))
        for node in nodes:
            made = builder.copy(node, tuple([inside[v] for v in self._inputs(node)]))
            inside.update(zip(node.outputs, made.outputs, strict=True))
        builder.output(*(builder.operand(inside[v]) for v in exported[number]))
        return DevicePart(builder.build(), home, tuple(sources))

    def _outside(
        self, value: Value, part_of: dict[Value, int], exported: Sequence[Sequence[Value]]
    ) -> PartInput:
        if value in part_of:
            part = part_of[value]
            return PartInput(part, exported[part].index(value))
        return PartInput(-1, value.index)

    def _source(
        self, value: Value, part_of: dict[Value, int], exported: Sequence[Sequence[Value]]
    ) -> PartInput | Value:
        if value.producer is not None and isinstance(value.producer.op, Constant):
            return value
        return self._outside(value, part_of, exported)
