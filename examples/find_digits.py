"""Find handwritten digits in photographs: where they are, how large, and which; draw the boxes.

Digits are written over pieces of the two photographs that scikit-learn ships. Held out are every
fifth digit and the right half of both photographs. A cell of 8x8 pixels in which the middle of a
digit lies says where exactly, how large, and which. Needs the extra `vision`.

    python examples/find_digits.py [--steps 1000] [--out build/find_digits.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
from sklearn.datasets import load_digits, load_sample_images

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager, no_grad
from treadle.jit import compile
from treadle.optimizer import Adam

BATCH, SIDE, CELL = 16, 96, 8
GRID = SIDE // CELL
Boxes = list[tuple[int, float, float, float]]
"""Digit, middle (x, y) and side of each box."""


class Scenes:
    """Photographs with digits in them, drawn anew each time.

    Args:
        held_out: whether they are made of what is not learned from.
        seed: of the generator.
    """

    def __init__(self, held_out: bool, seed: int) -> None:
        digits = load_digits()
        chosen = (np.arange(len(digits.images)) % 5 == 0) == held_out
        self.images, self.labels = digits.images[chosen] / 16, digits.target[chosen]
        photos = [cv2.cvtColor(p, cv2.COLOR_RGB2GRAY) for p in load_sample_images().images]
        half = photos[0].shape[1] // 2
        self.photos = [p[:, half:] if held_out else p[:, :half] for p in photos]
        self.rng = np.random.default_rng(seed)

    def scene(self) -> tuple[np.ndarray, Boxes]:
        """A picture (96, 96) in [0, 1], and the boxes in it: one to four that do not touch."""
        photo = self.photos[self.rng.integers(len(self.photos))]
        y, x = (self.rng.integers(extent - SIDE) for extent in photo.shape)
        picture, boxes = photo[y : y + SIDE, x : x + SIDE] / 255, []
        for _ in range(self.rng.integers(1, 5)):
            side = int(self.rng.integers(18, 37))
            left, top = self.rng.integers(0, SIDE - side, 2)
            middle = (left + side / 2, top + side / 2)
            if any(max(abs(middle[0] - b[1]), abs(middle[1] - b[2])) < 32 for b in boxes):
                continue
            which = self.rng.integers(len(self.images))
            ink = cv2.resize(self.images[which], (side, side), interpolation=cv2.INTER_LINEAR)
            part = picture[top : top + side, left : left + side]
            part += ink * (float(part.mean() < 0.5) - part)  # white on dark, black on bright
            boxes.append((int(self.labels[which]), *middle, float(side)))
        return picture.astype("float32"), boxes

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Pictures; per cell whether a digit is there, which, and its box."""
        pictures = np.zeros((BATCH, 1, SIDE, SIDE), "float32")
        there, which = (np.zeros((BATCH, GRID, GRID), kind) for kind in ("float32", "int32"))
        places = np.zeros((BATCH, 3, GRID, GRID), "float32")
        for i in range(BATCH):
            pictures[i, 0], boxes = self.scene()
            for digit, x, y, side in boxes:
                row, column = int(y // CELL), int(x // CELL)
                there[i, row, column], which[i, row, column] = 1, digit
                places[i, :, row, column] = x / CELL - column, y / CELL - row, np.log(side / 24)
        return pictures, there, which, places


class Detector(M.Module):
    """Six convolutions: 14 numbers per cell."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(1, 24, 2), (24, 32, 2), (32, 64, 2), (64, 96, 1), (96, 96, 1), (96, 64, 1)]
        self.body = M.Sequential(*[M.ConvBnRelu2d(a, b, 3, s, 1) for a, b, s in widths])
        self.head = M.Conv2d(64, 14, 1)

    def forward(self, pictures: mge.Tensor) -> mge.Tensor:
        return self.head(self.body(pictures))


def loss_of(
    found: mge.Tensor, there: mge.Tensor, which: mge.Tensor, places: mge.Tensor
) -> mge.Tensor:
    """Of all cells whether a digit is there; of those that have one, which and where."""
    count = F.maximum(F.sum(there), 1.0)
    score = F.sum(F.softplus(found[:, 0]) - found[:, 0] * there)
    kinds = F.logsoftmax(found[:, 4:], axis=1) * F.one_hot(which, 10).transpose(0, 3, 1, 2)
    offsets = F.sum(F.abs(found[:, 1:4] - places), axis=1)
    return (score + F.sum((offsets - F.sum(kinds, axis=1)) * there)) / count


def boxes_of(found: np.ndarray) -> Boxes:
    """The boxes that a picture's cells say, best first; weaker ones that overlap are left out."""
    scores, kept = 1 / (1 + np.exp(-found[0])), []
    for flat in np.argsort(-scores, axis=None):
        row, column = divmod(int(flat), GRID)
        if scores[row, column] < 0.5:
            break
        dx, dy, size = found[1:4, row, column]
        digit = int(found[4:, row, column].argmax())
        box = (digit, (column + dx) * CELL, (row + dy) * CELL, 24 * float(np.exp(size)))
        if all(overlap(box, other) < 0.3 for other in kept):
            kept.append(box)
    return kept


def overlap(
    first: tuple[int, float, float, float], second: tuple[int, float, float, float]
) -> float:
    """Intersection over union."""
    sides = [
        min(first[i] + first[3] / 2, second[i] + second[3] / 2)
        - max(first[i] - first[3] / 2, second[i] - second[3] / 2)
        for i in (1, 2)
    ]
    shared = max(sides[0], 0.0) * max(sides[1], 0.0)
    return shared / (first[3] ** 2 + second[3] ** 2 - shared)


def train(net: Detector, steps: int) -> None:
    """Train in place; each step sees scenes that no step before has seen."""
    gm, optimizer = GradManager().attach(net.parameters()), Adam(net.parameters(), lr=2e-3)

    @compile
    def step(pictures: mge.Tensor, *target: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = loss_of(net(pictures), *target)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    scenes = Scenes(held_out=False, seed=1)
    for i in range(1, steps + 1):
        if i == steps * 3 // 4:
            optimizer.param_groups[0]["lr"] = 4e-4
        loss = step(*[mge.tensor(x) for x in scenes.batch()])
        if i % 200 == 0:
            print(f"step {i}: loss {loss.item():.2f}")
    net.eval()


def draw(picture: np.ndarray, boxes: Boxes) -> np.ndarray:
    """The picture, four times as large, with its boxes and digits."""
    large = cv2.resize((picture * 255).astype("uint8"), None, fx=4, fy=4)
    canvas = cv2.cvtColor(large, cv2.COLOR_GRAY2BGR)
    for digit, x, y, side in boxes:
        left, top, end, low = (
            int(4 * v) for v in (x - side / 2, y - side / 2, x + side / 2, y + side / 2)
        )
        cv2.rectangle(canvas, (left, top), (end, low), (60, 200, 60), 2)
        place = (left, top - 6 if top > 24 else low + 24)
        cv2.putText(canvas, str(digit), place, cv2.FONT_HERSHEY_SIMPLEX, 0.9, (60, 200, 60), 2)
    return canvas


def main() -> None:
    """Train, count what is found in held-out scenes, draw some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("build/find_digits.png"))
    given = parser.parse_args()
    mge.random.seed(0)
    net, scenes = Detector(), Scenes(held_out=True, seed=2)
    train(net, given.steps)
    tested = [scenes.scene() for _ in range(200)]
    with no_grad():
        pictures = np.stack([picture for picture, _ in tested])[:, None]
        found = [boxes_of(cells) for cells in net(mge.tensor(pictures)).numpy()]
    right = sum(
        any(b[0] == w[0] and overlap(b, w) > 0.5 for b in boxes)
        for boxes, (_, wanted) in zip(found, tested, strict=True)
        for w in wanted
    )
    written, said = sum(len(wanted) for _, wanted in tested), sum(map(len, found))
    print(f"{right} of {written} digits found and read, {said} boxes drawn")
    drawn = [draw(p, boxes) for (p, _), boxes in zip(tested[:6], found[:6], strict=True)]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(given.out), np.vstack([np.hstack(drawn[:3]), np.hstack(drawn[3:])]))
    print(f"pictures with boxes are in {given.out}")


if __name__ == "__main__":
    main()
