"""Networks for other sizes than those of their file: operators with symbols for extents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.base.errors import ShapeError, TreadleError
from treadle.base.guards import recording_guards
from treadle.base.symbol import Relation
from treadle.base.types import TensorType
from treadle.engine.package.models import Model
from treadle.engine.package.open_graph import OpenGraph, refuse_extents
from treadle.graph.evaluate import bound_extents, broken_guard, op_at
from treadle.graph.ir import Graph, Node, Value, with_types
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
        if [n.op.name for n in graph.nodes] != [n.op.name for n in opened.nodes]:
            return None  # It computes numbers that are constants here, or loops over an axis.
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

    def fit(self, ordered: Sequence[OpNode]) -> set[int]:
        """Give operators the ops of the extents that the inputs have now; return their keys.

        Raises:
            ShapeError: the file is not for these extents.
        """
        inputs = [o.outputs[0] for o in ordered if o.op is None and o.outputs[0].key in self.types]
        extents = bound_extents([(self.types[v.key].shape, v.shape) for v in inputs])
        guard = "other extents" if extents is None else broken_guard(self.guards, extents)
        if extents is None or guard:
            raise ShapeError("network", f"its course needs {guard}", hint="dump it at this size")
        fitted = set()
        for opr in ordered:
            known, again, types = self.ops.get(opr.key, (None, None, ()))
            if again is not None and known is opr.op:
                opr.op = op_at(again, extents)
                self.ops[opr.key] = opr.op, again, types
                fitted.add(opr.key)
        return fitted


def refit(every: Sequence[OpNode], known: OpenOperators | None, moved: set[int]) -> None:
    """Adapt operators to inputs that have other extents now: as the file says, or as they are.

    Args:
        every: the operators, in order.
        known: facts of the file.
        moved: keys of variables with other extents, to which those that follow are added.

    Raises:
        TreadleError: an operator does not take the new extents, or holds some of the old ones.
    """
    fitted = set() if known is None else known.fit(every)
    for opr in every:
        if opr.op is None:
            continue
        if opr.key not in fitted and (not opr.inputs or moved & {v.key for v in opr.inputs}):
            refuse_extents(opr.op)
        if opr.inputs:
            before = [v.type for v in opr.outputs]
            opr.set_inputs(opr.inputs)
            moved |= {v.key for v, t in zip(opr.outputs, before, strict=True) if v.type != t}


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
