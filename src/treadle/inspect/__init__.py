"""Looks into programs: explanations, drawings, profiles, and what is known of a device.

A layer above the engine: it asks a program's stages for what they have made, or would make, and
no stage knows of it. `explanation` gathers what there is to say and `text` prints it; `profile`
measures steps; `diagram` draws graphs, `picture` and `page` a whole program as a page of HTML;
`devices` reports about a device.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from treadle.backends.program import Compiler, MeasuringCompiler
from treadle.base.errors import EngineError
from treadle.engine.artifacts import Optimized, Partitioned, Prepared
from treadle.engine.devices.names import CompNode, default_device
from treadle.engine.execute import DeviceExecutor, Executor, Runner, Scheduler, Stepwise, Timeline
from treadle.engine.options import Options
from treadle.engine.phases import InPhases, PhasedRunner
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface, Plan
from treadle.engine.report import CompileReport
from treadle.engine.spread import DevicePart
from treadle.engine.targets import CompiledTarget
from treadle.graph.ir import Graph

if TYPE_CHECKING:
    from treadle.inspect.explanation import Explanation
    from treadle.inspect.picture import Shown
    from treadle.inspect.profile import Profile


def _graph(made: Prepared | Partitioned | Optimized | None) -> Graph | None:
    return None if made is None else made.graph


class Inspected:
    """A program, and what can be asked of it. Asking passes the stages that the answer takes.

    Args:
        stages: the program.

    Attributes:
        measured: the last profile.
    """

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.measured: Profile | None = None

    # -- as far as it has come -------------------------------------------------------------

    @property
    def report(self) -> CompileReport:
        """The stages' decisions."""
        return self.stages.report

    @property
    def interface(self) -> Interface:
        """Inputs that are frozen or updated."""
        return self.stages.source.interface

    @property
    def options(self) -> Options:
        """Options of the compilation."""
        return self.stages.source.options

    @property
    def home(self) -> CompNode | None:
        """The device that it lives on; None for the host."""
        return self.stages.home

    @property
    def captured(self) -> Graph:
        """The graph as it was given."""
        return self.stages.source.graph

    @property
    def prepared(self) -> Graph | None:
        """The graph after prepare; None before that."""
        return _graph(self.stages.made.get("prepared"))

    @property
    def partitioned(self) -> Graph | None:
        """The graph after partition; None before that."""
        return _graph(self.stages.made.get("partitioned"))

    @property
    def optimized(self) -> Graph | None:
        """The graph that is compiled; None as long as nothing has asked for it."""
        return _graph(self.stages.made.get("planned") or self.stages.made.get("optimized"))

    @property
    def plan(self) -> Plan | None:
        """Steps of the program; None before it is planned."""
        made = self.stages.made.get("planned")
        return None if made is None else made.plan

    @property
    def executor(self) -> Runner | None:
        """The runner of the program; None before it is compiled."""
        return self.stages.made.get("running")

    @property
    def parts(self) -> tuple[Inspected, ...]:
        """Programs of the parts: of several devices, if compiled, or of phases that have run."""
        if isinstance(self.executor, PhasedRunner):
            return tuple(map(Inspected, self.executor.latest))
        divided = self.stages.made.get("divided")
        return (
            ()
            if divided is None
            else tuple(Inspected(cast(Stages, part)) for part in divided.parts)
        )

    # -- farther ---------------------------------------------------------------------------

    def lower(self) -> Graph:
        """Prepare, partition and optimize; the graph that will be compiled, or run op by op."""
        return self.stages.lowered.graph

    def planned(self) -> Plan:
        """Pass the first four stages, whatever the cache has; what the program does step by step.

        Raises:
            EngineError: the program runs op by op, or is in parts on several devices.
        """
        return self.stages.planned.plan

    def compile(self) -> Runner:
        """Return what runs the program: out of the cache, or through all stages."""
        return self.stages.running

    def compiler(self) -> Compiler:
        """Return what lowers the program's ops.

        Raises:
            CompileError: the options name an engine that is not there.
        """
        return self.stages.target.compiler()

    # -- looking inside --------------------------------------------------------------------

    def explain(self) -> Explanation:
        """Tell what became of the program; compiled for the purpose if it came from the cache.

        Raises:
            EngineError: the program runs op by op, or is in parts on several devices.
        """
        from treadle.inspect.explanation import explain

        plan = self.planned()
        graphs = {
            "captured": self.captured,
            "prepared": self.prepared or self.captured,
            "optimized": self.lower(),
        }
        return explain(graphs, plan, self.report, self.stages.target.engine, self.measured)

    @property
    def in_phases(self) -> bool:
        """True if data decide extents in it, so that it is programs that run in turn."""
        return isinstance(self.stages.target, InPhases)

    def data(self) -> dict[str, Any]:
        """Return `explain()` as plain data.

        Of a program in phases: its `name`, and as `phases` a list with the number of `ops` and
        `programs` of each, what is `decided` behind it, and, as `parts`, what there is to tell of
        every program that the last run ran.

        Raises:
            EngineError: the program runs op by op, or is in parts on several devices.
        """
        if not self.in_phases:
            return self.explain().data()
        runner = cast(PhasedRunner, self.compile())
        parts = [part.explain().data() for part in self.parts]
        return {"name": self.report.name, "phases": runner.facts(), "parts": parts}

    def explained(self, *, full: bool = False) -> str:
        """Return `explain()` as text for people; `full` gives every group, op and pass a row."""
        from treadle.inspect.text import to_text

        if isinstance(self.stages.target, CompiledTarget):
            return to_text(self.explain(), full=full)
        executor = self.compile()  # The course of a program without a plan is a table.
        table = executor.table() if isinstance(executor, Stepwise | PhasedRunner) else ""
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
        from treadle.inspect.diagram import save_diagram

        if os.fspath(path).endswith(".html"):
            self.picture(path)
            return
        memory = self.planned().memory
        graphs = {"captured": self.captured, "optimized": self.lower()}
        save_diagram(path, graphs, memory)

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
        from treadle.inspect.page import save_picture

        save_picture(path, self.shown(inputs, outputs))

    def shown(self, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Shown:
        """Gather what a picture shows; for the arguments and errors see `picture`."""
        from treadle.inspect.picture import Shown

        explanation, prepared = self.explain(), self.prepared or self.captured
        graphs = {
            "captured": self.captured,
            "prepared": prepared,
            "partitioned": self.partitioned or prepared,
            "optimized": self.lower(),
        }
        return Shown(
            graphs,
            self.planned(),
            self.interface,
            self.report,
            explanation,
            self.compiler(),
            self.measured,
            inputs,
            outputs,
        )

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
        from treadle.inspect.profile import measure

        plan, target = self.planned(), self.stages.target
        if isinstance(target, CompiledTarget) and executor.loaded.plan is not plan:
            executor = target.load_again(self.stages)  # Out of the cache, it names no steps.
        compiler, name = self.compiler(), self.captured.name
        limits = compiler.limits() if isinstance(compiler, MeasuringCompiler) else None
        self.measured = measure(name, executor, inputs, repeats, self.report.seconds, limits)
        return self.measured

    def _timeline(self, executor: Runner, inputs: Sequence[Any], repeats: int) -> Timeline:
        """Return the quickest of some runs, after one that is not counted."""
        if repeats < 1:
            raise EngineError("profile", f"{repeats} repeats", hint="measure one run at least")
        if not isinstance(executor, Scheduler):
            part = DevicePart(self.captured, self.stages.home or default_device(), ())
            executor = Scheduler.of_one(part, executor)
        runs = [executor.measure(inputs) for _ in range(repeats + 1)][1:]
        return min(runs, key=lambda run: run.seconds)
