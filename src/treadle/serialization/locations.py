"""Locations of loaded tensors: `map_location`, as every reader takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from treadle.base.array import Array
from treadle.tensor import Tensor

MapLocation: TypeAlias = "str | Mapping[str, str] | Callable[[str], str] | None"
Locate: TypeAlias = "Callable[[str], str]"
"""From the logical name that was saved, "" for none, to one on this machine, "" for the default."""


def locator(map_location: MapLocation) -> Locate:
    """`map_location` as a function from logical name to logical name.

    Raises:
        TypeError: it is neither a name, nor a dict, nor a function.
    """
    if map_location is None:
        return lambda name: name
    if isinstance(map_location, str):
        return lambda name: map_location
    if isinstance(map_location, Mapping):
        by_start = {start[:4]: name for start, name in map_location.items()}
        return lambda name: by_start.get(name[:4], name)
    if callable(map_location):
        return map_location
    raise TypeError(
        f"load: map_location is a {type(map_location).__name__}\n"
        "  hint: give a device name, a dict of names, or a function"
    )


def current_locator(map_location: MapLocation) -> Locate:
    """Return `locator(map_location)`; without a location, that of `dmap`, if any."""
    own = Tensor.dmap_callback if map_location is None else None
    return own or locator(map_location)


def plain_tensor(array: Array, locate: Locate) -> Tensor:
    """A tensor of a file that names no devices."""
    return Tensor(array, dtype=array.dtype, device=locate("") or None)
