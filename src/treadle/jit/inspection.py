"""What a traced function shows of itself: profiles as plain data, results without values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.base import tree
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph
from treadle.graph.printer import value_names
from treadle.jit.capture import Capture, Captured, Output, Symbol
from treadle.tensor import wrap

if TYPE_CHECKING:
    from treadle.engine.profile import Profile


def profile_data(graph: Graph, profile: Profile) -> dict[str, Any]:
    """A profile as plain data, beside the ops that were traced."""
    names = value_names(graph)
    ops = {
        str(number): {
            "type": node.op.name,
            "name": node.outputs[0].name or names[node.outputs[0]],
            "input": [names[v] for v in node.inputs],
            "output": [{"name": names[v], "shape": list(v.type.shape)} for v in node.outputs],
        }
        for number, node in enumerate(graph.nodes)
    }
    kernels = [
        {"op": k.label, "kernel": k.kernel, "calls": k.calls, "seconds": k.seconds}
        for k in profile.kernels
    ]
    return {"graph_exec": {"operator": ops}, "profiler": {"kernels": kernels}}


def without_values(captured: Captured) -> Any:
    """The results of a capture as tensors that have types and no values."""
    ended = Capture("ended")
    builder = GraphBuilder("ended")
    leaves, shape = tree.flatten(captured.results)
    made = []
    for leaf in leaves:
        if isinstance(leaf, Output):
            value = captured.graph.outputs[leaf.index]
            symbol = Symbol(ended, GraphOperand(builder, value))
            leaf = wrap(symbol, captured.kinds[leaf.index])
        made.append(leaf)
    return tree.unflatten(shape, made)


__all__ = ["profile_data", "without_values"]
