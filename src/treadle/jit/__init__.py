"""Compiling functions: whole training steps and models as native programs."""

from treadle.base.errors import TraceError
from treadle.engine.options import Options
from treadle.jit.compiled import Compiled, compile
from treadle.jit.control import cond, scan, while_loop
from treadle.jit.fuse import fuse
from treadle.jit.sink import sink
from treadle.jit.trace import exclude_from_trace, is_tracing, trace

__all__ = [
    "Compiled",
    "Options",
    "TraceError",
    "compile",
    "cond",
    "exclude_from_trace",
    "fuse",
    "is_tracing",
    "scan",
    "sink",
    "trace",
    "while_loop",
]
