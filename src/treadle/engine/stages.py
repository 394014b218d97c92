"""The door to the stages, which targets open when a program has to be made.

Warm starts, whose programs come from the cache, pass none of them, and importing them takes longer
than all else they do.
"""

from treadle.engine.compile import compile_graph
from treadle.engine.dumps import dump_artifact
from treadle.engine.load import load
from treadle.engine.optimize import optimize
from treadle.engine.optimize.budget import plan_within
from treadle.engine.partition import DeviceEngine, leave_to_host, part_on_device, partition
from treadle.engine.prepare import bucket_reductions, prepare, take_apart

__all__ = [
    "DeviceEngine",
    "bucket_reductions",
    "compile_graph",
    "dump_artifact",
    "leave_to_host",
    "load",
    "optimize",
    "part_on_device",
    "partition",
    "plan_within",
    "prepare",
    "take_apart",
]
