"""Examples learned from per second, on every device that is there: one definition of each network.

    python benchmarks/throughput.py [T1 T2 T4] [--devices cpux opencl0] [--seconds 5] [--markdown]

Without `--devices` it takes the first device of every backend. A step is forward, backward and
update; it runs op by op and as a compiled function. Losses of the first steps are compared with
the host's. First calls compile, which takes minutes on a device whose compiler starts empty.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import peer_own
from workloads import WORKLOADS, Task

import treadle as mge
from treadle.base.errors import OutOfMemory

MODES = {"eager": "op by op", "compile": "compiled"}
COMPARED = 3
ALLOWED = 5e-3
"""Relative difference of losses that rounding may make."""
FEWEST = 3
"""Steps that are timed, however long they take."""


def devices() -> list[str]:
    """The host, and the first device of every other kind that can be used."""
    kinds = [row["kinds"].split(", ")[0] for row in mge.backends() if row["devices"] != "0"]
    return ["cpux", *(f"{kind}0" for kind in kinds if kind and kind not in ("cpu", "cpux"))]


def rate(step: Callable[[], float], examples: int, seconds: float) -> float:
    """Examples per second of the median step."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < FEWEST or time.perf_counter() < end:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return examples / float(np.median(times))


def measured(key: str, device: str, mode: str, seconds: float) -> tuple[float, list[float]]:
    """The rate of one workload, and its first losses."""
    mge.set_default_device(device)
    step = peer_own.make(Task(key, mode, 0))
    losses = [step() for _ in range(COMPARED)]
    return rate(step, WORKLOADS[key].batch, seconds), losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("keys", nargs="*", default=["T1", "T2", "T4"])
    parser.add_argument("--devices", nargs="+")
    parser.add_argument("--seconds", type=float, default=5.0, help="per figure")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    names = given.devices or devices()
    keys = given.keys or ["T1", "T2", "T4"]
    head = ["examples/s", *(f"{name}, {how}" for name in names for how in MODES.values())]
    rows = [head, ["---"] * len(head)] if given.markdown else [head]
    with mge.fallback("silent"):
        for key in keys:
            row, expected = [WORKLOADS[key].title], None
            for name in names:
                for mode in MODES:
                    try:
                        found, losses = measured(key, name, mode, given.seconds)
                    except OutOfMemory:
                        row.append("no room")
                        continue
                    expected = expected or losses
                    np.testing.assert_allclose(losses, expected, rtol=ALLOWED)
                    row.append(f"{found:,.0f}")
            rows.append(row)
    for row in rows:
        line = " | ".join(row) if given.markdown else "".join(cell.rjust(38) for cell in row)
        print(f"| {line} |" if given.markdown else line)


if __name__ == "__main__":
    main()
