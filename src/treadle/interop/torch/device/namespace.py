"""`torch.treadle`: the functions of `torch.cuda` that make sense here."""

from __future__ import annotations

import os
import time
from types import ModuleType
from typing import Any, TypeAlias

import torch

from treadle import device as devices
from treadle.engine.devices.names import CompNode
from treadle.interop.torch.device import generators
from treadle.interop.torch.device.places import (
    NAME,
    current,
    index_of,
    place,
    places,
    set_current,
)

Device: TypeAlias = torch.device | str | int | None
_PROCESS = os.getpid()


class device:
    """Use another device inside the block for what names none: `with torch.treadle.device(1):`.

    Args:
        device: a device, its name or number; None or a negative number changes nothing.
    """

    def __init__(self, device: Device) -> None:
        keeps = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if keeps else index_of(device)
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(_maybe_exchange_device(self.idx))

    def __exit__(self, *_: object) -> None:
        set_current(self._before.pop())


class device_of(device):
    """Use the device of a tensor inside the block; one of another kind changes nothing."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == NAME else -1)


class Stream:
    """The one order of work of a device; everything in it is done in the order of its calls.

    Args:
        device: the current one if None.
        priority: over other streams of the device, of which there are none.

    Attributes:
        priority: what was asked for.
    """

    def __init__(self, device: Device = None, priority: int = 0) -> None:
        self.device = torch.device(NAME, index_of(device))
        self.priority = priority

    def synchronize(self) -> None:
        """Wait until all work is done."""
        synchronize(self.device)

    def query(self) -> bool:
        """Return whether all work is done, for which this waits."""
        self.synchronize()
        return True

    def wait_stream(self, stream: Stream) -> None:
        """Begin what follows when another device has done its work."""
        stream.synchronize()

    def wait_event(self, event: Event) -> None:
        """Begin what follows when an event has been reached."""
        event.synchronize()

    def record_event(self, event: Event | None = None) -> Event:
        """An event at this point of the work."""
        made = event or Event()
        made.record(self)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device == self.device

    def __hash__(self) -> int:
        return hash(self.device)


class Event:
    """A point in a device's work, with the time at which the host saw it reached.

    Args:
        enable_timing: whether `elapsed_time` is to be asked.
    """

    def __init__(self, enable_timing: bool = False) -> None:
        self._is_timed = enable_timing
        self._stream: Stream | None = None
        self._seconds = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Note this point of a stream's work; a timed event waits for it."""
        self._stream = stream or current_stream()
        if self._is_timed:
            self._stream.synchronize()
            self._seconds = time.perf_counter()

    def synchronize(self) -> None:
        """Wait until it is reached."""
        if self._stream is not None:
            self._stream.synchronize()

    def wait(self, stream: Stream | None = None) -> None:
        """Block until the event is reached, so that a stream begins what follows after it."""
        self.synchronize()

    def query(self) -> bool:
        """Return whether it is reached, for which this waits."""
        self.synchronize()
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to another one.

        Raises:
            RuntimeError: one of them was made without timing, or not recorded.
        """
        if not (self._is_timed and end._is_timed and self._stream and end._stream):
            raise RuntimeError("elapsed_time needs two recorded events with enable_timing=True")
        return (end._seconds - self._seconds) * 1e3


def is_available() -> bool:
    """True: there always is the host."""
    return True


def is_initialized() -> bool:
    """True: importing `treadle.torch` has done it."""
    return True


def device_count() -> int:
    """Return the number of devices, the host among them."""
    return len(places())


def current_device() -> int:
    """The number of the device that `"treadle"` means on this thread."""
    return current()


def set_device(device: Device) -> None:
    """Select the device that `"treadle"` means on this thread; a negative number: no change."""
    if not (isinstance(device, int) and device < 0):
        set_current(index_of(device))


def _exchange_device(index: int) -> int:
    return _maybe_exchange_device(index)


def _maybe_exchange_device(index: int) -> int:
    return current() if index < 0 else set_current(index)


def _is_in_bad_fork() -> bool:
    """Return whether a device other than the host was opened before this process was forked."""
    return os.getpid() != _PROCESS and any(
        node._opened is not None for node in places() if not node.on_host
    )


def get_device_name(device: Device = None) -> str:
    """Return Treadle's name of a device, such as `cpu0`."""
    kind, number, _ = _node(device).physical_locator
    return f"{kind}{number}"


def get_device_properties(device: Device = None) -> Any:
    """Return the properties of a device; see `treadle.device.get_device_properties`."""
    return devices.get_device_properties(get_device_name(device))


def _node(device: Device) -> CompNode:
    return place(index_of(device))


def synchronize(device: Device = None) -> None:
    """Wait until a device has finished all submitted work."""
    devices.synchronize(get_device_name(device))


def current_stream(device: Device = None) -> Stream:
    """The one stream of a device."""
    return Stream(device)


default_stream = current_stream


class stream:
    """Use a stream's device inside the block."""

    def __init__(self, stream: Stream | None) -> None:
        self._device = device(None if stream is None else stream.device)

    def __enter__(self) -> None:
        self._device.__enter__()

    def __exit__(self, *_: object) -> None:
        self._device.__exit__()


def memory_allocated(device: Device = None) -> int:
    """Bytes that are held on a device; on the host, only by Treadle's own tensors."""
    return int(devices.get_allocated_memory(get_device_name(device)))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that were held on a device at once since the last reset."""
    return int(devices.get_max_allocated_memory(get_device_name(device)))


def memory_reserved(device: Device = None) -> int:
    """Bytes that are held or kept for who asks next."""
    return int(devices.get_reserved_memory(get_device_name(device)))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start the maxima anew."""
    devices.reset_max_memory_stats(get_device_name(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes of a device's memory."""
    total, free = devices.get_mem_status_bytes(get_device_name(device))
    return int(free), int(total)


def empty_cache() -> None:
    """Give back what devices keep of freed memory."""
    devices.coalesce_free_memory()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the types that `torch.autocast("treadle", dtype=...)` takes."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """True: what a device lacks runs on the host."""
    return True


def module() -> ModuleType:
    """The module that `torch.treadle` is, with what belongs to it."""
    made = ModuleType(f"torch.{NAME}", __doc__)
    here = globals()
    made.__dict__["_initialized"] = True  # Checkpointing keeps generators of no others.
    made.__dict__.update({name: here[name] for name in _NAMES})
    made.__dict__.update({name: getattr(generators, name) for name in _OF_GENERATORS})
    return made


_OF_GENERATORS = (
    *("get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all"),
    *("seed", "seed_all", "set_rng_state", "set_rng_state_all"),
)
_NAMES = (
    *("Event", "Stream", "_exchange_device", "_is_in_bad_fork", "_maybe_exchange_device"),
    *("current_device", "current_stream", "default_stream", "device", "device_count", "device_of"),
    *("empty_cache", "get_amp_supported_dtype", "get_device_name", "get_device_properties"),
    *("is_available", "is_bf16_supported", "is_initialized", "max_memory_allocated"),
    *("mem_get_info", "memory_allocated", "memory_reserved", "reset_peak_memory_stats"),
    *("set_device", "stream", "synchronize"),
)
