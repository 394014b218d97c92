"""Devices with one mistake each."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import numpy as np
from tests.sim.backend import Sim
from tests.sim.device import SimBuffer, SimDevice, SimEvent, SimStream
from tests.sim.mutation import device, mutation

from treadle.backends.api import Availability

# -- memory ------------------------------------------------------------------------------------


@device("device/no_leak")
class KeepsWhatIsFreed(SimDevice):
    def give_back(self, offset: int, size: int) -> None:
        if size < 1 << 12:
            super().give_back(offset, size)


@device("device/blocks_lie_apart")
class GivesMemoryOutTwice(SimDevice):
    def give_back(self, offset: int, size: int) -> None:
        super().give_back(offset, size + 64)


@device("device/blocks_lie_apart")
class RoundsBlocksDown(SimDevice):
    def rounded(self, nbytes: int) -> int:
        return max(nbytes // 64 * 64, 64)

    def at(self, buffer: SimBuffer, nbytes: int) -> np.ndarray[Any, Any]:
        return self._memory[buffer.offset : buffer.offset + nbytes]


@device("device/alignment")
class AlignsToSixteenBytes(SimDevice):
    def rounded(self, nbytes: int) -> int:
        return -(-nbytes // 16) * 16


@device("device/out_of_memory")
class RaisesRuntimeErrorWhenFull(SimDevice):
    def alloc(self, nbytes: int, /) -> SimBuffer:
        try:
            return super().alloc(nbytes)
        except MemoryError as error:
            raise RuntimeError("CL_MEM_OBJECT_ALLOCATION_FAILURE") from error


@device("device/out_of_memory")
class GivesLessThanWasAskedFor(SimDevice):
    def alloc(self, nbytes: int, /) -> SimBuffer:
        return super().alloc(min(nbytes, 1 << 20))


@device("device/out_of_memory")
class NeverRecoversFromBeingFull(SimDevice):
    full = False

    def alloc(self, nbytes: int, /) -> SimBuffer:
        try:
            if self.full:
                raise MemoryError
            return super().alloc(nbytes)
        except MemoryError:
            self.full = nbytes < self.capacity
            raise


@device("device/memory_figures")
class SaysMoreMemoryIsFreeThanThereIs(SimDevice):
    def memory(self) -> tuple[int, int]:
        return self.capacity, 2 * self.capacity


@device("device/memory_figures")
class AlwaysSaysThatAllMemoryIsFree(SimDevice):
    def memory(self) -> tuple[int, int]:
        return self.capacity, self.capacity


@device("device/several_threads")
class KeepsOneBounceBufferForAllThreads(SimDevice):
    bounce = np.zeros(1 << 20, np.uint8)

    def copy_in(self, dst: SimBuffer, src: memoryview, stream: Any, /) -> None:
        n = src.nbytes
        self.bounce[:n] = np.frombuffer(src, np.uint8)
        time.sleep(2e-4)
        super().copy_in(dst, self.bounce[:n].data, stream)


@mutation("device/every_device_opens")
def counts_devices_it_does_not_have() -> Sim:
    class Boasts(Sim):
        def open(self, index: int, /) -> SimDevice:
            if index >= 2:
                raise IndexError(f"no device {index}")
            return super().open(index)

    return Boasts(count=3)


@mutation("device/probe_is_stable")
def probes_differently_each_time() -> Sim:
    class Moody(Sim):
        asked = 0

        def probe(self) -> Availability:
            self.asked += 1
            return Availability(True, "simulated", 1 + self.asked % 2)

    return Moody()


# -- movement ----------------------------------------------------------------------------------


@device("movement/copy_in_writes_its_bytes_only")
class CopiesOneByteTooFew(SimDevice):
    def copy_in(self, dst: SimBuffer, src: memoryview, stream: Any, /) -> None:
        super().copy_in(dst, src[: max(src.nbytes - 1, 1)], stream)


@device("movement/copy_in_writes_its_bytes_only")
class CopiesWholeWords(SimDevice):
    def copy_in(self, dst: SimBuffer, src: memoryview, stream: Any, /) -> None:
        super().copy_in(dst, memoryview(bytes(src) + bytes(-src.nbytes % 4)), stream)


@device("movement/copy_out_fills_its_memory_only")
class CopiesOutHalf(SimDevice):
    def copy_out(self, dst: memoryview, src: SimBuffer, stream: Any, /) -> None:
        super().copy_out(dst[: max(dst.nbytes // 2, 1)], src, stream)


@device("movement/fill")
class FillsWithZeroWhateverTheValue(SimDevice):
    def fill(self, buffer: SimBuffer, value: int, nbytes: int, stream: Any, /) -> None:
        super().fill(buffer, 0, nbytes, stream)


@device("movement/fill")
class FillsTheWholeBlock(SimDevice):
    def fill(self, buffer: SimBuffer, value: int, nbytes: int, stream: Any, /) -> None:
        super().fill(buffer, value, buffer.nbytes, stream)


@device("movement/source_is_free_after_copy_in")
class ReadsTheSourceLater(SimDevice):
    def copy_in(self, dst: SimBuffer, src: memoryview, stream: Any, /) -> None:
        data = np.frombuffer(src, np.uint8)
        self.submit(stream, lambda: self._put(dst, data))


@device("movement/data_is_there_after_copy_out")
class ReturnsBeforeTheDataIsThere(SimDevice):
    def copy_out(self, dst: memoryview, src: SimBuffer, stream: Any, /) -> None:
        into = np.frombuffer(dst, np.uint8)

        def work() -> None:
            into[:] = self.at(src, into.nbytes)

        self.submit(stream, work)


@device("movement/copies_are_fresh")
class KeepsStaleHostCopies(SimDevice):
    def copy_out(self, dst: memoryview, src: SimBuffer, stream: Any, /) -> None:
        known = self.__dict__.setdefault("known", {})
        if (src, dst.nbytes) not in known:
            super().copy_out(dst, src, stream)
            known[src, dst.nbytes] = bytes(dst)
        dst[:] = known[src, dst.nbytes]


@device("movement/order_in_a_stream")
class FillsAtOnce(SimDevice):
    def _spread_now(self, buffer: SimBuffer, value: int, nbytes: int) -> None:
        self._memory[buffer.offset : buffer.offset + nbytes] = value

    def fill(self, buffer: SimBuffer, value: int, nbytes: int, stream: Any, /) -> None:
        self._spread_now(buffer, value, nbytes)


class DeafStream(SimStream):
    def wait(self, event: Any, /) -> None:
        pass


@device("movement/streams_wait_for_events")
class SkipsWaitsForEvents(SimDevice):
    def stream(self) -> SimStream:
        return self.add(DeafStream(self))


@device("movement/between_devices")
class CopiesFromPeersTooEarly(SimDevice):
    def stream(self) -> SimStream:
        return self.add(DeafStream(self))


class HastyEvent(SimEvent):
    def wait(self) -> None:
        pass


class HastyStream(SimStream):
    def record(self) -> Any:
        event = HastyEvent()
        self.submit(event.reach)
        return event

    def synchronize(self) -> None:
        event = SimEvent()
        self.submit(event.reach)
        event.wait()
        self.device.check()


@device("movement/events")
class EventsDoNotWait(SimDevice):
    def stream(self) -> SimStream:
        return self.add(HastyStream(self))


class NeverDone(SimEvent):
    def done(self) -> bool:
        return False


class EndlessStream(SimStream):
    def record(self) -> Any:
        event = NeverDone()
        self.submit(event.reach)
        return event


@device("movement/events")
class EventsAreNeverDone(SimDevice):
    def stream(self) -> SimStream:
        return self.add(EndlessStream(self))


@device("movement/parts")
class PartsStartAtTheBeginning(SimDevice):
    def part(self, buffer: SimBuffer, offset: int, nbytes: int, /) -> SimBuffer:
        return super().part(buffer, 0, nbytes)


@device("movement/between_devices")
class FetchesTooMuchFromPeers(SimDevice):
    def _fetch(self, dst: SimBuffer, source: SimDevice, src: SimBuffer, nbytes: int) -> None:
        super()._fetch(dst, source, src, nbytes // 2)


# -- isolation ---------------------------------------------------------------------------------


class OvertakingQueue:
    """A queue of work in which what is put early comes before the last piece that still waits."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()
        self._changed = threading.Condition()

    def put(self, work: Any, *, early: bool = False) -> None:
        with self._changed:
            self._waiting.insert(len(self._waiting) - early if self._waiting else 0, work)
            self._changed.notify()

    def get(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            return self._waiting.popleft()


class OvertakenStream(SimStream):
    def __init__(self, device: SimDevice) -> None:
        self.waiting = OvertakingQueue()
        super().__init__(device)

    _work = property(lambda self: self.waiting, lambda self, _: None)  # type: ignore[assignment]


@device("isolation/freed_memory_waits_for_work")
class FreesBeforeWorkIsDone(SimDevice):
    naps = 1.0  # Work waits, however fast the thread is that submits it.

    def stream(self) -> SimStream:
        return self.add(OvertakenStream(self))

    def free(self, buffer: SimBuffer, /) -> None:
        buffer.alive = False
        stream = self.default
        assert isinstance(stream, OvertakenStream)
        stream.waiting.put(lambda: self.poison(buffer), early=True)
        self.give_back(buffer.offset, self.rounded(buffer.nbytes))


class OpenBuffer(SimBuffer):
    __slots__ = ("bytes",)

    def __array__(self, *_: Any) -> Any:
        return self.bytes


@device("isolation/buffers_are_opaque")
class HandsOutReadableMemory(SimDevice):
    def alloc(self, nbytes: int, /) -> SimBuffer:
        made = super().alloc(nbytes)
        readable = OpenBuffer(made.offset, nbytes)
        readable.bytes = self._memory[made.offset : made.offset + nbytes]
        return readable
