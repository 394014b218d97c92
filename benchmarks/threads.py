"""How programs would run on more threads than there are: measured kernels and forks, a model.

Kernels of a workload are timed on one thread, launch by launch, and a fork with its join of all
threads that there are. A launch on n threads then takes the larger of its time by n and of its
bytes by the memory of a machine with so many cores, and a fork:

    python benchmarks/threads.py T1 T4 I3 [--memory GB/s] [--threads 64]

Every other thread that enters and leaves a job changes a line of the cache that all share, so a
fork grows by what it takes for one of them; `--group` says how many share such a line if threads
joined in groups. Work is shared evenly; what has fewer items than threads is not known here.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from kernels import profiled
from workloads import WORKLOADS

from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.cpu.compiler import NativeCompiler
from treadle.backends.cpu.roofline import memory
from treadle.backends.program import Address, Program, Run
from treadle.base import dtype as dt

LAUNCHES = 1000


def main() -> None:
    """Measure, simulate, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS, metavar="KEY")
    parser.add_argument("--memory", type=float, default=0.0, help="GB/s of all cores; 0: as here")
    parser.add_argument("--threads", type=int, default=64, help="the most that are simulated")
    parser.add_argument("--group", type=int, default=0, help="threads that join in groups")
    parser.add_argument("--here", choices=("fork", "kernels"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here == "fork":
        print(fork_seconds())
        return
    if given.here == "kernels":
        for line in kernels_of(given.workloads[0]):
            print(*line)
        return
    here = os.cpu_count() or 1
    fork = float(_process(["--here=fork", given.workloads[0]], here)[-1])
    print(f"a fork and join of {here} threads: {fork * 1e6:.2f} us\n")
    counts = [1 << k for k in range(int(math.log2(given.threads)) + 1)]
    print("| workload | launches | ms on 1 | " + " | ".join(f"x on {n}" for n in counts[1:]) + " |")
    print("|---|--:|--:|" + "--:|" * len(counts[1:]))
    for key in given.workloads:
        rows = [tuple(map(float, x.split())) for x in _process(["--here=kernels", key], 1)]
        one, bandwidth = sum(r[0] for r in rows), max(r[3] for r in rows)
        most = given.memory * 1e9 or bandwidth * here
        speeds = []
        for n in counts[1:]:
            parts = sum(
                max(seconds / n, nbytes / min(n * bandwidth, most))
                + launches * fork_of(n, fork / (here - 1), given.group)
                for seconds, launches, nbytes, _ in rows
            )
            speeds.append(f"{one / parts:.1f}")
        launches = sum(r[1] for r in rows)
        print(f"| {key} | {launches:.0f} | {one * 1e3:.2f} | " + " | ".join(speeds) + " |")


def fork_of(threads: int, each: float, group: int) -> float:
    """Seconds of a fork and join in which every thread takes its turn at one line, or at one per
    group and one of all groups."""
    if not group or threads <= group:
        return each * (threads - 1)
    return each * (group - 1) + each * (math.ceil(threads / group) - 1)


def fork_seconds() -> float:
    """What a launch costs that every thread gets an item of, over one that is not shared."""
    e = KernelBuilder()
    x = e.pointer(dt.float32, "x")
    with e.items() as i:
        x[i * 16] = 0.0
    kernel = e.kernel("one_store")
    threads, compiler, room = os.cpu_count() or 1, NativeCompiler(), memory(1 << 16)
    found = []
    for serial in (False, True):
        run = Run(kernel, (Address(0),), threads, serial=serial)
        call = compiler.bound(Program((run,) * LAUNCHES, 1), [room])
        times = []
        for _ in range(200):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        found.append(float(np.median(times)) / LAUNCHES)
    return found[0] - found[1]


def kernels_of(key: str) -> Iterator[tuple[float, float, float, float]]:
    """Seconds, launches and bytes of every kernel on one thread; and bytes per second of memory."""
    profile, limits = profiled(key, 1, 5, disabled=("together",))
    for kernel in profile.kernels:
        yield kernel.seconds, kernel.calls, kernel.nbytes, limits.bandwidth


def _process(arguments: list[str], threads: int) -> list[str]:
    """Lines that this program prints when it is run with so many threads."""
    environment = {**os.environ, "TREADLE_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    main()
