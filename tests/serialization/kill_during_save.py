"""Kill a process in the middle of saving, again and again; print what was found as JSON.

Run as `python kill_during_save.py DIRECTORY TRIES`. The package is imported once and each victim
is forked from that, so that fifty tries take seconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from treadle.serialization import load, save

ELEMENTS = 100_000


def state(step: int) -> dict[str, object]:
    return {"step": step, "weight": np.full(ELEMENTS, step)}


def save_forever(path: Path, step: int) -> None:
    while True:
        step += 1
        save(state(step), path)


def main(directory: Path, tries: int) -> None:
    path = directory / "state.treadle"
    start = time.perf_counter()
    save(state(0), path)
    duration = time.perf_counter() - start
    steps, leftovers = [0], 0
    delay = random.Random(0)
    for _ in range(tries):
        victim = os.fork()
        if victim == 0:
            save_forever(path, steps[-1])
        # In units of one save, so that some victims finish a few saves whatever the disk.
        time.sleep(0.002 + duration * delay.uniform(0, 5))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        found = load(path)
        if not (found["weight"] == found["step"]).all():
            raise SystemExit(f"step {found['step']} was saved with other weights")
        steps.append(found["step"])
        leftovers = max(leftovers, len(os.listdir(directory)) - 1)
    save(state(-1), path)
    print(json.dumps({"steps": steps, "leftovers": leftovers, "files": os.listdir(directory)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
