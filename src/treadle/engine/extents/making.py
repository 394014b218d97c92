"""Programs for many extents: made, kept on disk, and found there again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from treadle.backends.measuring import MEASURING
from treadle.backends.program import OpenCompiler, runs_of
from treadle.backends.segments import is_open
from treadle.base.log import get_logger
from treadle.base.symbol import Expr
from treadle.engine.cache import CachedProgram, settle
from treadle.engine.devices.placement import HOST, engines_of, segment_engines
from treadle.engine.execute.segments import SegmentLaunch, launches_of, op_by_op
from treadle.engine.extents.cells import Cell, cell_of
from treadle.engine.extents.numbering import first_placements, numbered
from treadle.engine.extents.regime import (
    DeviceRegime,
    OpenProgram,
    Regime,
    SharedGraph,
    Symbolic,
    beyond,
)
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Plan
from treadle.engine.scheme import Open
from treadle.engine.targets.compiled import CompiledTarget, results_of


def compile_regime(
    origin: SharedGraph, extents: Mapping[str, int], number: int
) -> OpenProgram | str:
    """A program for these extents, and for all that answer alike; or why there is none.

    Args:
        origin: of the program.
        extents: of the call that it is compiled for, by symbol.
        number: of the program among those of its cell, for the cache.
    """
    cell = cell_of(extents, origin.graph)
    try:
        symbolic = origin.planned(cell, extents)
    except Exception as error:  # What takes no expressions yet: extents get own programs.
        name = origin.graph.name
        get_logger("jit").debug("%s: no program for many extents", name, exc_info=True)
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    reason = _leaves(symbolic.planned.plan)
    if reason:
        return reason
    try:
        plan, known = _open(symbolic, cell)
    except OverflowError:  # A number in the plan, such as the grain of work of that size.
        raise beyond(extents) from None
    if not origin.on_host:
        settle(origin.graph, origin.options, symbolic.cuts)
        return DeviceRegime(origin, cell, known, symbolic)
    made = origin.stages(origin.graph)
    loaded = made.target.load(replace(symbolic.planned, plan=plan), made.report)
    entry = CachedProgram(loaded, (), symbolic.cuts, known)
    if isinstance(made.target, CompiledTarget):
        made.target.keep(made.source, entry, f"{cell} #{number}")
    settle(origin.graph, origin.options, entry.cuts)
    segments = _segments(origin, made, plan)
    return Regime(origin, cell, entry, symbolic, segments)


def _open(symbolic: Symbolic, cell: Cell) -> tuple[Plan, Open]:
    """The plan with entries of its table for numbers, and the code for those."""
    planned, guards, _ = symbolic
    results = results_of(planned.captured, planned.graph)
    plan, scheme = numbered(planned.plan, [t.shape for t in results], tuple(cell.ranges), guards)
    dtypes = tuple(t.dtype.name for t in results)
    return plan, Open(scheme, dtypes, first_placements(scheme, cell))


def _segments(origin: SharedGraph, made: Stages, plan: Plan) -> dict[int, SegmentLaunch]:
    """Return the launches of the parts of a program that other engines compile, by task."""
    compiler, strict = made.target.compiler(), origin.options.strict_segments
    frozen, report = origin.interface.frozen, made.report
    with report.stage("segments"):
        others = origin.others or op_by_op
        return launches_of(plan, frozen, others, compiler, report, strict=strict)


def refusal(origin: SharedGraph) -> str:
    """Return what keeps a graph from having programs for many extents, as known beforehand."""
    graph, options = origin.graph, origin.options
    if all(t.is_static for t in graph.input_types):
        return "no extent is open"
    compiler = origin.stages(graph).target.compiler()
    if not isinstance(compiler, OpenCompiler) or not compiler.is_open:
        return "its compiler takes numbers for extents"
    kind = HOST if origin.home is None else origin.home.kind
    for engine in segment_engines(engines_of(options, kind)):
        if not (origin.on_host and is_open(engine)):
            return f"{engine.name} takes numbers for extents"
    if options.memory_budget or options.streams > 1:
        return "a memory budget, or several streams, are decided by numbers"
    if MEASURING.on:
        return "kernels are measured at numbers"
    return ""


def _leaves(plan: Plan) -> str:
    """Return the reason why a plan cannot be shared, if there is one."""
    for run in runs_of(plan.prelude):
        if any(isinstance(getattr(a, "offset", a), Expr) for a in run.arguments):
            return "what is packed depends on extents"
    return ""
