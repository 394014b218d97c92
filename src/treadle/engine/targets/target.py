"""Interface of targets: one method for each stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from treadle.backends.program import Compiler
from treadle.base.env import DUMP
from treadle.base.errors import EngineError
from treadle.engine.artifacts import Captured, Optimized, Partitioned, Planned, Prepared
from treadle.engine.devices.names import CompNode
from treadle.engine.execute import Runner
from treadle.engine.plan import Loaded
from treadle.engine.report import CompileReport
from treadle.engine.spread import Spread


class StagedProgram(Protocol):
    """A program on its way; asking for an artifact passes the stages that it takes."""

    @property
    def source(self) -> Captured:
        """The captured program."""
        ...

    @property
    def report(self) -> CompileReport:
        """The decisions of its stages."""
        ...

    @property
    def divided(self) -> Divided | None:
        """Parts of a program on several devices; None on one."""
        ...

    @property
    def lowered(self) -> Optimized:
        """The graph that is compiled."""
        ...

    @property
    def loaded(self) -> Loaded[Any]:
        """The program's plan in memory."""
        ...

    @property
    def running(self) -> Runner:
        """The runner that executes it."""
        ...


@dataclass(frozen=True, slots=True)
class Divided:
    """A program over several devices: how it was cut, and its parts as programs."""

    spread: Spread
    parts: tuple[StagedProgram, ...]


class Made(TypedDict, total=False):
    """The artifacts that a program has so far."""

    prepared: Prepared
    partitioned: Partitioned
    optimized: Optimized
    planned: Planned
    loaded: Loaded[Any]
    running: Runner
    divided: Divided | None


Build = Callable[[Captured, CompNode | None], StagedProgram]
"""Starts another program, for the host or a device."""


class EngineTarget(ABC):
    """Place of a program, and what each stage does for that place.

    Stages get the artifact of the one before and return their own; what they decide goes into the
    report, as into a log. Those that a target does not override leave the program as it is.
    """

    @property
    def engine(self) -> str:
        """The name of the engine that compiles; "" where none does."""
        return ""

    @abstractmethod
    def compiler(self) -> Compiler:
        """Return the compiler that lowers the program's ops.

        Raises:
            CompileError: the options name an engine that is not there.
        """

    def divide(self, captured: Captured, report: CompileReport) -> Divided | None:
        """Cut the program by device, if it is on several."""
        return None

    def prepare(self, captured: Captured, report: CompileReport) -> Prepared:
        """Rewrite the program for the engines."""
        return Prepared(captured, captured.graph)

    def partition(self, prepared: Prepared, report: CompileReport) -> Partitioned:
        """Choose who runs what."""
        return Partitioned(prepared.captured, prepared.graph)

    def optimize(self, parted: Partitioned, report: CompileReport) -> Optimized:
        """Choose layouts, and what runs as one."""
        return Optimized(parted.captured, parted.graph)

    def plan(self, optimized: Optimized, report: CompileReport) -> Planned:
        """Make steps, memory and streams.

        Raises:
            EngineError: the program has no plan of its own.
        """
        raise EngineError(
            "compile",
            f"{optimized.captured.graph.name} has no plan of its own: {self.why_no_plan()}",
            hint="explained() says in words what became of it",
        )

    def why_no_plan(self) -> str:
        """Return the reason, for the error, why the target has no plan."""
        return ""

    def load(self, planned: Planned, report: CompileReport) -> Loaded[Any]:
        """Make a plan's kernels runnable, its constants and kept memory in place."""
        raise EngineError("load", self.why_no_plan())

    @abstractmethod
    def start(self, program: StagedProgram) -> Runner:
        """Return the runner of the program; passes the stages that this takes."""

    def dump(self, before: object, after: object) -> None:
        """Write down what a stage has made, and what was given to the first one, if so asked."""
        if not DUMP.get():
            return
        from treadle.engine import stages

        for artifact in (before, after) if isinstance(before, Captured) else (after,):
            stages.dump_artifact(artifact, self.compiler())
