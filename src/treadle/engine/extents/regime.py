"""A program for all extents that answer alike what its compilation asked.

The stages run once, at the extents of some call: what they compute from symbolic extents stays an
expression, and what they ask becomes a guard (`base.guards`). Extents of which all guards hold get
the numbers of that plan, which byte code computes; words, kernels, constants and packed weights are
shared by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from treadle.backends.program import OpenCompiler, runs_of
from treadle.base.arithmetic import DONE, OVERFLOW, Arithmetic, evaluate
from treadle.base.dtype import as_dtype
from treadle.base.errors import CompileError, IndexRangeError, ShapeError
from treadle.base.guards import deciding
from treadle.base.symbol import Relation
from treadle.engine.artifacts import Planned
from treadle.engine.cache import CachedProgram, Cuts, settle, shared
from treadle.engine.devices.names import CompNode
from treadle.engine.execute.arenas import Arenas
from treadle.engine.execute.executor import Executor, Packs, ProgramInstance
from treadle.engine.execute.frames import At
from treadle.engine.execute.segments import Others, SegmentLaunch
from treadle.engine.extents.cells import Cell
from treadle.engine.extents.late import at_extents, prove, task_at
from treadle.engine.extents.placing import Evaluator, Placements
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import HostTask, Interface
from treadle.engine.scheme import Open
from treadle.engine.targets.compiled import CompiledTarget, results_of
from treadle.graph.evaluate import specialize
from treadle.graph.index_findings import index_error
from treadle.graph.ir import Graph


class Symbolic(NamedTuple):
    """A program whose numbers are expressions, as far as compile, and what it asked of extents."""

    planned: Planned
    guards: tuple[Relation, ...]
    cuts: Cuts
    """Reductions that go together, as agreed with other ranks."""


class SharedGraph(NamedTuple):
    """A graph, and all that its programs for many extents have in common.

    Attributes:
        graph: what was captured, with symbols in its types.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        home: where it runs.
        arenas: scratch memory.
        others: how parts of it are run whose engine has failed.
    """

    graph: Graph
    interface: Interface
    options: Options
    home: CompNode | None
    arenas: Arenas
    others: Others | None = None

    @property
    def on_host(self) -> bool:
        """True if the host runs it."""
        return self.home is None or self.home.on_host

    def stages(self, graph: Graph) -> Stages:
        """The graph, or a form of it, on its way through the stages."""
        return Stages(graph, self.interface, self.options, self.home)

    def planned(self, cell: Cell, extents: Mapping[str, int]) -> Symbolic:
        """The program with expressions for its numbers, for what answers as these extents do."""
        with deciding(extents, cell.hints) as decisions:
            made = self.stages(cell.of(self.graph))
            planned = made.planned
        return Symbolic(planned, tuple(decisions.guards), tuple(made.report.cuts))


class _Work:
    """Registers of one evaluation at a time: what code writes it writes before it reads it."""

    __slots__ = ("numbers", "registers", "view")

    def __init__(self, code: Arithmetic) -> None:
        self.registers = code.start.copy()
        self.view = self.registers.data
        self.numbers = self.registers[code.first :]


class OpenProgram:
    """A plan for the extents of a cell that answer alike, and what computes its numbers.

    Args:
        origin: of the program.
        cell: the box of extents that it was compiled for.
        made: its scheme.
        symbolic: the program with expressions; None where it came from the cache.

    Attributes:
        origin, cell: the same.
        scheme: how extents become numbers.
        placements: orders of its memory.
        is_recalled: whether it came from the cache.
    """

    def __init__(
        self, origin: SharedGraph, cell: Cell, made: Open, symbolic: Symbolic | None
    ) -> None:
        self.origin, self.cell = origin, cell
        self.is_recalled = symbolic is None
        self._symbolic = symbolic
        self._served: tuple[int, ...] | None = None
        self.scheme = scheme = made.scheme
        self._dtypes = [as_dtype(name).numpy for name in made.dtypes]
        evaluator = _evaluator_of(origin)
        self._evaluate = evaluator(scheme.arithmetic.rows)
        self._work: list[_Work] = []
        self.placements = Placements(scheme.at, scheme.lives, evaluator)
        for rows in made.placements:
            self.placements.add(rows)

    def numbers(self, extents: tuple[int, ...]) -> At | None:
        """The numbers of the plan at extents in its cell; None where they have another plan.

        Raises:
            ShapeError: sizes at these extents are beyond 64 bits.
        """
        try:
            work = self._work.pop()
        except IndexError:
            work = _Work(self.scheme.arithmetic)
        try:
            made = self._numbers(work, extents)
        finally:
            self._work.append(work)
        if made is None:
            return None
        self._served = extents
        if self.origin.options.check:
            symbolic = self.symbolic(self.named(extents))
            prove(at_extents(symbolic.planned.plan, self.named(extents), made))
        return made

    def _numbers(self, work: _Work, extents: tuple[int, ...]) -> At | None:
        # A new extent finds caches cold that a run has used: what is touched here is what counts.
        registers, view = work.registers, work.view
        for i, extent in enumerate(extents):
            view[i] = extent
        reached = self._evaluate(registers)
        if reached != DONE:
            if reached != OVERFLOW:
                return None
            raise beyond(self.named(extents))
        try:
            peak = self.placements.place(registers)
        except OverflowError:
            raise beyond(self.named(extents)) from None
        results = [
            (tuple([view[k] for k in places]), dtype)
            for places, dtype in zip(self.scheme.results, self._dtypes, strict=True)
        ]
        return At(extents, work.numbers.copy(), peak, results)

    def named(self, extents: Sequence[int]) -> dict[str, int]:
        """Extents by symbol."""
        return dict(zip(self.scheme.symbols, extents, strict=True))

    def symbolic(self, extents: Mapping[str, int]) -> Symbolic:
        """The program with expressions; compiled for the purpose if it came from the cache."""
        if self._symbolic is None:
            self._symbolic = self.origin.planned(self.cell, extents)
        return self._symbolic

    def asked(self) -> list[str]:
        """Conditions on extents that it needs besides those of its graph and its cell."""
        # Others of its cell, the hints among them, may have another program, or another capture.
        served = self.cell.hints if self._served is None else self.named(self._served)
        return list(map(str, self.symbolic(served).guards))

    def planned(self, at: At) -> Stages:
        """The program at certain extents, as far as compile: with numbers for expressions."""
        extents = self.named(at.extents)
        before = self.symbolic(extents).planned
        made = self.origin.stages(specialize(self.origin.graph, extents))
        plan, lowered = at_extents(before.plan, extents, at), specialize(before.graph, extents)
        made.planned = Planned(made.source, lowered, plan)
        return made


class Regime(OpenProgram):
    """A program of the host for the extents of a cell that answer alike, in memory once.

    Args:
        origin: of the program.
        cell: the box of extents that it was compiled for.
        entry: the program, loaded.
        symbolic: the same with expressions; None where it came from the cache.
        segments: its parts that other engines compile, by the number of their tasks.

    Attributes:
        entry, segments: the same.
        executor: runs the program at an `ProgramInstance`.
    """

    def __init__(
        self,
        origin: SharedGraph,
        cell: Cell,
        entry: CachedProgram,
        symbolic: Symbolic | None = None,
        segments: Mapping[int, SegmentLaunch] | None = None,
    ) -> None:
        super().__init__(origin, cell, known(entry), symbolic)
        self.entry = entry
        self.arenas = origin.arenas
        self._frozen = [i for i, yes in enumerate(origin.interface.frozen) if yes]
        self._packs = Packs()
        self.segments = segments or {}
        self.executor = Executor(
            entry.loaded, (), self._frozen, segments, packs=self._packs, many=self
        )

    def at(self, extents: tuple[int, ...]) -> ProgramInstance | None:
        """The program at extents in its cell; None where they have another one.

        Raises:
            ShapeError: sizes at these extents are beyond 64 bits.
        """
        found = self.numbers(extents)
        return None if found is None else ProgramInstance(self.executor, found)

    # -- what an executor asks -------------------------------------------------------------

    def task(self, task: HostTask, at: At, /) -> HostTask:
        """A host task at certain extents."""
        return task_at(task, self.named(at.extents))

    def index_error(self, at: At, number: int, index: int, /) -> IndexRangeError:
        """Return the error of a check, by number, that has found an index at certain extents."""
        return index_error(specialize(self.origin.graph, self.named(at.extents)), number, index)

    # -- looking inside --------------------------------------------------------------------

    def stages(self, at: At) -> Stages:
        """The program at certain extents with numbers for expressions, for those who look."""
        made = self.planned(at)
        plan, lowered = made.planned.plan, made.planned.graph
        once = tuple(dict.fromkeys(run.kernel for run in runs_of(plan.prelude)))
        main = made.target.compiler().build(plan.program(plan.steps, once))
        loaded = replace(self.entry.loaded, plan=plan, main=main)
        results, failure = results_of(made.source, lowered), partial(index_error, made.source.graph)
        segments = {i: s.at(self.named(at.extents)) for i, s in self.segments.items()}
        running = Executor(loaded, results, self._frozen, segments, failure, self._packs)
        made.loaded, made.running = loaded, running
        return made


class DeviceRegime(OpenProgram):
    """A plan of a device, from which each set of extents gets a program of its own.

    Nothing is captured, lowered or rendered for them: numbers take the place of expressions, and
    kernels, whose arguments they are, are those of all.
    """

    def stages(self, at: At) -> Stages:
        """The program at certain extents, ready to run."""
        made = self.planned(at)
        source, target = made.source, made.target
        if isinstance(target, CompiledTarget):
            results = results_of(source, made.planned.graph)
            made.running = target.executor(source, made.loaded, results, made.report)
        return made


def recall_regime(origin: SharedGraph, cell: Cell, number: int) -> Regime | None:
    """Number so-and-so of the programs that earlier processes kept for a cell."""
    made = origin.stages(origin.graph)
    if not isinstance(made.target, CompiledTarget):
        return None
    found = made.target.recall(made.source, f"{cell} #{number}")
    entry = shared(origin.graph, origin.options, found)
    if entry is None or entry.open is None:
        return None
    settle(origin.graph, origin.options, entry.cuts)
    return Regime(origin, cell, entry)


def known(entry: CachedProgram) -> Open:
    """The part of a program for many extents that stands beside its words.

    Raises:
        CompileError: it is for certain extents.
    """
    if entry.open is None:
        raise CompileError("extents", "a program has no code for its numbers")
    return entry.open


def _evaluator_of(origin: SharedGraph) -> Evaluator:
    """Return the function that makes code callable where the program runs."""
    compiler = origin.stages(origin.graph).target.compiler()
    if isinstance(compiler, OpenCompiler):
        return compiler.evaluator
    return lambda rows: partial(evaluate, rows)


def beyond(extents: Mapping[str, int]) -> ShapeError:
    """The error of extents, by symbol, at which a size is no 64-bit number."""
    named = ", ".join(f"{n} = {x}" for n, x in extents.items())
    return ShapeError("jit", "sizes are beyond 64 bits", saw=named, hint="use smaller extents")
