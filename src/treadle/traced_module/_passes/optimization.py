"""`optimize`: named passes on a copy of a traced module."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence

from treadle.module.module import Module
from treadle.module.path import get_at
from treadle.traced_module._passes.pass_base import run_pass, with_required
from treadle.traced_module.expr import GetAttr
from treadle.traced_module.flattening import renumber
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.traced_module import TracedModule


def optimize(
    module: TracedModule, enabled_pass: str | Sequence[str] = ("FuseConvBn",)
) -> TracedModule:
    """A copy of a traced module with passes applied to each of its graphs.

    Graphs of sub-modules are changed each on its own; `flatten()` first to let passes see across.

    Args:
        module: the traced module, which stays as it is.
        enabled_pass: names of passes, run in this order, each after those it requires:
            `"AttrToConstant"`: parameters become constants of the graph;
            `"FixInputShape"`: extents become the numbers of the trace;
            `"FlodConstant"`: what depends on constants alone is computed now;
            `"NormElemWise"`: arithmetic with constants gets one spelling;
            `"FuseAddMul"`: neighboring sums and products with constants become one;
            `"BackwardFoldScale"`: constant factors move into weights of convolutions;
            `"FuseConvBn"`: batch normalization in evaluation mode is folded into convolutions.

    Raises:
        TypeError: `module` is not a traced module.
        ValueError: a pass is unknown.
    """
    if not isinstance(module, TracedModule):
        raise TypeError(f"optimize takes a TracedModule, got {type(module).__name__}")
    names = [enabled_pass] if isinstance(enabled_pass, str) else enabled_pass
    order = with_required(names)
    made = copy.deepcopy(module)
    graphs = [g for top in made.argdef_graph_map.values() for g in top._graphs()]
    before = _fetched(graphs)
    for name in order:
        for graph in graphs:
            run_pass(name, graph)
    _prune(before - _fetched(graphs), _fetched(graphs))
    for top in made.argdef_graph_map.values():
        renumber(top)
    return made


def _fetched(graphs: Iterable[InternalGraph]) -> set[tuple[TracedModule, str]]:
    """Return the fetched names of graphs: a module and a path below it."""
    return {
        (expr.inputs[0].owner, expr.name)  # type: ignore[attr-defined]
        for graph in graphs
        for expr in graph.exprs(recursive=False)
        if isinstance(expr, GetAttr)
    }


def _prune(
    unused: Iterable[tuple[TracedModule, str]],
    used: Collection[tuple[TracedModule, str]],
) -> None:
    """Delete attributes that graphs fetched before and no longer do."""
    keep = {id(get_at(owner, path)) for owner, path in used}
    inside = [get_at(owner, path) for owner, path in used]
    keep |= {id(t) for held in inside if isinstance(held, Module) for t in held.modules()}
    for owner, path in unused:
        holder_path, _, last = path.rpartition(".")
        holder = get_at(owner, holder_path)
        if isinstance(holder, TracedModule) and id(get_at(owner, path)) not in keep:
            delattr(holder, last)
