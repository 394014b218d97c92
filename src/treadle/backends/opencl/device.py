"""`ClDevice`: memory and order of work of one OpenCL device."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyopencl as cl

from treadle.backends.opencl.platforms import (
    check_process,
    context_of,
    forget_contexts,
    info_of,
    is_forked,
)
from treadle.base.errors import DeviceLost, OutOfMemory
from treadle.runtime.api import Device, Event, Stream

_PATTERNS = frozenset((1, 2, 4, 8, 16, 32, 64, 128))
"""Bytes that a fill can repeat; it has taken them when it returns."""
_LOST = ("DEVICE_NOT_AVAILABLE", "INVALID_DEVICE")
_NO_ROOM = (
    "MEM_OBJECT_ALLOCATION_FAILURE",
    "OUT_OF_RESOURCES",
    "OUT_OF_HOST_MEMORY",
    "INVALID_BUFFER_SIZE",
)
_Method = TypeVar("_Method", bound=Callable[..., Any])


class OpenCLMemory:
    """A buffer, or a piece of one: `offset` bytes into it."""

    __slots__ = ("buffer", "nbytes", "offset")

    def __init__(self, buffer: cl.Buffer, offset: int, nbytes: int) -> None:
        self.buffer = buffer
        self.offset = offset
        self.nbytes = nbytes


class ClEvent:
    """A point in a queue."""

    def __init__(self, stream: ClStream, marker: cl.Event) -> None:
        self.stream = stream
        self.marker = marker

    def done(self) -> bool:
        # Below it are the codes of failures, which end it as well.
        status = int(self.marker.command_execution_status)
        return status <= int(cl.command_execution_status.COMPLETE)

    def wait(self) -> None:
        self.marker.wait()


class TimedClEvent(ClEvent):
    """A point in a queue that knows times; `work` are the launches since the point before it."""

    def __init__(self, stream: ClStream, marker: cl.Event, work: Sequence[cl.Event]) -> None:
        super().__init__(stream, marker)
        self.work = work

    def span(self) -> tuple[int, int]:
        """Return start and end of the event's work, in nanoseconds of the device's clock."""
        if not self.work:
            return self.marker.profile.end, self.marker.profile.end
        return self.work[0].profile.start, self.work[-1].profile.end

    def since(self, start: Event, /) -> float:
        """Return the seconds from `start`, an earlier event of this platform, to this one."""
        if not isinstance(start, TimedClEvent):
            raise TypeError(f"a {type(start).__name__} knows no time of OpenCL's")
        return (int(self.marker.profile.end) - int(start.marker.profile.end)) * 1e-9


class ClStream:
    """An in-order queue."""

    def __init__(self, queue: cl.CommandQueue) -> None:
        self.queue = queue

    def launch(self, kernel: cl.Kernel, size: int, group: tuple[int] | None) -> None:
        """Submit a kernel."""
        cl.enqueue_nd_range_kernel(self.queue, kernel, (size,), group)

    def record(self) -> ClEvent:
        marker = cl.enqueue_marker(self.queue)
        self.queue.flush()
        return ClEvent(self, marker)

    def wait(self, event: Event, /) -> None:
        if not isinstance(event, ClEvent):
            event.wait()
        elif event.stream is not self:
            if event.stream.queue.context == self.queue.context:
                cl.enqueue_barrier(self.queue, wait_for=[event.marker])
            else:
                event.wait()  # it means nothing outside its context

    def synchronize(self) -> None:
        check_process()
        self.queue.finish()


class TimedClStream(ClStream):
    """A queue that keeps the events of its launches."""

    def __init__(self, queue: cl.CommandQueue) -> None:
        super().__init__(queue)
        self._work: list[cl.Event] = []

    def launch(self, kernel: cl.Kernel, size: int, group: tuple[int] | None) -> None:
        self._work.append(cl.enqueue_nd_range_kernel(self.queue, kernel, (size,), group))

    def record(self) -> TimedClEvent:
        work, self._work = self._work, []
        marker = cl.enqueue_marker(self.queue)
        self.queue.flush()
        return TimedClEvent(self, marker, work)


def translated(method: _Method) -> _Method:
    """The method with OpenCL's errors as the framework's: no room, device lost."""

    @functools.wraps(method)
    def run(self: Any, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except cl.Error as error:
            found = own_error(error)
            if found is error:
                raise
            raise found from error

    return run  # type: ignore[return-value]


def own_error(error: cl.Error) -> Exception:
    """The framework's error for one of OpenCL's, which is returned where there is none."""
    text = str(error)
    if isinstance(error, cl.MemoryError) or any(name in text for name in _NO_ROOM):
        return OutOfMemory("opencl", f"has no room: {text}")
    if any(name in text for name in _LOST):
        forget_contexts()
        return DeviceLost("opencl", text)
    return error


class ClDevice(Device):
    """One device with a queue of its own, in a context that it shares with those like it.

    Freed buffers are kept for requests of the same size: the queue is in order, so that what comes
    later may write where earlier work still reads.
    """

    def __init__(self, device: cl.Device) -> None:
        check_process()
        self.device = device
        self.info = info_of(device)
        self.context = context_of(device)
        self.queue = cl.CommandQueue(self.context)
        self.units = int(device.max_compute_units)
        self.programs: dict[bytes, cl.Program] = {}
        self._stream = ClStream(self.queue)
        self._free: dict[int, list[OpenCLMemory]] = {}
        self._lock = threading.RLock()
        self._scratch: OpenCLMemory | None = None
        self._held = 0
        self._cached = 0

    # -- memory ----------------------------------------------------------------------------

    def alloc(self, nbytes: int, /) -> OpenCLMemory:
        check_process()
        with self._lock:
            return self._alloc(nbytes, _rounded(nbytes))

    def _alloc(self, nbytes: int, size: int) -> OpenCLMemory:
        waiting = self._free.get(size)
        if waiting:
            self._cached -= size
            return waiting.pop()
        if self._held + size > self.info.memory:
            self._drop()
        if self._held + size > self.info.memory:
            raise OutOfMemory("opencl", f"{nbytes} bytes are more than the device has left")
        try:
            made = self._buffer(size)
        except OutOfMemory:
            self._drop()
            made = self._buffer(size)
        self._held += size
        return made

    @translated
    def _buffer(self, size: int) -> OpenCLMemory:
        return OpenCLMemory(cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size), 0, size)

    def free(self, buffer: OpenCLMemory, /) -> None:
        if is_forked():
            return
        with self._lock:
            self._free.setdefault(buffer.nbytes, []).append(buffer)
            self._cached += buffer.nbytes
            if self._cached > self.info.memory // 4:
                self._drop()

    def _drop(self) -> None:
        """Give back what is kept, when the work that uses it has been done."""
        self.queue.finish()
        for waiting in self._free.values():
            for memory in waiting:
                memory.buffer.release()
        self._held -= self._cached
        self._cached = 0
        self._free.clear()

    def part(self, buffer: OpenCLMemory, offset: int, nbytes: int, /) -> OpenCLMemory:
        """Return `nbytes` of a buffer from `offset` on, which share its memory."""
        return OpenCLMemory(buffer.buffer, buffer.offset + offset, nbytes)

    def scratch(self, nbytes: int) -> cl.Buffer:
        """Memory that launches use one after the other."""
        with self._lock:
            if self._scratch is None or self._scratch.nbytes < nbytes:
                if self._scratch is not None:
                    self.free(self._scratch)
                self._scratch = self.alloc(nbytes)
            return self._scratch.buffer

    def memory(self) -> tuple[int, int]:
        return self.info.memory, self.info.memory - self._held + self._cached

    # -- movement --------------------------------------------------------------------------

    @translated
    def copy_in(self, dst: OpenCLMemory, src: memoryview, stream: Stream, /) -> None:
        check_process()
        queue, data = self.queue_of(stream), np.frombuffer(src, np.uint8)
        if data.nbytes in _PATTERNS and dst.offset % data.nbytes == 0:
            cl.enqueue_fill_buffer(queue, dst.buffer, data, dst.offset, data.nbytes)
            return
        cl.enqueue_copy(queue, dst.buffer, data, dst_offset=dst.offset, is_blocking=True)

    @translated
    def copy_out(self, dst: memoryview, src: OpenCLMemory, stream: Stream, /) -> None:
        check_process()
        queue, data = self.queue_of(stream), np.frombuffer(dst, np.uint8)
        cl.enqueue_copy(queue, data, src.buffer, src_offset=src.offset, is_blocking=True)

    @translated
    def copy_peer(
        self, dst: OpenCLMemory, source: Device, src: OpenCLMemory, nbytes: int, stream: Stream, /
    ) -> None:
        """Copy `nbytes` from another device of this context; from others by way of the host."""
        if not isinstance(source, ClDevice) or source.context != self.context:
            bounce = np.empty(nbytes, np.uint8)  # One of them was lost, and opened anew.
            source.copy_out(bounce.data, src, source.stream())
            self.copy_in(dst, bounce.data, stream)
            return
        cl.enqueue_copy(
            self.queue_of(stream),
            dst.buffer,
            src.buffer,
            byte_count=nbytes,
            src_offset=src.offset,
            dst_offset=dst.offset,
        )

    @translated
    def fill(self, buffer: OpenCLMemory, value: int, nbytes: int, stream: Stream, /) -> None:
        check_process()
        width = next(n for n in (16, 4, 1) if nbytes % n == 0 and buffer.offset % n == 0)
        queue, pattern = self.queue_of(stream), np.full(width, value, np.uint8)
        cl.enqueue_fill_buffer(queue, buffer.buffer, pattern, buffer.offset, nbytes)

    def stream(self) -> ClStream:
        return self._stream

    def queue_of(self, stream: Stream) -> cl.CommandQueue:
        """Return the queue of a stream."""
        return stream.queue if isinstance(stream, ClStream) else self.queue

    @translated
    def timing_stream(self) -> TimedClStream:
        """Return a further queue, with profiling enabled."""
        properties = cl.command_queue_properties.PROFILING_ENABLE
        return TimedClStream(cl.CommandQueue(self.context, properties=properties))

    def close(self) -> None:
        if not is_forked():
            self._drop()


def _rounded(nbytes: int) -> int:
    """The size that is asked of OpenCL, so that few sizes differ."""
    return -(-nbytes // 64) * 64
