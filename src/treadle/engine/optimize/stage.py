"""The optimize stage."""

from __future__ import annotations

from collections.abc import Callable

from treadle.backends.program import Compiler
from treadle.engine.optimize.anchors import attention_groups, contraction_groups
from treadle.engine.optimize.bodies import Trial, assemble
from treadle.engine.optimize.groups import Groups
from treadle.engine.optimize.layout import assign
from treadle.engine.optimize.loops import loop_groups
from treadle.engine.options import Options
from treadle.engine.types import CompileReport
from treadle.graph.ir import Graph, Node, regions_of
from treadle.graph.passes import map_regions
from treadle.graph.verify import verify
from treadle.ops.fused import Fused


def optimize(graph: Graph, compiler: Compiler, options: Options, report: CompileReport) -> Graph:
    """Rewrite a segment for its engine: layouts, then groups that run as one kernel each.

    Level 0 leaves the program alone; level 1 makes groups with one result; from level 2 on groups
    are chosen by what they save. Regions of control flow are optimized like the program.

    Args:
        graph: what `prepare` made.
        compiler: of the engine that runs it; a group it refuses is not made.
        options: level and switches.
        report: receives the groups, and why others were not made.
    """
    assign(graph)
    if not options.fusion or not options.allows("fuse", 1):
        return graph
    trial = Trial(compiler)

    def fuse(part: Graph) -> Graph:
        return _fused(part, trial, _notes(report), plain=options.level == 1)

    made = fuse(map_regions(graph, fuse))
    if options.check:
        verify(made)
    _tell(made, report)
    return made


def _fused(
    graph: Graph, trial: Trial, note: Callable[[Node, str, str], None], plain: bool
) -> Graph:
    groups = Groups(graph)
    attention_groups(groups, trial, note)
    contraction_groups(groups, trial, note, plain=plain)
    loop_groups(groups, trial, note, plain=plain)
    return assemble(groups)


def _notes(report: CompileReport) -> Callable[[Node, str, str], None]:
    def note(node: Node, outcome: str, reason: str) -> None:
        report.decide("optimize", describe(node), outcome, reason)

    return note


def describe(node: Node) -> str:
    """A node as reports name it."""
    return f"{node.op.name} {' '.join(str(v.type) for v in node.outputs)}"


def _tell(graph: Graph, report: CompileReport) -> None:
    """Report what became of every op."""
    for node in graph.nodes:
        if isinstance(node.op, Fused):
            inside = " ".join(n.op.name for body in regions_of(node.op) for n in body.nodes)
            report.decide("optimize", inside, f"fused: {node.op.kind}", describe(node))
