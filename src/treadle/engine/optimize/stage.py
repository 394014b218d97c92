"""The optimize stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from treadle.backends.program import Compiler
from treadle.engine.frozen import fixed_values
from treadle.engine.optimize.algorithms import choose_algorithms
from treadle.engine.optimize.anchors import attention_groups, contraction_groups, window_groups
from treadle.engine.optimize.bodies import Trial, assemble
from treadle.engine.optimize.fold_scales import fold_scales
from treadle.engine.optimize.groups import Groups
from treadle.engine.optimize.kinds import FREE, MOVES
from treadle.engine.optimize.layout import Layout, has_channels_last, layouts_of
from treadle.engine.optimize.layout_pass import lay_out
from treadle.engine.optimize.loops import loop_groups
from treadle.engine.optimize.model import modelled_bytes
from treadle.engine.optimize.named import named_groups
from treadle.engine.optimize.recompute import widen_again
from treadle.engine.optimize.statistics import with_statistics
from treadle.engine.options import Options
from treadle.engine.types import CompileReport
from treadle.graph.ir import Graph, Node, Value, regions_of
from treadle.graph.regions import map_regions
from treadle.graph.verify import verify
from treadle.ops.column_moments import ColumnMoments
from treadle.ops.constant import Constant
from treadle.ops.families import Reduce
from treadle.ops.fused import Fused
from treadle.ops.movement import Transpose
from treadle.ops.op import Op

QUIET: tuple[type[Op], ...] = (*MOVES, *FREE, Constant, Fused)
"""Ops that reports leave out of a group's name."""
MERGED = ("fuse_reductions", Reduce), ("fuse_transposes", Transpose)
"""Ops that loops take in unless a pass of this name is left out; each is then a loop of its own."""
QUICK = 256
"""Nodes up to which fusing twice is not felt."""
Notes = Counter[tuple[str, str, str]]
"""How often something was said: about what, the outcome, and why."""


def optimize(
    graph: Graph,
    compiler: Compiler,
    options: Options,
    report: CompileReport,
    frozen: Collection[Value] = (),
) -> Graph:
    """Rewrite a segment for its engine: algorithms, layouts, then groups that run as one kernel.

    Level 0 leaves the program alone; level 1 makes groups with one result; from level 2 on groups
    are chosen by what they save. Regions of control flow are optimized like the program.

    Args:
        graph: what `prepare` made.
        compiler: of the engine that runs it; a group it refuses is not made.
        options: level and switches.
        report: receives the groups, and why others were not made.
        frozen: inputs that keep their contents from run to run.
    """
    if not options.fusion or not options.allows("fuse", 1):
        return graph
    trial = Trial(compiler)
    once = frozen if options.allows("precompute", 1) else ()
    if once and options.allows("fold_scales", 2):
        graph, folded = fold_scales(graph, once, narrow=options.fast)
        _say(folded, report)
    domain = layouts_of(trial.layouts, options.layouts)
    if options.winograd and options.allows("winograd", 2) and has_channels_last(domain):
        known = fixed_values(graph, once) if once else frozen
        graph, chosen = choose_algorithms(graph, trial, options.winograd, known)
        _say(chosen, report)
    if options.allows("layout", 2):
        graph = _laid_out(graph, trial, domain, options, report)
    notes: Notes = Counter()

    def fuse(part: Graph) -> Graph:
        named = named_groups(map_regions(part, fuse), trial, options, notes)
        made, found = _measured(named, trial, options, once)
        notes.update(found)
        return made

    made = fuse(graph)
    if options.check:
        verify(made)
    _count_groups(made, notes)
    _say(notes, report)
    return made


def _say(notes: Notes, report: CompileReport) -> None:
    for (subject, outcome, reason), count in notes.items():
        times = f" x{count}" if count > 1 else ""
        report.decide("optimize", subject, outcome + times, reason)


def _laid_out(
    graph: Graph,
    trial: Trial,
    domain: Sequence[Layout],
    options: Options,
    report: CompileReport,
) -> Graph:
    """The graph in the layouts that its ops like best."""
    graph, layouts = lay_out(graph, trial, domain)
    if layouts.ops or layouts.row_major:
        report.decide("optimize", "layout", layouts.outcome, layouts.reason)
    if options.check:
        verify(graph)
    return graph


def _measured(
    graph: Graph, trial: Trial, options: Options, once: Collection[Value]
) -> tuple[Graph, Notes]:
    """The groups of a graph, some of which leave statistics of their results."""

    def best(part: Graph) -> tuple[Graph, Notes]:
        return _best(part, trial, options, fixed_values(part, once) if once else ())

    if options.allows("statistics", 2) and options.fuses("contraction"):
        changed, found = with_statistics(graph, trial)
        if found:
            made, notes = best(changed)
            # What stands alone has no kernel: some group was formed in another way.
            if not any(isinstance(n.op, ColumnMoments) for n in made.nodes):
                return made, notes + found
    return best(graph)


def _best(
    graph: Graph, trial: Trial, options: Options, fixed: Collection[Value]
) -> tuple[Graph, Notes]:
    """The groups of a level; greedy choices are held against the plain ones where that is quick."""
    level = options.level
    made = _fused(graph, trial, options, fixed, plain=level == 1)
    if (level == 2 and len(graph.nodes) <= QUICK) or level == 3:
        plain = _fused(graph, trial, options, fixed, plain=True)
        return min(made, plain, key=lambda m: modelled_bytes(m[0]))
    return made


def _fused(
    graph: Graph, trial: Trial, options: Options, fixed: Collection[Value], *, plain: bool
) -> tuple[Graph, Notes]:
    groups = Groups(graph, fixed)
    notes: Notes = Counter()

    def note(node: Node, outcome: str, reason: str) -> None:
        notes[describe(node), outcome, reason] += 1

    if options.fuses("attention"):
        attention_groups(groups, trial, note)
    if options.fuses("contraction"):
        contraction_groups(groups, trial, note, plain=plain)
    if options.fuses("window"):
        window_groups(groups, trial, note)
    if options.fuses("loop"):
        alone = tuple(cls for name, cls in MERGED if not options.allows(name))
        loop_groups(groups, trial, note, plain=plain, alone=alone)
    if not plain:
        widen_again(groups, trial)
    return assemble(groups), notes


def describe(node: Node) -> str:
    """A node as reports name it: the op, or those of a group that compute, and the results."""
    ops = [node.op, *(n.op for body in regions_of(node.op) for n in body.nodes)]
    names = [op.name for op in ops if not isinstance(op, QUIET)]
    return f"{' '.join(names) or 'moves'} -> {', '.join(str(v.type) for v in node.outputs)}"


def _count_groups(graph: Graph, notes: Notes) -> None:
    for node in graph.nodes:
        if isinstance(node.op, Fused) and not node.op.engine:
            notes[describe(node), f"one {node.op.kind} kernel", ""] += 1
