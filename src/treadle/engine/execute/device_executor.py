"""`DeviceExecutor`: runs a loaded program on the memory of a device.

Inputs, results and state are blocks of the device. State is never overwritten: every run has new
blocks for all results, and handles take them when the run has been submitted as a whole. A run that
fails in the middle therefore leaves everything as it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.api import Support, no
from treadle.backends.program import Compiler, DeviceExecutable, Host
from treadle.base.errors import CompileError, DeviceError, DeviceLost, OutOfMemory, TreadleError
from treadle.base.types import TensorType
from treadle.engine import fallback, tally
from treadle.engine.devices import CompNode
from treadle.engine.execute.counters import Counters, Tally, total
from treadle.engine.execute.host_tasks import extents, launch_of
from treadle.engine.plan import HostTask, Loaded
from treadle.ops.op import as_tuple
from treadle.runtime.array import DeviceArray, to_device
from treadle.runtime.opened import Block, OpenDevice
from treadle.runtime.synchronous import SYNCHRONOUS

Array = npt.NDArray[Any]
_SMALL = 64
"""Bytes up to which a host array is compared with the one of the run before."""


class _Frame:
    """What a program has on a device besides inputs and results."""

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
    """

    def __init__(
        self,
        name: str,
        loaded: Loaded[DeviceExecutable],
        results: Sequence[TensorType],
        where: CompNode,
        compiler: Compiler,
        frozen: Sequence[int] = (),
    ) -> None:
        self.loaded = loaded
        self._name = name
        self._where = where
        self._compiler = compiler
        self._results = [(t.dtype.numpy, extents(t), t.nbytes) for t in results]
        self._frozen = tuple(frozen) if loaded.prelude is not None else ()
        self._frame: _Frame | None = None
        self._tally = Tally()
        self._elsewhere = 0.0
        """Seconds of the last run that the host's engines took."""
        self._launches: dict[int, Callable[..., Any]] = {}
        self._refusals: list[Support] = []
        self._lock = threading.Lock()

    @property
    def peak(self) -> int:
        """Bytes of scratch memory that one run needs."""
        return self.loaded.plan.memory.peak

    @property
    def counters(self) -> Counters:
        """What all runs so far have cost at the program's border."""
        return total([self._tally], self.loaded.plan.launches)

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
        """
        device, row = self._where.open(), tally.ran(self._name, self._where.logical_name)
        began = time.perf_counter()
        try:
            with self._lock:
                results = self._run(device, inputs)
                row.calls += 1
                row.seconds += time.perf_counter() - began - self._elsewhere
            device.recent.append(self._name)
            if SYNCHRONOUS.on:
                device.synchronize()
            return results
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

    def _run(self, device: OpenDevice, inputs: Sequence[Any]) -> list[DeviceArray]:
        loaded, rows = self.loaded, self._admitted()
        self._elsewhere = 0.0
        if self._frame is None or self._frame.device is not device:
            self._frame = _Frame(device, loaded)
        frame = self._frame
        placed = [self._placed(frame, i, x) for i, x in enumerate(inputs)]
        made = [DeviceArray(device, d, s, device.alloc(n)) for d, s, n in self._results]
        memories = [*placed, *made, frame.constants, frame.kept, frame.arena]
        bases = [m.buffer for m in memories]
        self._pack(frame, placed, bases)
        raw, stream, main = device.raw, device.stream, loaded.main
        reached = main.run(raw, stream, bases)
        while reached >= 0:
            self._serve(device, [m.block for m in memories], reached, rows)
            self._tally.entries += 1
            reached = main.run(raw, stream, bases, reached + 1)
        self._tally.entries += 1
        self._tally.iterations += 1
        self._tally.transfers += len(placed) + len(made)
        return made

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

    # -- what is left to the host ----------------------------------------------------------

    def _admitted(self) -> list[fallback.Fallen]:
        """The report's rows of all ops for the host, before anything runs: policy may refuse."""
        tasks = self.loaded.plan.host
        if len(self._refusals) < len(tasks):
            self._refusals = [self._refusal(task) for task in tasks]
        where = self._where.logical_name
        pairs = zip(tasks, self._refusals, strict=True)
        return [fallback.admit(task.op.name, where, why) for task, why in pairs]

    def _refusal(self, task: HostTask) -> Support:
        types = [TensorType(t.dtype, t.shape) for _, t in task.inputs]
        found = self._compiler.lower(task.op, types)
        if isinstance(found, Support):
            return found
        return no("policy", f"the engine {task.engine} was chosen for it")

    def _serve(
        self,
        device: OpenDevice,
        blocks: Sequence[Block],
        step: int,
        rows: Sequence[fallback.Fallen],
    ) -> None:
        """Do the host task at a step: operands come down, results go up."""
        halt = self.loaded.plan.steps[step]
        if not isinstance(halt, Host):
            raise CompileError("execute", f"step {step} is no host task")
        task = self.loaded.plan.host[halt.task]
        if halt.task not in self._launches:
            self._launches[halt.task] = launch_of(task)
        began, moved = time.perf_counter(), 0
        operands = []
        for at, type_ in task.inputs:
            operand = np.empty(extents(type_), type_.dtype.numpy)
            device.download(blocks[at.base], operand, at.offset)
            operands.append(operand)
            moved += operand.nbytes
        results = as_tuple(self._launches[halt.task](*operands))
        for result, (at, type_) in zip(results, task.outputs, strict=True):
            device.write(np.asarray(result, type_.dtype.numpy), blocks[at.base], at.offset)
            moved += type_.nbytes
        seconds = time.perf_counter() - began
        self._elsewhere += seconds
        fallback.count(rows[halt.task], moved, seconds)

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
