"""The prepare stage and its pipeline of passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from treadle.backends.program import Choosing, Compiler
from treadle.base.types import TensorType
from treadle.engine.devices.host import HostCompiler
from treadle.engine.options import Options
from treadle.engine.prepare.attention import FindAttention
from treadle.engine.prepare.canonical import Canonicalize
from treadle.engine.prepare.control import FoldControl, JoinScans
from treadle.engine.prepare.integers import on_integers
from treadle.engine.prepare.values import Propagate
from treadle.engine.report import CompileReport
from treadle.graph.cells import is_scalar_op
from treadle.graph.cleanup import DeadCode, Expand, Fold, Share
from treadle.graph.index_ranges import CheckRanges
from treadle.graph.ir import Graph, regions_of
from treadle.graph.passes import Pass, PassReport, run_passes
from treadle.graph.simplify import DropMarkers, Simplify
from treadle.graph.spec import PREPARED
from treadle.graph.verify import verify
from treadle.ops.composite import Composite
from treadle.ops.op import REGISTRY, Op
from treadle.ops.update import Update

MOST_ROUNDS = 4
"""Times the passes that learn from one another are repeated; most programs need one or two."""


def prepare(
    graph: Graph,
    options: Options,
    report: CompileReport,
    compiler: Compiler | None,
    whole: Collection[str] = (),
    own: Sequence[Pass] = (),
) -> Graph:
    """Rewrite a captured program for the engines: whole, but for nothing that is physical.

    Composites are taken apart, so that fusion sees what they are made of, unless the compiler
    keeps them. Regions of control flow are prepared like the program around them.

    Args:
        graph: the program, after all gradients are taken.
        options: level and switches.
        report: receives what each pass did.
        compiler: of the engine that will run most of it; None if only the reference is there.
        whole: names of composites that other engines may have whole.
        own: passes of backends; they see a simplified program, and what they leave is simplified.

    Raises:
        GraphError: the program is not well formed; or a backend's pass failed.
        IndexRangeError: a constant index is out of range.
    """
    if options.check:
        verify(graph)
    found: list[PassReport] = []
    if not isinstance(compiler, HostCompiler | None):  # Oracles look at their indices themselves.
        graph = run_passes(graph, (CheckRanges(),), check=options.check, report=found)
    if options.allows("integers", 2):
        graph, notes = on_integers(graph)
        for (subject, outcome, reason), count in notes.items():
            times = f" x{count}" if count > 1 else ""
            report.decide("prepare", subject, outcome + times, reason)
    theirs = tuple(p for p in own if options.allows(p.name, 1))
    passes = (*pipeline(graph, options, compiler, whole), *theirs)
    graph = run_passes(graph, passes, check=options.check, report=found)
    for _ in range(MOST_ROUNDS):
        before = graph
        graph = run_passes(graph, repeated(options), check=options.check, report=found)
        if len(graph.nodes) == len(before.nodes):
            break
    graph = run_passes(graph, (DeadCode(),), check=False, report=found)
    report.passes += [("prepare", r) for r in found]
    verify(graph, PREPARED)
    return graph


def take_apart(
    graph: Graph, options: Options, report: CompileReport, compiler: Compiler | None
) -> Graph:
    """Expand the composites that were kept for engines which did not get them.

    Args:
        graph: after partition; what is in segments stays as it is.
        options: level and switches.
        report: receives what each pass did.
        compiler: of the engine that runs the rest.
    """
    kept = (*kept_composites(graph, compiler), *options.force_fallback)
    left = [n.op.name for n in graph.nodes if isinstance(n.op, Composite)]
    if options.level < 1 or not options.allows("expand", 1) or set(left) <= set(kept):
        return graph
    found: list[PassReport] = []
    passes: tuple[Pass, ...] = (Expand(kept), DropMarkers(), *repeated(options))
    graph = run_passes(graph, passes, check=options.check, report=found)
    report.passes += [("partition", r) for r in found]
    return graph


def pipeline(
    graph: Graph, options: Options, compiler: Compiler | None, whole: Collection[str] = ()
) -> tuple[Pass, ...]:
    """The passes that run once, in order."""
    kept = (*kept_composites(graph, compiler), *options.force_fallback, *whole)
    passes: tuple[tuple[int, Pass], ...] = (
        (0, DropMarkers()),
        (1, Share()),
        (1, Propagate()),
        (1, Fold()),
        (1, JoinScans()),
        (1, FoldControl()),
        (1, _simplify(options)),
        *(((2, FindAttention()),) if "attention" in kept else ()),
        (1, Expand(kept, _choice(compiler, (*options.force_fallback, *whole)))),
        (1, DropMarkers()),
    )
    return _allowed(passes, options)


def _choice(
    compiler: object, others: Collection[str]
) -> Callable[[Op, tuple[TensorType, ...]], bool] | None:
    """Return the compiler's decision on single composites, but for those that others are
    to have.
    """
    if not isinstance(compiler, Choosing):
        return None
    takes = compiler.takes
    return lambda op, types: op.name in others or takes(op, types)


def repeated(options: Options) -> tuple[Pass, ...]:
    """The passes that run until nothing changes: each finds what the others made possible."""
    passes: tuple[tuple[int, Pass], ...] = (
        (1, Propagate()),
        (1, Fold()),
        (1, FoldControl()),
        (1, Canonicalize()),
        (1, _simplify(options)),
        (1, Share()),
        (1, DeadCode()),
    )
    return _allowed(passes, options)


def _allowed(passes: tuple[tuple[int, Pass], ...], options: Options) -> tuple[Pass, ...]:
    # Without markers no later stage can read the program, so that pass has no switch.
    return tuple(p for level, p in passes if level == 0 or options.allows(p.name, level))


def _simplify(options: Options) -> Simplify:
    """The rules, as exact as the options ask: a wrong NaN does no harm above level 1."""
    exact = Simplify("exact" if options.level == 1 else "safe", without=options.switched_off)
    return replace(exact, level="fast") if options.fast else exact


def kept_composites(graph: Graph, compiler: Compiler | None) -> tuple[str, ...]:
    """Names of the composites that stay whole."""
    names = {n for n, op in REGISTRY.items() if issubclass(op, Composite)}
    kept = {n for n in names if _is_kept(n, compiler)}
    return tuple(sorted(kept | _rounded_once(graph)))


def _is_kept(name: str, compiler: Compiler | None) -> bool:
    if issubclass(REGISTRY[name], Update):
        # Each is one loop over its parameter, and nothing is gained by fusing it with others.
        return True
    return compiler is not None and compiler.keeps(name)


def _rounded_once(graph: Graph) -> set[str]:
    """Elementwise composites of 16-bit floats: in parts, every part would round its result."""
    found: set[str] = set()
    for node in graph.nodes:
        if isinstance(node.op, Composite) and is_scalar_op(node.op):
            dtype = node.output.type.dtype
            if dtype.is_float and dtype.itemsize == 2:
                found.add(node.op.name)
        for region in regions_of(node.op):
            found |= _rounded_once(region)
    return found
