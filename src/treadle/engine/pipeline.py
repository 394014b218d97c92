"""The engine in one page: a graph goes through six stages and comes out as something that runs.

    prepare -> partition -> optimize -> compile -> load -> execute

Each stage takes the artifact of the one before it and returns its own (`artifacts.py`); artifacts
are frozen, and nothing else passes between them. What a stage does depends on where the program
will run (`targets`); how, lies in the folder of its name. Graphs stay graphs until compile: each
can be printed (`TREADLE_DUMP=prepare,partition,optimize`, for plans `compile,kernels`) and parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from treadle.backends.program import Compiler
from treadle.base.garbage import rare_collections
from treadle.engine.artifacts import Captured, Optimized, Partitioned, Planned, Prepared
from treadle.engine.devices.names import CompNode
from treadle.engine.execute import Runner
from treadle.engine.inspected import Inspected
from treadle.engine.options import Options
from treadle.engine.plan import Interface, Loaded, Plan
from treadle.engine.spread import Places
from treadle.engine.targets import Divided, target_of
from treadle.engine.types import CompileReport
from treadle.graph.ir import Graph

Before = TypeVar("Before")
After = TypeVar("After")


class Stages(Inspected):
    """A program on its way; what a stage has returned is kept for those who want to look.

    Args:
        captured: the graph.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        home: the device that the program lives on; None for the host.
        places: where everything is, if there are several devices.
        crossing: lowers the ops for another machine, in place of the home's compiler.
    """

    def __init__(
        self,
        captured: Graph,
        interface: Interface | None = None,
        options: Options | None = None,
        home: CompNode | None = None,
        places: Places | None = None,
        *,
        crossing: Compiler | None = None,
    ) -> None:
        source = Captured(captured, interface or Interface(), options or Options())
        target = target_of(source.options, home, places, crossing, Stages._of)
        super().__init__(source, target, home)

    @cached_property
    def _prepared(self) -> Prepared:
        return self._pass("prepare", self.target.prepare, self.source)

    @cached_property
    def _partitioned(self) -> Partitioned:
        return self._pass("partition", self.target.partition, self._prepared)

    @cached_property
    def _optimized(self) -> Optimized:
        return self._pass("optimize", self.target.optimize, self._partitioned)

    @cached_property
    def _planned(self) -> Planned:
        return self._pass("compile", self.target.plan, self._optimized)

    @cached_property
    def _loaded(self) -> Loaded[Any]:
        return self._pass("load", self.target.load, self._planned)

    @cached_property
    def _running(self) -> Runner:
        return self.target.start(self)

    @cached_property
    def divided(self) -> Divided | None:
        """Its parts, if it is on several devices; each passes the stages by itself."""
        return self.target.divide(self.source, self.report)

    def _pass(
        self, name: str, stage: Callable[[Before, CompileReport], After], before: Before
    ) -> After:
        with rare_collections(), self.report.stage(name):
            after = stage(before, self.report)
        self.dump(before, after)
        return after

    def optimize(self) -> Optimized:
        """Pass the first three stages; a plan within a budget may have changed the graph again."""
        return self._planned if "_planned" in self.__dict__ else self._optimized

    def planned(self) -> Plan:
        """Pass the first four, whatever the cache has; what the program does step by step.

        Raises:
            EngineError: the program runs op by op, or is in parts on several devices.
        """
        return self._planned.plan

    def load(self) -> Loaded[Any]:
        """Pass the first five."""
        return self._loaded

    @rare_collections()
    def compile(self) -> Runner:
        """What runs the program: out of the cache, or through all stages."""
        return self._running

    @classmethod
    def _of(cls, captured: Captured, home: CompNode | None) -> Stages:
        return cls(captured.graph, captured.interface, captured.options, home)
