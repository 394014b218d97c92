"""The engine in one page: a graph goes through six stages and comes out as something that runs.

    prepare -> partition -> optimize -> compile -> load -> execute

Each stage takes the artifact of the one before it and returns its own (`artifacts.py`), frozen;
nothing else passes between them. What a stage does depends on where the program will run
(`targets`). Graphs stay graphs until compile: each can be printed and parsed (`TREADLE_DUMP`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar, cast

from treadle.backends.program import Compiler
from treadle.base.garbage import rare_collections
from treadle.engine.artifacts import Captured, Optimized, Partitioned, Planned, Prepared
from treadle.engine.devices.names import CompNode
from treadle.engine.execute import Runner
from treadle.engine.options import Options
from treadle.engine.plan import Interface, Loaded
from treadle.engine.report import CompileReport
from treadle.engine.spread import ValuePlaces
from treadle.engine.targets import Divided, EngineTarget, Made, target_of
from treadle.graph.ir import Graph

After = TypeVar("After")


def _start(captured: Captured, home: CompNode | None) -> Stages:
    return Stages(captured.graph, captured.interface, captured.options, home)


class Stages:
    """A program on its way. Asking for an artifact passes the stages before it, each once.

    Args:
        captured: the graph.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        home: the device that the program lives on; None for the host.
        places: where everything is, on several devices.
        crossing, target: a compiler for another machine, and a place, in place of the home's.

    Attributes:
        source, target, report: what was captured, where it runs, and what the stages decided.
    """

    def __init__(
        self,
        captured: Graph,
        interface: Interface | None = None,
        options: Options | None = None,
        home: CompNode | None = None,
        places: ValuePlaces | None = None,
        *,
        crossing: Compiler | None = None,
        target: EngineTarget | None = None,
    ) -> None:
        self.source = Captured(captured, interface or Interface(), options or Options())
        self.target = target or target_of(self.source.options, home, places, crossing, _start)
        self.home = home
        self.report = CompileReport(captured.name)

    @cached_property
    def prepared(self) -> Prepared:
        """The graph of what must be computed."""
        return self._pass("prepare", self.target.prepare, self.source)

    @cached_property
    def partitioned(self) -> Partitioned:
        """The graph with the engine of each part."""
        return self._pass("partition", self.target.partition, self.prepared)

    @cached_property
    def optimized(self) -> Optimized:
        """The graph of what runs as one."""
        return self._pass("optimize", self.target.optimize, self.partitioned)

    @cached_property
    def planned(self) -> Planned:
        """The steps of the program; an error where it has no plan."""
        return self._pass("compile", self.target.plan, self.optimized)

    @cached_property
    def loaded(self) -> Loaded[Any]:
        """The plan in memory."""
        return self._pass("load", self.target.load, self.planned)

    @cached_property
    @rare_collections()
    def running(self) -> Runner:
        """The runner of the program: out of the cache, or through all stages."""
        return self.target.start(self)

    @cached_property
    def divided(self) -> Divided | None:
        """Parts of a program on several devices, which pass the stages by themselves; else None."""
        return self.target.divide(self.source, self.report)

    def _pass(self, name: str, stage: Callable[[Any, CompileReport], After], before: Any) -> After:
        with rare_collections(), self.report.stage(name):
            after = stage(before, self.report)
        self.target.dump(before, after)
        return after

    def compile(self) -> Runner:
        """Return what executes the program."""
        return self.running

    @property
    def lowered(self) -> Optimized:
        """The graph that is compiled: a memory budget changes the optimized graph once more."""
        return self.made.get("planned") or self.optimized

    @property
    def made(self) -> Made:
        """The artifacts that somebody has asked for, by name."""
        return cast(Made, vars(self))
