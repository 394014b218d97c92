"""Treadle's devices by the index of `treadle:i`, and the one that the thread uses."""

from __future__ import annotations

import threading
from typing import Any

import torch

from treadle.backends import registry
from treadle.base.errors import DeviceError
from treadle.base.process import RUNTIME
from treadle.engine.devices.names import CompNode, device_count, resolve
from treadle.interop.torch.device.untraced import pass_over

NAME = "treadle"
_HOST = "cpu0"


@RUNTIME.cached("backends")
def places() -> tuple[CompNode, ...]:
    """The host, then every device of a backend, in the order in which backends are listed."""
    found = [resolve(_HOST)]
    entries = [*registry.offered(), registry.for_kind("opencl")]
    for entry in entries:
        package = (
            type(entry.backend).__module__.partition(".")[0] if entry is not None else "treadle"
        )
        if package != "treadle":
            pass_over(package)
        for kind in entry.kinds[:1] if entry is not None else ():
            if kind not in ("cpu", "multithread"):
                found += [resolve(f"{kind}{i}") for i in range(device_count(kind))]
    return tuple(dict.fromkeys(found))


def place(index: int) -> CompNode:
    """Return the device with this number.

    Raises:
        DeviceError: no device has this number; the message lists the known ones.
    """
    if not index:
        return places()[0]
    known = places()
    if 0 <= index < len(known):
        return known[index]
    listed = ", ".join(f"{NAME}:{i} ({node.physical_name})" for i, node in enumerate(known))
    raise DeviceError("torch", f"there is no device {NAME}:{index}", hint=f"there are {listed}")


class _Current(threading.local):
    index = 0


_CURRENT = _Current()


def current() -> int:
    """The number of the device that `"treadle"` without a number means on this thread."""
    return _CURRENT.index


def set_current(index: int) -> int:
    """Change that; the number it was before.

    Raises:
        DeviceError: there is no such device.
    """
    place(index)
    before, _CURRENT.index = _CURRENT.index, index
    return before


def index_of(device: Any) -> int:
    """The number that a device means here.

    Raises:
        DeviceError: it is another kind's, or there is none of that number.
    """
    if isinstance(device, int):
        place(device)
        return device
    if device is None:
        return _CURRENT.index
    known = torch.device(device)
    if known.type != NAME:
        raise DeviceError("torch.treadle", f"{known} is not a device of Treadle")
    number: Any = known.index
    index = _CURRENT.index if number is None else int(number)
    place(index)
    return index
