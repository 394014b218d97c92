"""Programs of the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from treadle.backends.program import Compiler
from treadle.base.types import TensorType
from treadle.engine.artifacts import Captured, Prepared
from treadle.engine.devices.placement import compiling, engines_of
from treadle.engine.execute import Executor
from treadle.engine.plan import Loaded
from treadle.engine.report import CompileReport
from treadle.engine.targets.compiled import CompiledTarget
from treadle.graph.index_findings import index_error
from treadle.graph.ir import Graph


class Host(CompiledTarget):
    """The processor; ops that its compiler refuses are run by other engines in its memory."""

    def _finished(self, graph: Graph, compiler: Compiler, report: CompileReport) -> Graph:
        from treadle.engine import stages

        return stages.bucket_reductions(graph, self._options, report)

    def _divided(self, prepared: Prepared, report: CompileReport) -> Graph:
        from treadle.engine import stages

        options, engines = self._options, list(engines_of(self._options, self.kind))
        parts = stages.partition(prepared.graph, engines, options, report, frozen=prepared.frozen)
        return stages.leave_to_host(parts, engines, compiling(engines), options.force_fallback)

    def executor(
        self,
        captured: Captured,
        loaded: Loaded[Any],
        results: Sequence[TensorType],
        report: CompileReport,
    ) -> Executor:
        """Return the runner of a program in memory."""
        frozen = [i for i, yes in enumerate(captured.interface.frozen) if yes]
        segments = self._segments(captured, loaded.plan, report)
        return Executor(loaded, results, frozen, segments, partial(index_error, captured.graph))
