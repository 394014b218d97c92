"""Ops of a program that are left to the host, on memory of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from treadle.backends.native_code import Executable
from treadle.backends.program import Address
from treadle.base.array import Array
from treadle.base.errors import CompileError, IndexRangeError
from treadle.base.types import TensorType
from treadle.engine.execute.arenas import Arenas
from treadle.engine.execute.frames import At, Frame, Split
from treadle.engine.execute.host_tasks import IndexFailure, extents, launch_of
from treadle.engine.execute.segments import SegmentInstance, SegmentLaunch
from treadle.engine.plan import HostTask, Loaded
from treadle.ops.check import CheckIndices
from treadle.ops.op import as_tuple


class Many(Protocol):
    """A program for many extents, as executors see it."""

    arenas: Arenas

    def task(self, task: HostTask, at: At, /) -> HostTask:
        """A host task at certain extents."""
        ...

    def named(self, extents: Sequence[int], /) -> Mapping[str, int]:
        """Extents by symbol."""
        ...

    def index_error(self, at: At, number: int, index: int, /) -> IndexRangeError:
        """Return the error of a check, by number, that has found an index at certain extents."""
        ...


class HostTasks:
    """Runs the ops of a loaded program that are left to the host.

    Args:
        loaded: the program.
        launches: of tasks, by number, that are not found by asking engines.
        index_error: what to raise where a check has found an index that is out of range.
        many: for a program for many extents.
    """

    def __init__(
        self,
        loaded: Loaded[Executable],
        launches: Mapping[int, Callable[..., Any] | SegmentInstance] | None,
        index_error: IndexFailure,
        many: Many | None,
    ) -> None:
        self._loaded = loaded
        self._index_error = index_error
        self._many = many
        self._tasks = loaded.plan.tasks
        self._sums = {made: (base, entry) for made, base, entry in loaded.plan.sums}
        self._launches: dict[int, Any] = dict(launches or {})
        self._splits: dict[int, Split] = {}

    def serve(
        self, frame: Frame, inputs: Sequence[Array], results: Sequence[Array], step: int
    ) -> None:
        """Do the host task at a step.

        Raises:
            IndexRangeError: the task is a check that has found an index out of range.
        """
        number = self._tasks.get(step)
        if number is None:
            raise CompileError("execute", f"step {step} is not a host task")
        task, launches = self._task(frame, number)
        if isinstance(task.op, CheckIndices) and task.phase:
            where, kind = task.inputs[0]
            found = self._array(frame, inputs, results, where, kind)
            raise self._failure(frame.at, task.op.number, int(found[1]))
        if task.phase:
            where, kind = task.inputs[0]
            bucket = self._array(frame, inputs, results, where, kind)
            frame.reductions.serve(task, bucket)
            return
        if number not in launches:
            launches[number] = self._launch(frame.at, number, task)
        launch = launches[number]
        targets = [self._array(frame, inputs, results, a, t) for a, t in task.outputs]
        if isinstance(launch, SegmentLaunch | SegmentInstance):
            splits = self._splits if frame.at is None else frame.at.splits
            if number not in splits:
                splits[number] = _split(task, launch.frozen)
            given, fixed = splits[number]
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

    def _launch(self, at: At | None, number: int, task: HostTask) -> Any:
        """Return what runs a task: a segment serves all extents."""
        segment = self._launches.get(number)
        if isinstance(segment, SegmentLaunch) and at is not None and self._many is not None:
            return segment.at(self._many.named(at.extents))
        return launch_of(task)

    def _task(self, frame: Frame, number: int) -> tuple[HostTask, dict[int, Any]]:
        """A host task, and what runs those that were met at its extents."""
        task, at = self._loaded.plan.host[number], frame.at
        if at is None or self._many is None:
            return task, self._launches
        if number not in at.tasks:
            at.tasks[number] = self._many.task(task, at)
        return at.tasks[number], at.launches

    def _failure(self, at: At | None, number: int, index: int) -> IndexRangeError:
        """Return the error for an index."""
        if at is None or self._many is None:
            return self._index_error(number, index)
        return self._many.index_error(at, number, index)

    def _array(
        self,
        frame: Frame,
        inputs: Sequence[Array],
        results: Sequence[Array],
        where: Address,
        type_: TensorType,
    ) -> Array:
        """An array over memory of the program: whole inputs and results are handed over as such."""
        while where.base in self._sums:
            base, entry = self._sums[where.base]
            where = Address(base, where.offset + int(frame.bases[entry]))
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
            memory = self._loaded.constants
            if base > n + len(results) and frame.arena is not None:
                memory = frame.arena.buffer
            known = frame.views[where, type_] = _view(memory.bytes, where, type_)
        return known


def _split(task: HostTask, frozen: Sequence[bool]) -> Split:
    """The operands of a segment that are not frozen, and those that are."""
    pairs = list(zip(task.inputs, frozen, strict=True))
    return [o for o, yes in pairs if not yes], [o for o, yes in pairs if yes]


def _view(memory: Array, where: Address, type_: TensorType) -> Array:
    """A part of the program's memory as an array."""
    raw = memory.reshape(-1).view(np.uint8)
    shape = extents(type_)
    part = raw[where.offset : where.offset + type_.nbytes]
    made: Array = part.view(type_.dtype.numpy).reshape(shape)
    return made
