"""Functions of devices of one kind: memory, random state, streams, and a backend's own.

`treadle.get_device_module("opencl")` is there for every backend that has devices, and so is
`treadle.opencl`, under the name of the backend, unless Treadle has something else of that name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from treadle import device as devices
from treadle.backends import registry
from treadle.backends.api import DeviceInfo, Extending, TimedEvent
from treadle.backends.api import Event as QueueEvent
from treadle.backends.api import Stream as Queue
from treadle.base.errors import DeviceError
from treadle.engine.devices.names import CompNode, default_device, resolve
from treadle.random import RNG, default_generator, seed
from treadle.runtime.opened import new_stream, use


class Event:
    """A point in a stream's work: recorded, asked, waited for, and subtracted from a later one."""

    def __init__(self) -> None:
        self._point: QueueEvent | None = None
        self._where = ""

    def record(self, stream: Stream) -> Event:
        """Record the point after everything that `stream` was given so far; returns the event."""
        self._point, self._where = stream._queue.record(), str(stream.device)
        return self

    def _recorded(self) -> QueueEvent:
        if self._point is None:
            raise DeviceError("event", "was not recorded yet", hint="call record(stream) first")
        return self._point

    def query(self) -> bool:
        """Return whether all work before it has finished."""
        return self._recorded().done()

    def wait(self) -> None:
        """Block the program until all work before it has finished."""
        self._recorded().wait()

    def elapsed(self, end: Event) -> float:
        """Seconds on the device from this event to a later one; waits for both.

        Raises:
            DeviceError: the device does not say when its events happen.
        """
        start, last = self._recorded(), end._recorded()
        if not isinstance(last, TimedEvent):
            raise DeviceError(
                self._where,
                "its events do not say when they happen",
                hint="time the program between two calls of synchronize()",
            )
        start.wait()
        last.wait()
        return last.since(start)


class Stream:
    """A queue of one device, which runs work in the order of submission.

    As a block it is the current one of its device, for all threads: what is submitted inside runs
    on it, after what was submitted before the block and before what comes behind. Devices that
    have one queue have all streams be that one.

    Args:
        device: a name, the default device if left out.
    """

    def __init__(self, device: str | None = None) -> None:
        self.device = _node(device)
        self._opened = self.device.open()
        self._queue = new_stream(self._opened)
        self._before: list[Queue] = []

    @classmethod
    def current(cls, device: str | None = None) -> Stream:
        """The stream that a device's work goes to now."""
        made = cls.__new__(cls)
        made.device = _node(device)
        made._opened = made.device.open()
        made._queue, made._before = made._opened.stream, []
        return made

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same queue."""
        return isinstance(other, Stream) and self._queue is other._queue

    def __hash__(self) -> int:
        return id(self._queue)

    def __repr__(self) -> str:
        return f"Stream({str(self.device)!r})"

    def __enter__(self) -> Stream:
        self._before.append(use(self._opened, self._queue))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        before = self._before.pop()
        if not self._opened.lost and not self._opened.closed:  # or that is what is being raised
            use(self._opened, before)

    def record(self) -> Event:
        """An event after everything submitted so far."""
        return Event().record(self)

    def wait(self, event: Event) -> None:
        """Start what is submitted from now on after `event`, of this or another stream."""
        self._queue.wait(event._recorded())

    def synchronize(self) -> None:
        """Block the program until everything submitted has finished."""
        self._queue.synchronize()


_Stream = Stream
"""Its name where `DeviceModule.Stream` hides the other one."""


class DeviceModule:
    """Functions for one kind of devices; arguments `device` are names, by default number 0.

    Where the default device is of this kind, that one is meant instead.

    Attributes:
        kind: what the devices are called, without their number.
        Stream, Event: order of work.
    """

    Stream, Event = Stream, Event

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<functions for {self.kind} devices>"

    def is_available(self) -> bool:
        """Return whether there is a device of this kind that can be used."""
        return self.device_count() > 0

    def device_count(self) -> int:
        """Return the number of devices."""
        return devices.get_device_count(self.kind)

    def current_device(self) -> str:
        """The name of the device that is meant where none is given."""
        default = resolve(devices.get_default_device())
        mine = self.is_available() and default.kind == resolve(f"{self.kind}0").kind
        return f"{self.kind}{default.place[1] if mine else 0}"

    def _name(self, device: str | None) -> str:
        if device is None:
            return self.current_device()
        if resolve(device).kind != resolve(f"{self.kind}0").kind:
            raise DeviceError("device", f"{device} is not a device of kind {self.kind}")
        return device

    def info(self, device: str | None = None) -> DeviceInfo:
        """Name, memory, rates and features, as the device states them."""
        return resolve(self._name(device)).open().info

    def ops(self) -> list[dict[str, str]]:
        """The kernels of the backend; see `treadle.device.ops`."""
        return devices.ops(self._name(None))

    def synchronize(self, device: str | None = None) -> None:
        """Wait until the device has done what was asked of it."""
        devices.synchronize(self._name(device))

    # -- memory ----------------------------------------------------------------------------

    def mem_info(self, device: str | None = None) -> tuple[int, int]:
        """(total, free) bytes."""
        return devices.get_mem_status_bytes(self._name(device))

    def memory_allocated(self, device: str | None = None) -> int:
        """Bytes held by live tensors and recordings."""
        return devices.get_allocated_memory(self._name(device))

    def max_memory_allocated(self, device: str | None = None) -> int:
        """The most bytes held at once since the last reset."""
        return devices.get_max_allocated_memory(self._name(device))

    def reset_max_memory_allocated(self, device: str | None = None) -> None:
        """Start the maximum anew."""
        devices.reset_max_memory_stats(self._name(device))

    # -- random numbers, which are the same on every device -----------------------------------

    def seed(self, value: int) -> None:
        """Restart the random numbers of the process, which has one stream for all devices."""
        seed(value)

    def get_rng_state(self) -> tuple[int, int]:
        """The state of the process's generator."""
        return default_generator().get_state()

    def set_rng_state(self, state: tuple[int, int]) -> None:
        """Go back to a state."""
        default_generator().set_state(state)

    def generator(self, seed: int | None = None, device: str | None = None) -> RNG:
        """A generator of its own, whose tensors are made on the device."""
        return RNG(seed, self._name(device))

    # -- order of work -----------------------------------------------------------------------

    def current_stream(self, device: str | None = None) -> _Stream:
        """The stream that the device's work goes to now."""
        return _Stream.current(self._name(device))

    def stream(self, device: str | None = None) -> _Stream:
        """A further stream; `with` makes it the current one."""
        return _Stream(self._name(device))

    # -- a backend's own -----------------------------------------------------------------------

    def _extras(self) -> Mapping[str, Callable[..., Any]]:
        entry = registry.for_kind(self.kind)
        backend = None if entry is None else entry.backend
        return backend.extras if isinstance(backend, Extending) else {}

    def __getattr__(self, name: str) -> Any:
        """A function that the backend adds."""
        found = {} if name.startswith("__") else self._extras()
        if name not in found:
            own = f"; its backend adds {', '.join(sorted(found))}" if found else ""
            raise AttributeError(f"{self.kind} devices have no function {name!r}{own}", name=name)
        return found[name]

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._extras()})


def _node(device: str | None) -> CompNode:
    return default_device() if device is None else resolve(device)


@functools.cache
def _module(kind: str) -> DeviceModule:
    return DeviceModule(kind)


def get_device_module(kind: str) -> DeviceModule:
    """The functions for one kind of devices, whatever backend serves it.

    Args:
        kind: a device's name without its number: "cpu", "opencl", a plug-in's.

    Raises:
        DeviceError: no backend has devices of this kind.

    Example:
        >>> import treadle as mge
        >>> cpu = mge.get_device_module("cpu")
        >>> cpu.is_available(), cpu.current_stream() == cpu.current_stream("cpu0")
        (True, True)
    """
    if registry.for_kind(kind) is None:
        why, cause = registry.why_missing(kind)
        raise DeviceError(
            "device",
            f"no backend has devices called {kind!r}",
            saw=why,
            hint="treadle.backends() lists what was found",
        ) from cause
    return _module(kind)
