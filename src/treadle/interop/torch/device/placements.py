"""Programs of compiled graphs on tensors of our devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treadle.engine.devices.names import CompNode
from treadle.interop.torch.arrays import PARTS, to_array, to_tensor
from treadle.interop.torch.device import generators, private
from treadle.interop.torch.device.memory import adopt, allocate, host_alias, memory_of
from treadle.interop.torch.device.places import NAME, place
from treadle.interop.torch.device.planned import on_device
from treadle.interop.torch.device.plans import element_type
from treadle.interop.torch.drawing import keys
from treadle.interop.torch.native.entries import EXTERNAL, dlpack_device
from treadle.interop.torch.strides import Placed
from treadle.runtime.array import DeviceArray, to_device


class OnHost:
    """`treadle:0`, whose tensors lie in the host's memory."""

    node: CompNode | None = None
    dlpack: int | None = dlpack_device(EXTERNAL, 0)

    def arrays(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Arrays on the tensors' memory."""
        return [to_array(host_alias(t) if t.device.type == NAME else t) for t in tensors]

    def keys(self, count: int) -> list[Any]:
        """States for so many random ops, under a key of the device's generator."""
        return list(keys(count, generators.of(0)))

    def tensor(self, array: Any, dtype: torch.dtype, place: Placed | None) -> torch.Tensor:
        """A result on its own memory."""
        private.set_multithreading(False)
        made = to_tensor(array, dtype)
        return adopt(made if place is None else place.given(made), 0)


class Away:
    """A device with memory of its own.

    Args:
        index: its number.
    """

    def __init__(self, index: int) -> None:
        self.node: CompNode | None = place(index)
        self.dlpack: int | None = None
        self._where = place(index)
        self._index = index

    def arrays(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Arrays of the device; views are taken by way of the host."""
        return [self._array(t) for t in tensors]

    def _array(self, tensor: torch.Tensor) -> DeviceArray:
        if tensor.device.type == NAME and (
            tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()
        ):
            return to_device(to_array(host_alias(tensor)).copy(), self._where.open())
        return on_device(tensor, element_type(tensor.dtype), self._index)

    def keys(self, count: int) -> list[Any]:
        """States for so many random ops, under a key of the device's generator."""
        return list(keys(count, generators.of(self._index)))

    def tensor(self, array: Any, dtype: torch.dtype, place: Placed | None) -> torch.Tensor:
        """A result, which stays on the device."""
        found = to_device(array, self._where.open())
        shape = found.shape[:-1] if dtype in PARTS else found.shape
        strides = None if place is None else place.strides
        made = allocate(shape if place is None else place.shape, strides, dtype, self._index)
        memory_of(made).replace(found)
        return made


def home(index: int) -> OnHost | Away:
    """Return the place where parts run whose tensors are on `treadle:index`."""
    return Away(index) if index else OnHost()
