"""Training by several processes: gradients are averaged, each process takes a part of the batch.

The same network learns the same batches in one process and in several, each of them with one
thread; time, losses and weights are compared.

    python examples/several_processes.py [--processes 2] [--steps 40] [--batch 512] [--width 512]
        [--device cpux]
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass

import numpy as np

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.optimizer import SGD

WARM_UP = 3
"""Steps that are not timed: the first ones plan how gradients are packed."""


@dataclass
class Run:
    """What one process saw: losses of whole batches, seconds a step, the sum of its weights.

    The seconds are the 20th percentile: processes wait for one another, and for other programs.
    """

    losses: list[float]
    seconds: float
    weights: float


def train(steps: int, batch: int, width: int, device: str) -> Run:
    """Train on this process's part of every batch; all of it where the process is alone."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mge.set_default_device(device)
    mge.random.seed(1)
    net = M.Sequential(M.Linear(64, width), M.ReLU(), M.Linear(width, width), M.ReLU())
    net = M.Sequential(net, M.Linear(width, 10))
    callbacks = [dist.make_allreduce_cb("mean")] if size > 1 else []
    if size > 1:
        dist.bcast_list_(net.parameters())
    manager = GradManager().attach(net.parameters(), callbacks)
    optimizer = SGD(net.parameters(), lr=0.1)
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(64, 10))
    losses, times = [], []
    for _ in range(steps + WARM_UP):
        x = rng.normal(size=(batch, 64)).astype("float32")
        mine = slice(rank * batch // size, (rank + 1) * batch // size)
        data, labels = mge.tensor(x[mine]), mge.tensor((x @ truth).argmax(1)[mine].astype("int32"))
        if size > 1:
            dist.group_barrier()
        begin = time.perf_counter()
        with manager:
            loss = F.loss.cross_entropy(net(data), labels)
            manager.backward(loss)
        optimizer.step().clear_grad()
        times.append(time.perf_counter() - begin)
        whole = F.distributed.all_reduce_sum(loss) / size if size > 1 else loss
        losses.append(whole.item())
    weights = sum(float(np.abs(p.numpy()).sum()) for p in net.parameters())
    return Run(losses, float(np.percentile(times[WARM_UP:], 20)), weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--device", default="cpux", help="of every process, such as opencl0")
    given = parser.parse_args()
    sizes = given.steps, given.batch, given.width, given.device
    (alone,) = dist.launcher(train, n_gpus=1)(*sizes)
    ranks = dist.launcher(train, n_gpus=given.processes)(*sizes)
    seconds = max(run.seconds for run in ranks)
    for count, run, time_of in ((1, alone, alone.seconds), (len(ranks), ranks[0], seconds)):
        print(
            f"{count} process{'es' if count > 1 else '  '}  loss {run.losses[0]:.4f} -> "
            f"{run.losses[-1]:.4f}   {time_of * 1e3:8.2f} ms a step"
        )
    gap = max(abs(a - b) for a, b in zip(alone.losses, ranks[0].losses, strict=True))
    print(f"gain: {alone.seconds / seconds:.2f} times as fast")
    print(f"largest difference of a loss: {gap:.1e}")
    print(
        f"all ranks have equal weights: {'yes' if len({r.weights for r in ranks}) == 1 else 'no'}"
    )


if __name__ == "__main__":
    os.environ["TREADLE_NUM_THREADS"] = "1"  # so that processes are compared, not threads
    main()
