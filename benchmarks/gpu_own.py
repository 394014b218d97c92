"""One part of `gpu.py` in Treadle; prints a line of JSON. Times are those of events on the device.

python benchmarks/gpu_own.py machine|kernels|T1|...|T5 DEVICE [SECONDS]
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
from peer_own import MODELS, OPTIMIZER_CLASSES
from weights import weights_of
from workloads import OPTIMIZERS, WORKLOADS, data_of

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base.env import CUDA_GRAPHS
from treadle.engine.devices.names import resolve

LOSSES = 5
BLOCK = 10
PACKAGES = (
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvmath-python",
    "nvidia-cublas",
    "nvidia-cudnn-frontend",
    "nvidia-cudnn-cu13",
)


def main() -> None:
    """Measure one part."""
    what, device, *rest = sys.argv[1:]
    seconds = float(rest[0]) if rest else 5.0
    found: Any
    if what == "machine":
        found = machine(device)
    elif what == "kernels":
        found = kernels(device, seconds)
    else:
        found = training(what, device, seconds)
    print(json.dumps(found))


class Clock:
    """Milliseconds between two events of the device's stream."""

    def __init__(self, device: str) -> None:
        self._stream = resolve(device).open().raw.stream()

    def __call__(self, work: Callable[[], Any], times: int) -> float:
        before = self._stream.record()
        for _ in range(times):
            work()
        after = self._stream.record()
        after.wait()
        return float(after.since(before)) * 1e3 / times

    def median(self, work: Callable[[], Any], seconds: float, times: int = BLOCK) -> float:
        """Of as many blocks as there is time for, after one that does not count."""
        self(work, times)
        found, end = [], time.perf_counter() + seconds
        while len(found) < 3 or time.perf_counter() < end:
            found.append(self(work, times))
        return statistics.median(found)


def machine(device: str) -> dict[str, str]:
    """What the GPU and the packages are."""
    info = resolve(device).open().info
    found = {
        "device": info.name,
        "memory": f"{info.memory / 2**30:.1f} GiB",
        "bandwidth": f"{info.bandwidth / 1e9:.0f} GB/s by its clock",
        "features": " ".join(info.features),
        "python": platform.python_version(),
        "treadle": mge.__version__,
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def kernels(device: str, seconds: float) -> dict[str, tuple[float, str]]:
    """Launches, copies, and single ops, each beside what it moves or computes."""
    clock, each, found = Clock(device), seconds / 5, {}
    small = mge.tensor(np.ones(16, "float32"), device=device)
    found["eager add of 16 elements"] = clock.median(lambda: small + small, each, 200) * 1e3, "us"
    n = 1 << 26
    host = np.ones(n, "float32")
    began = time.perf_counter()
    x = mge.tensor(host, device=device)
    resolve(device).open().synchronize()
    found["host to device"] = 4 * n / (time.perf_counter() - began) / 1e9, "GB/s"
    began = time.perf_counter()
    x.numpy()
    found["device to host"] = 4 * n / (time.perf_counter() - began) / 1e9, "GB/s"
    gelu = mge.jit.compile(lambda a: F.gelu(a * 2.0 + 1.0))
    found["fused elementwise, 67 M"] = 8 * n / clock.median(lambda: gelu(x), each) / 1e6, "GB/s"
    total = mge.jit.compile(lambda a: F.sum(a))
    found["sum, 67 M"] = 4 * n / clock.median(lambda: total(x), each) / 1e6, "GB/s"
    rows = x.reshape(1 << 14, 1 << 12)
    softmax = mge.jit.compile(lambda a: F.softmax(a, axis=1))
    found["softmax, 16384 x 4096"] = 8 * n / clock.median(lambda: softmax(rows), each) / 1e6, "GB/s"
    for dtype in ("float32", "bfloat16"):
        side = 4096
        a = mge.tensor(np.ones((side, side), "float32"), device=device).astype(dtype)
        took = clock.median(lambda a=a: a @ a, each, 2)
        found[f"matmul {side}, {dtype}"] = 2e-9 * side**3 / took, "TFLOP/s"
        maps = mge.tensor(np.ones((64, 64, 56, 56), "float32"), device=device).astype(dtype)
        w = mge.tensor(np.ones((64, 64, 3, 3), "float32"), device=device).astype(dtype)
        took = clock.median(lambda x=maps, w=w: F.conv2d(x, w, padding=1), each, 4)
        found[f"3x3 convolution of 64x64x56x56, {dtype}"] = 2e-9 * maps.size * 576 / took, "TFLOP/s"
    heads = mge.tensor(np.ones((4, 16, 2048, 64), "float32"), device=device).astype("bfloat16")
    attend = mge.jit.compile(lambda q: F.scaled_dot_product_attention(q, q, q))
    took = clock.median(lambda: attend(heads), each, 4)
    found["attention of 4x16x2048x64, bfloat16"] = 4e-9 * heads.size * 2048 / took, "TFLOP/s"
    return found


def training(key: str, device: str, seconds: float) -> dict[str, Any]:
    """A compiled step: its first losses, and the median time with CUDA graphs and without."""
    mge.set_default_device(device)
    work = WORKLOADS[key]
    model = MODELS[work.model]()
    state = model.state_dict()
    known = weights_of(work.model).items()
    model.load_state_dict({k: v.reshape(state[k].shape) for k, v in known})
    optimizer = OPTIMIZER_CLASSES[work.opt](model.parameters(), **OPTIMIZERS[work.opt])
    manager = GradManager().attach(model.parameters())

    def update(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with manager:
            scores = model(x)
            loss = F.loss.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    step = mge.jit.compile(update)
    x, y = (mge.tensor(a.astype("int32") if a.dtype.kind == "i" else a) for a in data_of(work))
    began = time.perf_counter()
    losses = [step(x, y).item()]
    first = time.perf_counter() - began
    losses += [step(x, y).item() for _ in range(LOSSES - 1)]
    median = Clock(device).median(lambda: step(x, y), seconds)
    counters = mge.report(device).counters
    CUDA_GRAPHS.set("0")
    plain = Clock(device).median(lambda: step(x, y), seconds)
    return {
        "losses": losses,
        "first": first,
        "median": median,
        "plain": plain,
        "replayed": counters.get("recordings replayed", 0),
    }


if __name__ == "__main__":
    main()
