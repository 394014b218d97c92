"""What the engine that compiles the program does not run, marked in the graph.

A node that was given to another engine becomes a group of its own, of kind "host." and the engine's
name. Later stages neither fuse nor lower such a group: the program returns to Python for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.backends.api import Engine
from treadle.base.types import TensorType
from treadle.engine.partition.assign import Assigner
from treadle.engine.partition.candidates import Candidates
from treadle.engine.partition.model import Model
from treadle.engine.types import Partitioned
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value, regions_of, remake
from treadle.graph.passes import substituted_regions
from treadle.ops.constant import Constant
from treadle.ops.fused import HOST, Fused


def leave_to_host(
    parts: Partitioned, engines: Sequence[Engine], compiling: str, forced: Sequence[str] = ()
) -> Graph:
    """The program with a group around every node that is not for the engine named `compiling`.

    Args:
        parts: what partition decided.
        engines: those it chose from, for the regions of control flow.
        compiling: who compiles the program; `""` for nobody.
        forced: names of ops that are for the reference engine.
    """
    candidates = Candidates(engines, forced)

    def marked(graph: Graph, chosen: Mapping[Node, str]) -> Graph:
        native = all(e == compiling for e in chosen.values())
        if native and not any(regions_of(n.op) for n in graph.nodes):
            return graph
        instead: dict[Value, Value] = {v: v for v in graph.inputs}
        nodes = []
        for node in graph.nodes:
            inputs = tuple([instead[v] for v in node.inputs])
            if isinstance(node.op, Constant) or chosen[node] == compiling:
                op = substituted_regions(node.op, region)
                made = remake(node, op, inputs)
            else:
                made = _group(node, inputs, chosen[node])
            instead.update(zip(node.outputs, made.outputs, strict=True))
            nodes.append(made)
        return graph.with_nodes(nodes, [instead[v] for v in graph.outputs])

    def region(graph: Graph) -> Graph:
        best = Assigner(graph, candidates, Model()).best()
        return marked(graph, {n: candidates.engines[e].name for n, e in best.items()})

    return marked(parts.graph, parts.engines())


def _group(node: Node, inputs: tuple[Value, ...], engine: str) -> Node:
    """The node as the only one of a group, which has its operands one by one."""
    builder = GraphBuilder(node.op.name)
    operands = [builder.input(_unplaced(v)).value for v in inputs]
    made = builder.copy(node, tuple(operands), named=False)
    builder.output(*(builder.operand(v) for v in made.outputs))
    return Node(Fused(HOST + engine, builder.build()), inputs, node.loc, node.names, node.group)


def _unplaced(value: Value) -> TensorType:
    return TensorType(value.type.dtype, value.type.shape)
