"""The same training in float32, in bfloat16, and in float16 with a scaled loss.

A small network of convolutions learns in which direction a bar lies; only the precision of
products changes. Losses and accuracies are printed side by side, with the time of a step, the bytes
its kernels move, and the memory between them. Without products of 16 bits in the processor, numbers
are converted on the way: then memory is what is gained.

    python examples/mixed_precision.py [--steps 200] [--batch 64]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.amp import GradScaler, autocast
from treadle.autodiff import GradManager
from treadle.optimizer import SGD


def pictures(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 1, 16, 16) of one bright bar in one of four directions, with noise."""
    labels = rng.integers(0, 4, count)
    rows, columns = np.mgrid[-8:8, -8:8] + 0.5
    angle = (labels * np.pi / 4 + rng.normal(0, 0.15, count))[:, None, None]
    away = np.abs(rows * np.cos(angle) - columns * np.sin(angle) - rng.normal(0, 2, angle.shape))
    images = np.exp(-((away / 1.5) ** 2)) + rng.normal(0, 0.3, (count, 16, 16))
    return images[:, None].astype("float32"), labels.astype("int32")


def make_network() -> M.Module:
    """Always with the same first weights."""
    mge.random.seed(1)
    return M.Sequential(
        *(M.Conv2d(1, 16, 3, padding=1), M.BatchNorm2d(16), M.ReLU(), M.MaxPool2d(2)),
        *(M.Conv2d(16, 32, 3, padding=1), M.BatchNorm2d(32), M.ReLU(), M.MaxPool2d(2)),
        *(M.Conv2d(32, 32, 3, padding=1), M.ReLU(), Rows(), M.Linear(32 * 16, 4)),
    )


class Rows(M.Module):
    """All features of a sample in one row."""

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        """(N, C, H, W) to (N, C H W)."""
        return F.flatten(x, 1)


def train(low: str | None, steps: int, batch: int) -> str:
    """Losses, accuracy on other pictures, milliseconds of a step, MiB moved and kept, as a row."""
    net = make_network()
    manager = GradManager().attach(net.parameters())
    optimizer = SGD(net.parameters(), lr=0.02, momentum=0.9)
    scaler = GradScaler(init_scale=2.0**10) if low == "float16" else None

    @mge.jit.compile
    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with autocast(low is not None, low or "float16"), manager:
            loss = F.nn.cross_entropy(net(x), y)
            if scaler is None:
                manager.backward(loss)
            else:
                scaler.backward(manager, loss)
        optimizer.step().clear_grad()
        return loss

    rng = np.random.default_rng(0)
    batches = [tuple(map(mge.tensor, pictures(batch, rng))) for _ in range(16)]
    losses, times = [], []
    for i in range(steps):
        start = time.perf_counter()
        losses.append(step(*batches[i % 16]).item())
        times.append(time.perf_counter() - start)
    program = step.explain(*batches[0], form="json")["sizes"][-1]
    net.eval()
    x, y = pictures(512, np.random.default_rng(1))
    with autocast(low is not None, low or "float16"):
        guesses = net(mge.tensor(x)).numpy().argmax(1)
    return (
        f"{low or 'float32':10} {losses[0]:10.4f} {np.mean(losses[-8:]):10.4f}"
        f" {np.mean(guesses == y):9.1%} {1e3 * np.median(times):10.2f}"
        f" {program['nbytes'] / 2**20:10.1f} {program['memory'] / 2**20:9.1f}"
    )


def main() -> None:
    """Train three times and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    given = parser.parse_args()
    print("products   first loss  last loss  accuracy  ms a step  MiB moved  MiB kept")
    for low in (None, "bfloat16", "float16"):
        print(train(low, given.steps, given.batch))


if __name__ == "__main__":
    main()
