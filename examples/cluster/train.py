"""A training job for clusters: sharded state, checkpoints, and restarts with any number of ranks.

Started again with the same folder it continues from the last checkpoint that is whole, on as many
ranks as there are then: the batch is that of the job, of which every rank takes its part.

    mpiexec -n 4 python -m mpi4py examples/cluster/train.py --folder checkpoints --steps 200
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.optimizer import Adam, ShardedOptimizer
from treadle.serialization import Part, load_sharded, save_sharded

FEATURES, CLASSES = 32, 8


def batch_of(step: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The job's batch at a step, the same in every run."""
    rng = np.random.default_rng(step)
    x = rng.normal(size=(size, FEATURES)).astype(np.float32)
    truth = np.random.default_rng(0).normal(size=(FEATURES, CLASSES))
    return x, (x @ truth).argmax(1).astype(np.int32)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest one. Folders get their names when everything in them is written."""
    found = [p for p in folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
    return max(found, key=lambda p: int(p.name[5:]), default=None)


def train(folder: Path, steps: int, every: int, batch: int, kill: int = -1) -> dict[int, float]:
    """Train up to a step; the losses of the steps that this run has done.

    Args:
        folder: of checkpoints, on a file system that all ranks see.
        steps: of the whole job.
        every: how many steps lie between two checkpoints.
        batch: of the job; a multiple of the number of ranks.
        kill: the step at which the last rank kills itself, to try out what follows.
    """
    if not dist.is_distributed():
        dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    mge.random.seed(1)
    net = M.Sequential(M.Linear(FEATURES, 64), M.ReLU(), M.Linear(64, CLASSES))
    dist.bcast_list_(net.parameters())
    optimizer = ShardedOptimizer(net.parameters(), lambda groups: Adam(groups, lr=3e-3))
    gm = GradManager().attach(net.parameters())
    first, found = 0, last_checkpoint(folder)
    if found is not None:
        state = load_sharded(found)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        if rank == 0:
            print(f"continues from {found.name} on {size} ranks", flush=True)
    losses = {}
    for step in range(first, steps):
        x, y = (mge.tensor(np.split(a, size)[rank]) for a in batch_of(step, batch))
        with gm:
            loss = F.loss.cross_entropy(net(x), y)
            gm.backward(loss)
        if step == kill and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step().clear_grad()
        losses[step] = (F.distributed.all_reduce_sum(loss) / size).item()
        if (step + 1) % every == 0:
            parts = optimizer.parts(Part)
            state = {"net": net.state_dict(), "optimizer": parts, "step": step + 1}
            save_sharded(state, folder / f"step-{step + 1}")
            if rank == 0:
                print(f"step {step + 1}   loss {losses[step]:.4f}", flush=True)
                _forget(folder, step + 1 - 2 * every)
    return losses


def _forget(folder: Path, step: int) -> None:
    """Remove checkpoints up to a step."""
    for path in folder.glob("step-*"):
        if path.name[5:].isdecimal() and int(path.name[5:]) <= step:
            shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=240, help="of the whole job")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    train(given.folder, given.steps, given.every, given.batch)


if __name__ == "__main__":
    main()
