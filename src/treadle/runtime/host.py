"""The host device: the memory NumPy, the CPU engines and the Lite runtime share without copies.

On this device a tensor's payload is the NumPy array itself, so ordinary ops never come here; the
class exists for code that treats all devices alike (conformance tests, memory queries, fallback).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.base.errors import OutOfMemory
from treadle.runtime.api import Device, DeviceInfo, Stream, SynchronousStream

ALIGNMENT = 64
TOO_MANY_BYTES = 2**40
"""From here on requests are refused outright: a system that overcommits grants, and then kills."""
_STREAM = SynchronousStream()


class OwnMemory:
    """Base of what arrays are made over by this package: memory that nobody else knows of."""

    __slots__ = ()


class HostBuffer:
    """Aligned host memory."""

    __slots__ = ("bytes",)

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.bytes = data

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.bytes.nbytes)


class HostDevice(Device):
    """Main memory; every call has finished when it returns."""

    def __init__(self) -> None:
        self.info = DeviceInfo("host", memory=_pages("SC_PHYS_PAGES"), features=_FEATURES)

    def alloc(self, nbytes: int, /) -> HostBuffer:
        try:
            if nbytes < TOO_MANY_BYTES:
                raw = np.empty(nbytes + ALIGNMENT, np.uint8)
                start = -raw.ctypes.data % ALIGNMENT
                return HostBuffer(raw[start : start + nbytes])
        except MemoryError:
            pass
        raise OutOfMemory(
            "host", f"cannot allocate {nbytes} bytes", hint="use smaller batches or shapes"
        )

    def free(self, buffer: HostBuffer, /) -> None:
        return None

    def copy_in(self, dst: HostBuffer, src: memoryview, stream: Stream, /) -> None:
        dst.bytes[: src.nbytes] = np.frombuffer(src, np.uint8)

    def copy_out(self, dst: memoryview, src: HostBuffer, stream: Stream, /) -> None:
        np.frombuffer(dst, np.uint8)[:] = src.bytes[: dst.nbytes]

    def fill(self, buffer: HostBuffer, value: int, nbytes: int, stream: Stream, /) -> None:
        buffer.bytes[:nbytes] = value

    def stream(self) -> Stream:
        return _STREAM

    def memory(self) -> tuple[int, int]:
        return _pages("SC_PHYS_PAGES"), _pages("SC_AVPHYS_PAGES")


_FEATURES = ("float64", "bfloat16")


def _pages(name: str) -> int:
    """Bytes of memory under one of the system's names for it; 0 where it has no such name."""
    if name not in getattr(os, "sysconf_names", ()):  # which Windows does not have
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)


def memory(what: str, nbytes: int) -> HostBuffer:
    """Aligned host memory.

    Raises:
        OutOfMemory: names what it was for.
    """
    try:
        return HostDevice().alloc(max(nbytes, 1))
    except OutOfMemory as error:
        raise OutOfMemory(
            "memory",
            f"there is no room for {nbytes} bytes of {what}",
            hint="use smaller batches, or recompute activations",
        ) from error


def address(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's memory."""
    start: int = array.__array_interface__["data"][0]
    return start


def give_back() -> None:
    """Return memory to the system that the C library keeps of what was freed, where it can."""
    with contextlib.suppress(OSError, TypeError, AttributeError):  # glibc has it, few others do
        ctypes.CDLL(None).malloc_trim(0)
