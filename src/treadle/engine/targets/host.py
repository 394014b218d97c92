"""Programs of the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from treadle.base.types import TensorType
from treadle.engine.artifacts import Captured, Partitioned, Prepared
from treadle.engine.execute import Executor
from treadle.engine.homes import compiling, engines_of, passes_of
from treadle.engine.plan import Loaded
from treadle.engine.segments import kept_whole
from treadle.engine.targets.compiled import Compiled
from treadle.engine.types import CompileReport
from treadle.graph.index_findings import index_error


class Host(Compiled):
    """The processor; ops that its compiler refuses are run by other engines in its memory."""

    def prepare(self, captured: Captured, report: CompileReport) -> Prepared:
        """Rewrite the program for the engines; reductions between ranks go into buckets."""
        from treadle.engine import stages

        options, compiler = self._options, self.compiler()
        whole = tuple(kept_whole(engines_of(options, self.kind)))
        own = passes_of(options, self.kind)
        graph = stages.prepare(captured.graph, options, report, compiler, whole, own)
        return Prepared(captured, stages.bucket_reductions(graph, options, report), whole)

    def partition(self, prepared: Prepared, report: CompileReport) -> Partitioned:
        """Choose an engine for every node; a group is made of what others than ours run."""
        from treadle.engine import stages

        options, engines = self._options, list(engines_of(self._options, self.kind))
        parts = stages.partition(prepared.graph, engines, options, report, frozen=prepared.frozen)
        graph = stages.leave_to_host(parts, engines, compiling(engines), options.force_fallback)
        if prepared.whole:
            graph = stages.take_apart(graph, options, report, self.compiler())
        return Partitioned(prepared.captured, graph)

    def executor(
        self,
        captured: Captured,
        loaded: Loaded[Any],
        results: Sequence[TensorType],
        report: CompileReport,
    ) -> Executor:
        """What runs a program in memory."""
        frozen = [i for i, yes in enumerate(captured.interface.frozen) if yes]
        segments = self._segments(captured, loaded.plan, report)
        return Executor(loaded, results, frozen, segments, partial(index_error, captured.graph))
