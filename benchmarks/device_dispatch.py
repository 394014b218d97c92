"""What an eager op costs besides its work: on the CPU, and on a device whose kernel does nothing.

The device is made of three Python functions (allocate, free, launch) that return at once, so what
is left is the framework's: finding the launch, the result's memory, the kernel's arguments,
counting. On the CPU the op is four additions by NumPy.

    python benchmarks/device_dispatch.py [--seconds 1]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import treadle as mge
from treadle.backends import registry
from treadle.backends.api import Availability, Backend, Device, DeviceInfo, Kernel

CALLS = 300
"""Per measurement, so that the clock costs nothing."""


class Idle(Device):
    """A device that does nothing."""

    info = DeviceInfo("idle")

    def alloc(self, nbytes: int, /) -> object:
        return object

    def free(self, buffer: object, /) -> None:
        pass

    def copy_in(self, *arguments: Any) -> None:
        pass

    def copy_out(self, *arguments: Any) -> None:
        pass


class IdleBackend(Backend):
    """One of these devices, with a kernel for additions."""

    name = "idle"
    protocol = (1, 1)
    device_kinds = ("idle",)

    def probe(self) -> Availability:
        return Availability(True, "does nothing", 1)

    def open(self, index: int, /) -> Idle:
        return Idle()

    def kernels(self) -> Sequence[Kernel]:
        return [Kernel("add", lambda device, outs, ins, attributes, stream: None)]


def microseconds(run: Callable[[], object], seconds: float) -> float:
    """The time of a call in the quickest of many series."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(CALLS):
            run()
        best = min(best, time.perf_counter() - begin)
    return best / CALLS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per figure")
    given = parser.parse_args()
    backend = IdleBackend()
    registry.entries()["idle"] = registry.BackendEntry("idle", "this benchmark", lambda: backend)
    found = {}
    for device in ("cpu0", "idle0"):
        x, y = (mge.tensor(np.ones(4, np.float32), device=device) for _ in range(2))
        x + y
        found[device] = microseconds(lambda x=x, y=y: x + y, given.seconds)
    cpu, idle = found.values()
    print(f"x + y, 4 elements: cpu0 {cpu:.2f} us, idle device {idle:.2f} us, {idle - cpu:.2f} more")


if __name__ == "__main__":
    main()
