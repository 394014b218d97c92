"""A simulated device: memory that only its own threads may touch, and work that comes late.

One array is all its memory. Threads of streams do all that reads or writes it, in the order of
submission, after random delays; anybody else who asks for it gets `Protected`. Fresh and freed
memory is poisoned, and blocks are handed out again as soon as they are free, so that whoever reads
too early or too late gets wrong results and not lucky ones.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.backends.api import Device, DeviceInfo, DeviceLost, Event, Stream

FRESH, GONE = 0xCB, 0xDD
ADDRESS = 0x10_0000
"""Of the first byte; device addresses mean nothing on the host."""


class Protected(Exception):
    """The host reached for memory of the device."""


class SimBuffer:
    """A handle: where the memory is, and nothing that is in it."""

    __slots__ = ("alive", "nbytes", "offset", "root")

    def __init__(self, offset: int, nbytes: int, root: SimBuffer | None = None) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.alive = True
        self.root = self if root is None else root

    def __array__(self, *_: Any) -> Any:
        raise Protected("NumPy reached for memory of the device")

    def __len__(self) -> int:
        raise Protected("somebody counts memory of the device")

    def __getitem__(self, _: Any) -> Any:
        raise Protected("somebody indexes memory of the device")


class SimEvent:
    """A point in a stream's work."""

    def __init__(self) -> None:
        self._reached = threading.Event()

    def reach(self) -> None:
        self._reached.set()

    def done(self) -> bool:
        return self._reached.is_set()

    def wait(self) -> None:
        self._reached.wait()


class SimStream:
    """A thread that does what was submitted, one after another, when it gets around to it."""

    def __init__(self, device: SimDevice) -> None:
        self.device = device
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._random = random.Random(device.index)
        self.thread = threading.Thread(target=self._loop, daemon=True, name=device.info.name)
        self.thread.start()

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            if self._random.random() < self.device.naps:
                time.sleep(self._random.random() * self.device.delay)
            try:
                work()
            except Exception as error:
                self.device.error = self.device.error or error

    def submit(self, work: Callable[[], None]) -> None:
        self.device.check()
        self._work.put(work)

    def record(self) -> Event:
        event = SimEvent()
        self.submit(event.reach)
        return event

    def wait(self, event: Event, /) -> None:
        self.submit(event.wait)

    def synchronize(self) -> None:
        self.record().wait()
        self.device.check()

    def stop(self) -> None:
        self._work.put(None)
        self.thread.join()


class SimDevice(Device):
    """One device of `capacity` bytes.

    Its streams nap before a share `naps` of what they do, for `delay` seconds at most.
    """

    naps = 0.2

    def __init__(self, index: int, capacity: int = 1 << 23, delay: float = 2e-4) -> None:
        self.info = DeviceInfo(f"sim {index}", memory=capacity, features=("float32", "int32"))
        self.index = index
        self.capacity = capacity
        self.delay = delay
        self.error: Exception | None = None
        self.lost = ""
        self.launches = 0
        self._memory = np.full(capacity, FRESH, np.uint8)
        self._free: list[tuple[int, int]] = [(0, capacity)]
        self._streams: list[SimStream] = []

    # -- memory --------------------------------------------------------------------------------

    def alloc(self, nbytes: int, /) -> SimBuffer:
        self.check()
        size = self.rounded(nbytes)
        for i, (offset, room) in enumerate(self._free):
            if room >= size:
                self._free[i : i + 1] = [(offset + size, room - size)] if room > size else []
                return SimBuffer(offset, nbytes)
        raise MemoryError(f"no room for {nbytes} bytes")

    def rounded(self, nbytes: int) -> int:
        """What a block takes, so that the next one starts at a multiple of 64 bytes."""
        return -(-nbytes // 64) * 64

    def free(self, buffer: SimBuffer, /) -> None:
        assert buffer.alive and buffer.root is buffer, "freed twice, or a part is freed"
        buffer.alive = False
        if self.lost:
            return
        # The memory is free for later submissions at once: those run after what uses it now.
        self.default.submit(lambda: self.poison(buffer))
        self.give_back(buffer.offset, self.rounded(buffer.nbytes))

    def poison(self, buffer: SimBuffer) -> None:
        """Spoil what is freed."""
        self.at(buffer, buffer.nbytes)[:] = GONE

    def give_back(self, offset: int, size: int) -> None:
        """Join a piece with free ones beside it; the smallest offset is handed out first."""
        merged: list[tuple[int, int]] = []
        for start, room in sorted([*self._free, (offset, size)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = merged[-1][0], merged[-1][1] + room
            else:
                merged.append((start, room))
        self._free = merged

    def memory(self) -> tuple[int, int]:
        return self.capacity, sum(room for _, room in self._free)

    def address(self, buffer: SimBuffer, /) -> int:
        return ADDRESS + buffer.offset

    def part(self, buffer: SimBuffer, offset: int, nbytes: int, /) -> SimBuffer:
        assert buffer.root.alive and offset + nbytes <= self.rounded(buffer.nbytes)
        return SimBuffer(buffer.offset + offset, nbytes, buffer.root)

    def at(self, buffer: SimBuffer, nbytes: int) -> np.ndarray[Any, Any]:
        """The memory behind a handle, for threads of streams only."""
        if threading.current_thread() not in _WORKERS:
            raise Protected("memory of the device is touched by a thread that is not its own")
        assert nbytes <= self.rounded(buffer.nbytes), "behind the end of a block"
        return self._memory[buffer.offset : buffer.offset + nbytes]

    def view(self, buffer: SimBuffer, dtype: Any, shape: Any) -> np.ndarray[Any, Any]:
        """The same as an array."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self.at(buffer, size).view(dtype).reshape(shape)

    # -- movement ------------------------------------------------------------------------------

    @property
    def default(self) -> SimStream:
        """The first stream."""
        return self._streams[0] if self._streams else self.stream()

    def stream(self) -> SimStream:
        return self.add(SimStream(self))

    def add(self, made: SimStream) -> SimStream:
        """Keep a stream, whose thread may touch the memory from now on."""
        self._streams.append(made)
        _WORKERS.add(made.thread)
        return made

    def copy_in(self, dst: SimBuffer, src: memoryview, stream: Stream, /) -> None:
        self.alive(dst)
        data = np.frombuffer(src, np.uint8).copy()
        self.submit(stream, lambda: self._put(dst, data))

    def _put(self, dst: SimBuffer, data: np.ndarray[Any, Any]) -> None:
        self.at(dst, data.nbytes)[:] = data

    def copy_out(self, dst: memoryview, src: SimBuffer, stream: Stream, /) -> None:
        self.alive(src)
        into = np.frombuffer(dst, np.uint8)
        got: list[np.ndarray[Any, Any]] = []
        self.submit(stream, lambda: got.append(self.at(src, into.nbytes).copy()))
        stream.synchronize()
        into[:] = got[0]

    def fill(self, buffer: SimBuffer, value: int, nbytes: int, stream: Stream, /) -> None:
        self.alive(buffer)
        self.submit(stream, lambda: self._spread(buffer, value, nbytes))

    def _spread(self, buffer: SimBuffer, value: int, nbytes: int) -> None:
        self.at(buffer, nbytes)[:] = value

    def copy_peer(
        self, dst: SimBuffer, source: Device, src: SimBuffer, nbytes: int, stream: Stream, /
    ) -> None:
        assert isinstance(source, SimDevice)
        source.check()
        self.submit(stream, lambda: self._fetch(dst, source, src, nbytes))

    def _fetch(self, dst: SimBuffer, source: SimDevice, src: SimBuffer, nbytes: int) -> None:
        self.at(dst, nbytes)[:] = source.at(src, nbytes)

    def submit(self, stream: Stream, work: Callable[[], None]) -> None:
        """Have a stream do something."""
        assert isinstance(stream, SimStream)
        stream.submit(work)

    def alive(self, buffer: SimBuffer) -> None:
        """Freed memory must not be used by what is submitted now."""
        assert buffer.root.alive, "freed memory is used"

    # -- the end -------------------------------------------------------------------------------

    def lose(self, why: str = "unplugged") -> None:
        """From now on everything fails."""
        self.lost = why

    def check(self) -> None:
        """Raise what went wrong meanwhile."""
        if self.lost:
            raise DeviceLost(self.info.name, self.lost)
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def close(self) -> None:
        self.lost = self.lost or "closed"
        for stream in self._streams:
            stream.stop()
            _WORKERS.discard(stream.thread)


_WORKERS: set[threading.Thread] = set()
