"""Tasks that a device program leaves to others: ops to the host's engines, segments to their
compilers.

Operands come down and results go up, unless an engine works on the device's own arrays. What came
down is not asked for again as long as the device has not written there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import numpy as np

from treadle.backends.api import Support, no
from treadle.backends.program import Address, Compiler, Host, Jump
from treadle.base.array import Array
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode
from treadle.engine.eager import fallback
from treadle.engine.execute.host_tasks import IndexFailure, extents, launch_of, unknown_index
from treadle.engine.execute.segments import SegmentLaunch
from treadle.engine.plan import CHECK, HostTask, Plan, Span
from treadle.ops.check import CheckIndices
from treadle.ops.op import as_tuple
from treadle.runtime.array import DeviceArray, to_host
from treadle.runtime.opened import MemoryBlock, OpenDevice, copy_within

_Place = tuple[Address, TensorType]


@dataclass(slots=True)
class Visit:
    """One run of a program, as its host tasks see it.

    Attributes:
        device: where it runs.
        memories: an array for every base.
        rows: of the fallback report, by task; None for segments.
        version: names the frozen inputs: as long as it is the same object, so are they.
        held: what came down, or was made, and is still what the device has.
        seconds: that the host took.
        copies, copied: values that were brought down or up, and their bytes.
    """

    device: OpenDevice
    memories: list[DeviceArray]
    rows: Sequence[fallback.Fallen | None]
    version: object = None
    held: dict[_Place, Array] = field(default_factory=dict)
    seconds: float = 0.0
    copies: int = 0
    copied: int = 0


class DeviceTasks:
    """The host tasks of a program on a device.

    Args:
        plan: of the program.
        where: the device.
        compiler: what refused the ops, and says why.
        segments: what runs the parts that other engines compile, by number of task.
        index_error: what to raise where a check in a region has failed.
    """

    def __init__(
        self,
        plan: Plan,
        where: CompNode,
        compiler: Compiler,
        segments: Mapping[int, SegmentLaunch],
        index_error: IndexFailure = unknown_index,
    ) -> None:
        self._index_error = index_error
        self._plan = plan
        self._where = where
        self._compiler = compiler
        self._segments = segments
        self._launches: dict[int, Callable[..., Any]] = {}
        self._refusals: list[Support] = []
        self._kept = _still_valid(plan)
        self._tasks = plan.tasks
        self._version: tuple[object, list[DeviceArray]] = object(), []

    def visit(
        self, device: OpenDevice, memories: list[DeviceArray], frozen: Sequence[int]
    ) -> Visit:
        """Begin a run: policy may refuse ops before anything is submitted.

        Raises:
            UnsupportedOp: an op is left to the host, which is an error by policy.
        """
        if not self._plan.host:
            return Visit(device, memories, ())
        held = [memories[i] for i in frozen]
        if len(held) != len(self._version[1]) or not all(map(is_, held, self._version[1])):
            self._version = object(), held
        return Visit(device, memories, self._admitted(), self._version[0])

    def _admitted(self) -> list[fallback.Fallen | None]:
        tasks = self._plan.host
        if len(self._refusals) < len(tasks):
            self._refusals = [self._refusal(i, task) for i, task in enumerate(tasks)]
        where, rows = self._where.logical_name, []
        for i, (task, why) in enumerate(zip(tasks, self._refusals, strict=True)):
            own = i in self._segments or task.phase == CHECK
            rows.append(None if own else fallback.admit(task.op.name, where, why))
        return rows

    def _refusal(self, number: int, task: HostTask) -> Support:
        if number not in self._segments:
            types = [TensorType(t.dtype, t.shape) for _, t in task.inputs]
            found = self._compiler.lower(task.op, types)
            if isinstance(found, Support):
                return found
        return no("policy", f"the engine {task.engine} was chosen for it")

    def serve(self, visit: Visit, step: int) -> None:
        """Do the host task at a step."""
        number = self._tasks.get(step)
        if number is None:
            raise CompileError("execute", f"step {step} is not a host task")
        task, segment = self._plan.host[number], self._segments.get(number)
        kept = self._kept.get(step, frozenset())
        visit.held = {place: a for place, a in visit.held.items() if place in kept}
        if isinstance(task.op, CheckIndices) and task.phase == CHECK:
            raise self._index_error(task.op.number, int(self._down(visit, task.inputs[0])[1]))
        began, moved = time.perf_counter(), visit.copied
        if segment is not None and self._where.kind in segment.engine.serves:
            self._on_device(visit, task, segment)
            return
        if segment is not None:
            self._beside(visit, task, segment)
        else:
            if number not in self._launches:
                self._launches[number] = launch_of(task)
            operands = [self._down(visit, place) for place in task.inputs]
            results = as_tuple(self._launches[number](*operands))
            for place, result in zip(task.outputs, results, strict=True):
                self._up(visit, place, result)
        seconds = time.perf_counter() - began
        visit.seconds += seconds
        row = visit.rows[number]
        if row is not None:
            fallback.count(row, visit.copied - moved, seconds)

    # -- on the host -----------------------------------------------------------------------

    def _beside(self, visit: Visit, task: HostTask, segment: SegmentLaunch) -> None:
        """Run a segment on an engine of the host."""
        given, fixed = _split(task, segment.frozen)
        results = segment.results(
            [self._down(visit, place) for place in given],
            lambda: [visit.memories[at.base].host().reshape(extents(t)) for at, t in fixed],
            version=visit.version,
        )
        for place, result in zip(task.outputs, results, strict=True):
            self._up(visit, place, to_host(result))

    def _down(self, visit: Visit, place: _Place) -> Array:
        """A value of the device on the host; an argument of the program keeps its copy."""
        if place in visit.held:
            return visit.held[place]
        (at, type_), whole = place, self._whole(visit, place)
        if whole is not None and at.base < self._plan.inputs:
            if not whole.on_host:
                _count(visit, whole.nbytes)
            found = whole.host()
        else:
            found = np.empty(extents(type_), type_.dtype.numpy)
            visit.device.download(visit.memories[at.base].block, found, int(at.offset))
            _count(visit, found.nbytes)
        visit.held[place] = found
        return found

    def _up(self, visit: Visit, place: _Place, result: Any) -> None:
        at, type_ = place
        array = np.asarray(result, type_.dtype.numpy)
        visit.device.write(array, visit.memories[at.base].block, int(at.offset))
        _count(visit, array.nbytes)
        visit.held[place] = array

    def _whole(self, visit: Visit, place: _Place) -> DeviceArray | None:
        """The array that a value is, where it is one by itself."""
        (at, type_), given = place, visit.memories[place[0].base]
        same = given.shape == extents(type_) and given.dtype == type_.dtype.numpy
        return given if same and not at.offset else None

    # -- on the device ---------------------------------------------------------------------

    def _on_device(self, visit: Visit, task: HostTask, segment: SegmentLaunch) -> None:
        """Run a segment on an engine of the device, in its memory."""
        given, fixed = _split(task, segment.frozen)
        targets = [self._seen(visit, place) for place in task.outputs]
        results = segment.results(
            [self._seen(visit, place) for place in given],
            lambda: [self._seen(visit, place) for place in fixed],
            targets,
            visit.version,
        )
        for place in task.outputs:
            visit.held.pop(place, None)
        if results is not targets:
            for place, result in zip(task.outputs, results, strict=True):
                self._taken(visit, place, result)

    def _seen(self, visit: Visit, place: _Place) -> DeviceArray:
        """A value as an array over memory of the program, which owns it."""
        whole = self._whole(visit, place)
        if whole is not None:
            return whole
        (at, type_), device = place, visit.device
        memory, shape = visit.memories[at.base].block, extents(type_)
        if not type_.nbytes:
            return DeviceArray(device, type_.dtype.numpy, shape, device.alloc(0))
        # The device does not know this block, and frees nothing when its array goes.
        part = MemoryBlock(device.piece(memory, int(at.offset), type_.nbytes), type_.nbytes)
        return DeviceArray(device, type_.dtype.numpy, shape, part)

    def _taken(self, visit: Visit, place: _Place, result: Any) -> None:
        """Put a result where the program wants it; one that is a result of the program stays."""
        (at, type_), device = place, visit.device
        if type(result) is not DeviceArray or result.device is not device:
            self._up(visit, place, to_host(result))
        elif self._whole(visit, place) is not None and self._is_result(at):
            visit.memories[at.base] = result
        elif copy_within(device, result.block, visit.memories[at.base].block, int(at.offset)):
            _count(visit, type_.nbytes)
        else:
            _count(visit, type_.nbytes)
            self._up(visit, place, result.host())

    def _is_result(self, at: Address) -> bool:
        """Return whether a place is in the memory of one of the program's results."""
        first = self._plan.inputs
        return first <= at.base < first + self._plan.outputs


def _count(visit: Visit, nbytes: int) -> None:
    visit.copies += 1
    visit.copied += nbytes


def _split(task: HostTask, frozen: Sequence[bool]) -> tuple[list[_Place], list[_Place]]:
    """The operands of a segment that are not frozen, and those that are."""
    pairs = list(zip(task.inputs, frozen, strict=True))
    return [o for o, yes in pairs if not yes], [o for o, yes in pairs if yes]


def _still_valid(plan: Plan) -> dict[int, frozenset[_Place]]:
    """Return for each host task's step the places that still hold what earlier tasks left there.

    Nothing is known of plans with jumps, and of those out of the cache, which have no facts.
    """
    jumps = any(isinstance(step, Jump) for step in plan.steps)
    if jumps or len(plan.facts) != len(plan.steps):
        return {}
    found, valid = {}, set[_Place]()
    for number, (step, facts) in enumerate(zip(plan.steps, plan.facts, strict=True)):
        if isinstance(step, Host):
            task = plan.host[step.task]
            found[number] = frozenset(valid)
            valid = {p for p in valid if not _is_written(p, [_span(q) for q in task.outputs])}
            valid.update(task.inputs, task.outputs)
            continue
        valid = {p for p in valid if not _is_written(p, facts.writes)}
    return found


def _span(place: _Place) -> Span:
    at, type_ = place
    return Span(at.base, at.offset, type_.nbytes)


def _is_written(place: _Place, writes: Sequence[Span]) -> bool:
    return any(_span(place).meets(span) for span in writes)
