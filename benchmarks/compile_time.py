"""How compile time grows with the graph: CPU seconds for ten shapes of graph, per size.

    python benchmarks/compile_time.py [--most 16000] [--shapes chain,slices] [--profile]

Each size runs in a process of its own with an empty cache, and counts the CPU time of all of its
threads from capture to a loaded program; machines that do other things disturb that little. The
last column is the largest growth between neighboring sizes, as a multiple of linear growth.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import math
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager

SIZES = (500, 1000, 2000, 4000, 8000, 16000)
LIMIT = 1.3
"""How much more than linear a program of twice the size may take."""
LAYERS = 16
"""Different parameters, so that no program is one of thousands of arrays."""

rng = np.random.default_rng(0)
X = mge.tensor(rng.standard_normal((8, 16)).astype("float32"))
W = [mge.Parameter(rng.standard_normal((16, 16)).astype("float32") / 4) for _ in range(LAYERS)]


def chain(n: int, x: Any) -> Any:
    """One elementwise op after the other."""
    for i in range(n // 2):
        x = F.sin(x) * (1.0 + i / n)
    return x


def softmax(n: int, x: Any) -> Any:
    """Reductions between elementwise ops, which no loop can hold together."""
    for _ in range(n // 6):
        x = F.softmax(x * 2.0, axis=-1)
    return x


def dense(n: int, x: Any) -> Any:
    """Products with activations."""
    for i in range(n // 2):
        x = F.tanh(F.matmul(x, W[i % LAYERS]))
    return x


def residual(n: int, x: Any) -> Any:
    """Blocks whose input is needed again at their end."""
    for i in range(n // 4):
        x = x + F.relu(F.matmul(x, W[i % LAYERS])) * 0.1
    return x


def branches(n: int, x: Any) -> Any:
    """One value that everybody reads, and a sum of all that is made of it."""
    made = [F.exp(x * (i / n)) for i in range(n // 3)]
    while len(made) > 1:
        made = [sum(made[i : i + 2][1:], made[i]) for i in range(0, len(made), 2)]
    return made[0]


def slices(n: int, x: Any) -> Any:
    """Parts of one value, which are computed with and put together."""
    wide = F.tile(x, (n // 24 + 1, 1))
    return F.concat([wide[i : i + 1] * (1.0 + i / n) for i in range(n // 3)], axis=0)


def outputs(n: int, x: Any) -> Any:
    """As many results as ops."""
    wide = F.tile(x, (n // 16 + 1, 1))
    return [wide[i] * 2.0 for i in range(n // 2)]


def shared(n: int, x: Any) -> Any:
    """Values that are read once soon, and once at the very end."""
    made = []
    for _ in range(n // 4):
        x = F.tanh(x + 0.1)
        made.append(x)
    total = made[0]
    for y in reversed(made):
        total = total * 0.9 + y
    return total


def moves(n: int, x: Any) -> Any:
    """Transposes and reshapes between ops that read them."""
    for i in range(n // 4):
        x = F.relu(x.T.reshape(8, 16) + 1.0 / (i + 1))
    return x


def training(n: int, x: Any) -> Any:
    """A step: forward, backward, and updates."""
    manager = GradManager().attach(W)
    with manager:
        y = x
        for i in range(n // 8):
            y = F.tanh(F.matmul(y, W[i % LAYERS]))
        loss = (y * y).mean()
        manager.backward(loss)
    for w in W[: n // 8]:  # A short one does not come to all of them.
        w[...] = w - w.grad * 0.01
        w.grad = None
    return loss


SHAPES: dict[str, Callable[[int, Any], Any]] = {
    f.__name__: f
    for f in (
        chain,
        softmax,
        dense,
        residual,
        branches,
        slices,
        outputs,
        shared,
        moves,
        training,
    )
}


def measure(name: str, n: int, profile: bool) -> None:
    """Print the nodes that were captured, and the CPU seconds that they took."""
    warm = mge.jit.compile(lambda x: SHAPES[name](24, x))
    warm.compile(X)  # Imports, and what is prepared once.
    made = mge.jit.compile(lambda x: SHAPES[name](n, x))
    watch = cProfile.Profile()
    before = time.process_time()
    if profile:
        watch.enable()
    stages = made.compile(X)
    watch.disable()
    spent = time.process_time() - before
    print(len(stages.captured.nodes), spent)
    if profile:
        pstats.Stats(watch).sort_stats("tottime").print_stats(16)


def measured(name: str, n: int) -> tuple[int, float]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, "--most", str(n)],
            env={**os.environ, "TREADLE_CACHE_DIR": folder, "TREADLE_LOG_LEVEL": "ERROR"},
            capture_output=True,
            text=True,
            check=True,
        )
    nodes, seconds = done.stdout.split()[-2:]
    return int(nodes), float(seconds)


def main() -> int:
    """Print a table; the exit status says whether something grows too fast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="nodes of the largest graph")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--profile", action="store_true", help="what the largest one spends")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one or options.profile:
        for name in [options.one] if options.one else options.shapes.split(","):
            measure(name, options.most, options.profile)
        return 0
    sizes = [n for n in SIZES if n <= options.most]
    print(f"{'shape':10}", *(f"{n:>7}" for n in sizes), "  growth")
    worst = 0.0
    for name in options.shapes.split(","):
        found = [measured(name, n) for n in sizes]
        growth = max((b / a) / (m / k) for (k, a), (m, b) in itertools.pairwise(found))
        worst = max(worst, growth)
        print(f"{name:10}", *(f"{t:7.2f}" for _, t in found), f"{growth:8.2f}", flush=True)
    return int(not math.isfinite(worst) or worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
