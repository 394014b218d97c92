"""The engine in one page: a graph goes through six stages and comes out as something that runs.

    prepare -> partition -> optimize -> compile -> load -> execute

Each stage is a folder beside this file and knows only what it is given. Graphs stay graphs until
compile: each can be printed (`TREADLE_DUMP=prepare,partition,optimize`) and parsed again. Plans and
kernels print as well (`TREADLE_DUMP=compile,kernels`).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treadle.backends import registry
from treadle.backends.api import Engine
from treadle.backends.program import Compiler, CompilingEngine, MeasuringCompiler
from treadle.base.env import DUMP
from treadle.base.errors import CompileError
from treadle.base.garbage import rare_collections
from treadle.base.types import TensorType
from treadle.engine import cache
from treadle.engine.execute import Executor
from treadle.engine.host import HostCompiler
from treadle.engine.options import Options
from treadle.engine.plan import Array, Interface, Plan
from treadle.engine.types import CompileReport
from treadle.graph.ir import Graph

if TYPE_CHECKING:
    from treadle.engine.explain import Explanation
    from treadle.engine.profile import Profile


def _stages() -> Any:
    return importlib.import_module("treadle.engine.stages")


@dataclass(slots=True)
class Stages:
    """A graph on its way; every stage's result is kept for those who want to look.

    Attributes:
        captured: what was given.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        report: what the stages decided.
        measured: the last profile.
    """

    captured: Graph
    interface: Interface = field(default_factory=Interface)
    options: Options = field(default_factory=Options)
    report: CompileReport = field(default_factory=CompileReport)
    prepared: Graph | None = None
    optimized: Graph | None = None
    plan: Plan | None = None
    executor: Executor | None = None
    measured: Profile | None = None

    @rare_collections()
    def lower(self) -> Graph:
        """Prepare, partition and optimize; the graph that will be compiled."""
        if self.optimized is not None:
            return self.optimized
        stages, compiler = _stages(), find_compiler(self.options)
        self.report.name = self.captured.name
        stages.dump(self.captured, "capture")
        with self.report.stage("prepare"):
            prepared: Graph = stages.prepare(self.captured, self.options, self.report, compiler)
        self.prepared = prepared
        stages.dump(prepared, "prepare")
        with self.report.stage("partition"):
            engines, forced = _engines(self.options), self.options.force_fallback
            parts = stages.partition(prepared, engines, self.options, self.report)
            parted: Graph = stages.leave_to_host(parts, engines, _compiling(engines), forced)
        stages.dump(parted, "partition")
        with self.report.stage("optimize"):
            known = zip(parted.inputs, self.interface.frozen, strict=False)
            frozen = frozenset(value for value, yes in known if yes)
            optimized: Graph = stages.optimize(parted, compiler, self.options, self.report, frozen)
        stages.dump(optimized, "optimize")
        self.optimized = optimized
        return optimized

    @rare_collections()
    def compile(self) -> Executor:
        """All stages but the last; what runs the program."""
        if self.executor is not None:
            return self.executor
        self.report.name = self.captured.name
        compiler = find_compiler(self.options)
        key = cache.key_of(self.captured, self.interface, self.options, compiler)
        frozen = [i for i, yes in enumerate(self.interface.frozen) if yes]
        with self.report.stage("cache"):
            # Who wants the stages' results written wants the stages to run.
            known = None if DUMP.get() else cache.fetch(key, compiler)
        if known is not None:
            self.executor = Executor(known.loaded, known.results, frozen)
            return self.executor
        plan = self.planned()
        with self.report.stage("load"):
            loaded = _stages().load(plan, compiler)
        results = self._results()
        cache.save(key, loaded, results, compiler)
        self.executor = Executor(loaded, results, frozen)
        return self.executor

    def _results(self) -> tuple[TensorType, ...]:
        """Types of the outputs that replace no input."""
        updated = {j for j, _ in self.interface.updates}
        return tuple(v.type for j, v in enumerate(self.lower().outputs) if j not in updated)

    @rare_collections()
    def planned(self) -> Plan:
        """Prepare to compile, whatever the cache has; what the program does step by step."""
        if self.plan is None:
            graph, compiler = self.lower(), find_compiler(self.options)
            with self.report.stage("compile"):

                def plan_of(made: Graph) -> Plan:
                    found: Plan = _stages().compile_graph(
                        made, compiler, self.interface, self.options, self.report
                    )
                    return found

                if self.options.memory_budget:
                    self.optimized, self.plan = _stages().plan_within(
                        graph, self.options, self.report, plan_of
                    )
                else:
                    self.plan = plan_of(graph)
            _dump_plan(self.plan, compiler, self.captured.name)
        return self.plan

    # -- looking inside --------------------------------------------------------------------

    def explain(self) -> Explanation:
        """What became of the program; compiled for the purpose if it came from the cache."""
        plan = self.planned()
        graphs = {
            "captured": self.captured,
            "prepared": self.prepared or self.captured,
            "optimized": self.lower(),
        }
        name = _compiling(_engines(self.options))
        found: Explanation = _stages().explain(graphs, plan, self.report, name, self.measured)
        return found

    def explained(self, *, full: bool = False) -> str:
        """`explain()` as text for people; `full` gives every group, op and pass a row."""
        return str(_stages().to_text(self.explain(), full=full))

    def diagram(self, path: str | os.PathLike[str]) -> None:
        """Draw the program as it was captured and as it is optimized, and its plan of memory.

        Args:
            path: of the file; its ending chooses between .svg, .html and .dot (for Graphviz).

        Raises:
            EngineError: the ending is another one.
            OSError: the file cannot be written.
        """
        memory = self.planned().memory
        graphs = {"captured": self.captured, "optimized": self.lower()}
        _stages().save_diagram(path, graphs, memory)

    def profile(self, inputs: Sequence[Array], repeats: int = 10) -> Profile:
        """Measure every step on these inputs, which stay as they are.

        Raises:
            EngineError: there is nothing to repeat.
        """
        plan, executor = self.planned(), self.compile()
        if executor.loaded.plan is not plan:  # Programs out of the cache have no steps to name.
            loaded = _stages().load(plan, find_compiler(self.options))
            executor = Executor(loaded, self._results())
        name, seconds = self.captured.name, self.report.seconds
        compiler = find_compiler(self.options)
        limits = compiler.limits() if isinstance(compiler, MeasuringCompiler) else None
        found: Profile = _stages().measure(name, executor, inputs, repeats, seconds, limits)
        self.measured = found
        return found


def _dump_plan(plan: Plan, compiler: Compiler, name: str) -> None:
    stages = _stages()
    if stages.is_dumped("compile"):
        stages.write_dump(name, "00.compile.txt", stages.plan_text(plan, name))
    # Assembly takes its time, so that `all` does not stand for it.
    if "kernels" in DUMP.get().split(","):
        for file, text in stages.kernel_texts(plan, compiler):
            stages.write_dump(name, f"kernels.{file}", text)


def find_compiler(options: Options) -> Compiler:
    """The compiler of the best engine on the host that has one; else one that compiles nothing.

    Raises:
        CompileError: the options name an engine that is not there.
    """
    for engine in _engines(options):
        if isinstance(engine, CompilingEngine):
            return engine.compiler()
    return HostCompiler()


def _compiling(engines: Sequence[Engine]) -> str:
    """The name of the engine whose compiler it is."""
    return next((e.name for e in engines if isinstance(e, CompilingEngine)), "")


def _engines(options: Options) -> Sequence[Engine]:
    """Engines of the host: those that the options name, in their order, and the reference."""
    known = registry.engines("cpu")
    if not options.engines:
        return known
    names = [e.name for e in known]
    for name in options.engines:
        if name not in names:
            raise CompileError(
                "options",
                f"no engine on the host is called {name!r}",
                hint=f"choose from {', '.join(names)}",
            )
    wanted = {name: i for i, name in enumerate(options.engines)}
    return sorted(
        (e for e in known if e.name in wanted or e.name == "reference"),
        key=lambda e: wanted.get(e.name, len(wanted)),
    )
