"""Files: storages that `torch.load` puts on devices."""

from __future__ import annotations

from typing import Any

import torch

from treadle.interop.torch.device.memory import adopt
from treadle.interop.torch.device.places import NAME, index_of

PRIORITY = 5  # before PyTorch's own way, which needs an allocator in C++


def _tag(storage: Any) -> None:
    """Nothing: PyTorch's own name for where a storage was is right."""
    return None


def _restore(storage: Any, location: str) -> Any:
    """A storage of the CPU on the device where a file or `map_location` wants it."""
    if location.partition(":")[0] != NAME:
        return None
    index = index_of(location)
    source = getattr(storage, "_untyped_storage", storage)
    flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(source)
    return adopt(flat.clone() if flat.numel() else flat, index).untyped_storage()


def register() -> None:
    """Have `torch.load` ask here first."""
    torch.serialization.register_package(PRIORITY, _tag, _restore)
