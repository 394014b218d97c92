"""Where compiling begins to pay: microseconds of one layer, op by op and compiled, by batch size.

relu(x @ w + b) with 64 inputs and outputs, then a mean; the fastest of many calls.

    python benchmarks/crossover.py [--seconds 0.3] [--markdown]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import treadle as mge
import treadle.functional as F

BATCHES = (1, 16, 256, 4096, 32768)
WIDTH = 64


def fastest(run: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest call among those that fit into `seconds`."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def layer(x: mge.Tensor, w: mge.Tensor, b: mge.Tensor) -> mge.Tensor:
    return F.relu(F.matmul(x, w) + b).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="per figure")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    mge.set_default_device("cpux")
    rng = np.random.default_rng(0)
    w, b = (mge.tensor(rng.normal(size=s).astype("float32")) for s in ((WIDTH, WIDTH), (WIDTH,)))
    compiled = mge.jit.compile(layer)
    head = ("batch", "MFLOP", "op by op us", "compiled us", "ratio", "compiled GFLOP/s")
    rows = []
    for batch in BATCHES:
        x = mge.tensor(rng.normal(size=(batch, WIDTH)).astype("float32"))
        compiled(x, w, b)
        eager = fastest(lambda x=x: layer(x, w, b), given.seconds)
        native = fastest(lambda x=x: compiled(x, w, b), given.seconds)
        flops = 2 * batch * WIDTH * WIDTH
        rows.append(
            (
                f"{batch}",
                f"{flops / 1e6:.2f}",
                f"{eager * 1e6:.1f}",
                f"{native * 1e6:.1f}",
                f"{eager / native:.1f}",
                f"{flops / native / 1e9:.1f}",
            )
        )
    if given.markdown:
        rows.insert(0, ("---",) * len(head))
        print("\n".join(f"| {' | '.join(row)} |" for row in (head, *rows)))
    else:
        print("\n".join("".join(cell.rjust(18) for cell in row) for row in (head, *rows)))


if __name__ == "__main__":
    main()
