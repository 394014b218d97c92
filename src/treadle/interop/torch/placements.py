"""Placements of parts of PyTorch's graphs: the CPU, or a device that was registered for it.

A part has tensors of one device, and single numbers of the CPU. How that device's tensors become
what a program takes, and results become tensors, is said by who registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from treadle.engine.devices.names import CompNode
from treadle.interop.torch.arrays import to_array, to_tensor
from treadle.interop.torch.drawing import keys
from treadle.interop.torch.native.entries import DLPACK_CPU, dlpack_device
from treadle.interop.torch.strides import Placed

CPU = torch.device("cpu")


class Placement(Protocol):
    """A device that programs run on.

    Attributes:
        node: the device as the engine knows it; None: the host.
        dlpack: the device in DLPack's word, if its memory is the host's; else None.
    """

    node: CompNode | None
    dlpack: int | None

    def arrays(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Return tensors in the form that a program takes."""
        ...

    def keys(self, count: int) -> list[Any]:
        """States for so many random ops."""
        ...

    def tensor(self, array: Any, dtype: torch.dtype, place: Placed | None) -> torch.Tensor:
        """A result of a program, which lies as `place` says."""
        ...


class _Host:
    """The CPU of PyTorch."""

    node: CompNode | None = None
    dlpack: int | None = dlpack_device(DLPACK_CPU, 0)

    def arrays(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        return list(map(to_array, tensors))

    def keys(self, count: int) -> list[Any]:
        return list(keys(count))

    def tensor(self, array: Any, dtype: torch.dtype, place: Placed | None) -> torch.Tensor:
        made = to_tensor(array, dtype)
        return made if place is None else place.given(made)


_HOST = _Host()
_KINDS: dict[str, Callable[[int], Placement]] = {}


def add_placements(name: str, home: Callable[[int], Placement]) -> None:
    """Register devices of PyTorch by name, on which parts run; `home` gives them by number."""
    _KINDS[name] = home


def placement_of(device: torch.device) -> Placement:
    """Return the home of parts whose tensors are on a device."""
    if device.type == "cpu":
        return _HOST
    return _KINDS[device.type](device.index or 0)


def devices_of(graph: fx.Graph) -> list[torch.device]:
    """The devices of a graph's tensors that parts run on, as they first occur."""
    found = {d: None for n in graph.nodes for d in _devices(n) if d.type in ("cpu", *_KINDS)}
    return list(found)


def _devices(node: fx.Node) -> Iterator[torch.device]:
    value = node.meta.get("val")
    for tensor in value if isinstance(value, (tuple, list)) else [value]:
        if isinstance(tensor, torch.Tensor):
            yield tensor.device


def is_away(node: fx.Node, device: torch.device) -> bool:
    """Return whether results of a node are on another device."""
    return any(found != device for found in _devices(node))


def is_apart(given: Any, device: torch.device) -> bool:
    """Return whether a tensor cannot be an argument of a part that runs there: numbers of the CPU
    can.
    """
    is_there = given.device == device or (given.device == CPU and not given.dim())
    return not is_there
