"""Training steps on an OpenCL device next to the CPU engine, in turns and in one process.

    python benchmarks/opencl.py [T1 T3 ...] [--seconds 20] [--device opencl0]

Both start from the same weights; losses of the first steps are compared. The figure that counts is
the ratio, of the fastest steps and of the 20th percentiles. First calls compile, which takes
minutes where the cache has nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import peer_own
from workloads import WORKLOADS, Task

import treadle as mge

COMPARED = 5


def started(key: str, device: str) -> Callable[[], float]:
    """The step on a device, after its first call."""
    mge.set_default_device(device)
    step = peer_own.make(Task(key, "compile", 0))
    began, used = time.perf_counter(), time.process_time()
    step()
    wall, used = time.perf_counter() - began, time.process_time() - used
    print(f"  {device}: first call {wall:.1f} s, {used:.1f} s of a processor", flush=True)
    return step


def compare(key: str, device: str, seconds: float) -> None:
    """Print the times of one workload."""
    print(f"{key} {WORKLOADS[key].title}")
    steps = {name: started(key, name) for name in ("cpu0", device)}
    losses = {name: [step() for _ in range(COMPARED)] for name, step in steps.items()}
    np.testing.assert_allclose(losses[device], losses["cpu0"], rtol=1e-3)
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)
    for label, share in (("fastest", 0), ("20th percentile", 20)):
        host, other = (float(np.percentile(times[name], share)) * 1e3 for name in steps)
        print(f"  {label}: cpu0 {host:.2f} ms, {device} {other:.2f} ms, ratio {other / host:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("keys", nargs="*", default=["T1", "T3"])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", default="opencl0")
    given = parser.parse_args()
    for key in given.keys or ["T1", "T3"]:
        compare(key, given.device, given.seconds)


if __name__ == "__main__":
    main()
