"""Ops of a program that are left to the host's engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.backends import registry
from treadle.backends.api import Support
from treadle.base.errors import IndexRangeError
from treadle.base.types import TensorType
from treadle.engine.execute.segments import SegmentLaunch, body_of, engine_of
from treadle.engine.plan import HostTask
from treadle.ops.fused import Fused

IndexFailure = Callable[[int, int], IndexRangeError]
"""Makes what to raise where check number so-and-so of a program has found an index."""


def launch_of(task: HostTask) -> Callable[..., Any]:
    """The op as the engine of the task runs it, on arrays of the host."""
    if isinstance(task.op, Fused) and task.op.is_segment:
        return SegmentLaunch(engine_of(task.op), body_of(task.op))
    for engine in registry.engines("cpu"):
        if engine.name == task.engine:
            types = [TensorType(t.dtype, t.shape) for _, t in task.inputs]
            found = engine.prepare(task.op, types)
            if not isinstance(found, Support):
                return found
    return task.op.reference


def unknown_index(number: int, index: int) -> IndexRangeError:
    """Return the error for an index that is out of range where nobody knows the program."""
    return IndexRangeError("check", f"index {index} is out of range in check {number}")


def extents(type_: TensorType) -> tuple[int, ...]:
    """The shape of a type that is static, as everything compiled is; ShapeError for another."""
    return tuple([int(d) for d in type_.shape])
