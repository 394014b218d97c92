"""Training steps of small networks, for any device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as optim
from treadle.autodiff import GradManager
from treadle.jit import compile as jit_compile


class Flat(M.Module):
    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return F.flatten(x, 1)


class Block(M.Module):
    """One block of a transformer, and a head over the mean of what it gives."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.attention = M.MultiHeadAttention(width, 2)
        self.before, self.after = M.LayerNorm(width), M.LayerNorm(width)
        self.wide, self.narrow = M.Linear(width, 2 * width), M.Linear(2 * width, width)
        self.head = M.Linear(width, 4)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        y = self.before(x)
        x = x + self.attention(y, y, y)[0]
        x = x + self.narrow(F.gelu(self.wide(self.after(x))))
        return self.head(F.mean(x, axis=1))


def mlp() -> M.Module:
    return M.Sequential(M.Linear(64, 32), M.ReLU(), M.Linear(32, 16), M.GELU(), M.Linear(16, 4))


def cnn() -> M.Module:
    return M.Sequential(
        M.Conv2d(1, 4, 3, padding=1),
        M.BatchNorm2d(4),
        M.ReLU(),
        M.MaxPool2d(2),
        Flat(),
        M.Linear(64, 16),
        M.ReLU(),
        M.Linear(16, 4),
    )


MODELS: dict[str, tuple[Callable[[], M.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (8, 64)),
    "cnn": (cnn, (8, 1, 8, 8)),
    "transformer": (Block, (4, 8, 16)),
}


def training_step(model: M.Module, rate: float) -> Callable[[mge.Tensor, mge.Tensor], mge.Tensor]:
    """A step of Adam, which returns the loss before it."""
    optimizer = optim.Adam(model.parameters(), lr=rate)
    manager = GradManager().attach(model.parameters())

    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with manager:
            loss = F.nn.cross_entropy(model(x), y)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return step


def curve(name: str, device: str, steps: int, compiled: bool = True) -> list[float]:
    """The losses of some steps of training."""
    make, shape = MODELS[name]
    mge.random.seed(7)
    step = training_step(make().to(device), rate=0.01)
    run = jit_compile(step) if compiled else step
    rng = np.random.default_rng(3)
    found = []
    for _ in range(steps):
        x = rng.standard_normal(shape).astype(np.float32)
        flat = x.reshape(shape[0], -1)
        y = ((flat.sum(1) > 0) + 2 * (flat[:, 0] > 0)).astype(np.int32)
        loss = run(mge.tensor(x, device=device), mge.tensor(y, device=device))
        found.append(float(loss.numpy()))
    return found
