"""Ops of a program that are left to the host, on memory of the program."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.native_code import Executable
from treadle.backends.program import Address
from treadle.base.errors import CompileError
from treadle.base.observer import recording
from treadle.base.types import TensorType
from treadle.engine.execute.counters import Tally
from treadle.engine.execute.host_tasks import IndexFailure, extents, launch_of
from treadle.engine.execute.reductions import Reductions
from treadle.engine.plan import HostTask, Loaded
from treadle.engine.segments import SegmentLaunch
from treadle.ops.check import CheckIndices
from treadle.ops.op import as_tuple
from treadle.runtime.host import HostBuffer, address, memory

Array = npt.NDArray[Any]
_Split = tuple[list[tuple[Address, TensorType]], list[tuple[Address, TensorType]]]


class Frame:
    """Addresses and scratch memory of one run at a time."""

    __slots__ = ("arena", "bases", "kept", "reductions", "tally", "version", "views", "write")

    def __init__(self, loaded: Loaded[Executable], tally: Tally) -> None:
        self.tally = tally
        plan = loaded.plan
        self.arena: HostBuffer = memory("activations", plan.memory.peak)
        if (observer := recording()) is not None:
            observer.kept("scratch of a program", self.arena.bytes)
        self.kept: HostBuffer = loaded.kept
        self.bases = np.zeros(plan.bases, np.int64)
        self.bases[-3:] = [address(b.bytes) for b in (loaded.constants, loaded.kept, self.arena)]
        self.write = partial(struct.Struct(f"{plan.bases - 3}q").pack_into, self.bases.data, 0)
        """Write the addresses of all inputs and results into the table."""
        self.version: object = None
        """Names the inputs whose addresses are in the table; None where they must be written."""
        self.views: dict[tuple[Address, TensorType], Array] = {}
        """Arrays over the arena and constants that were handed to host tasks."""
        self.reductions = Reductions()


class HostTasks:
    """Runs the ops of a loaded program that are left to the host.

    Args:
        loaded: the program.
        launches: of host tasks, by number, that are not found by asking engines.
        index_error: see `Executor`.
    """

    def __init__(
        self,
        loaded: Loaded[Executable],
        launches: Mapping[int, Callable[..., Any]] | None,
        index_error: IndexFailure,
    ) -> None:
        self.loaded = loaded
        self._index_error = index_error
        self._tasks = loaded.plan.tasks
        self._launches: dict[int, Callable[..., Any]] = dict(launches or {})
        self._splits: dict[int, _Split] = {}

    def serve(
        self, frame: Frame, inputs: Sequence[Array], results: Sequence[Array], step: int
    ) -> None:
        """Do the host task at a step.

        Raises:
            IndexRangeError: the task is a check that has found an index out of range.
        """
        number = self._tasks.get(step)
        if number is None:
            raise CompileError("execute", f"step {step} is no host task")
        task = self.loaded.plan.host[number]
        if isinstance(task.op, CheckIndices) and task.phase:
            where, kind = task.inputs[0]
            found = self._array(frame, inputs, results, where, kind)
            raise self._index_error(task.op.number, int(found[1]))
        if task.phase:
            where, kind = task.inputs[0]
            bucket = self._array(frame, inputs, results, where, kind)
            frame.reductions.serve(task, bucket)
            return
        if number not in self._launches:
            self._launches[number] = launch_of(task)
        launch = self._launches[number]
        targets = [self._array(frame, inputs, results, a, t) for a, t in task.outputs]
        if isinstance(launch, SegmentLaunch):
            given, fixed = self._split(number, task, launch.frozen)
            launch.into(
                [self._array(frame, inputs, results, a, t) for a, t in given],
                lambda: [self._array(frame, inputs, results, a, t) for a, t in fixed],
                targets,
                frame.version,
            )
            return
        arrays = [self._array(frame, inputs, results, a, t) for a, t in task.inputs]
        for target, result in zip(targets, as_tuple(launch(*arrays)), strict=True):
            target[...] = result

    def _split(self, number: int, task: HostTask, frozen: Sequence[bool]) -> _Split:
        """The operands of a segment that are not frozen, and those that are."""
        found = self._splits.get(number)
        if found is None:
            pairs = list(zip(task.inputs, frozen, strict=True))
            found = [o for o, yes in pairs if not yes], [o for o, yes in pairs if yes]
            self._splits[number] = found
        return found

    def _array(
        self,
        frame: Frame,
        inputs: Sequence[Array],
        results: Sequence[Array],
        where: Address,
        type_: TensorType,
    ) -> Array:
        """An array over memory of the program: whole inputs and results are handed over as such."""
        base, n = where.base, len(inputs)
        if base < n + len(results):
            whole = inputs[base] if base < n else results[base - n]
            same = whole.shape == type_.shape and whole.dtype == type_.dtype.numpy
            if same and not where.offset:
                return whole
            return _view(whole, where, type_)
        if base == n + len(results) + 1:  # What is packed may lie elsewhere the next time.
            return _view(frame.kept.bytes, where, type_)
        known = frame.views.get((where, type_))
        if known is None:
            memory = self.loaded.constants if base == n + len(results) else frame.arena
            known = frame.views[where, type_] = _view(memory.bytes, where, type_)
        return known


def _view(memory: Array, where: Address, type_: TensorType) -> Array:
    """A part of the program's memory as an array."""
    raw = memory.reshape(-1).view(np.uint8)
    shape = extents(type_)
    part = raw[where.offset : where.offset + type_.nbytes]
    made: Array = part.view(type_.dtype.numpy).reshape(shape)
    return made


__all__ = ["Frame", "HostTasks"]
