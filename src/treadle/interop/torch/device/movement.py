"""Kernels that make, view, copy and resize tensors; none of them computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from treadle.base.errors import OutOfMemory
from treadle.interop.torch.device import private
from treadle.interop.torch.device.memory import (
    allocate,
    flat,
    host_alias,
    memory_of,
    set_storage,
)
from treadle.interop.torch.device.places import NAME, current

aten = torch.ops.aten
Kernel = Callable[..., Any]
Tensor: TypeAlias = torch.Tensor


def _index(device: torch.device | None) -> int:
    return current() if device is None or device.index is None else int(device.index)


def _refuse(layout: torch.layout | None, pin_memory: bool | None) -> None:
    if layout not in (None, torch.strided):
        raise RuntimeError(f"tensors on {NAME} are strided; {layout} ones stay on the cpu")
    if pin_memory:
        raise RuntimeError(f"only tensors of the cpu can be pinned, not those on {NAME}")


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    _refuse(layout, pin_memory)
    stride = None
    if memory_format not in (None, torch.contiguous_format):
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return allocate(size, stride, dtype or torch.get_default_dtype(), _index(device))


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    _refuse(layout, pin_memory)
    return allocate(size, stride, dtype or torch.get_default_dtype(), _index(device))


def _view_by(op: Any) -> Kernel:
    """The CPU's kernel, which only makes another view of the storage that it is given."""
    redispatch, key = op.redispatch, private.CPU_KEY

    def view(*args: Any, **kwargs: Any) -> Any:
        return redispatch(key, *args, **kwargs)

    return view


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    private.set_multithreading(False)
    try:
        if not _shared(source, target):
            read = host_alias(source) if source.device.type == NAME else source
            # What is not covered by the target keeps its bytes, which are therefore fetched first.
            write = host_alias(target, written=True) if target.device.type == NAME else target
            write.copy_(read)
    except OutOfMemory as error:
        raise torch.OutOfMemoryError(str(error)) from error
    return target


def _shared(source: Tensor, target: Tensor) -> bool:
    """Copy within a device by holding the same array, which never changes."""
    device = source.device
    if device != target.device or not device.index or source.dtype is not target.dtype:
        return False
    if not (_is_whole(source) and _is_whole(target)) or source.shape != target.shape:
        return False
    if source.is_conj() or source.is_neg() or source._is_zerotensor():
        return False
    memory = memory_of(source)
    if not memory.missing or memory.held is None:
        return False
    memory_of(target).replace(memory.held)
    return True


def _is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor is its storage, row by row."""
    nbytes = tensor.numel() * tensor.dtype.itemsize
    return bool(tensor.is_contiguous() and nbytes == tensor.untyped_storage().nbytes())


def _copy_from_and_resize(source: Tensor, target: Tensor) -> Tensor:
    if target.shape != source.shape:
        target.resize_(source.shape)
    return _copy_from(source, target)


def _local_scalar_dense(tensor: Tensor) -> Any:
    return host_alias(tensor).item()


def _resize(
    tensor: Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> Tensor:
    format = torch.contiguous_format if memory_format is None else memory_format
    if format is torch.preserve_format:
        raise RuntimeError("resize_ cannot preserve a format")
    stride = torch.empty(size, device="meta", memory_format=format).stride()
    extent = (
        1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if math.prod(size) else 0
    )
    held = tensor.untyped_storage()
    needed = (tensor.storage_offset() + extent) * tensor.dtype.itemsize
    if needed > held.nbytes():
        grown = torch.empty(needed // tensor.dtype.itemsize, dtype=tensor.dtype, device="cpu")
        if held.nbytes():
            flat(grown.untyped_storage())[: held.nbytes()] = flat(memory_of(tensor).host())
        grown = grown.as_strided(size, stride, tensor.storage_offset())
        set_storage(tensor, grown, size, stride)
    else:
        _set(tensor, held, int(tensor.storage_offset()), size, stride)
    return tensor


def _set(tensor: Tensor, storage: Any, offset: int, size: Any, stride: Any = ()) -> Tensor:
    if math.prod(size) and not len(stride):
        stride = torch.empty(size, device="meta").stride()
    op = aten.set_.source_Storage_storage_offset
    if storage.device != tensor.device:
        raise RuntimeError(f"set_: a storage of {storage.device} under a tensor of {tensor.device}")
    op.redispatch(private.CPU_KEY, tensor, storage, offset, size, stride)
    return tensor


def _set_tensor(tensor: Tensor, source: Tensor) -> Tensor:
    storage = source.untyped_storage()
    return _set(tensor, storage, int(source.storage_offset()), source.size(), source.stride())


def _set_storage(tensor: Tensor, storage: Any) -> Tensor:
    return _set(tensor, storage, 0, (storage.nbytes() // tensor.dtype.itemsize,), (1,))


def _set_nothing(tensor: Tensor) -> Tensor:
    set_storage(tensor, torch.empty(0, dtype=tensor.dtype, device="cpu"), (0,), (1,))
    return tensor


def _pin(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """Memory of the host is as good as pinned; a copy, as PyTorch promises one."""
    return tensor.clone()


KERNELS: dict[str, Kernel] = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "as_strided": _view_by(aten.as_strided.default),
    "view": _view_by(aten.view.default),
    "_reshape_alias": _view_by(aten._reshape_alias.default),
    "unfold": _view_by(aten.unfold.default),
    "view_as_real": _view_by(aten.view_as_real.default),
    "view_as_complex": _view_by(aten.view_as_complex.default),
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from_and_resize,
    "_local_scalar_dense": _local_scalar_dense,
    "resize_": _resize,
    "set_": _set_nothing,
    "set_.source_Storage": _set_storage,
    "set_.source_Storage_storage_offset": _set,
    "set_.source_Tensor": _set_tensor,
}
"""By operator, for our key."""
FOR_CPU: dict[str, Kernel] = {"_pin_memory": _pin}
"""For tensors of the CPU, which PyTorch has an accelerator pin."""
PASSED = ("_copy_from", "_copy_from_and_resize")
"""Operators whose kernels look at the bits for conjugation and negation themselves."""
