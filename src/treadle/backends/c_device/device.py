"""Devices, queues and events of a library, in terms of `runtime.api`."""

from __future__ import annotations

import os
from ctypes import byref, c_double, c_int32, c_uint64
from typing import cast

import numpy as np

from treadle.backends.api import Device, DeviceInfo, Event, Stream
from treadle.backends.c_device.header import Properties
from treadle.backends.c_device.library import DeviceLibrary


class CDeviceMemory:
    """A place in a device's memory."""

    __slots__ = ("handle", "offset")

    def __init__(self, handle: int, offset: int = 0) -> None:
        self.handle = handle
        self.offset = offset


class CDevice(Device):
    """A device with the functions that every library has."""

    def __init__(self, library: DeviceLibrary, index: int) -> None:
        self.library = library
        self.handle = library.made("open", index)
        found = Properties()
        library.call("properties", self.handle, byref(found))
        features = (found.features or b"").decode(errors="replace")
        self.info = DeviceInfo(
            (found.name or b"").decode(errors="replace") or f"{library.name} device {index}",
            memory=found.memory,
            bandwidth=found.bandwidth,
            flops=found.flops,
            features=tuple(part.strip() for part in features.split(",") if part.strip()),
            copy_latency=found.copy_latency,
            copy_bandwidth=found.copy_bandwidth,
            units=found.units,
        )
        self._process = os.getpid()
        self._closed = False

    @property
    def usable(self) -> bool:
        """True until it is closed, in the process that opened it."""
        return not self._closed and os.getpid() == self._process

    def alloc(self, nbytes: int, /) -> CDeviceMemory:
        return CDeviceMemory(self.library.made("allocate", self.handle, nbytes))

    def free(self, buffer: CDeviceMemory, /) -> None:
        if self.usable:
            self.library.call("release", self.handle, buffer.handle)

    def part(self, buffer: CDeviceMemory, offset: int, nbytes: int, /) -> CDeviceMemory:
        """Return `nbytes` of a buffer from `offset` on, which share its memory."""
        return CDeviceMemory(buffer.handle, buffer.offset + offset)

    def copy_in(self, dst: CDeviceMemory, src: memoryview, stream: Stream, /) -> None:
        data = np.frombuffer(src, np.uint8)
        place, source = (dst.handle, dst.offset), data.ctypes.data
        self.library.call("copy_in", self.handle, handle_of(stream), *place, source, data.nbytes)

    def copy_out(self, dst: memoryview, src: CDeviceMemory, stream: Stream, /) -> None:
        data = np.frombuffer(dst, np.uint8)
        place, target = (src.handle, src.offset), data.ctypes.data
        self.library.call("copy_out", self.handle, handle_of(stream), target, *place, data.nbytes)

    def memory(self) -> tuple[int, int]:
        if not self.library.has("memory_left"):
            return self.info.memory, 0
        total, left = c_uint64(), c_uint64()
        self.library.call("memory_left", self.handle, byref(total), byref(left))
        return total.value, left.value

    def close(self) -> None:
        if self.usable:
            self._closed = True
            self.library.call("close", self.handle)


class _Filling(CDevice):
    def fill(self, buffer: CDeviceMemory, value: int, nbytes: int, stream: Stream, /) -> None:
        place = buffer.handle, buffer.offset
        self.library.call("fill", self.handle, handle_of(stream), *place, value, nbytes)


class _Peer(CDevice):
    def copy_peer(
        self, dst: CDeviceMemory, source: Device, src: CDeviceMemory, nbytes: int, stream: Stream, /
    ) -> None:
        """Copy `nbytes` from memory of another device of this library to the start of `dst`."""
        given = (dst.handle, dst.offset, cast(CDevice, source).handle, src.handle, src.offset)
        self.library.call("copy_peer", self.handle, handle_of(stream), *given, nbytes)


class _Queued(CDevice):
    def stream(self) -> Stream:
        return self.new_stream()

    def new_stream(self) -> Stream:
        """Return a further stream, created by the library."""
        return CStream(self, self.library.made("stream_create", self.handle))


def device_class(library: DeviceLibrary) -> type[CDevice]:
    """The class with the methods that a library has functions for: presence is what counts."""
    optional = {"fill": _Filling, "copy_peer": _Peer, "stream_create": _Queued}
    parts = [part for function, part in optional.items() if library.has(function)]
    return type("CDevice", (*parts, CDevice), {})


class CStream:
    """A queue of a library."""

    def __init__(self, device: CDevice, handle: int) -> None:
        self.device = device
        self.handle = handle
        self._event = TimedCEvent if device.library.has("event_seconds") else CEvent

    def record(self) -> Event:
        return self._event(self.device, self.device.library.made("event_record", self.handle))

    def wait(self, event: Event, /) -> None:
        if isinstance(event, CEvent) and event.device is self.device:
            self.device.library.call("stream_wait", self.handle, event.handle)
        else:  # The library knows nothing of the events of others.
            event.wait()

    def synchronize(self) -> None:
        self.device.library.call("stream_synchronize", self.handle)

    def __del__(self) -> None:
        if self.device.usable:
            self.device.library.end("stream_destroy", self.handle)


class CEvent:
    """A point in a queue of a library."""

    def __init__(self, device: CDevice, handle: int) -> None:
        self.device = device
        self.handle = handle

    def done(self) -> bool:
        done = c_int32()
        self.device.library.call("event_done", self.handle, byref(done))
        return bool(done.value)

    def wait(self) -> None:
        self.device.library.call("event_wait", self.handle)

    def __del__(self) -> None:
        if self.device.usable:
            self.device.library.end("event_destroy", self.handle)


class TimedCEvent(CEvent):
    """One that knows when it happened."""

    def since(self, start: Event, /) -> float:
        """Return the seconds from `start`, an earlier event of this device, to this one."""
        if not isinstance(start, CEvent) or start.device is not self.device:
            raise TypeError(f"a {type(start).__name__} is an event of another device")
        seconds = c_double()
        self.device.library.call("event_seconds", start.handle, self.handle, byref(seconds))
        return seconds.value


def handle_of(stream: Stream) -> int | None:
    """The handle that a library gets for a stream; NULL where it has none."""
    return stream.handle if isinstance(stream, CStream) else None
