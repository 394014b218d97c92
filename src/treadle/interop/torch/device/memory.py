"""Tensors on `treadle:i`: real tensors of PyTorch, whose storages hold the memory.

A storage points at host memory that is as large as it is. On the host that is all there is: a
tensor of the CPU over the same memory is what PyTorch's kernels get. On other devices the newest
copy may be an array of the device; the host's is then fetched when somebody asks for it.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from treadle.base.errors import DTypeError
from treadle.interop.torch.device import private
from treadle.interop.torch.device.places import NAME, place
from treadle.runtime.array import DeviceArray

_EXTERNAL = 12  # DLPack's number for devices that it does not know
_CODES: dict[torch.dtype, tuple[int, int]] = {
    torch.bool: (6, 8),
    **{getattr(torch, f"int{n}"): (0, n) for n in (8, 16, 32, 64)},
    **{getattr(torch, f"uint{n}"): (1, n) for n in (8, 16, 32, 64)},
    **{getattr(torch, f"float{n}"): (2, n) for n in (16, 32, 64)},
    torch.bfloat16: (4, 16),
    **{getattr(torch, f"complex{n}"): (5, n) for n in (32, 64, 128)},
    torch.float8_e4m3fn: (10, 8),
    torch.float8_e4m3fnuz: (11, 8),
    torch.float8_e5m2: (12, 8),
    torch.float8_e5m2fnuz: (13, 8),
    torch.float8_e8m0fnu: (14, 8),
}
"""DLPack's code and bits of element types."""

_capsule: Any = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pack_head = struct.Struct("<QiiiBBHQQQ").pack_into
_pack_axes = [struct.Struct(f"<{n}q").pack_into for n in range(65)]


class _Template(threading.local):
    """A `DLManagedTensor` without a deleter, which PyTorch reads and keeps nothing of."""

    def __init__(self) -> None:
        self.head = ctypes.create_string_buffer(64)
        self.axes = ctypes.create_string_buffer(16 * 64)
        self.address = ctypes.addressof(self.head)
        self.sizes = ctypes.addressof(self.axes)


_TEMPLATE = _Template()


class Memory:
    """The bytes of a storage.

    Attributes:
        mirror: the host's memory, which the storage points at.
        index: number of the device.
    """

    __slots__ = ("__weakref__", "_array", "_bytes", "_is_stale", "index", "mirror")

    def __init__(self, mirror: torch.UntypedStorage, index: int) -> None:
        self.mirror = mirror
        self.index = index
        self._array: DeviceArray | None = None
        self._is_stale = False  # whether the array is newer than the mirror
        self._bytes: Any = None

    def host(self, *, written: bool = False) -> torch.UntypedStorage:
        """The host's memory with the newest bytes, which are to be written to or only read."""
        if self._array is not None:
            if self._is_stale:
                self._fetch(self._array)
            if written:
                self._array = None
        return self.mirror

    @property
    def missing(self) -> int:
        """Bytes that the host would have to fetch."""
        return self._array.nbytes if self._array is not None and self._is_stale else 0

    @property
    def held(self) -> DeviceArray | None:
        """The array of the device, if it has one of these bytes."""
        return self._array

    def _fetch(self, array: DeviceArray) -> None:
        target = flat(self.mirror)
        if array.on_host:
            source = array.host().reshape(-1).view(np.uint8)
            target.numpy()[: source.size] = source
        else:
            filled = target.numpy()[: array.nbytes].view(array.dtype).reshape(array.shape)
            array.device.download(array.block, filled)
        self._is_stale = False

    def view(self, tensor: torch.Tensor, dtype: np.dtype[Any]) -> Any:
        """A tensor on these bytes as an array on the host's memory, with the tensor's strides.

        Args:
            tensor: of the storage.
            dtype: NumPy's type of its elements; of complex ones, that of their parts.
        """
        if self._array is not None and self._is_stale:
            self._fetch(self._array)
        held = self._bytes
        if held is None:
            held = self._bytes = flat(self.mirror).numpy()
        size, whole = dtype.itemsize, tensor.dtype.itemsize
        shape, strides = tuple(tensor.shape), [n * whole for n in tensor.stride()]
        if tensor.dtype.is_complex:
            shape, strides = (*shape, 2), [*strides, size]
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, held, tensor.storage_offset() * whole, strides)

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> DeviceArray:
        """All bytes as an array of the device."""
        held = self._array
        if held is not None:
            if held.dtype == dtype and held.shape == shape:
                return held
            self.host()
        # A copy, since arrays never change and what is uploaded may be read later.
        host = flat(self.mirror).numpy().copy().view(dtype).reshape(shape)
        made = DeviceArray(place(self.index).open(), host.dtype, shape, host=host)
        self._array, self._is_stale = made, False
        return made

    def replace(self, array: DeviceArray) -> None:
        """Hold an array's bytes in place of what there is; it is as large."""
        self._array, self._is_stale = array, True

    # -- what storages are asked for, found on the instance before the class --------------------

    def deepcopied(self, memo: dict[int, Any]) -> torch.UntypedStorage:
        """A storage of its own with the same bytes."""
        made = adopt(flat(self.host()).clone(), self.index)
        storage: torch.UntypedStorage = made.untyped_storage()
        return storage

    def resized(self, nbytes: int) -> None:
        """Storages stay as large as they are made; asked for less, they keep what they have.

        Raises:
            RuntimeError: more was asked for.
        """
        if nbytes > self.mirror.nbytes():
            raise RuntimeError(
                f"a storage of {self.mirror.nbytes()} bytes on {NAME}:{self.index} cannot grow to "
                f"{nbytes}; resize the tensor, which gets another storage"
            )


_BY_ADDRESS: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
"""For storages that PyTorch makes anew over the same memory, without what was noted at them."""


def _nothing() -> torch.UntypedStorage:
    return torch.empty(0, device="cpu").untyped_storage()


def flat(storage: torch.UntypedStorage) -> torch.Tensor:
    """A storage of the CPU as a tensor of its bytes."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _tensor(
    address: int, index: int, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """A tensor over an address, whose storage nobody owns yet."""
    known = _CODES.get(dtype)
    if known is None:
        raise DTypeError("torch", f"{dtype} cannot be on {NAME}:{index}", hint="keep it on the cpu")
    ndim, template = len(size), _TEMPLATE
    code, bits = known
    _pack_axes[ndim](template.axes, 0, *size)
    _pack_axes[ndim](template.axes, 512, *stride)
    sizes = template.sizes
    _pack_head(
        template.head, 0, address, _EXTERNAL, index, ndim, code, bits, 1, sizes, sizes + 512, 0
    )
    made: torch.Tensor = private.from_dlpack(_capsule(template.address, b"dltensor", None))
    return made


def _own(storage: torch.UntypedStorage, memory: Memory) -> None:
    storage.__dict__.update(treadle=memory, __deepcopy__=memory.deepcopied, resize_=memory.resized)
    address = memory.mirror.data_ptr()
    if address:
        _BY_ADDRESS[address] = memory


def memory_of(tensor: torch.Tensor) -> Memory:
    """The memory of a tensor's storage.

    Raises:
        RuntimeError: it is none of ours, as one made by `torch.UntypedStorage` itself.
    """
    storage = tensor.untyped_storage()
    found: Memory | None = storage.__dict__.get("treadle")
    if found is None:
        address = storage.data_ptr()
        found = _BY_ADDRESS.get(address) if address else None
        if found is None and storage.nbytes():
            raise RuntimeError(f"a storage on {tensor.device} was not made by Treadle")
        found = found or Memory(_nothing(), int(tensor.device.index or 0))
        _own(storage, found)
    return found


def adopt(host: torch.Tensor, index: int) -> torch.Tensor:
    """A tensor of the CPU as one of the device, on the same memory; nobody else uses the former."""
    if host.is_conj():
        host = host.resolve_conj()
    if host.is_neg():
        host = host.resolve_neg()
    if host.storage_offset():  # Storages begin where their memory does.
        host = host.clone()
    storage = host.untyped_storage()
    made = _tensor(host.data_ptr(), index, host.dtype, host.size(), host.stride())
    memory = Memory(storage, index)
    _own(made.untyped_storage(), memory)
    return made


def allocate(
    size: Sequence[int], stride: Sequence[int] | None, dtype: torch.dtype, index: int
) -> torch.Tensor:
    """A tensor of the device with memory of its own, whose contents may be anything."""
    place(index)
    private.set_multithreading(False)  # The guard knows one device; backward needs this thread.
    if stride is None:
        return adopt(torch.empty(size, dtype=dtype, device="cpu"), index)
    return adopt(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), index)


def host_alias(tensor: torch.Tensor, *, written: bool = False) -> torch.Tensor:
    """A tensor of the CPU over a tensor's memory, with the newest bytes."""
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
    storage = memory_of(tensor).host(written=written)
    first = torch.empty(0, dtype=tensor.dtype, device="cpu")
    alias: torch.Tensor = first.set_(
        storage, tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    if tensor.is_conj():
        alias = private.conjugated(alias)
    if tensor.is_neg():
        alias = private.negated(alias)
    return alias


def set_storage(
    tensor: torch.Tensor, host: torch.Tensor, size: Sequence[int], stride: Sequence[int]
) -> None:
    """Put the memory of a tensor of the CPU under a tensor of the device."""
    device = tensor.device
    memory = Memory(host.untyped_storage(), device.index)
    address, nbytes = memory.mirror.data_ptr(), memory.mirror.nbytes()
    storage = private.storage_at(address, device, nbytes)
    _own(storage, memory)
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        private.CPU_KEY, tensor, storage, host.storage_offset(), size, stride
    )
