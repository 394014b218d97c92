"""The partition stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from treadle.backends.api import Engine
from treadle.engine.options import Options
from treadle.engine.partition.assign import Assigner, Assignment
from treadle.engine.partition.borders import with_borders
from treadle.engine.partition.candidates import Candidates
from treadle.engine.partition.check import check_partition
from treadle.engine.partition.model import Model
from treadle.engine.partition.segments import constants_follow, levels, segments_of
from treadle.engine.types import CompileReport, Partitioned
from treadle.graph.ir import Graph, Node
from treadle.ops.constant import Constant


def partition(
    graph: Graph,
    engines: Sequence[Engine],
    options: Options,
    report: CompileReport,
    model: Model | None = None,
) -> Partitioned:
    """Choose an engine for every node, and cut the program where the engine changes.

    Args:
        graph: what `prepare` made.
        engines: who may run it, best first; the first one's memory holds inputs and results.
        options: of the compilation.
        report: receives the choices, and why engines refused nodes.
        model: what things cost.

    Raises:
        GraphError: no engine runs some op.
    """
    candidates = Candidates(engines, options.force_fallback)
    assigner = Assigner(graph, candidates, model or Model())
    chosen = _without_petty_segments(graph, assigner, assigner.best())
    home = 0
    placed, assigned = with_borders(
        graph,
        chosen,
        lambda node: assigner.space_of[home if node is None else chosen[node]],
        home,
    )
    depth = levels(placed, assigned)
    constants_follow(placed, assigned, depth)
    parts = Partitioned(
        placed, segments_of(placed, assigned, depth, [e.name for e in candidates.engines])
    )
    if options.check:
        check_partition(parts, graph)
    _tell(graph, candidates, chosen, parts, report)
    return parts


def _without_petty_segments(graph: Graph, assigner: Assigner, chosen: Assignment) -> Assignment:
    """Give up segments that save less than starting them costs, the worst one first."""
    if len(assigner.spaces) < 2:
        return chosen
    best = _price(graph, assigner, chosen)
    while True:
        tries = [_demoted(graph, assigner, chosen, nodes) for nodes in _segments(graph, chosen)]
        prices = [(_price(graph, assigner, t), i) for i, t in enumerate(tries) if t is not None]
        if not prices or min(prices)[0] >= best:
            return chosen
        best, i = min(prices)
        chosen = tries[i] or chosen


def _segments(graph: Graph, chosen: Assignment) -> list[list[Node]]:
    depth = levels(graph, chosen)
    groups: dict[tuple[int, int], list[Node]] = {}
    for node in graph.nodes:
        groups.setdefault((depth[node], chosen[node]), []).append(node)
    return list(groups.values())


def _demoted(
    graph: Graph, assigner: Assigner, chosen: Assignment, nodes: Sequence[Node]
) -> Assignment | None:
    """The assignment with a segment on the cheapest other engine that runs all of it."""
    now = chosen[nodes[0]]
    able = set(range(len(assigner.engines))) - {now}
    for node in nodes:
        able &= set(assigner.choices[node])
    tries = [{**chosen, **dict.fromkeys(nodes, e)} for e in sorted(able)]
    return min(tries, key=lambda t: _price(graph, assigner, t), default=None)


def _price(graph: Graph, assigner: Assigner, chosen: Assignment) -> float:
    """Modelled seconds, the start of every segment included."""
    starts = {(d, chosen[n]) for n, d in levels(graph, chosen).items()}
    rates = [assigner.model.of(e) for e in assigner.engines]
    return assigner.total(chosen) + sum(rates[engine].segment for _, engine in starts)


def _tell(
    graph: Graph,
    candidates: Candidates,
    chosen: Mapping[Node, int],
    parts: Partitioned,
    report: CompileReport,
) -> None:
    refused: Counter[tuple[str, str, str]] = Counter()
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            continue
        for engine in candidates.engines[: chosen[node]]:
            support = candidates.support(node, engine)
            reason = f"{engine.name} {support.reason}: {support.message}"
            name = candidates.engines[chosen[node]].name
            refused[(node.op.name, name, "costs less" if support else reason)] += 1
    for (op, taken, reason), count in refused.items():
        report.decide("partition", f"{op} x{count}" if count > 1 else op, taken, reason)
    for segment in parts.segments:
        report.decide("partition", f"{len(segment.nodes)} nodes", repr(segment).strip("<>"))
