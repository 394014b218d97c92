"""Arrays on devices other than the host, and movement between devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.runtime.api import Buffer
from treadle.runtime.opened import HostArray, MemoryBlock, OpenDevice


class DeviceArray:
    """An immutable dense row-major array in device memory, in host memory, or in both.

    Dual residency: whichever copy was made first is kept, the other is made when somebody asks
    for it, so a run of ops that all fall back to the host never bounces.

    Args:
        device: where the array belongs.
        dtype: element type.
        shape: extents.
        block: the device copy, owned by the array from now on.
        host: the host copy, never written to.
        fill: the byte all of `host` consists of, if so; the device copy is then filled, not
            copied.
        charge: told the bytes of the upload, if there is one.
    """

    __slots__ = ("_block", "_host", "_upload_as", "device", "dtype", "operand", "shape")

    operand: Any
    """The argument for kernels; whoever launches one makes it, and it is not there before."""

    def __init__(
        self,
        device: OpenDevice,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        block: MemoryBlock | None = None,
        *,
        host: HostArray | None = None,
        fill: int | None = None,
        charge: Callable[[int], None] | None = None,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.shape = shape
        self._block = block
        self._host = host
        self._upload_as = None if host is None else (fill, charge)

    def __del__(self) -> None:
        block = self._block
        if block is not None:
            self.device.release(block)

    def __repr__(self) -> str:
        copies = [n for n, c in (("device", self._block), ("host", self._host)) if c is not None]
        where = " and ".join(copies)
        return f"DeviceArray({self.dtype}{list(self.shape)} of {self.device.name}, in {where})"

    @property
    def nbytes(self) -> int:
        """Bytes of the dense array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def on_host(self) -> bool:
        """True if there is a host copy already."""
        return self._host is not None

    @property
    def block(self) -> MemoryBlock:
        """The device copy, uploaded first where only the host copy exists."""
        if self._block is None:
            with self.device.placing:  # two threads must not upload one array twice
                if self._block is None:
                    self._block = self._upload()
        return self._block

    def _upload(self) -> MemoryBlock:
        fill, charge = self._upload_as or (None, None)
        if fill is not None:
            return self.device.filled(fill, self.nbytes)
        if charge is not None:
            charge(self.nbytes)
        return self.device.upload(self.host())

    @property
    def buffer(self) -> Buffer:
        """The device copy, as the backend's `alloc` returned it."""
        return self.block.buffer

    def host(self) -> HostArray:
        """The host copy, downloaded first where only the device copy exists; never written to."""
        if self._host is None:
            array = np.empty(self.shape, self.dtype)
            self.device.download(self.block, array)
            self._host = array
        return self._host


_new = DeviceArray.__new__


def resident(
    device: OpenDevice, dtype: np.dtype[Any], shape: tuple[int, ...], block: MemoryBlock
) -> DeviceArray:
    """An array whose only copy is a block of its own; made so for the sake of the time it takes."""
    made = _new(DeviceArray)
    made.device = device
    made.dtype = dtype
    made.shape = shape
    made._block = block
    made._host = made._upload_as = None
    return made


def to_host(payload: Any) -> HostArray:
    """A payload as a NumPy array, without a copy where it already is one."""
    if type(payload) is DeviceArray:
        if payload.on_host:
            return payload.host()
        array: HostArray = payload.device.waiting(payload.host)
        return array
    return np.asarray(payload)


def from_host(array: HostArray, device: OpenDevice | None) -> Any:
    """A payload on `device` (None: the host) with the contents of `array`, which is not copied."""
    if device is None:
        return array
    return DeviceArray(device, array.dtype, array.shape, host=array)


def to_device(payload: Any, device: OpenDevice) -> DeviceArray:
    """A payload on `device`; by way of the host only where there is no shorter one."""
    if type(payload) is not DeviceArray:
        array = np.asarray(payload)
        return DeviceArray(device, array.dtype, array.shape, host=array)
    if payload.device is device:
        return payload
    if payload.on_host or not device.reaches(payload.device):
        return DeviceArray(device, payload.dtype, payload.shape, host=payload.host())
    block = device.fetch(payload.device, payload.block)
    return DeviceArray(device, payload.dtype, payload.shape, block=block)
