"""The optimize stage: physical layouts, and groups of ops that become one kernel each."""

from treadle.engine.optimize.stage import optimize

__all__ = ["optimize"]
