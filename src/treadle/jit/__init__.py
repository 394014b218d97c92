"""Compiling functions: whole training steps and models as native programs."""

from typing import TYPE_CHECKING, Any

from treadle.base.errors import TraceError
from treadle.engine.options import Options, engines
from treadle.jit.compare import Comparison, OpComparison, compare
from treadle.jit.compiled import Compiled, compile
from treadle.jit.control import cond, scan, while_loop
from treadle.jit.dynamic import Extent
from treadle.jit.fuse import fuse
from treadle.jit.memory import DTRConfig, GraphOptimizationConfig, SublinearMemoryConfig
from treadle.jit.partial import partial_trace, xla_trace
from treadle.jit.printing import breakpoint as breakpoint
from treadle.jit.printing import print as print
from treadle.jit.sink import sink
from treadle.jit.trace import exclude_from_trace, is_tracing, trace

if TYPE_CHECKING:
    from treadle.jit.dump import CompGraphDumpResult

__all__ = [
    "CompGraphDumpResult",
    "Comparison",
    "Compiled",
    "DTRConfig",
    "Extent",
    "GraphOptimizationConfig",
    "OpComparison",
    "Options",
    "SublinearMemoryConfig",
    "TraceError",
    "compare",
    "compile",
    "cond",
    "engines",
    "exclude_from_trace",
    "fuse",
    "is_tracing",
    "partial_trace",
    "scan",
    "sink",
    "trace",
    "while_loop",
    "xla_trace",
]


def __getattr__(name: str) -> Any:
    """Import the type of a dump's result, and with it all that writes models, when asked for."""
    if name == "CompGraphDumpResult":
        from treadle.jit.dump import CompGraphDumpResult

        return CompGraphDumpResult
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
