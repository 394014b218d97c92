"""Eager overhead: microseconds per tiny op, and the time `import treadle` takes, beside PyTorch.

Both frameworks are timed alternately in this one process (imports in fresh ones); the figure is
the median of the rounds, the ratio is the median of the rounds' ratios. PyTorch is optional.

    python benchmarks/overhead.py [--rounds 15] [--alone] [--markdown]
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager

Call = Callable[[], Any]


def treadle_calls() -> dict[str, Call | Recording]:
    """Name of the op to a call that runs it once."""
    mge.set_default_device("cpux")
    x, y = (mge.tensor(np.ones(16, "float32")) for _ in range(2))
    a, b = (mge.tensor(np.ones((16, 16), "float32")) for _ in range(2))
    p, q = (mge.tensor(np.ones(16, "float32")) for _ in range(2))
    m = mge.tensor(np.ones((16, 16), "float32"))
    manager = GradManager().attach([p, m])

    return {
        "add, 16 elements": lambda: x + y,
        "add, recording": Recording(manager, lambda: p + q),
        "matmul, 16x16": lambda: a @ b,
        "matmul, recording": Recording(manager, lambda: m @ b),
        "mul by a number": lambda: x * 2.0,
        "exp": lambda: F.exp(x),
        "relu": lambda: F.relu(x),
        "sum of 16": lambda: x.sum(),
        "reshape": lambda: x.reshape(4, 4),
        "x[1:3]": lambda: x[1:3],
    }


@dataclass(frozen=True)
class Recording:
    """A call that is timed inside one `with manager:` block.

    Recording starts and ends outside the loop, as a training step amortizes it.
    """

    manager: GradManager
    call: Call


def torch_calls(torch: Any) -> dict[str, Call]:
    """The same calls for PyTorch."""
    torch.set_num_threads(2)
    x, y = (torch.ones(16) for _ in range(2))
    a, b = (torch.ones(16, 16) for _ in range(2))
    p = torch.ones(16, requires_grad=True)
    m = torch.ones(16, 16, requires_grad=True)
    return {
        "add, 16 elements": lambda: x + y,
        "add, recording": lambda: p + y,
        "matmul, 16x16": lambda: a @ b,
        "matmul, recording": lambda: m @ b,
        "mul by a number": lambda: x * 2.0,
        "exp": lambda: torch.exp(x),
        "relu": lambda: torch.relu(x),
        "sum of 16": lambda: x.sum(),
        "reshape": lambda: x.reshape(4, 4),
        "x[1:3]": lambda: x[1:3],
    }


def seconds_per_call(call: Call | Recording, number: int) -> float:
    """Wall time of one call, from a loop of `number`."""
    if isinstance(call, Recording):
        with call.manager:
            return seconds_per_call(call.call, number)
    return timeit.timeit(call, number=number) / number


def lambda_overhead(number: int) -> float:
    """What the loop and the lambda around each op cost by themselves."""
    return min(timeit.repeat(lambda: None, number=number, repeat=5)) / number


def import_seconds(module: str) -> float:
    """Wall time of importing a module in a fresh process, less that of an empty process."""

    def run(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - started

    return run(f"import {module}") - run("pass")


def measure(rounds: int, number: int, alone: bool) -> list[tuple[str, float, float | None]]:
    """Rows of (name, Treadle's median, PyTorch's median or None), in microseconds or seconds."""
    ours = treadle_calls()
    torch = None
    if not alone:
        with suppress(ImportError):
            torch = importlib.import_module("torch")
    theirs = torch_calls(torch) if torch is not None else {}
    empty = lambda_overhead(number)
    rows: list[tuple[str, float, float | None]] = []
    for name, call in ours.items():
        mine, peer = [], []
        for _ in range(rounds):
            mine.append(1e6 * (seconds_per_call(call, number) - empty))
            if name in theirs:
                peer.append(1e6 * (seconds_per_call(theirs[name], number) - empty))
        rows.append((name, statistics.median(mine), statistics.median(peer) if peer else None))
    modules = ["treadle"] + (["torch"] if torch is not None else [])
    imports = {
        m: statistics.median(import_seconds(m) for _ in range(min(rounds, 5))) for m in modules
    }
    rows.append(("import, seconds", imports["treadle"], imports.get("torch")))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--number", type=int, default=20_000, help="ops per round")
    parser.add_argument("--alone", action="store_true", help="leave PyTorch out")
    parser.add_argument("--markdown", action="store_true", help="print a table for RESULTS.md")
    options = parser.parse_args()
    rows = measure(options.rounds, options.number, options.alone)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    title = f"Eager overhead, microseconds per op ({date.today()}, {machine})"
    if options.markdown:
        print("| op | Treadle | PyTorch | ratio |\n| --- | --- | --- | --- |")
        for name, mine, peer in rows:
            print(f"| {name} | {mine:.2f} | {_text(peer)} | {_ratio(mine, peer)} |")
        return
    table = Table(title=title)
    for column in ("op", "Treadle", "PyTorch", "Treadle / PyTorch"):
        table.add_column(column, justify="left" if column == "op" else "right")
    for name, mine, peer in rows:
        table.add_row(name, f"{mine:.2f}", _text(peer), _ratio(mine, peer))
    Console().print(table)


def _text(value: float | None) -> str:
    return "not installed" if value is None else f"{value:.2f}"


def _ratio(mine: float, peer: float | None) -> str:
    return "" if peer is None else f"{mine / peer:.2f}"


if __name__ == "__main__":
    main()
