"""The optimize stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from treadle.backends.program import Compiler
from treadle.engine.optimize.algorithms import choose_algorithms
from treadle.engine.optimize.anchors import attention_groups, contraction_groups, window_groups
from treadle.engine.optimize.bodies import Trial, assemble
from treadle.engine.optimize.fold_scales import fold_scales
from treadle.engine.optimize.groups import Groups
from treadle.engine.optimize.layout import has_channels_last, layouts_of
from treadle.engine.optimize.layout_pass import lay_out
from treadle.engine.optimize.loops import loop_groups
from treadle.engine.optimize.model import modelled_bytes
from treadle.engine.optimize.named import named_groups
from treadle.engine.optimize.recompute import widen_again
from treadle.engine.optimize.statistics import with_statistics
from treadle.engine.options import Options
from treadle.engine.report import CompileReport
from treadle.graph.frozen import fixed_values
from treadle.graph.ir import Graph, Node, Value, regions_of
from treadle.graph.regions import replace_ops, substituted_regions
from treadle.graph.verify import verify
from treadle.ops.column_moments import ColumnMoments
from treadle.ops.constant import Constant
from treadle.ops.creation import Creation
from treadle.ops.families import Reduce
from treadle.ops.fused import Fused
from treadle.ops.movement import Transpose
from treadle.ops.op import Op

KINDS = "attention", "contraction", "window", "loop"
"""Kinds of groups, in the order in which they are made."""
MERGED = ("fuse_reductions", Reduce), ("fuse_transposes", Transpose)
"""Ops that loops take in unless a pass of this name is left out; each is then a loop of its own."""
QUICK = 256
"""Nodes up to which fusing twice is not felt."""
Notes = Counter[tuple[str, str, str]]
"""Number of times something was said: about what, the outcome, and why."""


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
    work = _work(compiler, options, report, frozen)
    if work.once and options.allows("fold_scales", 2):
        graph = _fold_scales(graph, work)
    if options.winograd and options.allows("winograd", 2):
        graph = _choose_algorithms(graph, work)
    if options.allows("layout", 2):
        graph = _lay_out(graph, work)
    return _fuse(graph, work)


@dataclass(frozen=True, slots=True)
class PassInput:
    """Input of every pass of the stage besides the graph.

    Attributes:
        trial: asks the compiler.
        options: level and switches.
        report: receives what was decided.
        frozen: inputs that keep their contents from run to run.
        once: those of them from which values may be computed ahead.
        kinds: of groups that may be made.
    """

    trial: Trial
    options: Options
    report: CompileReport
    frozen: Collection[Value]
    once: Collection[Value]
    kinds: Collection[str]


def _work(
    compiler: Compiler, options: Options, report: CompileReport, frozen: Collection[Value]
) -> PassInput:
    once = frozen if options.allows("precompute", 1) else ()
    kinds = tuple(kind for kind in KINDS if options.fuses(kind))
    return PassInput(Trial(compiler), options, report, frozen, once, kinds)


def _fold_scales(graph: Graph, work: PassInput) -> Graph:
    graph, folded = fold_scales(graph, work.once, narrow=work.options.fast)
    _say(folded, work.report)
    return graph


def _choose_algorithms(graph: Graph, work: PassInput) -> Graph:
    tiles = work.options.winograd
    if not has_channels_last(layouts_of(work.trial.layouts, work.options.layouts)):
        return graph
    known = fixed_values(graph, work.once) if work.once else work.frozen
    graph, chosen = choose_algorithms(graph, work.trial, tiles, known)
    _say(chosen, work.report)
    return graph


def _lay_out(graph: Graph, work: PassInput) -> Graph:
    domain = layouts_of(work.trial.layouts, work.options.layouts)
    graph, layouts = lay_out(graph, work.trial, domain)
    if layouts.ops or layouts.row_major:
        work.report.decide("optimize", "layout", layouts.outcome, layouts.reason)
    if work.options.check:
        verify(graph)
    return graph


def _fuse(graph: Graph, work: PassInput) -> Graph:
    notes: Notes = Counter()

    def inside(op: Op) -> Op:
        return op if isinstance(op, Fused) else substituted_regions(op, fuse)

    def fuse(part: Graph) -> Graph:
        part = replace_ops(part, inside)
        named = named_groups(part, work.trial, work.options, notes)
        made, found = _measured(named, work)
        notes.update(found)
        return made

    made = fuse(graph)
    if work.options.check:
        verify(made)
    _count_groups(made, notes)
    _say(notes, work.report)
    return made


def _say(notes: Notes, report: CompileReport) -> None:
    for (subject, outcome, reason), count in notes.items():
        times = f" x{count}" if count > 1 else ""
        report.decide("optimize", subject, outcome + times, reason)


def _measured(graph: Graph, work: PassInput) -> tuple[Graph, Notes]:
    """The groups of a graph, some of which leave statistics of their results."""

    def best(part: Graph) -> tuple[Graph, Notes]:
        return _best(part, work, fixed_values(part, work.once) if work.once else ())

    if work.options.allows("statistics", 2) and "contraction" in work.kinds:
        changed, found = with_statistics(graph, work.trial)
        if found:
            made, notes = best(changed)
            # What stands alone has no kernel: some group was formed in another way.
            if not any(isinstance(n.op, ColumnMoments) for n in made.nodes):
                return made, notes + found
    return best(graph)


def _best(graph: Graph, work: PassInput, fixed: Collection[Value]) -> tuple[Graph, Notes]:
    """The groups of a level; greedy choices are held against the plain ones where that is quick."""
    level = work.options.level
    made = _fused(graph, work, fixed, plain=level == 1)
    if (level == 2 and len(graph.nodes) <= QUICK) or level == 3:
        plain = _fused(graph, work, fixed, plain=True)
        return min(made, plain, key=lambda m: modelled_bytes(m[0]))
    return made


def _fused(
    graph: Graph, work: PassInput, fixed: Collection[Value], *, plain: bool
) -> tuple[Graph, Notes]:
    groups, trial = Groups(graph, fixed), work.trial
    notes: Notes = Counter()

    def note(node: Node, outcome: str, reason: str) -> None:
        notes[describe(node), outcome, reason] += 1

    if "attention" in work.kinds:
        attention_groups(groups, trial, note)
    if "contraction" in work.kinds:
        contraction_groups(groups, trial, note, plain=plain)
    if "window" in work.kinds:
        window_groups(groups, trial, note)
    if "loop" in work.kinds:
        alone = tuple(cls for name, cls in MERGED if not work.options.allows(name))
        loop_groups(groups, trial, note, plain=plain, alone=alone)
    if not plain:
        widen_again(groups, trial)
    return assemble(groups), notes


@dataclass(frozen=True, slots=True)
class StagePass:
    """A pass of the stage that can be run by itself.

    Attributes:
        summary: what it does, in a line.
        run: does it.
    """

    summary: str
    run: Callable[[Graph, PassInput], Graph]


def _only(kind: str) -> Callable[[Graph, PassInput], Graph]:
    return lambda graph, work: _fuse(graph, replace(work, kinds=(kind,)))


STEPS = {
    "fold_scales": StagePass("Multiplies frozen weights by the scales behind them", _fold_scales),
    "winograd": StagePass("Computes convolutions by Winograd's algorithm", _choose_algorithms),
    "layout": StagePass("Chooses the order of axes that maps are held in", _lay_out),
    "fuse": StagePass("Makes groups of all kinds, the best of several choices", _fuse),
    "attention": StagePass("Makes groups around attention", _only("attention")),
    "contraction": StagePass("Makes groups around products and convolutions", _only("contraction")),
    "window": StagePass("Makes groups around pooling and resampling", _only("window")),
    "loop": StagePass("Makes groups of loops over elements", _only("loop")),
}
"""Passes of the stage by name: the first four in the order in which it runs them, then the kinds of
groups by themselves."""


def run_step(
    name: str,
    graph: Graph,
    compiler: Compiler,
    options: Options,
    report: CompileReport,
    frozen: Collection[Value] = (),
) -> Graph:
    """Run one pass of `STEPS`, whatever the options leave out; the others as for `optimize`."""
    return STEPS[name].run(graph, _work(compiler, options, report, frozen))


def _is_quiet(op: Op) -> bool:
    """Return whether reports leave an op out of a group's name."""
    return op.strided or isinstance(op, (Creation, Constant, Fused))


def describe(node: Node) -> str:
    """A node as reports name it: the op, or those of a group that compute, and the results."""
    ops = [node.op, *(n.op for body in regions_of(node.op) for n in body.nodes)]
    names = [op.name for op in ops if not _is_quiet(op)]
    return f"{' '.join(names) or 'moves'} -> {', '.join(str(v.type) for v in node.outputs)}"


def _count_groups(graph: Graph, notes: Notes) -> None:
    for node in graph.nodes:
        if isinstance(node.op, Fused) and not node.op.engine:
            notes[describe(node), f"one {node.op.kind} kernel", ""] += 1
