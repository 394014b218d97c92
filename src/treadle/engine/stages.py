"""The door to the stages, which targets open when a program has to be made or looked into.

Warm starts, whose programs come from the cache, pass none of them, and importing them takes longer
than all else they do.
"""

from treadle.engine.budget import plan_within
from treadle.engine.compile import compile_graph
from treadle.engine.explain import explain, to_text
from treadle.engine.explain.diagram import save_diagram
from treadle.engine.explain.dumps import dump_artifact
from treadle.engine.explain.page import save_picture
from treadle.engine.load import load
from treadle.engine.optimize import optimize
from treadle.engine.partition import Device, leave_to_host, part_on_device, partition
from treadle.engine.prepare import bucket_reductions, prepare, take_apart
from treadle.engine.profile import measure

__all__ = [
    "Device",
    "bucket_reductions",
    "compile_graph",
    "dump_artifact",
    "explain",
    "leave_to_host",
    "load",
    "measure",
    "optimize",
    "part_on_device",
    "partition",
    "plan_within",
    "prepare",
    "save_diagram",
    "save_picture",
    "take_apart",
    "to_text",
]
