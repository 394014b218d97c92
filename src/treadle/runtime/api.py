"""The protocols a device implements: memory, movement, order of work.

This is tier 0 of the backend protocol: with it alone every program runs, through fallback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class Buffer(Protocol):
    """Raw memory of one device; what is inside is the device's business."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device says about itself.

    `memory` is in bytes, `bandwidth` in bytes per second, `flops` in operations per second; 0
    means unknown. `features` are capability strings such as `"float16"`.
    """

    name: str
    memory: int = 0
    bandwidth: float = 0.0
    flops: float = 0.0
    features: tuple[str, ...] = ()


class Event(Protocol):
    """A point in a stream's order of work."""

    def done(self) -> bool:
        """Whether all work before the event has finished."""
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
        """Later work starts only after `event`."""
        ...

    def synchronize(self) -> None:
        """Block the caller until the queue is empty."""
        ...


class DoneEvent:
    """The event of a device that has finished every call when it returns."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


class SynchronousStream:
    """The stream of a device whose calls block; supplied so that tier 0 needs none of its own."""

    def record(self) -> Event:
        return DoneEvent()

    def wait(self, event: Event, /) -> None:
        event.wait()

    def synchronize(self) -> None:
        return None


class Device(Protocol):
    """One physical device, opened. Offsets and sizes are in bytes."""

    @property
    def info(self) -> DeviceInfo:
        """Name, memory, peak rates, capabilities."""
        ...

    def alloc(self, nbytes: int, /) -> Buffer:
        """At least `nbytes` of memory aligned to 64 bytes; raises `OutOfMemory`."""
        ...

    def free(self, buffer: Buffer, /) -> None:
        """Give memory back."""
        ...

    def copy_in(self, dst: Buffer, src: memoryview, stream: Stream, /) -> None:
        """Host to device: all of `src` to the start of `dst`."""
        ...

    def copy_out(self, dst: memoryview, src: Buffer, stream: Stream, /) -> None:
        """Device to host: fills `dst`; the data is there when the call returns."""
        ...

    def fill(self, buffer: Buffer, value: int, nbytes: int, stream: Stream, /) -> None:
        """Set the first `nbytes` bytes to `value` (0 to 255)."""
        ...

    def stream(self) -> Stream:
        """The default stream."""
        ...

    def memory(self) -> tuple[int, int]:
        """(total, free) bytes."""
        ...

    def close(self) -> None:
        """Release everything; the device is not used afterwards."""
        ...


Payload = Any
"""What a tensor holds: a NumPy array on the host device, a `DeviceArray` on any other."""
