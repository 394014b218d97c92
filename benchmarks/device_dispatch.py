"""What an eager op costs besides its work: on the CPU, on devices that do nothing, under PyTorch.

The idle device is made of three Python functions (allocate, free, launch) that return at once, so
what is left is the framework's: finding the launch, the result's memory, the kernel's arguments,
counting. On the CPU the op is four additions by NumPy. The bare device has no kernel at all, so
that every op of a program falls back to the host.

With PyTorch installed, its programs run on the same devices beside its own CPU, in turn: an
addition, a view, a training step of three small layers, and steps that fall back as a whole. "ops"
counts ATen operators, views among them, "fell" those that ran on the host, and "more" is what one
operator costs beyond PyTorch's CPU.

    python benchmarks/device_dispatch.py [--seconds 1]
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import treadle as mge
from treadle.backends import registry
from treadle.backends.api import Availability, Backend, Device, DeviceInfo, Kernel

CALLS = 300
"""Per measurement, so that the clock costs nothing."""
Run = Callable[[], object]


class Idle(Device):
    """A device that does nothing."""

    def __init__(self, name: str) -> None:
        self.info = DeviceInfo(name)

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
    device_kinds: tuple[str, ...] = ("idle",)

    def probe(self) -> Availability:
        return Availability(True, "does nothing", 1)

    def open(self, index: int, /) -> Idle:
        return Idle(self.name)

    def kernels(self) -> Sequence[Kernel]:
        return [Kernel("add", lambda device, outs, ins, attributes, stream: None)]


class BareBackend(IdleBackend):
    """One of these devices, with no kernel."""

    name = "bare"
    device_kinds = ("bare",)

    def kernels(self) -> Sequence[Kernel]:
        return []


def microseconds(runs: dict[str, Run], seconds: float, calls: int = CALLS) -> dict[str, float]:
    """The processor time of a call of each in the quickest of many series, which take turns."""
    best, end = dict.fromkeys(runs, float("inf")), time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end:
        for name, run in runs.items():
            begin = time.thread_time()
            for _ in range(calls):
                run()
            best[name] = min(best[name], (time.thread_time() - begin) / calls * 1e6)
    return best


def own(seconds: float) -> None:
    """Print what an addition of Treadle's tensors costs."""
    runs: dict[str, Run] = {}
    for device in ("cpu0", "idle0"):
        x, y = (mge.tensor(np.ones(4, np.float32), device=device) for _ in range(2))
        runs[device] = lambda x=x, y=y: x + y
        x + y
    cpu, idle = microseconds(runs, seconds).values()
    print(f"x + y, 4 elements: cpu0 {cpu:.2f} us, idle device {idle:.2f} us, {idle - cpu:.2f} more")


def addition(device: str) -> Run:
    """An addition of 16 elements."""
    import torch

    x, y = torch.randn(16, device=device), torch.randn(16, device=device)
    return lambda: x + y


def view(device: str) -> Run:
    """Another shape of 16 elements."""
    import torch

    x = torch.randn(4, 4, device=device)
    return lambda: x.view(16)


def transposed(device: str) -> Run:
    """A transposed matrix of 16 elements."""
    import torch

    x = torch.randn(4, 4, device=device)
    return lambda: x.t()


def step(device: str, kind: str = "SGD") -> Run:
    """A training step of three layers of 64."""
    import torch

    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(64, 64)).to(device)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-4)
    x, y = torch.randn(32, 64, device=device), torch.randn(32, 64, device=device)

    def run() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return run


def without_counterpart(device: str) -> Run:
    """Five operators that Treadle does not have, with all ways to give results."""
    import torch

    x, y = torch.randn(16, device=device), torch.randn(16, device=device)

    def run() -> None:
        a = torch.nextafter(x, y)
        b = torch.nextafter(a, x)
        torch.nextafter(b, y, out=a)
        a.nextafter_(b)
        torch.igamma(x, y)

    return run


PROGRAMS: dict[str, Callable[[str], Run]] = {
    "add, 16 elements": addition,
    "view, 16 elements": view,
    "t, 16 elements": transposed,
    "5 operators without counterparts": without_counterpart,
    "step of 3 layers of 64, SGD": step,
    "step of 3 layers of 64, AdamW": partial(step, kind="AdamW"),
}


def operators(run: Run) -> int:
    """The number of ATen operators that a program calls, views among them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.ops += 1
            return op(*args, **(kwargs or {}))

    with Counting() as counted:
        run()
    return counted.ops


def beside_cpu(name: str, device: str, seconds: float) -> str:
    """A program on PyTorch's CPU and on a device: both times, operators, what fell back."""
    runs = {"cpu": PROGRAMS[name]("cpu"), device: PROGRAMS[name](device)}
    for run in runs.values():  # The 33rd call of a kind may be compiled.
        for _ in range(40):
            run()
    mge.fallback_report(clear=True)
    runs[device]()
    fell = sum(row.calls for row in mge.fallback_report())
    ops = operators(runs["cpu"])
    cpu, ours = microseconds(runs, seconds, CALLS if ops < 10 else CALLS // 6).values()
    return f"{cpu:8.2f}{ours:9.2f}{ours / cpu:7.2f}{ops:5}{fell:5}{(ours - cpu) / ops:8.2f}"


def pytorch(seconds: float) -> None:
    """Print what PyTorch's operators cost on its CPU and on Treadle's devices."""
    import torch

    import treadle.torch  # noqa: F401

    torch.set_num_threads(1)
    names = [torch.treadle.get_device_name(i) for i in range(torch.treadle.device_count())]
    print(f"PyTorch {torch.__version__}, one thread, processor time, us")
    print(
        f"{'':34}{'device':11}{'CPU':>8}{'device':>9}{'ratio':>7}{'ops':>5}{'fell':>5}{'more':>8}"
    )
    with mge.fallback("silent"):
        for kind in ("cpu0", "bare0"):
            device = f"treadle:{names.index(kind)}"
            for name in list(PROGRAMS)[3 if kind == "bare0" else 0 :]:
                print(f"{name:34}{kind:11}{beside_cpu(name, device, seconds)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per figure")
    given = parser.parse_args()
    for backend in (IdleBackend(), BareBackend()):
        entry = registry.BackendEntry(backend.name, "this benchmark", lambda made=backend: made)
        registry.entries()[backend.name] = entry
    own(given.seconds)
    if importlib.util.find_spec("torch") is not None:
        pytorch(given.seconds)


if __name__ == "__main__":
    main()
