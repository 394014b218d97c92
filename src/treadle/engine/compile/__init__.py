"""Stage 4, compile: kernels for every node, their order, and a place in memory for every value."""

from treadle.engine.compile.memory import Buffer, check_memory, plan_memory
from treadle.engine.compile.stage import compile_graph
from treadle.engine.plan import HostTask, Interface, MemoryPlan, Plan

__all__ = [
    "Buffer",
    "HostTask",
    "Interface",
    "MemoryPlan",
    "Plan",
    "check_memory",
    "compile_graph",
    "plan_memory",
]
