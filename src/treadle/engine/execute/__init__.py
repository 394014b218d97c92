"""Stage 6, execute: a loaded program run on arrays, once, or many times in one native loop."""

from treadle.engine.execute.executor import Executor

__all__ = ["Executor"]
