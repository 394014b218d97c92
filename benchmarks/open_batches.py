"""The workloads with an open batch beside programs for their batch alone.

    python benchmarks/open_batches.py [--only T1,I2] [--calls 30]

"cold" is the first call in a process with an empty cache, capture and compilation included; "later"
are medians of calls in turns, "arena" bytes of memory for intermediate values, and "numbers" what
computing all numbers of the program at a batch takes, for as many steps as it has. Forward passes
have two examples at least, because one example has a program of its own. Decoding is left out: its
caches are state, whose shapes do not change.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

SIDES = ("compile", "open batch")


def measured(key: str, mode: str, calls: int) -> dict[str, Any]:
    """First calls of one side, or with `mode` "both" later calls of both and what they need."""
    import peer_own
    import workloads

    work = workloads.WORKLOADS[key]
    workloads.WORKLOADS[key] = replace(work, batch=max(2, work.batch))
    made: list[Any] = []
    jit = peer_own.compiled

    def kept(function: Callable[..., Any], task: Any) -> Callable[..., Any]:
        made.append(jit(function, task))
        return made[-1]

    peer_own.compiled = kept
    sides = SIDES if mode == "both" else (mode,)
    runs = [peer_own.make(workloads.Task(key, side, 2)) for side in sides]
    begun = time.perf_counter()
    runs[0]()
    if mode != "both":
        return {"cold": time.perf_counter() - begun}
    runs[1]()
    times = [[_seconds(run) for run in runs] for _ in range(calls)]
    own, shared = (statistics.median(side) for side in zip(*times, strict=True))
    variants = [side.variants[-1] for side in made]
    peaks = [v.stages.planned.plan.memory.peak for v in variants]
    at, regime = variants[1].runner.at, variants[1].regime
    return {
        "own": own,
        "shared": shared,
        "arena": peaks,
        "steps": len(regime.entry.loaded.plan.steps),
        "numbers": min(_seconds(lambda: regime.at(at.extents)) for _ in range(50)),
    }


def _seconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _process(key: str, mode: str, calls: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="open-batches-") as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--only", key, "--mode", mode, "--calls", str(calls)],
            env=os.environ | {"TREADLE_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{key}, {mode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(key: str, title: str, calls: int) -> tuple[str, list[float]]:
    """The line of a workload, and its three ratios."""
    cold = [_process(key, side, calls)["cold"] for side in SIDES]
    both = _process(key, "both", calls)
    own, shared = both["own"], both["shared"]
    peaks = both["arena"]
    ratios = [cold[1] / cold[0], shared / own, peaks[1] / max(1, peaks[0])]
    cells = [
        f"{cold[0]:.2f} / {cold[1]:.2f} ({ratios[0]:.2f})",
        f"{1e3 * own:.2f} / {1e3 * shared:.2f} ({ratios[1]:.2f})",
        f"{peaks[0] / 1e6:.2f} / {peaks[1] / 1e6:.2f} ({ratios[2]:.2f})",
        f"{1e6 * both['numbers']:.0f} ({both['steps']})",
    ]
    return f"| {title} | {' | '.join(cells)} |", ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="T1,T2,T3,T4,T5,I1b,I2,I3,I4,I3q,I4q,O2")
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    if given.mode:
        print(json.dumps(measured(given.only, given.mode, given.calls)))
        return
    import workloads

    print("| workload | cold, s | later, ms | arena, MB | numbers, us (steps) |")
    print("|---|---|---|---|---|")
    all_ratios = []
    for key in given.only.split(","):
        line, ratios = row(key, workloads.WORKLOADS[key].title, given.calls)
        print(line, flush=True)
        all_ratios.append(ratios)
    for name, ratios in zip(("cold", "later", "arena"), zip(*all_ratios, strict=True), strict=True):
        print(f"{name}: median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
