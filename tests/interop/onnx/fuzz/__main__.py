"""Random ONNX models against ONNX Runtime, with ONNX's reference evaluator as referee.

`python -m tests.interop.onnx.fuzz --seconds 60` makes models in a process of its own, which may
crash or hang, until time is up; what differs and is not in known.toml is printed, and the status
is 1. `--only SEED` makes one model again and prints it.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

KNOWN = Path(__file__).with_name("known.toml")
PATIENCE = 240.0
"""Seconds that one model may take on a machine that does other things as well."""


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    chosen = parse(arguments)
    if chosen.only is not None or chosen.worker is not None:
        from tests.interop.onnx.fuzz import work

        return work.run(chosen)
    return Run(chosen).go()


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of a run, each with its default."""
    parser = argparse.ArgumentParser(prog="tests.interop.onnx.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=1 << 62, help="models to make at most")
    parser.add_argument("--nnsmith", type=float, default=0.5, help="share of NNSmith's models")
    parser.add_argument("--only", type=int, help="one model again")
    parser.add_argument("--operators", nargs="*", help="only these")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


class Run:
    """One run: a worker at a time, and what it reports."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.found: dict[str, list[str]] = {}
        self.operators: Counter[str] = Counter()
        self.models = 0
        self.lost = 0

    def go(self) -> int:
        """Make models until time is up; the exit status."""
        end = time.monotonic() + self.chosen.seconds
        number = self.chosen.seed
        while not self._over(end):
            number = self._worker(number, end)
        return self._report()

    def _over(self, end: float) -> bool:
        """Whether time is up or all is made; a slow machine gets time for one model at least."""
        if self.models >= self.chosen.most:
            return True
        return time.monotonic() >= end + (0 if self.models else PATIENCE)

    def _worker(self, number: int, end: float) -> int:
        """Run a worker until it ends, crashes or hangs; where the next one goes on."""
        rest = ["--nnsmith", str(self.chosen.nnsmith)]
        if self.chosen.operators:
            rest += ["--operators", *self.chosen.operators]
        command = [sys.executable, "-m", "tests.interop.onnx.fuzz", "--worker", str(number), *rest]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            threading.Thread(target=self._read, args=(process,), daemon=True).start()
            state: dict[str, Any] = {"model": number, "at": "start"}
            while True:
                try:
                    left = PATIENCE if not self.models else end - time.monotonic()
                    line = self.lines.get(timeout=max(min(PATIENCE, left), 1.0))
                except queue.Empty:
                    process.kill()
                    self._drain()
                    if not self.models or time.monotonic() < end:
                        self._note("model hangs", f"model {state['model']} at {state['at']}")
                    return int(state["model"]) + 1
                if line is None:
                    self._ended(state)
                    return int(state["model"]) + 1
                state.update(line)
                self._take(line)
                if self._over(end):
                    process.kill()
                    self._drain()
                    return int(state["model"]) + 1

    def _ended(self, state: dict[str, Any]) -> None:
        """A worker is gone: it was done, or crashed with one of the two runtimes."""
        if state["at"] == "run":
            self._note("model crashes", f"model {state['model']}")
        elif state["at"] != "done":
            self.lost += 1  # ONNX Runtime went down with what was tried

    def _take(self, line: dict[str, Any]) -> None:
        """What a worker says."""
        for key, detail in line.get("found", ()):
            self._note(key, f"model {line['model']}: {detail}")
        if line["at"] == "done":
            self.models += 1
            self.operators.update(line["operators"])

    def _read(self, process: subprocess.Popen[str]) -> None:
        for text in process.stdout or ():
            if text.startswith("{"):
                self.lines.put(json.loads(text))
        self.lines.put(None)

    def _drain(self) -> None:
        """What a worker said before it was ended."""
        while self.lines.get() is not None:
            pass

    def _note(self, key: str, detail: str) -> None:
        self.found.setdefault(key, []).append(detail)
        if len(self.found[key]) == 1:
            print(f"{key}: {detail}", flush=True)

    def _report(self) -> int:
        known = tomllib.loads(KNOWN.read_text(encoding="utf-8"))
        listed = {key for entry in known.values() for key in entry["differences"]}
        new = sorted(set(self.found) - listed)
        print(
            f"{self.models} models of {len(self.operators)} operators, {self.lost} lost; "
            f"{len(set(self.found) & listed)} known differences, {len(new)} others"
        )
        for key in new:
            print(f"  {len(self.found[key])} x {key}: {self.found[key][0]}")
        return 1 if new or not self.models else 0


if __name__ == "__main__":
    random.seed(0)
    sys.exit(main(sys.argv[1:]))
