"""Passes that keep graphs small: dead code, common subexpressions, constants, composites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.base.errors import GraphError, TreadleError
from treadle.base.guards import recording_guards
from treadle.base.shape import size_of
from treadle.base.types import TensorType
from treadle.graph.analysis import is_opaque, live_nodes
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph, Node, Value, constant, constant_of, op_key, regions_of, remake
from treadle.graph.passes import register
from treadle.graph.regions import map_regions
from treadle.ops.composite import Composite, expand
from treadle.ops.constant import Constant
from treadle.ops.movement import Broadcast
from treadle.ops.op import Op, as_tuple


@register
@dataclass(frozen=True, slots=True)
class DeadCode:
    """Drops nodes that no output depends on."""

    name: ClassVar[str] = "dce"

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph without dead nodes."""
        graph = map_regions(graph, self)
        live = live_nodes(graph, deciding=True)
        if len(live) == len(graph.nodes):
            return graph
        return graph.with_nodes((n for n in graph.nodes if n in live), graph.outputs)


@register
@dataclass(frozen=True, slots=True)
class Share:
    """Common subexpressions: equal ops on equal inputs become one node."""

    name: ClassVar[str] = "cse"

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph without repeated nodes."""
        graph = map_regions(graph, self)
        first: dict[tuple[object, ...], Node] = {}
        instead: dict[Value, Value] = {}
        nodes: list[Node] = []
        with recording_guards():  # The verifier compares what is needed with what is guarded.
            for node in graph.nodes:
                current = _with_inputs(node, instead)
                key = (id(current),) if is_opaque(current.op) else _key(current)
                known = first.setdefault(key, current)
                if known is current:
                    nodes.append(current)
                if known is not node:
                    instead.update(zip(node.outputs, known.outputs, strict=True))
        if len(nodes) == len(graph.nodes):
            return graph
        return graph.with_nodes(nodes, (instead.get(v, v) for v in graph.outputs))


def _key(node: Node) -> tuple[object, ...]:
    """Equal for nodes that compute the same and whose results have the same types.

    The types tell apart results whose extents depend on data: each has a symbol of its own.
    """
    inputs = [id(v) for v in node.inputs]
    if node.op.commutative:
        inputs.sort()
    return op_key(node.op), *inputs, *(v.type for v in node.outputs)


def _with_inputs(node: Node, instead: dict[Value, Value]) -> Node:
    for value in node.inputs:
        if value in instead:
            return remake(node, node.op, tuple([instead.get(v, v) for v in node.inputs]))
    return node


@register
@dataclass(frozen=True, slots=True)
class Fold:
    """Evaluates what depends on constants alone, with the oracles of the ops.

    Attributes:
        limit: results larger than this many bytes are folded only if they are at most twice as
            large as what they are computed from.
        lazy: what only repeats or counts (broadcast, full, iota) is folded up to this many elements
            only: it is cheaper to make than to read.
        keep: names of ops that stay.
    """

    name: ClassVar[str] = "fold"
    limit: int = 1 << 20
    lazy: int = 64
    keep: tuple[str, ...] = ()

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph with constant results in place of what computes them."""
        graph = map_regions(graph, self)
        instead: dict[Value, Value] = {}
        nodes: list[Node] = []
        with recording_guards():
            for node in graph.nodes:
                current = _with_inputs(node, instead)
                made = self._fold(current)
                if made is None:
                    nodes.append(current)
                    made = () if current is node else current.outputs
                else:
                    nodes += [v.producer for v in made if v.producer is not None]
                instead.update(zip(node.outputs, made, strict=False))
        if not instead:
            return graph
        outputs = (instead.get(v, v) for v in graph.outputs)
        return DeadCode()(graph.with_nodes(nodes, outputs))

    def _fold(self, node: Node) -> tuple[Value, ...] | None:
        """The results as constants, None where the node is to stay."""
        known = []
        for value in node.inputs:
            data = constant_of(value)
            if data is None or not data.is_present:
                return None
            known.append(data.array)
        if not self._is_worth(node, sum(a.nbytes for a in known)):
            return None
        try:
            with np.errstate(all="ignore"):
                results = as_tuple(node.op.reference(*known))
        except TreadleError:  # A mistake in the data is the user's to see when the program runs.
            return None
        made = [
            constant(r, v.type.device, node.loc).output
            for r, v in zip(results, node.outputs, strict=True)
        ]
        # An oracle that disagrees with its type rule must not change the program.
        same = [m.type for m in made] == [v.type for v in node.outputs]
        return tuple(made) if same else None

    def _is_worth(self, node: Node, operand_bytes: int) -> bool:
        types = [v.type for v in node.outputs]
        if isinstance(node.op, Constant) or regions_of(node.op) or is_opaque(node.op):
            return False
        if node.op.name in self.keep:
            return False
        if not all(t.is_static for t in types):
            return False
        if isinstance(node.op, Broadcast) or not node.inputs:
            return size_of(types[0].shape) <= self.lazy
        return sum(t.nbytes for t in types) <= max(self.limit, 2 * operand_bytes)


@register
@dataclass(frozen=True, slots=True)
class Expand:
    """Replaces composites by their bodies, those inside bodies included.

    Attributes:
        keep: names of composites that stay.
        takes: whether one of them is to stay on operands of some types; all are if left out.
    """

    name: ClassVar[str] = "expand"
    keep: tuple[str, ...] = ()
    takes: Callable[[Op, tuple[TensorType, ...]], bool] | None = None

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph without composites, but for those kept."""
        graph = map_regions(graph, self)
        while any(self._applies(n) for n in graph.nodes):
            graph = self._expand(graph)
        return graph

    def _applies(self, node: Node) -> bool:
        if not isinstance(node.op, Composite):
            return False
        if node.op.name not in self.keep:
            return True
        return self.takes is not None and not self.takes(node.op, _types(node))

    def _expand(self, graph: Graph) -> Graph:
        builder = GraphBuilder(graph.name)
        builder.adopt(graph.inputs, as_inputs=True)
        instead: dict[Value, Value] = {v: v for v in graph.inputs}
        for node in graph.nodes:
            inputs = tuple(instead[v] for v in node.inputs)
            if isinstance(node.op, Composite) and self._applies(node):
                outputs = _body(builder, node, node.op, inputs)
            else:
                outputs = builder.copy(node, inputs).outputs
            instead.update(zip(node.outputs, outputs, strict=True))
        return graph.with_nodes(builder.build().nodes, (instead[v] for v in graph.outputs))


def _types(node: Node) -> tuple[TensorType, ...]:
    """Types of the operands, without what is known of their places and contents."""
    return tuple([TensorType(v.type.dtype, v.type.shape) for v in node.inputs])


def _body(
    builder: GraphBuilder, node: Node, composite: Composite, inputs: tuple[Value, ...]
) -> tuple[Value, ...]:
    with builder.at(node.loc, node.group):
        results = expand(composite, tuple(GraphOperand(builder, v) for v in inputs))
    outputs = tuple(r.value for r in results)
    for before, after in zip(node.outputs, outputs, strict=True):
        if before.type != after.type:
            raise GraphError(
                composite.name,
                f"its type rule gives {before.type}, its body {after.type}",
                at=node.loc,
            )
    return outputs
