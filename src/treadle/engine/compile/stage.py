"""The stage itself: a plan of the optimized graph, and its part of the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from treadle.backends.program import Compiler, runs_of
from treadle.base.guards import is_open
from treadle.engine.compile.assemble import assemble
from treadle.engine.compile.streams import assign_streams
from treadle.engine.compile.streams_check import check_streams
from treadle.engine.compile.together import check_together
from treadle.engine.cost import RATES
from treadle.engine.options import Options
from treadle.engine.plan import Interface, Plan
from treadle.engine.report import CompileReport
from treadle.graph.ir import Graph


def compile_graph(
    graph: Graph,
    compiler: Compiler,
    interface: Interface,
    options: Options,
    report: CompileReport,
) -> Plan:
    """Plan a graph whose types are static.

    Args:
        graph: what the optimize stage made.
        compiler: the engine that lowers its nodes; what it refuses is left to the host.
        interface: which inputs are frozen, and which are updated in place.
        options: of the compilation.
        report: receives kernels, memory and streams.

    Raises:
        CompileError: a result's extent depends on data, or memory, launches together or streams
            were planned wrongly.
    """
    plan = assemble(graph, compiler, interface, options, report)
    streams = assign_streams(plan, RATES["cpu"], options.streams)
    plan = replace(plan, streams=streams)
    if options.check and not is_open():
        check(plan)
    elif streams.count > 1:
        check_streams(plan, streams)
    _tell(plan, report)
    return plan


def check(plan: Plan) -> None:
    """Prove that steps at one time use different bytes.

    Raises:
        CompileError: launches together, or streams, were planned wrongly.
    """
    check_together(plan)
    check_streams(plan, plan.streams)


def _tell(plan: Plan, report: CompileReport) -> None:
    counts = Counter((run.label, run.kernel.name) for run in runs_of(plan.steps))
    rows = [(label, kernel, n) for (label, kernel), n in counts.items()]
    report.table("kernels", ("op", "kernel", "launches"), rows)
    memory = plan.memory
    report.table(
        "memory",
        ("what", "bytes"),
        [
            ("arena", memory.peak),
            ("lower bound of the arena", memory.bound),
            ("one buffer per value", memory.naive),
            ("constants", plan.constants.nbytes),
            ("packed once", plan.kept),
        ],
    )
    streams = plan.streams
    row = (streams.count, len(streams.events), f"{streams.makespan * 1e6:.1f}", streams.reason)
    report.table("streams", ("streams planned", "events", "modelled us", "why"), [row])
