"""The protocols a device implements: memory, movement, order of work.

This is tier 0 of the backend protocol: with it alone every program runs, through fallback.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

Buffer = Any
"""Raw memory of one device: whatever its `alloc` returned, never looked into by the framework."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Properties that a device reports about itself.

    `memory` is in bytes, `bandwidth` in bytes per second, `flops` in operations per second; 0
    means unknown. `features` are capability strings such as `"float16"`, `units` how many cores or
    multiprocessors work side by side. Copies from and to the
    host take `copy_latency` seconds and `copy_bandwidth` bytes per second; where that is 0 they
    are measured when somebody wants to know.
    """

    name: str
    memory: int = 0
    bandwidth: float = 0.0
    flops: float = 0.0
    features: tuple[str, ...] = ()
    copy_latency: float = 0.0
    copy_bandwidth: float = 0.0
    units: int = 0


class Event(Protocol):
    """A point in a stream's order of work."""

    def done(self) -> bool:
        """Return whether all work before the event has finished."""
        ...

    def wait(self) -> None:
        """Block the caller until the event is done."""
        ...


class Stream(Protocol):
    """An ordered queue: work runs in the order of submission."""

    def record(self) -> Event:
        """An event after everything submitted so far."""
        ...

    def wait(self, event: Event, /) -> None:
        """Start later work only after `event`."""
        ...

    def synchronize(self) -> None:
        """Block the caller until the queue is empty."""
        ...


@runtime_checkable
class TimedEvent(Event, Protocol):
    """Optional: an event that knows when it happened."""

    def since(self, start: Event, /) -> float:
        """Seconds from `start`, an earlier event of the same device; both are done."""
        ...


@runtime_checkable
class SpanEvent(TimedEvent, Protocol):
    """Optional: an event that knows when the work right before it ran."""

    def span(self) -> tuple[int, int]:
        """Start and end, in nanoseconds of the device's clock, of what its stream was given since
        the event before; the event's own time twice where that is nothing. It is done."""
        ...


class DoneEvent:
    """The event of a device that has finished every call when it returns."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return None

    def since(self, start: Event, /) -> float:
        """Return the seconds from `start`, an earlier event, to this one."""
        if not isinstance(start, DoneEvent):
            raise TypeError(f"a {type(start).__name__} is an event of another device")
        return self._at - start._at


class SynchronousStream:
    """The stream of a device whose calls block; supplied so that tier 0 needs none of its own."""

    def record(self) -> Event:
        return DoneEvent()

    def wait(self, event: Event, /) -> None:
        event.wait()

    def synchronize(self) -> None:
        return None


class Device(Protocol):
    """One physical device, opened. Sizes are in bytes.

    A class that derives from this one writes `alloc`, `free`, `copy_in` and `copy_out` and
    inherits the rest; one that does not derive has all methods itself. The framework calls
    `alloc` and `free` one at a time, never one inside the other. Other methods may be called by
    several threads at once.
    """

    info: DeviceInfo = DeviceInfo("device")
    """Name, memory, peak rates, capabilities."""

    @abstractmethod
    def alloc(self, nbytes: int, /) -> Buffer:
        """Allocate at least `nbytes` (1 or more) of memory aligned to 64 bytes.

        Raises `MemoryError` or `OutOfMemory` where there is not enough; the framework then lets
        go of what it can and asks once more.
        """
        ...

    @abstractmethod
    def free(self, buffer: Buffer, /) -> None:
        """Give memory back. Work submitted before may still use it: free in the stream's order."""
        ...

    @abstractmethod
    def copy_in(self, dst: Buffer, src: memoryview, stream: Stream, /) -> None:
        """Host to device: all of `src` to the start of `dst`; `src` is not read after returning."""
        ...

    @abstractmethod
    def copy_out(self, dst: memoryview, src: Buffer, stream: Stream, /) -> None:
        """Device to host: fills `dst`; the data is there when the call returns."""
        ...

    def fill(self, buffer: Buffer, value: int, nbytes: int, stream: Stream, /) -> None:
        """Set the first `nbytes` bytes to `value` (0 to 255)."""
        self.copy_in(buffer, memoryview(bytes([value]) * nbytes), stream)

    def stream(self) -> Stream:
        """The default stream; the framework asks for it once."""
        return SynchronousStream()

    def memory(self) -> tuple[int, int]:
        """(total, free) bytes; zeros where unknown."""
        return self.info.memory, 0

    def close(self) -> None:
        """Release everything; the device is not used afterwards."""
        return None


@runtime_checkable
class PeerDevice(Protocol):
    """Optional: a device that can fetch from another one of its own class without the host."""

    def copy_peer(
        self, dst: Buffer, source: Device, src: Buffer, nbytes: int, stream: Stream, /
    ) -> None:
        """The first `nbytes` bytes of `src`, which is memory of `source`, to the start of `dst`."""
        ...


@runtime_checkable
class QueueDevice(Protocol):
    """Optional: a device with more than one queue."""

    def new_stream(self) -> Stream:
        """A further stream. Events of each can be waited for by the others.

        Memory is freed in the order of the default stream; the framework has that one wait for
        the stream that was in use.
        """
        ...


@runtime_checkable
class CachingDevice(Protocol):
    """Optional: a device that keeps freed memory for who allocates next."""

    def cached(self) -> int:
        """Bytes that it keeps; `memory` counts them as free."""
        ...

    def drop_cache(self) -> None:
        """Give them back to where they came from."""
        ...


@runtime_checkable
class TimingDevice(Protocol):
    """Optional: a device that knows times, on a queue for the purpose."""

    def timing_stream(self) -> Stream:
        """A queue whose events are `TimedEvent`s, or better `SpanEvent`s; profiles use it alone."""
        ...


@runtime_checkable
class PartDevice(Protocol):
    """Optional: a device whose memory can be moved in pieces; one that runs programs has to be."""

    def part(self, buffer: Buffer, offset: int, nbytes: int, /) -> Buffer:
        """The `nbytes` bytes of `buffer` from `offset` on, which share its memory.

        `copy_in`, `copy_out` and `fill` take it as they take a buffer; `free` never gets it. It
        is not used when the buffer has been freed. `offset` is a multiple of 64 or of the size of
        the elements there, and `nbytes` is 1 or more.
        """
        ...


Payload = Any
"""Content of a tensor: a NumPy array on the host device, a `DeviceArray` on any other."""
