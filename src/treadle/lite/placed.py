"""Tensors of Lite in the memory of a device that is not the host."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from treadle.backends.registry import BUILT_IN
from treadle.base.array import Array
from treadle.base.edition import left_out
from treadle.base.errors import DeviceError
from treadle.base.version import LITE
from treadle.engine.devices.names import CompNode, device_count, resolve
from treadle.lite.base import LiteDeviceType, device_kind
from treadle.lite.tensor import LiteLayout, LiteTensor
from treadle.runtime.array import DeviceArray, to_device, to_host


def place_of(device_type: LiteDeviceType, device_id: int, stream: int = 0) -> CompNode:
    """The device of a type and number, and one of its streams.

    Raises:
        RuntimeError: there is none.
    """
    name = f"{device_kind(device_type)}{max(device_id, 0)}:{stream}"
    try:
        node = resolve(name)
        node.open()
    except DeviceError as error:
        raise RuntimeError(
            f"{LiteDeviceType(device_type).name} is not available: {error.problem}\n"
            f"  hint: {_advice(device_kind(device_type))}, or use LITE_CPU"
        ) from error
    return node


def _advice(kind: str) -> str:
    backend = "cuda" if kind == "gpu" else kind
    if LITE is None or backend in LITE or backend not in BUILT_IN:
        return "install a backend for it"
    return left_out(f"treadle.backends.{backend}")


def count_of(device_type: LiteDeviceType) -> int:
    """Return the number of devices of a type."""
    return device_count(device_kind(device_type))


class PlacedTensor(LiteTensor):
    """A dense array in a device's memory; what it holds goes in and comes out as a copy."""

    def _settle(self) -> None:
        self._device = place_of(self._device_type, self._device_id).open()
        # Tensors that share memory share this list.
        self._cell: list[DeviceArray] = []

    def hold(self, payload: Any) -> None:
        """Take over a result that a network has made."""
        self._cell[:] = [to_device(payload, self._device)]

    def held(self) -> DeviceArray:
        """Return the tensor's content, as networks take it."""
        return self._cell[0]

    def _own(self, array: Array) -> None:
        # What shared the memory goes on with it: a new layout is new memory, as on the host.
        if self._cell and (array.shape, array.dtype) != (self._cell[0].shape, self._cell[0].dtype):
            self._cell = []
        self.hold(array)

    def _no_host_memory(self, what: str) -> NoReturn:
        raise RuntimeError(
            f"LiteTensor.{what}: its memory is that of {self._device.name}\n"
            "  hint: copy, by set_data_by_copy, copy_from and to_numpy"
        )

    # -- what it is ------------------------------------------------------------------------

    @property
    def layout(self) -> LiteLayout:
        """Shape and element type; a new one makes new memory."""
        return LiteLayout(self.held().shape, self.held().dtype)

    @layout.setter
    def layout(self, layout: LiteLayout) -> None:
        self._lay_out(layout)

    @property
    def is_continue(self) -> bool:
        """True: a device's memory is always dense."""
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.held().nbytes

    # -- contents --------------------------------------------------------------------------

    def fill_zero(self) -> None:
        """Set every element to zero."""
        self.hold(np.zeros(self.held().shape, self.held().dtype))

    def share_memory_with(self, src_tensor: LiteTensor) -> None:
        """Stand for the memory of another tensor of the same device from now on.

        Raises:
            RuntimeError: the other one is elsewhere.
        """
        if not isinstance(src_tensor, PlacedTensor) or src_tensor._device is not self._device:
            self._no_host_memory("share_memory_with")
        self._cell = src_tensor._cell

    def copy_from(self, src_tensor: LiteTensor) -> None:
        """Take over layout and contents of another tensor, wherever that is."""
        payload = src_tensor.held()
        self._own(np.array(payload, order="C") if isinstance(payload, np.ndarray) else payload)

    def reshape(self, shape: Sequence[int]) -> None:
        """The same elements under another shape."""
        self.hold(to_host(self.held()).reshape(tuple(shape)))

    def slice(
        self, start: Sequence[int], end: Sequence[int], step: Sequence[int] | None = None
    ) -> LiteTensor:
        """Raise RuntimeError: parts of a device's tensor cannot share its memory.

        Raises:
            RuntimeError: always.
        """
        self._no_host_memory("slice")

    def get_ctypes_memory(self) -> ctypes.c_void_p:
        """Raise RuntimeError: the host can read no address of the device's memory.

        Raises:
            RuntimeError: always.
        """
        self._no_host_memory("get_ctypes_memory")

    def set_data_by_share(
        self, data: Any, length: int = 0, layout: LiteLayout | None = None
    ) -> None:
        """Raise RuntimeError: the host's memory cannot be a device's.

        Raises:
            RuntimeError: always.
        """
        self._no_host_memory("set_data_by_share")

    def set_data_by_copy(
        self, data: Any, data_length: int = 0, layout: LiteLayout | None = None
    ) -> None:
        """Take over a copy of an array, nested lists, or memory of the host."""
        own = LiteTensor(self.layout)
        own.set_data_by_copy(data, data_length, layout)
        self._own(own.get_data_by_share())

    def get_data_by_share(self) -> Array:
        """Raise RuntimeError: the memory is not the host's.

        Raises:
            RuntimeError: always.
        """
        self._no_host_memory("get_data_by_share")

    def to_numpy(self) -> Array:
        """A copy of the contents."""
        return np.array(to_host(self.held()), order="C", copy=True)


__all__ = ["PlacedTensor", "count_of", "place_of"]
