"""`benchmark_op`: single ops, eager and compiled, beside PyTorch where that is installed."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import treadle
import treadle.functional as F
from treadle import jit

REPEATS = 20
CASES: dict[str, tuple[Callable[..., Any], str, tuple[tuple[int, ...], ...]]] = {
    "add": (lambda x, y: x + y, "x + y", ((256, 1024), (256, 1024))),
    "exp": (F.exp, "torch.exp(x)", ((256, 1024),)),
    "gelu": (F.gelu, "torch.nn.functional.gelu(x)", ((256, 1024),)),
    "sum": (lambda x: F.sum(x, 1), "x.sum(1)", ((256, 1024),)),
    "softmax": (lambda x: F.softmax(x, 1), "torch.softmax(x, 1)", ((256, 1024),)),
    "matmul": (F.matmul, "x @ y", ((256, 512), (512, 256))),
    "conv2d": (
        lambda x, y: F.conv2d(x, y, padding=1),
        "torch.nn.functional.conv2d(x, y, padding=1)",
        ((1, 32, 56, 56), (32, 32, 3, 3)),
    ),
    "max_pool2d": (
        lambda x: F.max_pool2d(x, 2),
        "torch.nn.functional.max_pool2d(x, 2)",
        ((1, 32, 56, 56),),
    ),
}


def median(run: Callable[[], Any]) -> float:
    """Median seconds of some runs, after two that do not count."""
    run(), run()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def _torch(expression: str, shapes: Sequence[Sequence[int]]) -> float | None:
    """Seconds in PyTorch, measured in a process of its own."""
    if importlib.util.find_spec("torch") is None:
        return None
    code = (
        "import time, statistics, torch\n"
        f"x, y = [torch.randn(*s) for s in {[list(s) for s in (*shapes, shapes[0])][:2]}]\n"
        f"run = lambda: {expression}\n"
        "run(); run()\nfound = []\n"
        f"for _ in range({REPEATS}):\n"
        "    began = time.perf_counter(); run(); found.append(time.perf_counter() - began)\n"
        "print(statistics.median(found))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser("benchmark_op", description=__doc__)
    parser.add_argument("ops", nargs="*", help=f"of {', '.join(CASES)}; all unless given")
    args = parser.parse_args(arguments)
    for name in args.ops:
        if name not in CASES:
            parser.error(f"there is no case {name!r}; there are {', '.join(CASES)}")
    table = Table(title=f"median microseconds of {REPEATS} runs")
    for title in ("op", "shapes", "eager", "compiled", "PyTorch"):
        table.add_column(title, justify="left" if title in ("op", "shapes") else "right")
    generator = np.random.default_rng(0)
    for name in args.ops or CASES:
        function, expression, shapes = CASES[name]
        tensors = [treadle.tensor(generator.normal(size=s).astype(np.float32)) for s in shapes]
        compiled = jit.compile(function)
        eager_time = median(lambda f=function, t=tensors: f(*t))  # type: ignore[misc]
        program_time = median(lambda f=compiled, t=tensors: f(*t))  # type: ignore[misc]
        peer = _torch(expression, shapes)
        cells = [f"{1e6 * t:.1f}" for t in (eager_time, program_time)]
        sizes = " ".join("x".join(map(str, s)) for s in shapes)
        table.add_row(name, sizes, *cells, "-" if peer is None else f"{1e6 * peer:.1f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
