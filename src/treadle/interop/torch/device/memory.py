"""Tensors on `treadle:i`: real tensors of PyTorch, whose storages hold the memory.

A storage points at host memory that is as large as it is. On the host that is all there is: a
tensor of the CPU over the same memory is what PyTorch's kernels get. On other devices the newest
copy may be an array of the device; the host's is then fetched when somebody asks for it.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from treadle.base.errors import DTypeError
from treadle.interop.torch.device import private
from treadle.interop.torch.device.places import NAME, place
from treadle.interop.torch.native.entries import (
    DLPACK_CPU,
    DLPACK_TYPES,
    EXTERNAL,
    dlpack_device,
    dlpack_type,
)
from treadle.interop.torch.native.layout import MOST_AXES
from treadle.interop.torch.native.library import NativeLibrary, library
from treadle.runtime.array import DeviceArray

_capsule: Any = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_word_at = ctypes.c_uint64.from_address
_pack_head = struct.Struct("<QiiiBBHQQQ").pack_into
_pack_axes = [struct.Struct(f"<{n}q").pack_into for n in range(65)]


_MOST_ELEMENTS = 1 << 44
"""A tensor of so many has no room on any machine, and bytes that fit into a word."""


class _Template(threading.local):
    """A `DLManagedTensor` without a deleter, which PyTorch reads and keeps nothing of."""

    def __init__(self) -> None:
        self.head = ctypes.create_string_buffer(64)
        self.axes = ctypes.create_string_buffer(16 * 64)
        self.address = ctypes.addressof(self.head)
        self.sizes = ctypes.addressof(self.axes)


_TEMPLATE = _Template()


class StorageBytes:
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
            source = np.ascontiguousarray(array.host()).reshape(-1).view(np.uint8)
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


_BY_ADDRESS: weakref.WeakValueDictionary[int, StorageBytes] = weakref.WeakValueDictionary()
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
    if dtype not in DLPACK_TYPES:
        raise DTypeError("torch", f"{dtype} cannot be on {NAME}:{index}", hint="keep it on the cpu")
    ndim, template = len(size), _TEMPLATE
    code, bits = DLPACK_TYPES[dtype]
    _pack_axes[ndim](template.axes, 0, *size)
    _pack_axes[ndim](template.axes, 512, *stride)
    sizes = template.sizes
    _pack_head(
        template.head, 0, address, EXTERNAL, index, ndim, code, bits, 1, sizes, sizes + 512, 0
    )
    made: torch.Tensor = private.from_dlpack(_capsule(template.address, b"dltensor", None))
    return made


def _relabelled(tensor: torch.Tensor, device: int) -> torch.Tensor:
    """The same elements as a tensor of another device, which keeps the memory alive.

    Args:
        tensor: with elements, and without bits for conjugation or negation.
        device: see `dlpack_device`.
    """
    capsule = private.to_dlpack(tensor)
    _word_at(_pointer(capsule, b"dltensor") + 8).value = device
    made: torch.Tensor = private.from_dlpack(capsule)
    return made


def host_twin(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU over a tensor's elements: `host_alias`, quicker, for plain tensors.

    Args:
        tensor: with elements of a real type that DLPack knows, whose newest bytes the host has.
            Its storage keeps its size.
    """
    return _relabelled(tensor, DLPACK_CPU)


def _resized(held: int, index: int, nbytes: int) -> None:
    """`resize_` of storages, found on the instance before the class.

    They stay as large as they are made; asked for less, they keep what they have.

    Raises:
        RuntimeError: more was asked for.
    """
    if nbytes > held:
        raise RuntimeError(
            f"a storage of {held} bytes on {NAME}:{index} cannot grow to {nbytes}; "
            "resize the tensor, which gets another storage"
        )


def _own(storage: torch.UntypedStorage, memory: StorageBytes) -> None:
    resized = partial(_resized, memory.mirror.nbytes(), memory.index)
    storage.__dict__.update(treadle=memory, resize_=resized)
    address = memory.mirror.data_ptr()
    if address:
        _BY_ADDRESS[address] = memory


def memory_of(tensor: torch.Tensor) -> StorageBytes:
    """The memory of a tensor's storage.

    Raises:
        RuntimeError: it is none of ours, as one made by `torch.UntypedStorage` itself.
    """
    return memory_at(tensor.untyped_storage())


def memory_at(storage: torch.UntypedStorage) -> StorageBytes:
    """The memory of a storage; see `memory_of`."""
    found: StorageBytes | None = storage.__dict__.get("treadle")
    if found is None:
        address, index = storage.data_ptr(), int(storage.device.index or 0)
        found = _BY_ADDRESS.get(address) if address else None
        if found is None and storage.nbytes():
            if index:
                raise RuntimeError(f"a storage on {storage.device} was not made by Treadle")
            return _on_host(storage)
        found = found or StorageBytes(_nothing(), index)
        _own(storage, found)
    return found


def _on_host(storage: torch.UntypedStorage) -> StorageBytes:
    """The memory of a storage of `treadle:0` that native code made: it is the host's.

    It stays as long as anybody has a tensor of the CPU on it; nothing is noted at the storage.
    """
    cpu = torch.device("cpu")
    mirror: torch.UntypedStorage = private.storage_at(storage.data_ptr(), cpu, storage.nbytes())
    mirror.__dict__["whose"] = storage
    return StorageBytes(mirror, 0)


def adopt(host: torch.Tensor, index: int) -> torch.Tensor:
    """A tensor of the CPU as one of the device, on the same memory; nobody else uses the former."""
    if host.is_conj():
        host = host.resolve_conj()
    if host.is_neg():
        host = host.resolve_neg()
    if host.storage_offset():  # Storages begin where their memory does.
        host = host.clone()
    storage = host.untyped_storage()
    nbytes = storage.nbytes()
    if 0 < nbytes == host.numel() * host.itemsize and host.dtype in DLPACK_TYPES:
        made = _relabelled(host, dlpack_device(EXTERNAL, index))
        if not index:
            made.untyped_storage().__dict__["resize_"] = partial(_resized, nbytes, 0)
            return made
    else:
        made = _tensor(host.data_ptr(), index, host.dtype, host.size(), host.stride())
    _own(made.untyped_storage(), StorageBytes(storage, index))
    return made


def allocate(
    size: Sequence[int], stride: Sequence[int] | None, dtype: torch.dtype, index: int
) -> torch.Tensor:
    """A tensor of the device with memory of its own, whose contents may be anything."""
    private.set_multithreading(False)  # The guard knows one device; backward needs this thread.
    native = None if index else library()
    if native is not None and dtype in DLPACK_TYPES:
        return _blank(native, size, stride, dtype)
    place(index)
    if stride is None:
        return adopt(torch.empty(size, dtype=dtype, device="cpu"), index)
    return adopt(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), index)


def _is_usual(size: Sequence[int], stride: Sequence[int] | None) -> bool:
    """Return whether there can be such a tensor, as far as its sizes and strides tell."""
    if len(size) > MOST_AXES or min(size) < 0 or math.prod(size) >= _MOST_ELEMENTS:
        return False
    if stride is None:
        return True
    if len(size) != len(stride) or min(stride) < 0:
        return False
    return sum([(n - 1) * step for n, step in zip(size, stride, strict=True)]) < _MOST_ELEMENTS


def _refuse(size: Sequence[int], stride: Sequence[int] | None, dtype: torch.dtype) -> None:
    """Say in PyTorch's words why there is no such tensor, which native code must not be asked for.

    Raises:
        RuntimeError: always.
    """
    if stride is None:
        torch.empty(size, dtype=dtype, device="meta")
    else:
        torch.empty_strided(size, stride, dtype=dtype, device="meta")
    if len(size) > MOST_AXES:
        raise RuntimeError(f"{NAME}:0 has tensors of {MOST_AXES} axes at most, not {len(size)}")
    wide = f"sizes={list(size)}" + ("" if stride is None else f" and strides={list(stride)}")
    raise torch.OutOfMemoryError(f"{NAME}:0 has no room for a tensor with {wide}")


def _blank(
    native: NativeLibrary, size: Sequence[int], stride: Sequence[int] | None, dtype: torch.dtype
) -> torch.Tensor:
    """A tensor of `treadle:0` on memory of the host.

    Raises:
        RuntimeError: PyTorch's, for sizes that no tensor has.
        torch.OutOfMemoryError: there is not enough.
    """
    if size and not _is_usual(size, stride):
        _refuse(size, stride, dtype)
    code, bits = DLPACK_TYPES[dtype]
    strides = None if stride is None else tuple(stride)
    device = dlpack_device(EXTERNAL, 0)
    try:
        made: torch.Tensor = native.blank(
            (dlpack_type(code, bits), bits >> 3, device, tuple(size), strides)
        )
    except MemoryError as error:
        raise torch.OutOfMemoryError(
            f"{NAME}:0 has no room for a tensor of {list(size)}"
        ) from error
    storage = made.untyped_storage()
    storage.__dict__["resize_"] = partial(_resized, storage.nbytes(), 0)
    return made


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
    memory = StorageBytes(host.untyped_storage(), device.index)
    address, nbytes = memory.mirror.data_ptr(), memory.mirror.nbytes()
    storage = private.storage_at(address, device, nbytes)
    _own(storage, memory)
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        private.CPU_KEY, tensor, storage, host.storage_offset(), size, stride
    )
