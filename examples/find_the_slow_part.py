"""Profiling: find what takes the time, change it, measure again.

A network normalizes its rows one by one in Python. The profiler's table shows it: nearly all of the
time is in very many tiny ops. The same in one op per batch, and that compiled, are timed beside it.
The trace of the slow version is written as a file for https://ui.perfetto.dev.

    python examples/find_the_slow_part.py [--batch 128] [--out build/profile]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.utils.profiler import Profiler

Forward = Callable[[mge.Tensor], mge.Tensor]


def row_by_row(x: mge.Tensor) -> mge.Tensor:
    """Each row divided by its length, in a loop."""
    return F.stack([row / F.sqrt(F.sum(row * row)) for row in x])


def at_once(x: mge.Tensor) -> mge.Tensor:
    """The same for all rows together."""
    return x / F.sqrt(F.sum(x * x, axis=1, keepdims=True))


def best_time(run: Callable[[], object], calls: int = 100) -> float:
    """Seconds of the fastest call."""
    found = []
    for _ in range(calls):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", default="build/profile")
    given = parser.parse_args()
    mge.set_default_device("cpux")
    mge.random.seed(1)
    first, last = M.Linear(64, 64), M.Linear(64, 10)
    data = np.random.default_rng(0).normal(size=(given.batch, 64)).astype("float32")
    x = mge.tensor(data)

    def network(normalize: Forward) -> Forward:
        return lambda x: last(F.relu(normalize(first(x))))

    slow, fast = network(row_by_row), network(at_once)
    slow(x)
    profiler = Profiler(given.out)
    with profiler:
        slow(x)
    Console(width=100).print(profiler.table())
    print(f"a trace is in {given.out}")

    program = mge.jit.compile(fast)
    gap = float(np.abs(slow(x).numpy() - program(x).numpy()).max())
    times = {
        "row by row": best_time(lambda: slow(x)),
        "at once": best_time(lambda: fast(x)),
        "at once, compiled": best_time(lambda: program(x)),
    }
    for name, seconds in times.items():
        print(f"{name:18} {seconds * 1e6:9.0f} us   {times['row by row'] / seconds:6.1f} x")
    print(f"largest difference of the results: {gap:.1e}")


if __name__ == "__main__":
    main()
