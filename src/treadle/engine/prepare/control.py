"""Control flow whose course is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from treadle.base.errors import GraphError
from treadle.graph.analysis import is_opaque
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph, Node, Value, constant_of, remake
from treadle.graph.passes import register
from treadle.graph.regions import map_regions
from treadle.ops.control import Cond, Scan, While
from treadle.ops.movement import Concat, Reshape
from treadle.ops.slicing import along

Operands = Sequence[GraphOperand]


@register
@dataclass(frozen=True, slots=True)
class JoinScans:
    """Makes one loop of a scan and of one on the same inputs that computes more in each turn.

    A gradient runs the turns of a scan once more to keep their states.
    """

    name: ClassVar[str] = "join_scans"

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph without scans that others contain."""
        graph = map_regions(graph, self)
        scans = [n for n in graph.nodes if isinstance(n.op, Scan) and isinstance(n.op.body, Graph)]
        larger = {small: large for small, large in combinations(scans, 2) if _holds(large, small)}
        if not larger:
            return graph
        renamed: dict[Value, Value] = {}
        made: dict[Node, Node] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            of = larger.get(node, node)
            if of in made:
                whole = made[of]
            else:
                whole = remake(of, of.op, tuple(renamed.get(v, v) for v in of.inputs))
                nodes.append(whole)
                made[of] = whole
            renamed.update(zip(node.outputs, whole.outputs, strict=False))
        return graph.with_nodes(nodes, (renamed.get(v, v) for v in graph.outputs))


def _holds(large: Node, small: Node) -> bool:
    """Return whether a scan computes all that an earlier one does, and has its results in front."""
    mine, theirs = large.op, small.op
    if large.inputs != small.inputs or not isinstance(mine, Scan) or not isinstance(theirs, Scan):
        return False
    body, part = mine.body, theirs.body
    if not isinstance(body, Graph) or not isinstance(part, Graph) or is_opaque(theirs):
        return False
    count = len(part.outputs)
    front = Graph(part.name, body.inputs, body.nodes, body.outputs[:count], body.guards)
    return count <= len(body.outputs) and theirs == mine.replace(body=front)


@register
@dataclass(frozen=True, slots=True)
class FoldControl:
    """Puts the branch that is taken, or the one turn of a loop, in the place of the op.

    Attributes:
        turns: scans of up to this many turns are unrolled.
    """

    name: ClassVar[str] = "fold_control"
    turns: int = 1

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph without control flow whose course is known."""
        graph = map_regions(graph, self)
        if not any(self._is_known(n) for n in graph.nodes):
            return graph
        builder = GraphBuilder(graph.name)
        builder.adopt(graph.inputs, as_inputs=True)
        inside: dict[Value, Value] = {v: v for v in graph.inputs}
        for node in graph.nodes:
            inputs = tuple(inside[v] for v in node.inputs)
            if self._is_known(node):
                with builder.at(node.loc, node.group):
                    found = _inlined(builder, node, [builder.operand(v) for v in inputs])
                outputs = tuple(x.value for x in found)
            else:
                outputs = builder.copy(node, inputs).outputs
            inside.update(zip(node.outputs, outputs, strict=True))
        return graph.with_nodes(builder.build().nodes, (inside[v] for v in graph.outputs))

    def _is_known(self, node: Node) -> bool:
        op = node.op
        if isinstance(op, Cond):
            return _truth(node.inputs[0]) is not None and isinstance(op.then, Graph)
        if isinstance(op, While):
            return isinstance(op.condition, Graph) and _truth(op.condition.outputs[0]) is False
        if isinstance(op, Scan):
            is_short = isinstance(op.length, int) and 1 <= op.length <= self.turns
            return is_short and isinstance(op.body, Graph)
        return False


def _truth(value: Value) -> bool | None:
    """A predicate that is a constant."""
    data = constant_of(value)
    return bool(data.array) if data is not None and data.is_present else None


def _inlined(builder: GraphBuilder, node: Node, operands: Operands) -> Operands:
    op = node.op
    if isinstance(op, Cond):
        return _run(builder, op.then if _truth(node.inputs[0]) else op.otherwise, operands[1:])
    if isinstance(op, Scan):
        return _unrolled(builder, op, operands)
    return operands  # of a loop whose condition never holds


def _run(builder: GraphBuilder, region: object, operands: Operands) -> Operands:
    """The results of a region applied to operands of another graph."""
    if not isinstance(region, Graph):
        raise GraphError("fold_control", "a region is not a graph")
    inside = {v: x.value for v, x in zip(region.inputs, operands, strict=True)}
    for node in region.nodes:
        made = builder.copy(node, tuple(inside[v] for v in node.inputs))
        inside.update(zip(node.outputs, made.outputs, strict=True))
    return [builder.operand(inside[v]) for v in region.outputs]


def _unrolled(builder: GraphBuilder, op: Scan, operands: Operands) -> Operands:
    """A scan of one turn after the other: entries lose their first axis, results get it back."""
    n, state, rows = op.n_carried, list(operands[: op.n_carried]), []
    for turn in op.turns:
        entries = [_entry(x, turn) for x in operands[n:]]
        results = _run(builder, op.body, [*state, *entries])
        state = list(results[:n])
        rows.append([Reshape((1, *x.shape))(x) for x in results[n:]])
    rows = rows[::-1] if op.backwards else rows
    stacked = [
        Concat(0)(*parts) if len(parts) > 1 else parts[0] for parts in zip(*rows, strict=True)
    ]
    return [*state, *stacked]


def _entry(stacked: GraphOperand, turn: int) -> GraphOperand:
    part = along(stacked, 0, turn, turn + 1)
    return Reshape(stacked.shape[1:])(part)
