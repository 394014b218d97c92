"""Editing a traced network: fold batch norms into convolutions, add an output, ship one file.

Prints how many layers and microseconds an evaluation takes before and after, and has a fresh
process load the edited network without the class that it was made from.

    python examples/edit_network.py [--out build/edited.tm]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.traced_module as tm


class Block(M.Module):
    """Convolution, normalization, activation, beside a residual path."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = M.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = M.BatchNorm2d(channels)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return x + F.relu(self.bn(self.conv(x)))


class Net(M.Module):
    """A stem, three blocks and a head: (N, 3, H, W) to (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = M.Conv2d(3, 16, 3, padding=1)
        self.blocks = [Block(16) for _ in range(3)]
        self.head = M.Linear(16, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(F.mean(x, (2, 3)))


LOAD = """
import sys, numpy as np, treadle as mge
mge.set_default_device("cpux")
net = mge.load(sys.argv[1])
x = mge.tensor(np.load(sys.argv[2]))
np.save(sys.argv[3], net(x)["scores"].numpy())
"""


def best_time(run: Callable[[], object]) -> float:
    """Seconds of the fastest of many calls."""
    found = []
    for _ in range(30):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/edited.tm"))
    given = parser.parse_args()
    mge.set_default_device("cpux")
    mge.random.seed(1)
    net = Net()
    data = np.random.default_rng(0).normal(size=(8, 3, 32, 32)).astype("float32")
    x = mge.tensor(data)
    net(x)  # Batch norms get statistics that are worth folding.
    net.eval()

    traced = tm.trace_module(net, x).flatten()
    edited = tm.optimize(traced, ["FuseConvBn"])
    pooled = edited.graph.get_function_by_type(F.mean).as_unique().outputs[0]
    edited.graph.add_output_node(pooled)
    edited.graph.reset_outputs(dict(zip(("scores", "features"), edited.graph.outputs, strict=True)))

    for name, network in (("traced", traced), ("edited", edited)):
        norms = network.graph.get_module_by_type(M.BatchNorm2d).as_count()
        calls = len(network.graph.exprs().as_list())
        seconds = best_time(lambda n=network: n(x))
        print(f"{name}  {calls:3d} expressions  {norms} batch norms  {seconds * 1e6:7.0f} us eager")
    found = edited(x)
    gap = float(np.abs(found["scores"].numpy() - net(x).numpy()).max())
    print(f"outputs: {', '.join(found)}; largest difference of the scores: {gap:.1e}")

    given.out.parent.mkdir(parents=True, exist_ok=True)
    mge.save(edited, str(given.out))
    put, got = given.out.with_suffix(".in.npy"), given.out.with_suffix(".out.npy")
    np.save(put, data)
    subprocess.run([sys.executable, "-c", LOAD, str(given.out), str(put), str(got)], check=True)
    same = np.array_equal(np.load(got), found["scores"].numpy())
    print(
        f"{given.out} ({given.out.stat().st_size // 1024} KiB) in a process without the class: "
        f"{'the same scores' if same else 'other scores'}"
    )


if __name__ == "__main__":
    main()
