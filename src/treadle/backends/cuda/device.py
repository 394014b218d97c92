"""A CUDA device: memory, movement and order of work, over a `Gpu`.

Memory comes from the driver's pool in the order of one queue, so that freed memory may still be
used by what was submitted before. Copies between host and device go through pinned memory, piece
by piece: while one piece travels, the next one is copied.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from treadle.backends.api import Device, DeviceInfo, Event, Stream
from treadle.backends.cuda.driver import (
    DriverError,
    Gpu,
    GpuRecording,
    Mark,
    MemoryRegion,
    Queue,
    TimedMark,
)
from treadle.backends.cuda.pool import MemoryPool
from treadle.base.errors import DeviceError, DeviceLost, TreadleError

PIECE = 4 << 20
"""Bytes of a piece of pinned memory."""
PIECES = 4
"""Pieces that are under way at a time, in each direction."""
_LOST = (
    "ILLEGAL_ADDRESS",
    "ILLEGAL_INSTRUCTION",
    "MISALIGNED_ADDRESS",
    "INVALID_PC",
    "INVALID_ADDRESS_SPACE",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "HARDWARE_STACK",
    "ECC_UNCORRECTABLE",
    "CONTEXT_IS_DESTROYED",
    "DEVICE_UNAVAILABLE",
    "SYSTEM_NOT_READY",
    "ASSERT",
)
"""Errors of the driver after which nothing in the process can use the device any more."""
_FORKED = [0]
_R = TypeVar("_R")


def _count_fork() -> None:
    _FORKED[0] += 1


os.register_at_fork(after_in_child=_count_fork)


class CudaMemory:
    """Memory of a device, or a part of it."""

    __slots__ = ("address", "nbytes", "region")

    def __init__(self, address: int, nbytes: int, region: MemoryRegion | None) -> None:
        self.address = address
        self.nbytes = nbytes
        self.region = region

    def __repr__(self) -> str:
        return f"Memory({self.nbytes} bytes at {self.address:#x})"


class CudaEvent:
    """A place in a stream, which knows when it was reached."""

    __slots__ = ("device", "mark")

    def __init__(self, device: CudaDevice, mark: TimedMark) -> None:
        self.device = device
        self.mark = mark

    def done(self) -> bool:
        return self.device.call(self.mark.done)

    def wait(self) -> None:
        self.device.wait_for(self.mark)

    def since(self, start: Event, /) -> float:
        """Return the seconds from `start`, an earlier event of this device, to this one."""
        if not isinstance(start, CudaEvent) or start.device is not self.device:
            raise TypeError(f"a {type(start).__name__} is an event of another device")
        return self.device.call(lambda: self.mark.since(start.mark))


class CudaStream:
    """A queue of a device, with the scratch memory of the kernels in it.

    Attributes:
        lock: held by who asks for scratch memory until what uses it was submitted.
        moves: how often that memory has become another one.
    """

    def __init__(self, device: CudaDevice, queue: Queue) -> None:
        self.device = device
        self.queue = queue
        self.lock = threading.RLock()
        self.moves = 0
        self._scratch: tuple[MemoryRegion, int] | None = None

    def record(self) -> Event:
        return CudaEvent(self.device, self.device.call(self.queue.timed_mark))

    def wait(self, event: Event, /) -> None:
        if isinstance(event, CudaEvent):
            self.device.call(lambda: self.queue.after(event.mark))
        else:
            event.wait()

    def synchronize(self) -> None:
        self.device.watch()
        self.device.call(self.queue.synchronize)

    def scratch(self, nbytes: int) -> int:
        """The address of memory that one launch may use while it runs; launches run in turn."""
        with self.lock:
            if self._scratch is None or self._scratch[1] < nbytes:
                gpu, queue, pool = self.device.gpu, self.queue, self.device.pool
                self.moves += 1
                if self._scratch is not None:
                    region, self._scratch = self._scratch[0], None
                    self.device.call(lambda: gpu.release(region, queue))
                made = self.device.call(lambda: pool.fresh(nbytes, queue))
                self._scratch = made, nbytes
            return self._scratch[0].address

    def close(self) -> None:
        """Give the scratch memory back."""
        if self._scratch is not None:
            self.device.gpu.release(self._scratch[0], self.queue)
            self._scratch = None
            self.moves += 1


class _Staging:
    """Pinned memory for one direction: pieces in turn, each with the mark of its last copy."""

    def __init__(self, gpu: Gpu, wait: Callable[[Mark], None]) -> None:
        self._gpu, self._wait = gpu, wait
        self._pieces: list[MemoryRegion] = []
        self._marks: list[Mark | None] = []
        self._next = 0
        self.lock = threading.Lock()

    def take(self) -> tuple[int, int]:
        """The number and address of a piece that no copy uses any more."""
        if not self._pieces:
            self._pieces = [self._gpu.pinned(PIECE) for _ in range(PIECES)]
            self._marks = [None] * PIECES
        number = self._next
        self._next = (number + 1) % PIECES
        mark = self._marks[number]
        if mark is not None:
            self._wait(mark)
        return number, self._pieces[number].address

    def used(self, number: int, mark: Mark) -> None:
        """Note that a copy of a piece was submitted before `mark`."""
        self._marks[number] = mark


class CudaDevice(Device):
    """One GPU. It fetches from other GPUs by itself, and hands out parts of its memory.

    Attributes:
        pool: its memory.
        dropped: recordings that nobody wants any more, with their streams.
    """

    def __init__(self, gpu: Gpu, name: str = "gpu") -> None:
        self.gpu = gpu
        self.name = name
        facts = gpu.facts
        major, minor = facts.capability
        features = [f"compute_{major}{minor}", f"multiprocessors_{facts.processors}"]
        features += ["float16", "float64"]
        features += ["bfloat16"] if facts.capability >= (8, 0) else []
        self.info = DeviceInfo(
            facts.name,
            facts.memory,
            facts.bandwidth,
            facts.flops,
            tuple(features),
            units=facts.processors,
        )
        self._forks = _FORKED[0]
        self._stream = CudaStream(self, self.call(gpu.queue))
        self.pool = MemoryPool(gpu, self._stream.queue)
        self.guards: list[Callable[[], None]] = []
        """Guards that see to it that work under way ends; they raise where it does not."""
        self._up, self._down = _Staging(gpu, self.wait_for), _Staging(gpu, self.wait_for)
        self.dropped: deque[tuple[GpuRecording, CudaStream]] = deque()
        self._retired: deque[tuple[GpuRecording, Mark]] = deque()
        self._closing = threading.Lock()

    def call(self, work: Callable[[], _R]) -> _R:
        """Do something with the driver.

        Raises:
            DeviceLost: the driver's context is broken, or is that of another process.
            DeviceError: the driver refused.
            MemoryError: there is no room.
        """
        if self._forks != _FORKED[0]:
            raise DeviceLost(
                self.name,
                "this process was forked from one that uses the GPU, which CUDA does not allow",
                hint="start workers with 'forkserver' or 'spawn', or use the GPU in workers only",
            )
        try:
            return work()
        except (MemoryError, TreadleError):
            raise
        except Exception as error:
            raise self._failure(error) from error

    def watch(self) -> None:
        """Run the guards of launches that may never end, before the host waits for one."""
        for guard in tuple(self.guards):
            guard()

    def wait_for(self, mark: Mark) -> None:
        """Block until a place in a queue is reached."""
        if self.guards and not self.call(mark.done):
            self.watch()
        self.call(mark.wait)

    def _failure(self, error: Exception) -> DeviceError:
        text = f"{type(error).__name__}: {error}"
        if any(f"CUDA_ERROR_{name}" in text for name in _LOST):
            hint = "memory on it is gone: start the process anew; TREADLE_SYNC=1 finds the op"
            return DeviceLost(self.name, "a kernel or the hardware failed", saw=text, hint=hint)
        return DeviceError(self.name, "the CUDA driver refused", saw=text)

    # -- memory ----------------------------------------------------------------------------

    def alloc(self, nbytes: int, /) -> CudaMemory:
        region = self.pool.take(nbytes)
        if region is None:
            region = self.call(lambda: self.pool.fresh(nbytes, self._stream.queue))
        return CudaMemory(region.address, nbytes, region)

    def free(self, buffer: CudaMemory, /) -> None:
        region, buffer.region = buffer.region, None
        if region is not None:
            self.pool.give(region, buffer.nbytes)
            if self.pool.is_full:
                self.call(self.pool.trim)

    def part(self, buffer: CudaMemory, offset: int, nbytes: int, /) -> CudaMemory:
        if not 0 <= offset <= offset + nbytes <= buffer.nbytes:
            raise ValueError(f"{nbytes} bytes at {offset} of {buffer}")
        return CudaMemory(buffer.address + offset, nbytes, None)

    def address(self, buffer: CudaMemory, /) -> int:
        """Return the address of memory, for libraries and for checks."""
        return buffer.address

    def memory(self) -> tuple[int, int]:
        total, free = self.call(self.gpu.memory)
        return total, free + self.pool.kept

    def cached(self) -> int:
        """Return the bytes that the pool keeps of freed memory."""
        return self.pool.kept

    def drop_cache(self) -> None:
        """Give freed memory that waits back to the driver."""
        self.call(self.pool.clear)

    # -- movement --------------------------------------------------------------------------

    def copy_in(self, dst: CudaMemory, src: memoryview, stream: Stream, /) -> None:
        with self._up.lock:
            self.call(lambda: self._copy_in(dst, src, _queue(stream)))

    def _copy_in(self, dst: CudaMemory, src: memoryview, queue: Queue) -> None:
        for offset, nbytes in _pieces(src.nbytes):
            number, address = self._up.take()
            _bytes_at(address, nbytes)[:] = src[offset : offset + nbytes]
            self.gpu.copy(dst.address + offset, address, nbytes, queue)
            self._up.used(number, queue.mark())

    def copy_out(self, dst: memoryview, src: CudaMemory, stream: Stream, /) -> None:
        with self._down.lock:
            self.call(lambda: self._copy_out(dst, src, _queue(stream)))

    def _copy_out(self, dst: memoryview, src: CudaMemory, queue: Queue) -> None:
        waiting: list[tuple[int, int, int, Mark]] = []
        for offset, nbytes in _pieces(dst.nbytes):
            if len(waiting) == PIECES:
                self._land(dst, *waiting.pop(0))
            number, address = self._down.take()
            self.gpu.copy(address, src.address + offset, nbytes, queue)
            mark = queue.mark()
            self._down.used(number, mark)
            waiting.append((offset, nbytes, address, mark))
        for piece in waiting:
            self._land(dst, *piece)

    def _land(self, dst: memoryview, offset: int, nbytes: int, address: int, mark: Mark) -> None:
        """Take a piece that has arrived in pinned memory."""
        self.wait_for(mark)
        dst[offset : offset + nbytes] = _bytes_at(address, nbytes)

    def fill(self, buffer: CudaMemory, value: int, nbytes: int, stream: Stream, /) -> None:
        queue = _queue(stream)
        self.call(lambda: self.gpu.fill(buffer.address, value, nbytes, queue))

    def copy_peer(
        self, dst: CudaMemory, source: Device, src: CudaMemory, nbytes: int, stream: Stream, /
    ) -> None:
        queue = _queue(stream)
        self.call(lambda: self.gpu.copy(dst.address, src.address, nbytes, queue))
        if isinstance(source, CudaDevice):
            # What is freed there is free for others in the order of that device's queue.
            mark = self.call(queue.mark)
            source.call(lambda: source._stream.queue.after(mark))

    # -- order -----------------------------------------------------------------------------

    def stream(self) -> CudaStream:
        return self._stream

    def timing_stream(self) -> CudaStream:
        """Return the default stream, whose events all know their times."""
        return self._stream

    def let_go(self) -> None:
        """Close recordings that were dropped, once what was submitted of them has finished."""
        with self._closing:
            while self.dropped:
                recording, stream = self.dropped.popleft()
                self._retired.append((recording, self.call(stream.queue.mark)))
            while self._retired:
                recording, mark = self._retired[0]
                if not self.call(mark.done):
                    return
                self._retired.popleft()
                self.call(recording.close)

    def close(self) -> None:
        if self._forks == _FORKED[0]:
            self._stream.close()
            self.call(self.pool.clear)
            self.let_go()
            self.call(self._stream.synchronize)
            self.let_go()
            self.call(self.gpu.close)


def _queue(stream: Stream) -> Queue:
    if not isinstance(stream, CudaStream):
        raise DriverError(f"a {type(stream).__name__} is not a stream of a CUDA device")
    return stream.queue


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    for offset in range(0, nbytes, PIECE):
        yield offset, min(PIECE, nbytes - offset)


def _bytes_at(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
