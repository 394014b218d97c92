"""Files and copies: storages that `torch.load` and `copy.deepcopy` put on devices."""

from __future__ import annotations

import copy
from typing import Any

import torch

from treadle.interop.torch.device.memory import adopt, flat, memory_at
from treadle.interop.torch.device.places import NAME, index_of

PRIORITY = 5  # before PyTorch's own way, which needs an allocator in C++


def _tag(storage: Any) -> None:
    """Return None: PyTorch's own name for where a storage was is right."""
    return None


def _restore(storage: Any, location: str) -> Any:
    """A storage of the CPU on the device where a file or `map_location` wants it."""
    if location.partition(":")[0] != NAME:
        return None
    index = index_of(location)
    source = getattr(storage, "_untyped_storage", storage)
    held = flat(source)
    return adopt(held.clone() if held.numel() else held, index).untyped_storage()


def _copied(storage: torch.UntypedStorage, memo: dict[int, Any]) -> Any:
    """A storage of its own with the same bytes; PyTorch's way needs an allocator in C++."""
    if storage.device.type != NAME:
        plain: Any = storage.__deepcopy__
        return plain(memo)
    made = adopt(flat(memory_at(storage).host()).clone(), int(storage.device.index or 0))
    return made.untyped_storage()


def register() -> None:
    """Register our own loading and copying with `torch.load` and `copy.deepcopy`."""
    torch.serialization.register_package(PRIORITY, _tag, _restore)
    table: dict[type, Any] = getattr(copy, "_deepcopy_dispatch")  # noqa: B009  (a private name)
    table[torch.UntypedStorage] = _copied
