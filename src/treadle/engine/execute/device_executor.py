"""`DeviceExecutor`: runs a loaded program on the memory of a device.

Inputs, results and state are blocks of the device. State is never overwritten: every run has new
blocks for all results, and handles take them when the run has been submitted as a whole. A run that
fails in the middle therefore leaves everything as it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.program import Compiler, DeviceExecutable, WatchedExecutable
from treadle.base.array import Array
from treadle.base.errors import (
    DeviceError,
    DeviceLost,
    EngineError,
    OutOfMemory,
    TreadleError,
)
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode
from treadle.engine.eager import tally
from treadle.engine.execute.counters import Counters, Tally, total
from treadle.engine.execute.device_clock import Clock, clock_of
from treadle.engine.execute.device_tasks import DeviceTasks
from treadle.engine.execute.host_tasks import IndexFailure, extents, unknown_index
from treadle.engine.execute.segments import SegmentLaunch
from treadle.engine.plan import Loaded
from treadle.graph.index_findings import finding
from treadle.runtime.array import DeviceArray, to_device
from treadle.runtime.opened import OpenDevice
from treadle.runtime.synchronous import SYNCHRONOUS

_SMALL = 64
"""Bytes up to which a host array is compared with the one of the run before."""


class _Frame:
    """Memory of a program on a device besides inputs and results."""

    def __init__(self, device: OpenDevice, loaded: Loaded[DeviceExecutable]) -> None:
        plan = loaded.plan
        self.device = device
        self.constants = _bytes(device, plan.constants.nbytes)
        if plan.constants.nbytes:
            constants = loaded.constants.bytes[: plan.constants.nbytes]
            device.write(constants, self.constants.block, 0)
        self.kept = _bytes(device, plan.kept)
        self.arena = _bytes(device, plan.memory.peak)
        self.packed: list[DeviceArray] | None = None
        """The frozen inputs that `kept` was made of."""
        self.given: dict[int, tuple[Array, DeviceArray]] = {}
        """Small host arrays of the last run and their copies, by number of input."""


def _bytes(device: OpenDevice, nbytes: int) -> DeviceArray:
    """Memory that goes with its holder."""
    return DeviceArray(device, np.dtype(np.uint8), (nbytes,), device.alloc(nbytes))


class DeviceExecutor:
    """Runs a loaded program on a device.

    One frame serves all runs: a stream runs them one after the other, and threads submit in turn.

    Args:
        name: of the program, for messages.
        loaded: the program.
        results: types of the outputs, in order.
        where: the device.
        compiler: what refused the ops that are left to the host, and says why.
        frozen: inputs that the prelude packs; it runs again when one of them is another array.
        segments: what runs the parts that other engines compile, by number of task.
        reports: the last result is what the program's checks of indices found; it is looked at when
            somebody waits for the device, or after some more runs.
        index_error: what to raise then.
    """

    def __init__(
        self,
        name: str,
        loaded: Loaded[DeviceExecutable],
        results: Sequence[TensorType],
        where: CompNode,
        compiler: Compiler,
        frozen: Sequence[int] = (),
        segments: Mapping[int, SegmentLaunch] | None = None,
        *,
        reports: bool = False,
        index_error: IndexFailure = unknown_index,
    ) -> None:
        self._reports, self._index_error = reports, index_error
        self.loaded = loaded
        self._name = name
        self._where = where
        self._tasks = DeviceTasks(loaded.plan, where, compiler, segments or {}, index_error)
        self._fixed = tuple(frozen)
        self._results = [(t.dtype.numpy, extents(t), t.nbytes) for t in results]
        # State, which comes last, is placed first: what callers keep does not move it about.
        self._backward = self._results[::-1]
        self._frozen = tuple(frozen) if loaded.prelude is not None else ()
        self._frame: _Frame | None = None
        self._tally = Tally()
        self._elsewhere = 0.0
        """Seconds of the last run that the host's engines took."""
        self._copies = [0, 0]
        self._lock = threading.Lock()

    @property
    def peak(self) -> int:
        """Bytes of scratch memory that one run needs."""
        return self.loaded.plan.memory.peak

    @property
    def counters(self) -> Counters:
        """Cost of all runs so far at the program's border."""
        made = total([self._tally], self.loaded.plan.launches)
        copies, copied = self._copies
        return replace(made, copies=copies, copied=copied)

    def run(
        self, inputs: Sequence[Any], varying: int = 0, version: object = None
    ) -> list[DeviceArray]:
        """Submit one run; nothing that is passed changes.

        Args:
            inputs: arrays of the program's input types, on this device or on the host.
            varying, version: as for programs of the host; arrays are told apart by themselves.

        Returns:
            New arrays on the device, one per result.

        Raises:
            OutOfMemory: the device has no room; nothing has changed.
            DeviceError: the device failed; no handle has changed.
            UnsupportedOp: an op is left to the host, which is an error by policy.
            IndexRangeError: an index of an earlier run was out of range; see `reports`.
        """
        device, row = self._where.open(), tally.ran(self._name, self._where.logical_name)
        began = time.perf_counter()
        with self._translated(device):
            with self._lock:
                results = self._run(device, inputs)
                row.calls += 1
                row.seconds += time.perf_counter() - began - self._elsewhere
            device.recent.append(self._name)
            if self._reports:
                device.later.add(partial(self._look, results.pop()))
            if SYNCHRONOUS.on:
                device.synchronize()
            return results

    def _look(self, statuses: DeviceArray) -> None:
        """Raise where a run has found an index that is out of range."""
        found = finding(statuses.host())
        if found is not None:
            raise self._index_error(*found)

    def profile(self, inputs: Sequence[Any], repeats: int = 1) -> tuple[str, npt.NDArray[np.int64]]:
        """Run a few times and measure every step, host tasks included; nothing changes.

        Returns:
            What told the time; for each run and step of the plan four numbers, as in
            `Executable.profile`.

        Raises:
            EngineError: the program cannot be watched, see `WatchedExecutable`.
            DeviceError: the device failed.
        """
        device, steps = self._where.open(), len(self.loaded.plan.steps)
        if not self.is_watched:
            raise EngineError("profile", f"programs of {device.name} cannot be watched")
        times = np.zeros((repeats, steps, 4), np.int64)
        with self._translated(device), self._lock, clock_of(device) as clock:
            for run in times:
                self._run(device, inputs, clock)
                run[:] = clock.rows(steps)
        return clock.name, times

    @property
    def device(self) -> OpenDevice:
        """Device that it runs on."""
        return self._where.open()

    @property
    def is_watched(self) -> bool:
        """True if single steps can be measured."""
        return isinstance(self.loaded.main, WatchedExecutable)

    @contextmanager
    def _translated(self, device: OpenDevice) -> Iterator[None]:
        """Turn what goes wrong inside into errors that name the program and the device."""
        try:
            yield
        except MemoryError as error:
            raise self._no_room(device, error) from error
        except DeviceLost as error:
            raise device.failed(error) from error
        except TreadleError:
            raise
        except Exception as error:
            raise DeviceError(
                self._name,
                f"{device.name} failed in the middle of it: {type(error).__name__}: {error}",
                hint="tensors are as they were before the call",
            ) from error

    def close(self) -> None:
        """Give the program's memory back; running again allocates anew."""
        with self._lock:
            self._frame = None

    def _run(
        self, device: OpenDevice, inputs: Sequence[Any], clock: Clock | None = None
    ) -> list[DeviceArray]:
        if self._frame is None or self._frame.device is not device:
            self._frame = _Frame(device, self.loaded)
        frame = self._frame
        placed = [self._placed(frame, i, x) for i, x in enumerate(inputs)]
        visit = self._tasks.visit(device, list(placed), self._fixed)
        made = [DeviceArray(device, d, s, device.alloc(n)) for d, s, n in self._backward]
        made.reverse()
        visit.memories += [*made, frame.constants, frame.kept, frame.arena]
        bases = [m.buffer for m in visit.memories]
        self._pack(frame, placed, bases)
        if clock is not None:
            clock.begin()
        reached = self._submitted(device, bases, 0, clock)
        while reached >= 0:
            serve = partial(self._tasks.serve, visit, reached)
            serve() if clock is None else clock.host(reached, serve)
            self._tally.entries += 1
            bases = [m.buffer for m in visit.memories]
            reached = self._submitted(device, bases, reached + 1, clock)
        self._elsewhere = visit.seconds
        self._copies = [self._copies[0] + visit.copies, self._copies[1] + visit.copied]
        self._tally.entries += 1
        self._tally.iterations += 1
        self._tally.transfers += len(inputs) + len(made)
        return visit.memories[len(inputs) : len(inputs) + len(made)]

    def _submitted(
        self, device: OpenDevice, bases: Sequence[Any], start: int, clock: Clock | None
    ) -> int:
        """Submit what follows from a step on; the host task that was reached."""
        main, raw, stream = self.loaded.main, device.raw, device.stream
        if clock is not None and isinstance(main, WatchedExecutable):
            return main.run_watched(raw, stream, bases, start, clock.watch)
        return main.run(raw, stream, bases, start)

    def _placed(self, frame: _Frame, i: int, given: Any) -> DeviceArray:
        """An input on the device; numbers that Python gives again are not copied again."""
        if type(given) is DeviceArray and given.device is frame.device:
            return given
        if isinstance(given, np.ndarray) and given.nbytes <= _SMALL:
            known = frame.given.get(i)
            if known is not None and known[0].tobytes() == given.tobytes():
                return known[1]
            kept = given.copy()  # Whoever gave it may change it.
            frame.given[i] = kept, to_device(kept, frame.device)
            return frame.given[i][1]
        return to_device(given, frame.device)

    def _pack(self, frame: _Frame, inputs: Sequence[DeviceArray], bases: Sequence[Any]) -> None:
        """Run the prelude where a frozen input is another array than that it ran with."""
        prelude = self.loaded.prelude
        if prelude is None:
            return
        wanted = [inputs[i] for i in self._frozen]
        if frame.packed is not None and all(map(is_, frame.packed, wanted)):
            return
        frame.packed = None
        prelude.run(frame.device.raw, frame.device.stream, bases)
        frame.packed = wanted

    def _no_room(self, device: OpenDevice, error: MemoryError) -> OutOfMemory:
        why = error if isinstance(error, OutOfMemory) else OutOfMemory(device.name, str(error))
        plan = self.loaded.plan
        needs = plan.memory.peak + sum(nbytes for *_, nbytes in self._results)
        saw = f"the program needs {needs} bytes besides inputs and constants"
        return OutOfMemory(
            self._name,
            f"{device.name} {why.problem}",
            saw="; ".join(part for part in (saw, why.saw) if part),
            hint="use smaller batches; tensors are as they were before the call",
        )
