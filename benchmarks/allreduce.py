"""What a group of processes on this machine takes to reduce arrays, and many gradients.

The first table compares one all-reduce by Treadle, which makes sure that all ranks mean the same,
with mpi4py's own. The second reduces small gradients one by one, and packed by the callback that
training uses. Figures are the fastest of many turns; use as many cores as ranks.

    python benchmarks/allreduce.py [--ranks 2] [--turns 200] [--gradients 200]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import treadle as mge
import treadle.distributed as dist
from treadle.base.table import lines
from treadle.ops.collective import AllReduce

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22)


def fastest(run: Callable[[], object], turns: int) -> float:
    """Seconds of the fastest turn; all ranks begin each together."""
    best = float("inf")
    for _ in range(turns):
        dist.group_barrier()
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def arrays(turns: int) -> list[tuple[str, ...]]:
    from mpi4py import MPI

    op = AllReduce("world", dist.get_world_size())
    rows = []
    for size in SIZES:
        x, y = np.ones(size, np.float32), np.empty(size, np.float32)
        tensor = mge.tensor(x)
        some = max(turns * SIZES[0] // size, 10)
        plain = fastest(lambda x=x, y=y: MPI.COMM_WORLD.Allreduce(x, y), some)
        ours = fastest(lambda t=tensor: op(t), some)
        rows.append((f"{4 * size >> 10}", f"{plain * 1e6:.1f}", f"{ours * 1e6:.1f}"))
    return rows


def gradients(count: int, turns: int) -> list[tuple[str, ...]]:
    op = AllReduce("world", dist.get_world_size())
    grads = [mge.tensor(np.ones(256, np.float32)) for _ in range(count)]
    params = [mge.Parameter(np.ones(256, np.float32)) for _ in range(count)]
    gm = mge.autodiff.GradManager().attach(params, dist.make_allreduce_cb("sum"))

    def packed() -> None:
        with gm:
            gm.backward(sum(p.sum() for p in params))

    plain = mge.autodiff.GradManager().attach(params)

    def without() -> None:
        with plain:
            plain.backward(sum(p.sum() for p in params))

    single = fastest(lambda: [op(g) for g in grads], turns)
    base, all_in = fastest(without, turns), fastest(packed, turns)
    return [
        ("one by one", f"{single * 1e6:.0f}"),
        ("packed, besides the backward pass", f"{max(all_in - base, 0) * 1e6:.0f}"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--gradients", type=int, default=200)
    given = parser.parse_args()

    def measure() -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        return arrays(given.turns), gradients(given.gradients, max(given.turns // 10, 3))

    one, many = dist.launcher(measure, n_gpus=given.ranks)()[0]
    print("\n".join(lines(("KiB", "mpi4py us", "Treadle us"), one)))
    print(f"\n{given.gradients} gradients of 1 KiB")
    print("\n".join(lines(("reduced", "us"), many)))


if __name__ == "__main__":
    main()
