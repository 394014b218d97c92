"""Graphs without prints: for files, and for what gradients compute once more."""

from __future__ import annotations

from treadle.graph.ir import Graph, Node, regions_of
from treadle.graph.regions import map_regions
from treadle.ops.printing import PrintingOp


def silent(graph: Graph) -> Graph:
    """The graph without ops that only show values, those in regions included."""
    graph = map_regions(graph, silent)
    kept = [n for n in graph.nodes if not isinstance(n.op, PrintingOp)]
    return graph if len(kept) == len(graph.nodes) else graph.with_nodes(kept, graph.outputs)


def observers(graph: Graph) -> list[Node]:
    """The nodes that only show values, those in regions included, in program order."""
    found: list[Node] = []
    for node in graph.nodes:
        for region in regions_of(node.op):
            found += observers(region)
        found += [node] if isinstance(node.op, PrintingOp) else []
    return found
