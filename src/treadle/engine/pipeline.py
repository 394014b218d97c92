"""The engine in one page: a graph goes through six stages and comes out as something that runs.

    prepare -> partition -> optimize -> compile -> load -> execute

Each stage is a folder beside this file and knows only what it is given. Graphs stay graphs until
compile: each can be printed (`TREADLE_DUMP=prepare,partition,optimize`) and parsed again. Plans and
kernels print as well (`TREADLE_DUMP=compile,kernels`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.backends.program import Compiler, MeasuringCompiler
from treadle.base.env import DUMP
from treadle.base.errors import EngineError
from treadle.base.garbage import rare_collections
from treadle.base.types import TensorType
from treadle.engine import cache
from treadle.engine.consent import settings, settle, shared
from treadle.engine.devices import CompNode, default_device
from treadle.engine.execute import (
    DeviceExecutor,
    Executor,
    Runner,
    Scheduler,
    Stepwise,
    Timeline,
)
from treadle.engine.homes import (
    HOST,
    compiling,
    engines_of,
    find_compiler,
    forced_to_host,
    passes_of,
    segment_engines,
)
from treadle.engine.options import Options
from treadle.engine.plan import Interface, Loaded, Plan
from treadle.engine.segments import (
    SegmentLaunch,
    body_of,
    engine_of,
    is_apart,
    kept_whole,
    launches_of,
)
from treadle.engine.spread import Part, Places, cut
from treadle.engine.types import CompileReport
from treadle.graph.index_findings import index_error, reporting
from treadle.graph.ir import Graph, Value
from treadle.ops.fused import Fused

if TYPE_CHECKING:
    from treadle.engine.explain import Explanation
    from treadle.engine.profile import Profile


@dataclass(slots=True)
class Stages:
    """A graph on its way; every stage's result is kept for those who want to look.

    Attributes:
        captured: what was given.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        home: the device that the program lives on; None for the host.
        places: where everything is, if there are several devices.
        parts: then, the program's parts, each on its way.
        report: what the stages decided.
        measured: the last profile.
        crossing: lowers the ops for another machine, in place of the home's compiler.
    """

    captured: Graph
    interface: Interface = field(default_factory=Interface)
    options: Options = field(default_factory=Options)
    home: CompNode | None = None
    places: Places | None = None
    parts: tuple[Stages, ...] = ()
    report: CompileReport = field(default_factory=CompileReport)
    prepared: Graph | None = None
    partitioned: Graph | None = None
    optimized: Graph | None = None
    plan: Plan | None = None
    executor: Runner | None = None
    measured: Profile | None = None
    crossing: Compiler | None = None

    @property
    def kind(self) -> str:
        """The kind of the device that the program lives on."""
        return HOST if self.home is None or self.home.on_host else self.home.kind

    @property
    def compiled(self) -> bool:
        """Whether the device has a compiler; without one its programs run op by op."""
        return self.kind == HOST or bool(compiling(engines_of(self.options, self.kind)))

    def compiler(self) -> Compiler:
        """What lowers the program's ops.

        Raises:
            CompileError: the options name an engine that is not there.
        """
        if self.crossing is None and self.kind == HOST:
            return find_compiler(self.options)
        return self.crossing or find_compiler(self.options, self.kind)

    @rare_collections()
    def lower(self) -> Graph:
        """Prepare, partition and optimize; the graph that will be compiled, or run op by op."""
        if self.optimized is not None:
            return self.optimized
        if self.places is not None:
            self.compile()
            self.optimized = self.captured
            return self.captured
        from treadle.engine import stages

        compiler, options = self.compiler(), self.options
        self.report.name = self.captured.name
        stages.dump(self.captured, "capture")
        with self.report.stage("prepare"):
            options = options if self.compiled else op_by_op(options)
            whole = kept_whole(engines_of(options, self.kind)) if self.compiled else ()
            own = passes_of(options, self.kind)
            prepared = stages.prepare(self.captured, options, self.report, compiler, whole, own)
            if self.kind == HOST:
                prepared = stages.bucket_reductions(prepared, options, self.report)
            elif self.compiled and compiler.keeps("all_reduce_bucket"):
                prepared = stages.bucket_reductions(prepared, options, self.report, compiler)
        if self.compiled and self.kind != HOST:
            prepared = reporting(prepared)
        self.prepared = prepared
        stages.dump(prepared, "prepare")
        frozen = {v for v, yes in zip(prepared.inputs, self.interface.frozen, strict=False) if yes}
        with self.report.stage("partition"):
            parted = _parted(self, prepared, frozen, whole)
            if whole:
                parted = stages.take_apart(parted, options, self.report, compiler)
        stages.dump(parted, "partition")
        self.partitioned = self.optimized = parted
        if self.compiled:
            with self.report.stage("optimize"):
                known = zip(parted.inputs, self.interface.frozen, strict=False)
                fixed = frozenset(value for value, yes in known if yes)
                self.optimized = stages.optimize(parted, compiler, self.options, self.report, fixed)
            stages.dump(self.optimized, "optimize")
        return self.optimized

    @rare_collections()
    def compile(self) -> Runner:
        """All stages but the last; what runs the program."""
        if self.executor is None:
            self.report.name = self.captured.name
            if self.places is not None:
                self.executor = self._spread(self.places)
            else:
                self.executor = self._loaded() if self.compiled else self._op_by_op()
        return self.executor

    def _spread(self, places: Places) -> Runner:
        """The program in parts by device."""
        with self.report.stage("cut"):
            spread = cut(self.captured, places)
        frozen = self.interface.frozen
        made = []
        for part in spread.parts:
            known = tuple(s.part < 0 and any(frozen[s.index : s.index + 1]) for s in part.sources)
            made.append(Stages(part.graph, Interface(known), self.options, part.home))
            place = f"{part.home}, {len(part.graph.nodes)} ops"
            self.report.decide("cut", part.graph.name, place, f"takes {len(part.sources)} values")
        self.parts = tuple(made)
        return Scheduler(self.captured.name, spread, [p.compile() for p in made])

    def _loaded(self) -> Runner:
        """The program of a compiler, out of the cache or made now."""
        compiler, on_host = self.compiler(), self.kind == HOST
        setting = settings(self.captured, self.options)
        key = cache.key_of(self.captured, self.interface, self.options, compiler, setting or "")
        if setting is None:
            key = ""
        if segment_engines(engines_of(self.options, self.kind)):
            key = ""  # What such an engine takes depends on its version, and keeps its own blobs.
        if passes_of(self.options, self.kind):
            key = ""  # Nobody would see that their code has changed.
        with self.report.stage("cache"):
            # Who wants the stages' results written wants the stages to run.
            known = None if DUMP.get() else cache.fetch(key, compiler, on_host=on_host)
            known = shared(self.captured, self.options, known)
        if known is not None:
            settle(self.captured, self.options, known.cuts)
            return self._executor(known.loaded, known.results)
        plan = self.planned()
        with self.report.stage("load"):
            from treadle.engine import stages

            loaded = stages.load(plan, compiler, on_host=on_host)
        entry = cache.Entry(loaded, self._results(), tuple(self.report.cuts))
        settle(self.captured, self.options, entry.cuts)
        if on_host or not plan.left:
            cache.save(key, entry, compiler)
        return self._executor(loaded, entry.results)

    def _executor(
        self, loaded: Loaded[Any], results: Sequence[TensorType]
    ) -> Executor | DeviceExecutor:
        frozen = [i for i, yes in enumerate(self.interface.frozen) if yes]
        if self.home is None or self.kind == HOST:
            segments = self._segments(loaded.plan)
            return Executor(loaded, results, frozen, segments, partial(index_error, self.captured))
        return _on_device(self, self.home, loaded, results, frozen)

    def _segments(self, plan: Plan) -> dict[int, SegmentLaunch]:
        """What runs the parts of the program that other engines compile."""

        def by_others(body: Graph, frozen: tuple[bool, ...]) -> Callable[..., Sequence[Any]]:
            engines = engines_of(self.options, self.kind)
            names = tuple(e.name for e in engines if not is_apart(e))
            options = replace(self.options, engines=names)
            return Stages(body, Interface(frozen), options, self.home).compile().run

        strict, store, kind = self.options.strict_segments, self.compiler(), self.kind
        with self.report.stage("segments"):
            frozen = self.interface.frozen
            return launches_of(
                plan, frozen, by_others, store, self.report, strict=strict, kind=kind
            )

    def _op_by_op(self) -> Runner:
        home, strict = self.home, self.options.strict_segments
        if home is None:
            raise EngineError("compile", "only programs of devices run op by op")

        def by_others(body: Graph, frozen: tuple[bool, ...]) -> Callable[..., Sequence[Any]]:
            return Stepwise(body, home).run

        def segment(op: Fused) -> SegmentLaunch:
            engine, body = engine_of(op, self.kind), body_of(op)
            made = SegmentLaunch(engine, body, (), by_others, strict=strict, report=self.report)
            made.prepare()
            return made

        return Stepwise(self.lower(), home, segment)

    def _results(self) -> tuple[TensorType, ...]:
        """Types of the outputs that replace no input."""
        updated = {j for j, _ in self.interface.updates}
        return tuple(v.type for j, v in enumerate(self.lower().outputs) if j not in updated)

    @rare_collections()
    def planned(self) -> Plan:
        """Prepare to compile, whatever the cache has; what the program does step by step.

        Raises:
            EngineError: the program runs op by op, or is in parts on several devices.
        """
        if self.places is not None or not self.compiled:
            raise EngineError(
                "compile",
                f"{self.captured.name} has no plan of its own: "
                + ("its parts have" if self.parts else f"on {self.home} it runs op by op"),
                hint="explained() says in words what became of it",
            )
        if self.plan is None:
            from treadle.engine import stages

            graph, compiler = self.lower(), self.compiler()
            with self.report.stage("compile"):
                rest = compiler, self.interface, self.options, self.report
                if self.options.memory_budget:
                    self.optimized, self.plan = stages.plan_within(
                        graph, self.options, self.report, lambda g: stages.compile_graph(g, *rest)
                    )
                else:
                    self.plan = stages.compile_graph(graph, *rest)
            _dump_plan(self.plan, compiler, self.captured.name)
        return self.plan

    # -- looking inside --------------------------------------------------------------------

    def explain(self) -> Explanation:
        """What became of the program; compiled for the purpose if it came from the cache.

        Raises:
            EngineError: the program runs op by op, or is in parts on several devices.
        """
        from treadle.engine import stages

        plan = self.planned()
        graphs = {
            "captured": self.captured,
            "prepared": self.prepared or self.captured,
            "optimized": self.lower(),
        }
        name = compiling(engines_of(self.options, self.kind))
        return stages.explain(graphs, plan, self.report, name, self.measured)

    def explained(self, *, full: bool = False) -> str:
        """`explain()` as text for people; `full` gives every group, op and pass a row."""
        from treadle.engine import stages

        if self.places is not None or not self.compiled:
            executor = self.compile()  # The course of a program that runs op by op is a table.
            table = executor.table() if isinstance(executor, Stepwise) else ""
            parts = [part.explained(full=full) for part in self.parts]
            return "\n\n".join((f"{self.report}\n\n{table}".rstrip(), *parts))
        return stages.to_text(self.explain(), full=full)

    def diagram(self, path: str | os.PathLike[str]) -> None:
        """Draw the program as it was captured and as it is optimized, and its plan of memory.

        Args:
            path: of the file; its ending chooses between .svg, .dot (for Graphviz) and .html, the
                whole `picture`.

        Raises:
            EngineError: the ending is another one.
            OSError: the file cannot be written.
        """
        from treadle.engine import stages

        if os.fspath(path).endswith(".html"):
            self.picture(path)
            return
        memory = self.planned().memory
        graphs = {"captured": self.captured, "optimized": self.lower()}
        stages.save_diagram(path, graphs, memory)

    def picture(
        self,
        path: str | os.PathLike[str],
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> None:
        """Write a page of HTML that shows what became of the program; it needs no other file.

        It has the graph at every stage, passes and decisions, memory and steps over time, kernels,
        and the times of the last `profile`.

        Args:
            path: of the file.
            inputs, outputs: names of the program's ends, if they have any.

        Raises:
            EngineError: the program runs op by op, or is in parts on several devices.
            OSError: the file cannot be written.
        """
        from treadle.engine import stages

        stages.save_picture(path, self, inputs, outputs)

    def profile(self, inputs: Sequence[Any], repeats: int = 10) -> Profile | Timeline:
        """Measure every step on these inputs, which stay as they are.

        Returns:
            Times by kernel, on the host and on devices whose programs are compiled. Elsewhere the
            quickest run: when each part of the program ran on which device, and what was copied.

        Raises:
            EngineError: there is nothing to repeat.
        """
        executor = self.compile()
        if not isinstance(executor, Executor | DeviceExecutor) or not executor.is_watched:
            return _timeline(self, executor, inputs, repeats)
        from treadle.engine import stages

        plan = self.planned()
        compiler = self.compiler()
        if executor.loaded.plan is not plan:  # Programs out of the cache have no steps to name.
            loaded = stages.load(plan, compiler, on_host=self.kind == HOST)
            executor = self._executor(loaded, self._results())
        name, seconds = self.captured.name, self.report.seconds
        limits = compiler.limits() if isinstance(compiler, MeasuringCompiler) else None
        self.measured = stages.measure(name, executor, inputs, repeats, seconds, limits)
        return self.measured


def _on_device(
    of: Stages,
    home: CompNode,
    loaded: Loaded[Any],
    results: Sequence[TensorType],
    frozen: Sequence[int],
) -> DeviceExecutor:
    return DeviceExecutor(
        of.captured.name,
        loaded,
        results,
        home,
        of.compiler(),
        frozen,
        of._segments(loaded.plan),
        reports=len(results) + len(of.interface.updates) > len(of.captured.outputs),
        index_error=partial(index_error, of.captured),
    )


def _parted(of: Stages, prepared: Graph, frozen: Set[Value], whole: Sequence[str]) -> Graph:
    """The graph with a group around what another engine runs than the program's own."""
    from treadle.engine import stages

    options, kind = of.options, of.kind
    engines = list(engines_of(options, kind))
    own, forced, apart = compiling(engines), options.force_fallback, segment_engines(engines)
    if of.home is None or kind == HOST:
        parts = stages.partition(prepared, engines, options, of.report, frozen=frozen)
        return stages.leave_to_host(parts, engines, own, forced)
    # What its compiler or kernels refuse goes to the host, and what segment engines take goes to
    # them; nothing else leaves the device.
    prepared = forced_to_host(prepared, forced)
    if not apart:
        return prepared
    compiler = of.compiler() if of.compiled else None
    device = stages.Device(kind, own, of.home.open(), compiler, whole)
    options = replace(options, force_fallback=())
    return stages.part_on_device(prepared, apart, device, options, of.report, frozen)


def _timeline(of: Stages, executor: Runner, inputs: Sequence[Any], repeats: int) -> Timeline:
    """The quickest of some runs, after one that is not counted."""
    if repeats < 1:
        raise EngineError("profile", f"{repeats} repeats", hint="measure one run at least")
    if not isinstance(executor, Scheduler):
        part = Part(of.captured, of.home or default_device(), ())
        executor = Scheduler.of_one(part, executor)
    runs = [executor.measure(inputs) for _ in range(repeats + 1)][1:]
    return min(runs, key=lambda run: run.seconds)


def op_by_op(options: Options) -> Options:
    """Options with which a graph keeps the ops that eager code would run."""
    off = ("propagate", "fold_control", "canonicalize", "simplify")
    return replace(options, level=min(options.level, 1), disabled=(*options.disabled, *off))


def _dump_plan(plan: Plan, compiler: Compiler, name: str) -> None:
    from treadle.engine import stages

    if stages.is_dumped("compile"):
        stages.write_dump(name, "00.compile.txt", stages.plan_text(plan, name))
    # Assembly takes its time, so that `all` does not stand for it.
    if "kernels" in DUMP.get().split(","):
        for file, text in stages.kernel_texts(plan, compiler):
            stages.write_dump(name, f"kernels.{file}", text)
