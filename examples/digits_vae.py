"""A variational autoencoder that learns a map of handwritten digits, and draws it.

Digits of 8x8 pixels become points of a plane, and points become digits again. Prints what is lost
on held-out digits, as a bound of their likelihood in nats, and writes a picture: digits drawn at
equal steps of probability over the plane. Needs the extra `vision` to write it.

    python examples/digits_vae.py [--epochs 60] [--out build/digits_vae.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import NormalDist

import cv2
import numpy as np
from sklearn.datasets import load_digits

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager, no_grad
from treadle.jit import compile
from treadle.optimizer import Adam

BATCH, SIDE, SHOWN = 64, 8, 16


class Autoencoder(M.Module):
    """Digits to normal distributions over a plane, and points of it to digits."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        pixels = SIDE * SIDE
        self.encoder = M.Sequential(
            M.Linear(pixels, width), M.ReLU(), M.Linear(width, width), M.ReLU(), M.Linear(width, 4)
        )
        self.decoder = M.Sequential(
            M.Linear(2, width), M.ReLU(), M.Linear(width, width), M.ReLU(), M.Linear(width, pixels)
        )

    def forward(self, x: mge.Tensor, noise: mge.Tensor) -> mge.Tensor:
        """How many nats the digits cost at most: pixels, and where they lie on the plane."""
        found = self.encoder(x)
        mean, log_variance = found[:, :2], found[:, 2:]
        # Samples are the mean plus noise times a width, so gradients reach both.
        logits = self.decoder(mean + F.exp(0.5 * log_variance) * noise)
        pixels = F.sum(F.softplus(logits) - logits * x, axis=1)
        place = 0.5 * F.sum(F.exp(log_variance) + mean * mean - 1.0 - log_variance, axis=1)
        return F.mean(pixels + place)


def load_data() -> tuple[np.ndarray, np.ndarray]:
    """Training and test digits (N, 64) in [0, 1]; every fifth is held out."""
    digits = (load_digits().data / 16).astype("float32")
    held_out = np.arange(len(digits)) % 5 == 0
    return digits[~held_out], digits[held_out]


def train(net: Autoencoder, digits: np.ndarray, test: np.ndarray, epochs: int) -> float:
    """Train in place; the last cost of the test digits."""
    gm, optimizer = GradManager().attach(net.parameters()), Adam(net.parameters(), lr=1e-3)

    @compile
    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = net(x, mge.random.normal(0.0, 1.0, (BATCH, 2)))
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    rng, noise = np.random.default_rng(0), mge.random.normal(0.0, 1.0, (len(test), 2))
    found = float("nan")
    for epoch in range(1, epochs + 1):
        order = rng.permutation(len(digits))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            step(mge.tensor(digits[order[start : start + BATCH]]))
        if epoch % 10 == 0 or epoch in (1, epochs):
            with no_grad():
                found = net(mge.tensor(test), noise).item()
            print(f"epoch {epoch:3d}  held-out digits cost {found:.2f} nats")
    return found


def draw(net: Autoencoder, path: Path) -> None:
    """The map: digits at the quantiles of the plane's two axes."""
    steps = [NormalDist().inv_cdf((i + 0.5) / SHOWN) for i in range(SHOWN)]
    points = np.array([(x, -y) for y in steps for x in steps], "float32")
    with no_grad():
        digits = F.sigmoid(net.decoder(mge.tensor(points))).numpy()
    cells = np.pad(digits.reshape(SHOWN, SHOWN, SIDE, SIDE), ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows = cells.transpose(0, 2, 1, 3).reshape(SHOWN * (SIDE + 2), -1)
    picture = 255 - (rows * 255).astype("uint8")
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), cv2.resize(picture, None, fx=5, fy=5, interpolation=cv2.INTER_CUBIC))


def main() -> None:
    """Train, and draw what was learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("build/digits_vae.png"))
    given = parser.parse_args()
    mge.random.seed(0)
    net = Autoencoder()
    train(net, *load_data(), given.epochs)
    draw(net, given.out)
    print(f"the map of digits is in {given.out}")


if __name__ == "__main__":
    main()
