"""A small training run that tests start, kill and resume, in this process and in others."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.data import DataLoader, RandomSampler
from treadle.data.dataset import ArrayDataset
from treadle.data.transform import Transform
from treadle.optimizer import Adam, MultiStepLR
from treadle.trainer import Callback, Checkpoint, CSVLogger, Trainer


class Jitter(Transform):
    """Adds noise from NumPy's generator."""

    def apply(self, input: Any) -> Any:
        x, y = input
        return x + np.random.normal(0, 0.01, x.shape).astype("float32"), y


def points(count: int = 44, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points in the plane, and whether they are outside of a circle."""
    rng = np.random.RandomState(seed)
    x = rng.normal(size=(count, 2)).astype("float32")
    return x, (np.square(x).sum(1) > 1.2).astype("int32")


def loader(batch_size: int = 8, transform: Transform | None = None, **more: Any) -> DataLoader:
    data = ArrayDataset(*points())
    return DataLoader(data, RandomSampler(data, batch_size, seed=3), transform, **more)


def network(dropout: float = 0.1) -> M.Module:
    mge.random.seed(5)
    return M.Sequential(
        M.Linear(2, 16), M.BatchNorm1d(16), M.ReLU(), M.Dropout(dropout), M.Linear(16, 2)
    )


def accuracy(output: mge.Tensor, target: mge.Tensor) -> float:
    return float((output.numpy().argmax(1) == target.numpy()).mean())


def trainer(**more: Any) -> Trainer:
    net = network()
    optimizer = Adam(net.parameters(), lr=0.01)
    options: dict[str, Any] = {
        "scheduler": MultiStepLR(optimizer, [2], 0.5),
        "metrics": {"accuracy": accuracy},
        "seed": 9,
        "progress": False,
        "compile": False,
        **more,
    }
    return Trainer(net, optimizer, F.loss.cross_entropy, **options)


class At(Callback):
    """Sends this process a signal at a step."""

    def __init__(self, step: int, number: int) -> None:
        self.step = step
        self.number = number

    def on_step_end(self, trainer: Trainer, logs: dict[str, float]) -> None:
        if trainer.step == self.step:
            os.kill(os.getpid(), self.number)


def state_of(run: Trainer) -> dict[str, np.ndarray]:
    """Every number that training changes."""
    state = {name: np.array(value) for name, value in run.model.state_dict().items()}
    for index, held in run.optimizer.state_dict()["state"].items():
        state |= {f"{index}.{name}": np.array(value) for name, value in held.items()}
    return state


def main(folder: str, number: str, step: str) -> None:
    """Train three epochs, or until a signal comes; write what came out of it."""
    path = Path(folder)
    saver = Checkpoint(path / "run.ckpt", every_steps=4)
    killer = At(int(step), int(number)) if int(number) else Callback()
    run = trainer(callbacks=[saver, CSVLogger(path / "log.csv"), killer])
    run.fit(loader(transform=Jitter()), 3, resume=path / "run.ckpt")
    np.savez(path / "end.npz", **state_of(run))


if __name__ == "__main__":
    signal.alarm(100)
    main(*sys.argv[1:])
