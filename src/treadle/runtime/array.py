"""Arrays on devices other than the host, and movement between devices."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.runtime.api import Buffer, Device

HostArray = npt.NDArray[Any]


class DeviceArray:
    """An immutable dense row-major array in device memory, in host memory, or in both.

    Dual residency: whichever copy was made first is kept, the other is made when somebody asks
    for it, so a run of ops that all fall back to the host never bounces.
    """

    __slots__ = ("__weakref__", "_buffer", "_host", "device", "dtype", "shape", "traffic")

    def __init__(
        self,
        device: Device,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        *,
        buffer: Buffer | None = None,
        host: HostArray | None = None,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.shape = shape
        self.traffic = 0
        self._host = host
        self._buffer: Buffer | None = None
        if buffer is not None:
            self._own(buffer)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def buffer(self) -> Buffer:
        """The device copy, uploaded first where only the host copy exists."""
        if self._buffer is None:
            buffer = self.device.alloc(self.nbytes)
            self._own(buffer)
            if self.nbytes and self._host is not None:
                self.device.copy_in(buffer, _bytes(self._host), self.device.stream())
                self.traffic += self.nbytes
            return buffer
        return self._buffer

    def host(self) -> HostArray:
        """The host copy, downloaded first where only the device copy exists; never written to."""
        if self._host is None:
            array = np.empty(self.shape, self.dtype)
            if self.nbytes:
                self.device.copy_out(_bytes(array), self.buffer, self.device.stream())
                self.traffic += self.nbytes
            self._host = array
        return self._host

    def _own(self, buffer: Buffer) -> None:
        self._buffer = buffer
        weakref.finalize(self, self.device.free, buffer)


def _bytes(array: HostArray) -> memoryview:
    """The bytes of an array as a flat memory view (NumPy exports no view of bfloat16 itself)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def to_host(payload: Any) -> HostArray:
    """A payload as a NumPy array, without a copy where it already is one."""
    if type(payload) is DeviceArray:
        return payload.host()
    return np.asarray(payload)


def from_host(array: HostArray, device: Device | None) -> Any:
    """A payload on `device` (None: the host) with the contents of `array`, which is not copied."""
    if device is None:
        return array
    return DeviceArray(device, array.dtype, array.shape, host=array)
