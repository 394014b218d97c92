"""Programs of a device without a compiler: its kernels run one op after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from treadle.backends.program import Compiler
from treadle.engine.artifacts import Captured, Partitioned, Prepared
from treadle.engine.devices.names import CompNode
from treadle.engine.devices.placement import find_compiler, passes_of
from treadle.engine.execute import Runner, Stepwise
from treadle.engine.execute.segments import SegmentLaunch, body_of, engine_of
from treadle.engine.options import Options
from treadle.engine.report import CompileReport
from treadle.engine.targets.device import part_on_device
from treadle.engine.targets.target import EngineTarget, StagedProgram
from treadle.graph.ir import Graph
from treadle.ops.fused import Fused


class OpByOp(EngineTarget):
    """A device whose backend has kernels only.

    Args:
        options: of the compilation.
        home: the device.
        crossing: lowers the ops in place of the device's own compiler.
    """

    def __init__(self, options: Options, home: CompNode, crossing: Compiler | None = None) -> None:
        self._options = options
        self._home = home
        self._crossing = crossing

    def compiler(self) -> Compiler:
        """Return the compiler that would lower the program's ops; it compiles nothing."""
        return self._crossing or find_compiler(self._options, self._home.kind)

    def why_no_plan(self) -> str:
        """Return why there is no plan: the program has a course in its place."""
        return f"on {self._home} it runs op by op"

    def prepare(self, captured: Captured, report: CompileReport) -> Prepared:
        """Rewrite the program, keeping the ops that eager code would run."""
        from treadle.engine import stages

        options = _with_eager_ops(self._options)
        own = passes_of(options, self._home.kind)
        graph = stages.prepare(captured.graph, options, report, self.compiler(), (), own)
        return Prepared(captured, graph)

    def partition(self, prepared: Prepared, report: CompileReport) -> Partitioned:
        """Give segment engines what they take, and the host what is refused."""
        options = self._options
        graph = part_on_device(prepared, self._home, options, report, None)
        return Partitioned(prepared.captured, graph)

    def start(self, program: StagedProgram) -> Runner:
        """Return the runner of the program op by op."""
        home, strict = self._home, self._options.strict_segments

        def by_others(body: Graph, frozen: tuple[bool, ...]) -> Callable[..., Sequence[Any]]:
            return Stepwise(body, home).run

        def segment(op: Fused) -> SegmentLaunch:
            engine, body = engine_of(op, home.kind), body_of(op)
            made = SegmentLaunch(engine, body, (), by_others, strict=strict, report=program.report)
            made.prepare()
            return made

        return Stepwise(program.lowered.graph, home, segment)


def _with_eager_ops(options: Options) -> Options:
    """Options with which a graph keeps the ops that eager code would run."""
    off = ("propagate", "fold_control", "canonicalize", "simplify")
    return replace(options, level=min(options.level, 1), disabled=(*options.disabled, *off))
