"""Programs over several devices: each part goes through the stages by itself."""

from __future__ import annotations

from treadle.backends.program import Compiler
from treadle.base.errors import EngineError
from treadle.engine.artifacts import Captured
from treadle.engine.devices.placement import find_compiler
from treadle.engine.execute import Runner, Scheduler
from treadle.engine.options import Options
from treadle.engine.plan import Interface
from treadle.engine.report import CompileReport
from treadle.engine.spread import ValuePlaces, cut
from treadle.engine.targets.target import Build, Divided, EngineTarget, StagedProgram


class Several(EngineTarget):
    """More than one device.

    Args:
        options: of the compilation.
        places: where the program's values are.
        build: takes the parts through the stages.
    """

    def __init__(self, options: Options, places: ValuePlaces, build: Build) -> None:
        self._options = options
        self._places = places
        self._build = build

    def compiler(self) -> Compiler:
        """The host's."""
        return find_compiler(self._options)

    def why_no_plan(self) -> str:
        """Return why there is no plan: each part has its own."""
        return "its parts have"

    def divide(self, captured: Captured, report: CompileReport) -> Divided:
        """Cut the program by device."""
        with report.stage("cut"):
            spread = cut(captured.graph, self._places)
        flags, made = captured.interface.frozen, []
        for part in spread.parts:
            kept = tuple(s.part < 0 and any(flags[s.index : s.index + 1]) for s in part.sources)
            inner = Captured(part.graph, Interface(kept), captured.options)
            made.append(self._build(inner, part.home))
            place = f"{part.home}, {len(part.graph.nodes)} ops"
            report.decide("cut", part.graph.name, place, f"takes {len(part.sources)} values")
        return Divided(spread, tuple(made))

    def start(self, program: StagedProgram) -> Runner:
        """Return a runner that runs each part when its values have come."""
        divided = program.divided
        if divided is None:
            raise EngineError("several devices", "the program was not cut by device")
        runners = [part.running for part in divided.parts]
        return Scheduler(program.source.graph.name, divided.spread, runners)
