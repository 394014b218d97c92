"""The engine in one page: a graph goes through six stages and comes out as something that runs.

    prepare -> partition -> optimize -> compile -> load -> execute

Each stage is a folder beside this file and knows only what it is given. Graphs stay graphs until
compile: each can be printed (`TREADLE_DUMP=prepare,partition,optimize`) and parsed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from treadle.backends import registry
from treadle.backends.api import Engine
from treadle.backends.program import Compiler, CompilingEngine
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.engine.compile import compile_graph
from treadle.engine.execute import Executor
from treadle.engine.load import load
from treadle.engine.optimize import optimize
from treadle.engine.options import Options
from treadle.engine.partition import partition
from treadle.engine.plan import Interface, Plan
from treadle.engine.prepare import prepare
from treadle.engine.types import CompileReport
from treadle.graph.ir import Graph
from treadle.graph.passes import dump


@dataclass(slots=True)
class Stages:
    """A graph on its way; every stage's result is kept for those who want to look.

    Attributes:
        captured: what was given.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        report: what the stages decided.
    """

    captured: Graph
    interface: Interface = field(default_factory=Interface)
    options: Options = field(default_factory=Options)
    report: CompileReport = field(default_factory=CompileReport)
    prepared: Graph | None = None
    optimized: Graph | None = None
    plan: Plan | None = None
    executor: Executor | None = None

    def lower(self) -> Graph:
        """Prepare, partition and optimize; the graph that will be compiled."""
        if self.optimized is not None:
            return self.optimized
        compiler = find_compiler(self.options)
        self.report.name = self.captured.name
        dump(self.captured, "capture")
        with self.report.stage("prepare"):
            self.prepared = prepare(self.captured, self.options, self.report, compiler)
        dump(self.prepared, "prepare")
        with self.report.stage("partition"):
            parts = partition(self.prepared, _engines(self.options), self.options, self.report)
        dump(parts.graph, "partition")
        with self.report.stage("optimize"):
            self.optimized = optimize(parts.graph, compiler, self.options, self.report)
        dump(self.optimized, "optimize")
        return self.optimized

    def compile(self) -> Executor:
        """All stages but the last; what runs the program."""
        if self.executor is not None:
            return self.executor
        graph, compiler = self.lower(), find_compiler(self.options)
        with self.report.stage("compile"):
            self.plan = compile_graph(graph, compiler, self.interface, self.options, self.report)
        with self.report.stage("load"):
            loaded = load(self.plan, compiler)
        updated = {j for j, _ in self.interface.updates}
        results = [v.type for j, v in enumerate(graph.outputs) if j not in updated]
        frozen = [i for i, yes in enumerate(self.interface.frozen) if yes]
        self.executor = Executor(loaded, results, frozen)
        return self.executor


def find_compiler(options: Options) -> Compiler:
    """The compiler of the best engine on the host that has one.

    Raises:
        CompileError: no engine compiles.
    """
    for engine in _engines(options):
        if isinstance(engine, CompilingEngine):
            return engine.compiler()
    raise CompileError(
        "pipeline",
        "no engine on the host compiles programs",
        saw=", ".join(e.name for e in registry.engines("cpu")) or "no engines",
        hint="install llvmlite, and unset TREADLE_BACKENDS",
    )


def _engines(options: Options) -> Sequence[Engine]:
    """Engines of the host, those that the options name first, in their order."""
    known = registry.engines("cpu")
    if not options.engines:
        return known
    wanted = {name: i for i, name in enumerate(options.engines)}
    return sorted(
        (e for e in known if e.name in wanted or e.name == "reference"),
        key=lambda e: wanted.get(e.name, len(wanted)),
    )


def input_types(graph: Graph) -> tuple[TensorType, ...]:
    """Types of what a program takes."""
    return graph.input_types
