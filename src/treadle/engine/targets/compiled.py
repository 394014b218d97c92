"""Programs that a compiler turns into one plan: what the host and devices have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from treadle.backends.measuring import MEASURING
from treadle.backends.program import Compiler
from treadle.base.env import DUMP
from treadle.base.types import TensorType
from treadle.engine import cache
from treadle.engine.artifacts import Captured, Optimized, Partitioned, Planned, Prepared
from treadle.engine.devices.names import CompNode
from treadle.engine.devices.placement import (
    HOST,
    compiling,
    engines_of,
    find_compiler,
    passes_of,
    segment_engines,
    stated,
)
from treadle.engine.execute import DeviceExecutor, Executor
from treadle.engine.execute.segments import SegmentLaunch, is_apart, kept_whole, launches_of
from treadle.engine.options import Options
from treadle.engine.plan import Interface, Loaded, Plan
from treadle.engine.report import CompileReport
from treadle.engine.targets.target import Build, EngineTarget, StagedProgram
from treadle.graph.ir import Graph


class CompiledTarget(EngineTarget):
    """A place that has a compiler.

    Args:
        options: of the compilation.
        build: takes other graphs through the stages.
        crossing: lowers the ops for another machine, in place of the place's own compiler.
        home: the device; None for the host.
    """

    def __init__(
        self,
        options: Options,
        build: Build,
        crossing: Compiler | None = None,
        home: CompNode | None = None,
    ) -> None:
        self.kind = HOST if home is None or home.on_host else home.kind
        self._home = home
        self._options = options
        self._build = build
        self._crossing = crossing

    @property
    def _on_host(self) -> bool:
        return self.kind == HOST

    @property
    def engine(self) -> str:
        """The name of the engine that compiles."""
        return compiling(engines_of(self._options, self.kind))

    def compiler(self) -> Compiler:
        """Return the compiler that lowers the program's ops."""
        return self._crossing or find_compiler(self._options, self.kind)

    def prepare(self, captured: Captured, report: CompileReport) -> Prepared:
        """Rewrite the program for the engines."""
        from treadle.engine import stages

        options, compiler = self._options, self.compiler()
        whole = tuple(kept_whole(engines_of(options, self.kind)))
        own = passes_of(options, self.kind)
        graph = stages.prepare(captured.graph, options, report, compiler, whole, own)
        return Prepared(captured, self._finished(graph, compiler, report), whole)

    @abstractmethod
    def _finished(self, graph: Graph, compiler: Compiler, report: CompileReport) -> Graph:
        """A prepared graph with what only this place needs in it."""

    def partition(self, prepared: Prepared, report: CompileReport) -> Partitioned:
        """Choose who runs what; a group is made of what others than the place's compiler run."""
        from treadle.engine import stages

        graph = self._divided(prepared, report)
        if prepared.whole:
            graph = stages.take_apart(graph, self._options, report, self.compiler())
        return Partitioned(prepared.captured, graph)

    @abstractmethod
    def _divided(self, prepared: Prepared, report: CompileReport) -> Graph:
        """A prepared graph with groups of what others run."""

    def optimize(self, parted: Partitioned, report: CompileReport) -> Optimized:
        """Choose layouts, and what runs as one."""
        from treadle.engine import stages

        fixed = frozenset(parted.frozen)
        graph = stages.optimize(parted.graph, self.compiler(), self._options, report, fixed)
        return Optimized(parted.captured, graph)

    def plan(self, optimized: Optimized, report: CompileReport) -> Planned:
        """Make steps, memory and streams, within the memory budget if there is one."""
        from treadle.engine import stages

        graph, captured = optimized.graph, optimized.captured
        rest = self.compiler(), captured.interface, self._options, report
        if self._options.memory_budget:
            graph, plan = stages.plan_within(
                graph, self._options, report, lambda g: stages.compile_graph(g, *rest)
            )
        else:
            plan = stages.compile_graph(graph, *rest)
        return Planned(captured, graph, plan)

    def load(self, planned: Planned, report: CompileReport) -> Loaded[Any]:
        """Make a plan's kernels runnable, its constants and kept memory in place."""
        from treadle.engine import stages

        return stages.load(planned.plan, self.compiler(), on_host=self._on_host)

    def load_again(self, program: StagedProgram) -> Executor | DeviceExecutor:
        """Make the runner of the program here, whatever the cache has."""
        loaded = program.loaded
        results = results_of(program.source, program.lowered.graph)
        return self.executor(program.source, loaded, results, program.report)

    def start(self, program: StagedProgram) -> Executor | DeviceExecutor:
        """Return the runner of the program, out of the cache or made now."""
        compiler, graph, options = self.compiler(), program.source.graph, self._options
        if MEASURING.on and self._crossing is None:
            MEASURING.first(compiler, lambda: self._build(program.source, self._home).running)
        key = self._key(program.source, compiler)
        with program.report.stage("cache"):
            # Who wants the stages' results written wants the stages to run.
            known = None if DUMP.get() else cache.fetch(key, compiler, on_host=self._on_host)
            entry = cache.shared(graph, options, known)
        if entry is None:
            loaded = program.loaded
            results = results_of(program.source, program.lowered.graph)
            entry = cache.CachedProgram(loaded, results, tuple(program.report.cuts))
            if self._on_host or not loaded.plan.left:
                cache.save(key, entry, compiler)
        cache.settle(graph, options, entry.cuts)
        return self.executor(program.source, entry.loaded, entry.results, program.report)

    def recall(self, captured: Captured, box: str) -> cache.CachedProgram | None:
        """Return a program for many extents that `keep` left in the cache."""
        compiler = self.compiler()
        if DUMP.get():
            return None
        key = self._key(captured, compiler, box)
        return cache.fetch(key, compiler, on_host=self._on_host)

    def keep(self, captured: Captured, entry: cache.CachedProgram, box: str) -> None:
        """Keep a program for many extents in the cache.

        Args:
            captured: what it was made from.
            entry: the program.
            box: the extents that it was compiled for.
        """
        compiler = self.compiler()
        cache.save(self._key(captured, compiler, box), entry, compiler)

    def _key(self, captured: Captured, compiler: Compiler, box: str = "") -> str:
        """The name of the program in the cache; "" for one that is not kept."""
        setting = cache.settings(captured.graph, self._options)
        own = stated(passes_of(self._options, self.kind))
        # What a segment engine takes depends on its version, and it keeps its own blobs.
        if setting is None or own is None or segment_engines(engines_of(self._options, self.kind)):
            return ""
        rest = captured.interface, self._options, compiler, setting + box + own
        return cache.key_of(captured.graph, *rest)

    @abstractmethod
    def executor(
        self,
        captured: Captured,
        loaded: Loaded[Any],
        results: Sequence[TensorType],
        report: CompileReport,
    ) -> Executor | DeviceExecutor:
        """Return the runner of a program in memory.

        Args:
            captured: where it came from.
            loaded: the program.
            results: types of the outputs that replace no input.
            report: receives what becomes of parts that other engines compile.
        """

    def _segments(
        self, captured: Captured, plan: Plan, report: CompileReport
    ) -> dict[int, SegmentLaunch]:
        """Return the launches of the parts of the program that other engines compile."""

        def by_others(body: Graph, frozen: tuple[bool, ...]) -> Callable[..., Sequence[Any]]:
            options = without_segments(self._options, self.kind)
            return self._build(Captured(body, Interface(frozen), options), self._home).running.run

        strict, store, kind = self._options.strict_segments, self.compiler(), self.kind
        with report.stage("segments"):
            frozen = captured.interface.frozen
            return launches_of(plan, frozen, by_others, store, report, strict=strict, kind=kind)


def without_segments(options: Options, kind: str) -> Options:
    """The options of a program that no engine compiles parts of."""
    names = tuple(e.name for e in engines_of(options, kind) if not is_apart(e))
    return replace(options, engines=names)


def results_of(captured: Captured, compiled: Graph) -> tuple[TensorType, ...]:
    """Types of the outputs that replace no input."""
    updated = {j for j, _ in captured.interface.updates}
    return tuple(v.type for j, v in enumerate(compiled.outputs) if j not in updated)
