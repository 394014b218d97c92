"""Programs of a device that has a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.base.types import TensorType
from treadle.engine.artifacts import Captured, Prepared
from treadle.engine.devices.placement import (
    compiling,
    engines_of,
    forced_to_host,
    segment_engines,
)
from treadle.engine.execute import DeviceExecutor
from treadle.engine.options import Options
from treadle.engine.plan import Loaded
from treadle.engine.report import CompileReport
from treadle.engine.targets.compiled import CompiledTarget
from treadle.graph.index_findings import index_error, reporting
from treadle.graph.ir import Graph

if TYPE_CHECKING:
    from treadle.backends.program import Compiler
    from treadle.engine.devices.names import CompNode


class DeviceTarget(CompiledTarget):
    """A device; what its compiler refuses returns to the host, segment engines get what they take.

    Nothing else leaves the device.
    """

    _home: CompNode

    def _finished(self, graph: Graph, compiler: Compiler, report: CompileReport) -> Graph:
        from treadle.engine import stages

        if compiler.keeps("all_reduce_bucket"):
            graph = stages.bucket_reductions(graph, self._options, report, compiler)
        return reporting(graph)  # of indices out of range

    def _divided(self, prepared: Prepared, report: CompileReport) -> Graph:
        return part_on_device(prepared, self._home, self._options, report, self.compiler())

    def executor(
        self,
        captured: Captured,
        loaded: Loaded[Any],
        results: Sequence[TensorType],
        report: CompileReport,
    ) -> DeviceExecutor:
        """Return the runner of a program in memory."""
        interface = captured.interface
        return DeviceExecutor(
            captured.graph.name,
            loaded,
            results,
            self._home,
            self.compiler(),
            [i for i, yes in enumerate(interface.frozen) if yes],
            self._segments(captured, loaded.plan, report),
            reports=len(results) + len(interface.updates) > len(captured.graph.outputs),
            index_error=partial(index_error, captured.graph),
        )


def part_on_device(
    prepared: Prepared,
    home: CompNode,
    options: Options,
    report: CompileReport,
    compiler: Compiler | None,
) -> Graph:
    """The graph with a group around what leaves the device, or goes to a segment engine.

    Args:
        prepared: of a program of the device.
        home: the device.
        options: of the compilation.
        report: receives the choices.
        compiler: the device's; None where it has none.
    """
    from treadle.engine import stages

    engines = list(engines_of(options, home.kind))
    graph, apart = forced_to_host(prepared.graph, options.force_fallback), segment_engines(engines)
    if not apart:
        return graph
    device = stages.DeviceEngine(
        home.kind, compiling(engines), home.open(), compiler, prepared.whole
    )
    return stages.part_on_device(
        graph, apart, device, replace(options, force_fallback=()), report, prepared.frozen
    )
