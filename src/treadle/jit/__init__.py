"""Compiling functions: whole training steps and models as native programs."""

from treadle.base.errors import TraceError
from treadle.engine.options import Options, engines
from treadle.jit.compare import Comparison, OpComparison, compare
from treadle.jit.compiled import Compiled, compile
from treadle.jit.control import cond, scan, while_loop
from treadle.jit.dump import CompGraphDumpResult
from treadle.jit.fuse import fuse
from treadle.jit.memory import DTRConfig, GraphOptimizationConfig, SublinearMemoryConfig
from treadle.jit.partial import partial_trace, xla_trace
from treadle.jit.printing import breakpoint as breakpoint
from treadle.jit.printing import print as print
from treadle.jit.sink import sink
from treadle.jit.trace import exclude_from_trace, is_tracing, trace

__all__ = [
    "CompGraphDumpResult",
    "Comparison",
    "Compiled",
    "DTRConfig",
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
