"""Memory of a training step: everything kept, regions computed again, and a budget.

The same deep network takes the same step in three ways; losses are compared bit for bit, planned
memory and time are printed.

    python examples/recomputation.py [--layers 12] [--width 256] [--batch 512]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager, recompute
from treadle.jit import Compiled, Options
from treadle.optimizer import SGD


def make_step(layers: int, width: int, region: bool, options: Options) -> Compiled:
    """A compiled step of a network that always has the same first weights."""
    mge.random.seed(1)
    blocks = [
        M.Sequential(M.Linear(width, width), M.GELU(), M.Linear(width, width), M.GELU())
        for _ in range(layers // 2)
    ]
    if region:
        for block in blocks:
            block.forward = recompute(block.forward)
    net = M.Sequential(*blocks)
    manager = GradManager().attach(net.parameters())
    optimizer = SGD(net.parameters(), lr=0.01)

    @mge.jit.compile(options=options)
    def step(x: mge.Tensor) -> mge.Tensor:
        with manager:
            loss = F.mean(F.square(net(x) - x))
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return step


def best_time(run: Callable[[], object], calls: int) -> float:
    """Seconds of the fastest call."""
    found = []
    for _ in range(calls):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=512)
    given = parser.parse_args()
    mge.set_default_device("cpux")
    data = np.random.default_rng(0).normal(size=(given.batch, given.width)).astype("float32")
    x = mge.tensor(data)
    rows: list[tuple[str, list[float], int, float]] = []
    peak = 0
    for name in ("all kept", "regions", "a budget of 60 %"):
        budget = int(0.6 * peak) if name.startswith("a budget") else 0
        options = Options(memory_budget=budget, strict_budget=False)
        step = make_step(given.layers, given.width, name == "regions", options)
        memory = step.lower(x).planned().memory.peak
        peak = peak or memory
        losses = [step(x).item() for _ in range(3)]
        rows.append((name, losses, memory, best_time(lambda s=step: s(x), 8)))
    print("values            planned peak    of all   ms a step   loss after 3 steps")
    for name, losses, memory, seconds in rows:
        print(
            f"{name:17} {memory / 2**20:8.2f} MiB {memory / peak:8.0%} {seconds * 1e3:11.2f}"
            f" {losses[-1]:20.8f}"
        )
    kept, regions, budget = (losses for _, losses, _, _ in rows)
    gap = max(abs(a - b) for a, b in zip(kept, regions, strict=True))
    # A region is a border between kernels, so sums may be rounded elsewhere; a budget is none.
    print(f"losses with a budget agree bit for bit: {'yes' if budget == kept else 'no'}")
    print(f"largest difference with regions: {gap:.1e}")


if __name__ == "__main__":
    main()
