"""The partition stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product

from treadle.backends.api import Engine
from treadle.backends.segments import SegmentEngine
from treadle.base.errors import CompileError
from treadle.base.guards import is_open
from treadle.engine.options import Options
from treadle.engine.partition.assign import Assigner, Assignment
from treadle.engine.partition.borders import with_borders
from treadle.engine.partition.candidates import Candidates
from treadle.engine.partition.check import check_partition
from treadle.engine.partition.claims import Claims, Unit, claims_of
from treadle.engine.partition.model import CostModel, shares_memory
from treadle.engine.partition.prune import Pruner
from treadle.engine.partition.segments import Segmented, keys, levels, needs, segments_of
from treadle.engine.report import CompileReport, Partition
from treadle.graph.flop_count import nbytes
from treadle.graph.flow import FOREVER
from treadle.graph.frozen import fixed_values
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.border import Border, End

MOST_SHOWN = 12
"""Kinds of ops in the table of modelled times."""


def partition(
    graph: Graph,
    engines: Sequence[Engine],
    options: Options,
    report: CompileReport,
    model: CostModel | None = None,
    frozen: Collection[Value] = (),
) -> Segmented:
    """Choose an engine for every node, and cut the program where the engine changes.

    Args:
        graph: what `prepare` made.
        engines: who may run it, best first; the memory of the first one that compiles no segments
            holds inputs and results.
        options: of the compilation.
        report: receives the choices, and why engines refused nodes.
        model: what things cost.
        frozen: inputs that keep their contents from run to run, which segments have as constants.

    Raises:
        GraphError: no engine runs some op.
    """
    apart = any(isinstance(e, SegmentEngine) for e in engines)
    claims = claims_of(graph, engines, report)
    candidates = Candidates(engines, options.force_fallback, claims)
    fixed = fixed_values(graph, frozen) if apart else ()
    if apart and is_open():
        _require_open(graph, candidates)
    assigner = Assigner(graph, candidates, model or CostModel(), fixed)
    pruner = Pruner(assigner)
    domains = pruner.best()
    chosen = assigner.fastest(domains)
    placed, assigned = _with_borders(graph, assigner, chosen)
    domain_of = {n: assigner.domains.of[e] for n, e in assigned.items()}
    order = assigner.order if placed is graph else _units(placed, graph, assigner.order)
    level = levels(needs(order, assigner.fixed), domain_of)
    segment_of = keys(placed, level, domain_of, assigned, assigner.fixed)
    parts = Segmented(
        placed,
        segments_of(placed, segment_of, [e.name for e in candidates.engines]),
        fixed_values(placed, frozen) if apart else (),
    )
    if options.check:
        check_partition(parts, graph)
    _tell(
        graph, candidates, {n: e for n, e in chosen.items() if not assigner.is_settled(n)}, report
    )
    _tell_segments(parts, report)
    if len(assigner.domains) > 1:
        _tell_costs(assigner, pruner, domains, report)
    return parts


def _require_open(graph: Graph, candidates: Candidates) -> None:
    """Hold a program for many extents against what segment engines compile for many.

    Raises:
        CompileError: one takes an op with numbers for extents alone, so that each extents are to
            have a program of their own.
    """
    segments = [e for e in candidates.engines if isinstance(e, SegmentEngine)]
    for node, engine in product(graph.nodes, segments):
        support = candidates.support(node, engine)
        if support.reason == "dynamic-shape":
            problem = f"{engine.name} takes numbers for extents: {support.message}"
            raise CompileError("partition", problem, at=node.loc)


def _with_borders(
    graph: Graph, assigner: Assigner, chosen: dict[Node, int]
) -> tuple[Graph, dict[Node, int]]:
    """The graph with border ops between memory spaces, and the engines of its nodes."""
    engines, home = assigner.engines, assigner.domains.members[assigner.domains.home][0]
    spaces = [
        next(i for i, other in enumerate(engines) if shares_memory(engine, other))
        for engine in engines
    ]
    if len(set(spaces)) == 1:
        return graph, chosen
    return with_borders(
        graph, chosen, lambda node: spaces[home if node is None else chosen[node]], home
    )


def _units(placed: Graph, graph: Graph, order: Sequence[Unit]) -> list[Unit]:
    """Units of the graph with borders, which are not members of any."""
    if all(len(u) == 1 for u in order):
        return [(n,) for n in placed.nodes]
    kept = [n for n in placed.nodes if not isinstance(n.op, Border)]
    now = dict(zip(graph.nodes, kept, strict=True))
    return Claims(units=[tuple(now[n] for n in u) for u in order if len(u) > 1]).order(placed)


def _tell(
    graph: Graph,
    candidates: Candidates,
    chosen: Mapping[Node, int],
    report: CompileReport,
) -> None:
    """Note why engines do not run what they might have been expected to."""
    refused: Counter[tuple[str, str, str]] = Counter()
    for node in graph.nodes:
        if node not in chosen:
            continue
        for engine in candidates.engines[: chosen[node]]:
            support = candidates.support(node, engine)
            reason = f"{engine.name} {support.reason}: {support.message}"
            name = candidates.engines[chosen[node]].name
            refused[(node.op.name, name, "costs less" if support else reason)] += 1
    for (op, taken, reason), count in refused.items():
        report.decide("partition", f"{op} x{count}" if count > 1 else op, taken, reason)


def _tell_segments(parts: Segmented, report: CompileReport) -> None:
    report.partitions = tuple(
        Partition(s.engine, len(s.nodes), sum(map(nbytes, s.inputs)), sum(map(nbytes, s.outputs)))
        for s in parts.segments
    )
    for segment in parts.segments:
        report.decide("partition", f"{len(segment.nodes)} nodes", repr(segment).strip("<>"))
    copies = [n for n in parts.graph.nodes if isinstance(n.op, End)]
    if copies:
        size = sum(nbytes(n.output) for n in copies)
        report.decide("partition", "copies between memories", str(len(copies)), f"{size} bytes")


def _tell_costs(
    assigner: Assigner, pruner: Pruner, domains: Assignment, report: CompileReport
) -> None:
    """Note what ops are modelled to take on each engine, the dearest first, and all of them."""
    seconds: dict[tuple[str, str], list[float]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    names = [assigner.engines[d[0]].name for d in assigner.domains.members]
    for node, domain in domains.items():
        if assigner.is_settled(node):
            continue
        key = node.op.name, names[domain]
        sums = seconds.setdefault(key, [0.0] * len(names))
        counts[key] += 1
        for d in range(len(names)):
            sums[d] += assigner.seconds(node, d)
    dearest = sorted(seconds, key=lambda k: -min(seconds[k]))[:MOST_SHOWN]
    rows = [(op, counts[op, e], *map(_micro, seconds[op, e]), e) for op, e in dearest]
    report.table("modelled us of ops on engines", ("op", "n", *names, "runs on"), rows)
    whys = []
    for one in assigner.alone():
        name = next((names[d] for n, d in one.items() if not assigner.is_settled(n)), names[0])
        whys.append(f"{name} alone {_micro(pruner.price(one))} us")
    report.decide(
        "partition", "modelled time", f"{_micro(pruner.price(domains))} us", "; ".join(whys)
    )


def _micro(seconds: float) -> str:
    return "-" if seconds == FOREVER else f"{seconds * 1e6:.1f}"
