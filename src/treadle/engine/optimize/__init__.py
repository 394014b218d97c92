"""The optimize stage: physical layouts, and groups of ops that become one kernel each."""

from treadle.engine.optimize.stage import STEPS, optimize, run_step

__all__ = ["STEPS", "optimize", "run_step"]
