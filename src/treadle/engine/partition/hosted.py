"""Marks in the graph of what the engine that compiles the program does not run.

A node that was given to another engine becomes a group of its own, of kind "host." and the engine's
name; a segment of an engine that compiles by itself becomes one group, of kind "segment." and its
name. Later stages neither fuse nor lower such a group: the program returns to Python for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from treadle.backends.api import Engine
from treadle.backends.segments import SegmentEngine
from treadle.base.types import TensorType
from treadle.engine.partition.assign import Assigner
from treadle.engine.partition.candidates import Candidates
from treadle.engine.partition.model import CostModel
from treadle.engine.partition.segments import Segment, Segmented
from treadle.graph.analysis import live_nodes
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value, regions_of, remake
from treadle.graph.regions import substituted_regions
from treadle.ops.border import Border
from treadle.ops.constant import Constant
from treadle.ops.fused import HOST, SEGMENT, Fused


def leave_to_host(
    parts: Segmented,
    engines: Sequence[Engine],
    compiling: str,
    forced: Sequence[str] = (),
) -> Graph:
    """The program with a group around all that is not for the engine named `compiling`.

    Args:
        parts: what partition decided.
        engines: those it chose from, for the regions of control flow.
        compiling: who compiles the program; `""` for nobody.
        forced: names of ops that are for the reference engine.
    """
    plain = [e for e in engines if not isinstance(e, SegmentEngine)]
    candidates = Candidates(plain, forced) if plain else None

    def region(graph: Graph) -> Graph:
        if candidates is None:
            return graph
        best = Assigner(graph, candidates, CostModel()).best()
        return _marked(graph, {n: candidates.engines[e].name for n, e in best.items()}, own, region)

    own = compiling
    segments = {e.name: e for e in engines if isinstance(e, SegmentEngine)}
    if any(s.engine in segments for s in parts.segments):
        return _live(_Contraction(parts, segments, own, region).graph())
    return _marked(parts.graph, parts.engines(), own, region)


Rewrite = Callable[[Graph], Graph]


def _marked(graph: Graph, chosen: Mapping[Node, str], own: str, region: Rewrite) -> Graph:
    native = all(e == own for e in chosen.values())
    if native and not any(regions_of(n.op) for n in graph.nodes):
        return graph
    instead: dict[Value, Value] = {v: v for v in graph.inputs}
    nodes = []
    for node in graph.nodes:
        made = _left(node, tuple([instead[v] for v in node.inputs]), chosen[node], own, region)
        instead.update(zip(node.outputs, made.outputs, strict=True))
        nodes.append(made)
    return graph.with_nodes(nodes, [instead[v] for v in graph.outputs])


def _left(node: Node, inputs: tuple[Value, ...], engine: str, own: str, region: Rewrite) -> Node:
    """The node as its engine gets it."""
    if isinstance(node.op, Constant) or engine == own:
        return remake(node, substituted_regions(node.op, region), inputs)
    return _group(node, inputs, engine)


def _group(node: Node, inputs: tuple[Value, ...], engine: str) -> Node:
    """The node as the only one of a group, which has its operands one by one."""
    builder = GraphBuilder(node.op.name)
    operands = [builder.input(_unplaced(v)).value for v in inputs]
    made = builder.copy(node, tuple(operands), named=False)
    builder.output(*(builder.operand(v) for v in made.outputs))
    return Node(Fused(HOST + engine, builder.build()), inputs, node.loc, node.names, node.group)


def _unplaced(value: Value) -> TensorType:
    return TensorType(value.type.dtype, value.type.shape)


def _live(graph: Graph) -> Graph:
    """Return the graph without nodes that only segments needed, which make them for themselves."""
    live = live_nodes(graph)
    return graph.with_nodes([n for n in graph.nodes if n in live], graph.outputs)


class _Contraction:
    """Writes a program anew, segment by segment, those of segment engines as one node each."""

    def __init__(
        self,
        parts: Segmented,
        engines: Mapping[str, SegmentEngine],
        own: str,
        region: Rewrite,
    ) -> None:
        self.parts = parts
        self.engines = engines
        self.own = own
        self.region = region
        self.instead: dict[Value, Value] = {v: v for v in parts.graph.inputs}
        self.nodes: list[Node] = []

    def graph(self) -> Graph:
        """The program."""
        old = self.parts.graph
        for node in old.nodes:
            if isinstance(node.op, Constant):
                self._add(node, remake(node, node.op, ()))
        for segment in self.parts.segments:
            if segment.engine in self.engines:
                self._contract(segment, self.engines[segment.engine])
                continue
            for node in segment.nodes:
                if not isinstance(node.op, Constant):
                    inputs = tuple([self.instead[v] for v in node.inputs])
                    self._add(node, _left(node, inputs, segment.engine, self.own, self.region))
        return old.with_nodes(self.nodes, [self.instead[v] for v in old.outputs])

    def _add(self, node: Node, made: Node) -> None:
        self.instead.update(zip(node.outputs, made.outputs, strict=True))
        self.nodes.append(made)

    def _contract(self, segment: Segment, engine: SegmentEngine) -> None:
        """One group of the segment's nodes; border ops stay outside of it, as copies do."""
        body = _Body(segment, engine, self.parts.fixed)
        for node in segment.nodes:
            if isinstance(node.op, Border) and node.inputs[0] not in body.made:
                self._add(node, remake(node, node.op, (self.instead[node.inputs[0]],)))
        nodes = [n for n in segment.nodes if not isinstance(n.op, (Border, Constant))]
        if not nodes:
            return
        graph, operands, results = body.built(nodes, _read_outside(segment, nodes))
        inputs = tuple([self.instead[v] for v in operands])
        names = tuple(v.name for v in results)
        made = Node(Fused(SEGMENT + segment.engine, graph), inputs, nodes[0].loc, names)
        self.nodes.append(made)
        self.instead.update(zip(results, made.outputs, strict=True))
        for node in segment.nodes:
            if isinstance(node.op, Border) and node.output not in self.instead:
                self._add(node, remake(node, node.op, (self.instead[node.inputs[0]],)))


def _read_outside(segment: Segment, nodes: Sequence[Node]) -> list[Value]:
    """Results that somebody besides these nodes reads."""
    made = {v for n in nodes for v in n.outputs}
    wanted = dict.fromkeys(v for v in segment.outputs if v in made)
    for node in segment.nodes:
        if isinstance(node.op, Border) and node.inputs[0] in made:
            wanted[node.inputs[0]] = None
    return list(wanted)


class _Body:
    """A segment's graph; constants, and what its engine can compute of frozen inputs, are in it."""

    def __init__(self, segment: Segment, engine: SegmentEngine, frozen: Collection[Value]) -> None:
        self.engine = engine
        self.frozen = frozen
        self.builder = GraphBuilder(segment.graph.name)
        self.made = {v for n in segment.nodes for v in n.outputs}
        self._inside: dict[Value, Value] = {}
        self._operands: list[Value] = []
        self._own: dict[Value, bool] = {}

    def built(
        self, nodes: Sequence[Node], results: Sequence[Value]
    ) -> tuple[Graph, list[Value], Sequence[Value]]:
        """The graph, the values it takes, and those it gives."""
        for node in nodes:
            self._copy(node)
        self.builder.output(*(self.builder.operand(self._inside[v]) for v in results))
        return self.builder.build(), self._operands, results

    def _copy(self, node: Node) -> None:
        if isinstance(node.op, Constant):  # On no device: who compiles it decides.
            self._inside[node.output] = self.builder.constant(node.op.data).value
            return
        inputs = tuple([self._reached(v) for v in node.inputs])
        made = self.builder.copy(node, inputs)
        self._inside.update(zip(node.outputs, made.outputs, strict=True))

    def _reached(self, value: Value) -> Value:
        """The value inside the segment."""
        if value not in self._inside:
            if value.producer is not None and self._is_own(value):
                self._copy(value.producer)
            else:
                self._operands.append(value)
                self._inside[value] = self.builder.input(_unplaced(value), value.name).value
        return self._inside[value]

    def _is_own(self, value: Value) -> bool:
        """Return whether the segment makes a value for itself although others have it, too."""
        node = value.producer
        if node is None or isinstance(node.op, Constant):
            return True
        if value not in self.frozen:
            return False
        if value not in self._own:
            types = [_unplaced(v) for v in node.inputs]
            able = bool(self.engine.supports(node.op, types))
            self._own[value] = able and all(map(self._is_own, node.inputs))
        return self._own[value]
