"""Speeds of engines and of copies: the modelled side of every comparison with measured times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from treadle.backends.segments import Rates
from treadle.runtime.api import DeviceInfo
from treadle.runtime.opened import OpenDevice, flat_bytes

__all__ = ["CARD", "LINK", "RATES", "Links", "MemoryLink", "Rates", "links_of", "rates_of"]

RATES: Mapping[str, Rates] = {
    "reference": Rates(40e9, 4e9, 5e-6),
    "cpu": Rates(100e9, 16e9, 1e-6),
}
"""By engine name: those of a desktop processor. They decide between choices an order of magnitude
apart, and need be no better than that."""

CARD = Rates(2e12, 200e9, 8e-6, 50e-6)
"""Of a device that says nothing about itself."""

_SHARED = 4
"""Ops that a launch of a compiled program runs, roughly: each pays its share of the start."""


def rates_of(info: DeviceInfo) -> Rates:
    """Return the rates of a device with compiled programs, whose parts need not be started."""
    flops, bandwidth = info.flops or CARD.flops, info.bandwidth or CARD.bandwidth
    return Rates(flops, bandwidth, CARD.launch / _SHARED)


# -- copies ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryLink:
    """The way from one memory to another one: seconds per value and bytes per second."""

    latency: float = 20e-6
    bandwidth: float = 8e9

    def seconds(self, nbytes: int) -> float:
        """The time of so many bytes on their way."""
        return self.latency + nbytes / self.bandwidth


LINK = MemoryLink()


@dataclass(frozen=True, slots=True)
class Links:
    """The ways from the host to a device and back."""

    up: MemoryLink = LINK
    down: MemoryLink = LINK


_SMALL, _LARGE, _TURNS = 64, 1 << 20, 5
_MEASURED: WeakKeyDictionary[OpenDevice, Links] = WeakKeyDictionary()


def links_of(device: OpenDevice) -> Links:
    """Return the costs of copies: as the device says, else measured once, in some milliseconds."""
    found = _MEASURED.get(device)
    if found is None:
        said = device.info
        if said.copy_bandwidth:
            link = MemoryLink(said.copy_latency, said.copy_bandwidth)
            found = Links(link, link)
        else:
            found = _measured(device)
        _MEASURED[device] = found
    return found


def _measured(device: OpenDevice) -> Links:
    try:
        block = device.alloc(_LARGE)
    except MemoryError:  # Whoever is that short of it will not move much.
        return Links()
    raw, stream = device.raw, device.stream
    data = np.zeros(_LARGE, np.uint8)

    def up(nbytes: int) -> None:
        raw.copy_in(block.buffer, flat_bytes(data[:nbytes]), stream)
        stream.synchronize()

    def down(nbytes: int) -> None:
        raw.copy_out(flat_bytes(data[:nbytes]), block.buffer, stream)

    try:
        stream.synchronize()
        return Links(_link(up), _link(down))
    finally:
        device.release(block)


def _link(copy: Callable[[int], None]) -> MemoryLink:
    small, large = (_fastest(copy, nbytes) for nbytes in (_SMALL, _LARGE))
    return MemoryLink(small, _LARGE / max(large - small, 1e-7))


def _fastest(copy: Callable[[int], None], nbytes: int) -> float:
    times = []
    for _ in range(_TURNS):
        began = time.perf_counter()
        copy(nbytes)
        times.append(time.perf_counter() - began)
    return min(times)
