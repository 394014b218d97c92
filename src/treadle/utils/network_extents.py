"""Networks for other sizes than those of their file: operators with symbols for extents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.base.errors import TreadleError
from treadle.base.guards import recording_guards
from treadle.base.symbol import Dim, Relation
from treadle.base.types import TensorType
from treadle.engine.package.models import Model
from treadle.engine.package.open_graph import OpenGraph
from treadle.graph.evaluate import bound_extents, op_at
from treadle.graph.ir import Graph, Node, Value, with_types
from treadle.graph.retype import fitting
from treadle.ops.op import Op
from treadle.utils.network_node import GetVarShape, OpNode, VarNode

Types = tuple[TensorType, ...]


@dataclass
class OpenOperators:
    """Facts of a file about its operators at other extents.

    Attributes:
        types: of the inputs, by key of the variable.
        ops: for each operator by key, its op, and the one with symbols, with the types of its
            results; an operator whose op is another one by now has been edited.
        guards: of the file's graph.
    """

    types: dict[int, TensorType] = field(default_factory=dict)
    ops: dict[int, tuple[Op, Op, Types]] = field(default_factory=dict)
    guards: tuple[Relation, ...] = ()

    @classmethod
    def of(cls, model: Model, known: Mapping[Value, VarNode]) -> OpenOperators | None:
        """Return the operators of a model with open extents; None where its extents are numbers."""
        if model.opened is None or model.opened.closed is not model.graph:
            return None
        if model.opened.is_fixed:
            return None
        graph, opened = model.graph, model.opened.graph
        self = cls(guards=opened.guards)
        for value, other in zip(graph.inputs, opened.inputs, strict=True):
            self.types[known[value].key] = other.type
        for node, again in zip(graph.nodes, opened.nodes, strict=True):
            types = tuple(v.type for v in again.outputs)
            self.ops[known[node.outputs[0]].owner.key] = node.op, again.op, types
        return self

    def graph(self, ordered: Sequence[OpNode], outputs: Sequence[VarNode]) -> Graph | None:
        """The network with symbols; None where an operator that was put in needs numbers."""
        values: dict[int, Value] = {}
        inputs: list[Value] = []
        nodes: list[Node] = []
        try:
            with recording_guards() as found:
                for opr in ordered:
                    if opr.op is None:
                        var = opr.outputs[0]
                        type_ = self.types.get(var.key, var.type)
                        values[var.key] = Value(type_, None, len(inputs), var.name)
                        inputs.append(values[var.key])
                        continue
                    if isinstance(opr, GetVarShape):
                        return None
                    known, again, types = self.ops.get(opr.key, (None, opr.op, ()))
                    given = tuple(values[x.key] for x in opr.inputs)
                    names = tuple(v.name for v in opr.outputs)
                    node = Node(again if known is opr.op else opr.op, given, names=names)
                    if known is opr.op:  # Extents that data decide keep their names.
                        node = with_types(node, types)
                    values |= {v.key: m for v, m in zip(opr.outputs, node.outputs, strict=True)}
                    nodes.append(node)
        except TreadleError:
            return None
        guards = dict.fromkeys((*self.guards, *found))
        results = tuple(values[v.key] for v in outputs)
        return Graph("network", tuple(inputs), tuple(nodes), results, tuple(guards))

    def fit(self, ordered: Sequence[OpNode]) -> bool:
        """Give operators the ops of the extents that the inputs have now; whether it could."""
        inputs = [o.outputs[0] for o in ordered if o.op is None and o.outputs[0].key in self.types]
        extents = bound_extents([(self.types[v.key].shape, v.shape) for v in inputs])
        if extents is None or not all(g.holds(extents) for g in self.guards):
            return False
        for opr in ordered:
            known, again, types = self.ops.get(opr.key, (None, None, ()))
            if again is not None and known is opr.op:
                opr.op = op_at(again, extents)
                self.ops[opr.key] = opr.op, again, types
        return True


def refit(every: Sequence[OpNode], known: OpenOperators | None, batch: Mapping[Dim, Dim]) -> None:
    """Adapt operators to inputs that have other extents now: as the file says, or by a guess.

    `batch` maps the first extent of inputs to the new one, for files that do not say.

    Raises:
        TreadleError: an operator does not take the new extents.
    """
    exact = known is not None and known.fit(every)
    for opr in every:
        if opr.op is not None and opr.inputs:
            opr.op = opr.op if exact else fitting(opr.op, batch)
            opr.set_inputs(opr.inputs)


def model_of(
    graph: Graph, outputs: Sequence[str], found: Graph | None, source: Model | None
) -> Model:
    """A network's graph as a model; `found` is the one with symbols, `source` what was read."""
    if source is not None and source.opened is not None and source.opened.is_fixed:
        found = graph  # Its operators hold numbers of these extents.
    inputs = tuple(v.name or f"input_{i}" for i, v in enumerate(graph.inputs))
    opened = None if found is None else OpenGraph(graph, lambda: found)
    return Model(graph, inputs, tuple(outputs), opened=opened)


__all__ = ["OpenOperators", "model_of", "refit"]
