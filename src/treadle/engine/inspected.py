"""Looks into a program: explanations, drawings and profiles of what the stages made of it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.backends.program import Compiler, MeasuringCompiler
from treadle.base.env import DUMP
from treadle.base.errors import EngineError
from treadle.engine.artifacts import Captured, Optimized, Planned, Prepared
from treadle.engine.devices.names import CompNode, default_device
from treadle.engine.execute import DeviceExecutor, Executor, Runner, Scheduler, Stepwise, Timeline
from treadle.engine.options import Options
from treadle.engine.plan import Interface, Loaded, Plan
from treadle.engine.spread import Part
from treadle.engine.targets import Compiled, Divided, Program, Target
from treadle.engine.types import CompileReport
from treadle.graph.ir import Graph

if TYPE_CHECKING:
    from treadle.engine.explain import Explanation
    from treadle.engine.profile import Profile


class Inspected(ABC):
    """What can be asked of a program that goes through the stages; asking passes those it needs.

    Attributes:
        source: what was captured.
        target: where the program runs.
        home: the device that it lives on; None for the host.
        report: what the stages decided.
        measured: the last profile.
    """

    def __init__(self, source: Captured, target: Target, home: CompNode | None) -> None:
        self.source = source
        self.target = target
        self.home = home
        self.report = CompileReport(source.graph.name)
        self.measured: Profile | None = None

    @property
    @abstractmethod
    def divided(self) -> Divided | None:
        """Its parts, if it is on several devices; each passes the stages by itself."""

    @abstractmethod
    def optimize(self) -> Optimized:
        """Pass the first three stages."""

    @abstractmethod
    def planned(self) -> Plan:
        """Pass the first four stages; what the program does step by step."""

    @abstractmethod
    def load(self) -> Loaded[Any]:
        """Pass the first five stages."""

    @abstractmethod
    def compile(self) -> Runner:
        """What runs it."""

    def lower(self) -> Graph:
        """Prepare, partition and optimize; the graph that will be compiled, or run op by op."""
        return self.optimize().graph

    def compiler(self) -> Compiler:
        """What lowers the program's ops.

        Raises:
            CompileError: the options name an engine that is not there.
        """
        return self.target.compiler()

    def resume(
        self,
        running: Runner,
        planned: Planned | None = None,
        loaded: Loaded[Any] | None = None,
    ) -> None:
        """Take what the last three stages would make from a plan for many extents."""
        made = {"_planned": planned, "_loaded": loaded, "_running": running}
        self.__dict__.update({n: x for n, x in made.items() if x is not None})

    def dump(self, before: object, after: object) -> None:
        """Write what a stage was given, if nobody else does, and what it has made."""
        if not DUMP.get():
            return
        from treadle.engine import stages

        for artifact in (before, after) if before is self.source else (after,):
            stages.dump_artifact(artifact, self.compiler())

    # -- as far as it has come -------------------------------------------------------------

    @property
    def interface(self) -> Interface:
        """Which inputs are frozen or updated."""
        return self.source.interface

    @property
    def options(self) -> Options:
        """Of the compilation."""
        return self.source.options

    @property
    def captured(self) -> Graph:
        """The graph as it was given."""
        return self.source.graph

    @property
    def prepared(self) -> Graph | None:
        """The graph after prepare; None before that."""
        return self._graph("_prepared")

    @property
    def partitioned(self) -> Graph | None:
        """The graph after partition; None before that."""
        return self._graph("_partitioned")

    @property
    def optimized(self) -> Graph | None:
        """The graph that is compiled; None as long as nothing has asked for it."""
        return self._graph("_planned") or self._graph("_optimized")

    @property
    def plan(self) -> Plan | None:
        """What the program does step by step; None before it is planned."""
        made: Planned | None = self.__dict__.get("_planned")
        return None if made is None else made.plan

    @property
    def executor(self) -> Runner | None:
        """What runs the program; None before it is compiled."""
        made: Runner | None = self.__dict__.get("_running")
        return made

    @property
    def parts(self) -> tuple[Program, ...]:
        """Programs of the parts, if it is on several devices and compiled."""
        divided: Divided | None = self.__dict__.get("divided")
        return () if divided is None else divided.parts

    def _graph(self, stage: str) -> Graph | None:
        made: Prepared | None = self.__dict__.get(stage)
        return None if made is None else made.graph

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
        return stages.explain(graphs, plan, self.report, self.target.engine, self.measured)

    def explained(self, *, full: bool = False) -> str:
        """`explain()` as text for people; `full` gives every group, op and pass a row."""
        from treadle.engine import stages

        if isinstance(self.target, Compiled):
            return stages.to_text(self.explain(), full=full)
        executor = self.compile()  # The course of a program that runs op by op is a table.
        table = executor.table() if isinstance(executor, Stepwise) else ""
        parts = [part.explained(full=full) for part in self.parts]
        return "\n\n".join((f"{self.report}\n\n{table}".rstrip(), *parts))

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
            return self._timeline(executor, inputs, repeats)
        from treadle.engine import stages

        plan = self.planned()
        if isinstance(self.target, Compiled) and executor.loaded.plan is not plan:
            executor = self.target.load_again(self)  # Out of the cache, it has no steps to name.
        compiler, name = self.compiler(), self.captured.name
        limits = compiler.limits() if isinstance(compiler, MeasuringCompiler) else None
        seconds = self.report.seconds
        self.measured = stages.measure(name, executor, inputs, repeats, seconds, limits)
        return self.measured

    def _timeline(self, executor: Runner, inputs: Sequence[Any], repeats: int) -> Timeline:
        """The quickest of some runs, after one that is not counted."""
        if repeats < 1:
            raise EngineError("profile", f"{repeats} repeats", hint="measure one run at least")
        if not isinstance(executor, Scheduler):
            part = Part(self.captured, self.home or default_device(), ())
            executor = Scheduler.of_one(part, executor)
        runs = [executor.measure(inputs) for _ in range(repeats + 1)][1:]
        return min(runs, key=lambda run: run.seconds)
