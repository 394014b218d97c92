"""Quantize a network that reads handwritten digits: calibrated, and trained with rounding.

Prints the accuracy on held-out digits, the size of the parameters, and the time per image of the
float network and of each integer network, all of them compiled.

    python examples/quantized_digits.py [--epochs 10] [--tune 3]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_digits

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import quantization as Q
from treadle.autodiff import GradManager
from treadle.jit import compile
from treadle.optimizer import Adam

BATCH = 64


class Net(M.Module):
    """Two convolutions with batch normalization and a linear layer, between the stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = M.QuantStub()
        self.conv1 = M.ConvBnRelu2d(1, 32, 3, padding=1)
        self.conv2 = M.ConvBnRelu2d(32, 64, 3, padding=1)
        self.head = M.Linear(64 * 2 * 2, 10)
        self.dequant = M.DequantStub()

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = F.max_pool2d(self.conv1(self.quant(x)), 2)
        x = F.max_pool2d(self.conv2(x), 2)
        return self.dequant(self.head(F.flatten(x, 1)))


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images (N, 1, 8, 8) in [0, 1] and their labels; every fifth is held out."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype("float32")
    labels = digits.target.astype("int32")
    held_out = np.arange(len(labels)) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def train(net: M.Module, images: np.ndarray, labels: np.ndarray, epochs: int, lr: float) -> None:
    """Train in place; the step is one compiled program."""
    net.train()
    gm, optimizer = GradManager().attach(net.parameters()), Adam(net.parameters(), lr)

    @compile
    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.loss.cross_entropy(net(x), y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    order = np.random.default_rng(0)
    for _ in range(epochs):
        rows = order.permutation(len(labels))
        for start in range(0, len(rows) - BATCH + 1, BATCH):
            chosen = rows[start : start + BATCH]
            step(mge.tensor(images[chosen]), mge.tensor(labels[chosen]))
    net.eval()


def best_time(run: Callable[[], object]) -> float:
    """Seconds of the fastest of many calls."""
    found = []
    for _ in range(50):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def report(name: str, net: M.Module, images: np.ndarray, labels: np.ndarray) -> None:
    """Print accuracy, size and time of a network."""
    net.eval()
    program = compile(lambda x: net(x))
    x = mge.tensor(images)
    accuracy = float((program(x).numpy().argmax(axis=1) == labels).mean())
    size = sum(t.numpy().nbytes for t in net.parameters())
    per_image = best_time(lambda: program(x)) / len(labels)
    print(f"{name:26} {accuracy:8.2%} {size / 1024:8.1f} KiB {per_image * 1e6:8.2f} us/image")


def main() -> None:
    """Train, quantize in three ways, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10, help="of the float network")
    parser.add_argument("--tune", type=int, default=3, help="epochs with rounding")
    options = parser.parse_args()
    mge.random.seed(0)
    images, labels, *held_out = load_data()
    net = Net()
    train(net, images, labels, options.epochs, 3e-3)
    report("float32", net, *held_out)
    for name, config in (
        ("calibrated", Q.calibration_qconfig),
        ("calibrated, per channel", Q.per_channel_calibration_qconfig),
    ):
        watched = Q.calibrate(net, [images[:512]], inplace=False, qconfig=config)
        report(name, Q.quantize(watched), *held_out)
    rounded = Q.quantize_qat(net, inplace=False)
    train(rounded, images, labels, options.tune, 1e-3)
    report("trained with rounding", Q.quantize(rounded), *held_out)


if __name__ == "__main__":
    main()
