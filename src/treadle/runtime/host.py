"""The host device: the memory NumPy, the CPU engines and the Lite runtime share without copies.

On this device a tensor's payload is the NumPy array itself, so ordinary ops never come here; the
class exists for code that treats all devices alike (conformance tests, memory queries, fallback).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.base.errors import OutOfMemory
from treadle.runtime.api import Buffer, DeviceInfo, Stream, SynchronousStream

ALIGNMENT = 64
_STREAM = SynchronousStream()


class HostBuffer:
    """Aligned host memory."""

    __slots__ = ("bytes",)

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.bytes = data

    @property
    def nbytes(self) -> int:
        return int(self.bytes.nbytes)


class HostDevice:
    """Main memory; every call has finished when it returns."""

    @property
    def info(self) -> DeviceInfo:
        return DeviceInfo("host", memory=self.memory()[0], features=("float64", "bfloat16"))

    def alloc(self, nbytes: int, /) -> Buffer:
        try:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):
            raise OutOfMemory("host", f"cannot allocate {nbytes} bytes") from None
        start = -raw.ctypes.data % ALIGNMENT
        return HostBuffer(raw[start : start + nbytes])

    def free(self, buffer: Buffer, /) -> None:
        return None

    def copy_in(self, dst: Buffer, src: memoryview, stream: Stream, /) -> None:
        _data(dst)[: src.nbytes] = np.frombuffer(src, np.uint8)

    def copy_out(self, dst: memoryview, src: Buffer, stream: Stream, /) -> None:
        np.frombuffer(dst, np.uint8)[:] = _data(src)[: dst.nbytes]

    def fill(self, buffer: Buffer, value: int, nbytes: int, stream: Stream, /) -> None:
        _data(buffer)[:nbytes] = value

    def stream(self) -> Stream:
        return _STREAM

    def memory(self) -> tuple[int, int]:
        names = getattr(os, "sysconf_names", {})
        if "SC_PHYS_PAGES" not in names or "SC_AVPHYS_PAGES" not in names:
            return 0, 0
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")

    def close(self) -> None:
        return None


def _data(buffer: Any) -> npt.NDArray[np.uint8]:
    """The bytes of a host buffer."""
    found: npt.NDArray[np.uint8] = buffer.bytes
    return found
