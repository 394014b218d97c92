"""Python's share of a training step on a GPU: launches one by one, and replayed as CUDA graphs.

The GPU does nothing and its driver returns at once, so what is left is the framework's: arguments,
memory for results, the calls of the driver. The driver's own time is not in it.

    python benchmarks/launches.py [--layers 12] [--seconds 2]
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as optim
from treadle.autodiff import GradManager
from treadle.backends import registry
from treadle.backends.api import Availability, Device
from treadle.backends.cuda import Cuda
from treadle.backends.cuda.device import CudaDevice
from treadle.backends.cuda.driver import Facts
from treadle.backends.cuda.renderer import CudaRenderer
from treadle.backends.rendering import Renderer

DEVICE = "idlegpu0"


class Idle:
    """A mark, a queue, a recording and a GPU in one, which do nothing."""

    facts = Facts("idle", (8, 0), 1 << 34, 1e12, 100)
    handle = 1

    def __init__(self) -> None:
        self.next = itertools.count(1 << 20, 1 << 20)
        self.held: list[Any] = []
        self.submitted = 0

    def nothing(self, *_: Any) -> None:
        """Return at once."""

    def itself(self, *_: Any) -> Idle:
        """Stand for another part."""
        return self

    def done(self) -> bool:
        return True

    def allocate(self, nbytes: int, queue: Any, /) -> Region:
        return Region(next(self.next))

    def pinned(self, nbytes: int, /) -> Region:
        self.held.append(ctypes.create_string_buffer(nbytes))
        return Region(ctypes.addressof(self.held[-1]))

    def load(self, binary: bytes, symbols: Sequence[str], /) -> list[Any]:
        return list(symbols)

    def launch(self, *_: Any) -> None:
        self.submitted += 1

    replay = launch
    queue = mark = timed_mark = capture = finish = itself
    select = wait = after = synchronize = close = release = copy = fill = nothing

    def memory(self) -> tuple[int, int]:
        return 1 << 34, 1 << 34


class Region:
    """An address."""

    def __init__(self, address: int) -> None:
        self.address = address


class IdleCuda(Cuda):
    """The backend over that GPU, with kernels that nobody compiles."""

    name = "idlegpu"
    device_kinds = serves = ("idlegpu",)

    def __init__(self) -> None:
        self.gpu = Idle()

    def probe(self) -> Availability:
        return Availability(True, "does nothing", 1)

    def open(self, index: int, /) -> Device:
        return CudaDevice(self.gpu, DEVICE)

    def renderer(self) -> Renderer:
        return CudaRenderer(["sm_80"], "none", lambda source, architecture: b"")

    def libraries(self) -> tuple[str, ...]:
        return ()


def training(layers: int) -> Any:
    """A compiled step of a network of so many layers."""
    net = M.Sequential(*(m for _ in range(layers) for m in (M.Linear(8, 8), M.ReLU()))).to(DEVICE)
    optimizer = optim.Adam(net.parameters(), lr=0.01)
    manager = GradManager().attach(net.parameters())

    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with manager:
            loss = F.nn.cross_entropy(net(x), y)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    x = mge.tensor(np.ones((4, 8), np.float32), device=DEVICE)
    y = mge.tensor(np.zeros(4, np.int32), device=DEVICE)
    run = mge.jit.compile(step)
    return lambda: run(x, y)


def main() -> None:
    """Time steps in turns, so that both see the same machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    backend = IdleCuda()
    registry.entries()["idlegpu"] = registry.BackendEntry(
        "idlegpu", "this benchmark", lambda: backend
    )
    step, best, submitted = training(given.layers), {}, {}
    end = time.perf_counter() + given.seconds
    for turn in itertools.count():
        how = ("one by one", "replayed")[turn % 2]
        os.environ["TREADLE_CUDA_GRAPHS"] = str(turn % 2)
        for _ in range(20):
            before, began = backend.gpu.submitted, time.perf_counter()
            step()
            best[how] = min(best.get(how, 1.0), time.perf_counter() - began)
            submitted[how] = backend.gpu.submitted - before
        if time.perf_counter() > end and turn % 2:
            break
    for how, seconds in best.items():
        print(f"{how}: {seconds * 1e6:.0f} us per step, {submitted[how]} submissions")
    plain, replayed = best.values()
    launches = submitted["one by one"]
    print(f"{(plain - replayed) / launches * 1e6:.2f} us less for each of {launches} launches")


if __name__ == "__main__":
    main()
