"""A task that falls into independent parts: what each further core gives, and other devices.

The Mandelbrot set again: no point of the plane needs another one, so the work is shared by cutting
the plane. The same program runs in processes that may use 1, 2, 4, ... cores, and on each device
that is there; results are compared, and the speed-up is held against the number of cores.

    python examples/cores.py [--size 1024] [--turns 240] [--cores 1 2]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
from mandelbrot import PER_CALL, run, turns

import treadle as mge
from treadle.device import get_device_count

KINDS = ("gpu", "opencl")
"""Devices besides the CPU that are tried."""


def measured(device: str, size: int, count: int) -> dict[str, object]:
    """Seconds of the fastest run in this process, and a digest of the counts."""
    mge.set_default_device("cpux")
    real = np.linspace(-2.2, 0.8, size, dtype=np.float32)
    imaginary = np.linspace(-1.2, 1.2, size, dtype=np.float32)
    grid = [np.ascontiguousarray(a) for a in np.meshgrid(real, imaginary)]
    c = (mge.tensor(grid[0], device=device), mge.tensor(grid[1], device=device))
    found, seconds = run(mge.jit.compile(turns), c, -(-count // PER_CALL))
    return {"seconds": seconds, "digest": hashlib.sha256(found.tobytes()).hexdigest()}


def in_process(device: str, cores: int, arguments: Sequence[str]) -> dict[str, float | str]:
    """The same in a process of its own with so many threads."""
    command = [sys.executable, __file__, "--device", device, *arguments]
    environment = os.environ | {"TREADLE_NUM_THREADS": str(cores)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float | str] = json.loads(done.stdout)
    return found


def doubling(most: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    return [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=240)
    parser.add_argument("--cores", type=int, nargs="+", help="1, 2, 4, ... of those there are")
    parser.add_argument("--device", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device:
        print(json.dumps(measured(given.device, given.size, given.turns)))
        return
    arguments = ["--size", str(given.size), "--turns", str(given.turns)]
    counts = given.cores or doubling(len(os.sched_getaffinity(0)))
    rows = [(f"{n} core{'s' * (n > 1)}", n, in_process("cpux", n, arguments)) for n in counts]
    for kind in KINDS:
        for number in range(get_device_count(kind)):
            rows.append((f"{kind}{number}", 0, in_process(f"{kind}{number}", 1, arguments)))
    first = float(rows[0][2]["seconds"])
    print(f"{given.size} x {given.size} points, {given.turns} turns")
    for name, cores, found in rows:
        times = first / float(found["seconds"])
        share = f"{times / cores * counts[0]:6.0%} of what they could give" if cores else ""
        print(f"{name:10} {float(found['seconds']) * 1e3:9.1f} ms {times:7.2f} times {share}")
    same = len({found["digest"] for _, cores, found in rows if cores}) == 1
    print(f"the same counts on any number of cores: {'yes' if same else 'no'}")


if __name__ == "__main__":
    main()
