"""Is it a face? A classifier of pictures learns from 75 faces, with and without augmentation.

All pictures are real and come with scikit-image: 100 faces of "Labeled Faces in the Wild", 25 x 25
pixels each, of which every fourth is held out, and photographs without a face, of which pieces are
drawn at random. With so few faces augmentation decides: each epoch sees them flipped, moved, and in
another light. Pieces that look like faces to the network come up more often. Needs the extra
`examples`.

    python examples/faces.py [--epochs 60] [--out build/faces.png]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import cv2
import matplotlib.pyplot as plt
import numpy as np
from skimage import data

import treadle as mge
import treadle.data.transform as T
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager, no_grad
from treadle.data import DataLoader, RandomSampler
from treadle.data.dataset import ArrayDataset
from treadle.jit import compile
from treadle.optimizer import Adam

SIDE, BATCH, SURE = 25, 25, 0.95
LEARNED = (
    *("brick", "chelsea", "coffee", "coins", "grass", "gravel", "hubble_deep_field", "page"),
    "rocket",
)
HELD_OUT = ("clock", "moon", "text", "retina")
AUGMENTED = [
    T.RandomHorizontalFlip(),
    T.Pad(3),
    T.RandomCrop(SIDE),
    T.BrightnessTransform(0.4),
    T.ContrastTransform(0.4),
]
"""Applied to pictures (25, 25, 1) of numbers 0 to 255."""


class Net(M.Module):
    """Three convolutions, each followed by a pool: scores of "no face" and "face"."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(1, 16), (16, 32), (32, 64)]
        self.body = M.Sequential(
            *[M.Sequential(M.ConvBnRelu2d(a, b, 3, 1, 1), M.MaxPool2d(2)) for a, b in widths]
        )
        self.dropout = M.Dropout(0.3)
        self.head = M.Linear(64 * 3 * 3, 2)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return self.head(self.dropout(F.flatten(self.body(x), 1)))


def load_faces() -> tuple[np.ndarray, np.ndarray]:
    """Faces (N, 25, 25, 1) from 0 to 255 to learn from, and held out."""
    faces = (data.lfw_subset()[:100, ..., None] * 255).astype("uint8")
    held_out = np.arange(len(faces)) % 4 == 0
    return faces[~held_out], faces[held_out]


class Pieces:
    """Windows of photographs without faces, of any size.

    Args:
        names: of scikit-image's photographs.
        seed: of the generator.
    """

    def __init__(self, names: tuple[str, ...], seed: int) -> None:
        photos = [getattr(data, name)() for name in names]
        self.photos = [cv2.cvtColor(p, cv2.COLOR_RGB2GRAY) if p.ndim == 3 else p for p in photos]
        self.rng = np.random.default_rng(seed)

    def draw(self, count: int) -> np.ndarray:
        """So many pictures (count, 25, 25, 1)."""
        found = np.empty((count, SIDE, SIDE, 1), "uint8")
        for i in range(count):
            photo = self.photos[self.rng.integers(len(self.photos))]
            side = int(SIDE * 2 ** self.rng.uniform(0, 2.5))
            y, x = (self.rng.integers(extent - side + 1) for extent in photo.shape)
            piece = photo[y : y + side, x : x + side]
            found[i, ..., 0] = cv2.resize(piece, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        return found


def scaled(pictures: np.ndarray) -> np.ndarray:
    """Pictures (N, H, W, 1) as the network takes them: channels first, mean 0, deviation 1."""
    found = pictures.transpose(0, 3, 1, 2).astype("float32")
    mean, deviation = found.mean((2, 3), keepdims=True), found.std((2, 3), keepdims=True)
    return (found - mean) / (deviation + 8)


Batch = tuple[np.ndarray, np.ndarray]
Probability = Callable[[np.ndarray], np.ndarray]


def epoch_of(
    faces: np.ndarray, pieces: Pieces, probability: Probability, augmented: bool, epoch: int
) -> Iterator[Batch]:
    """Batches of all faces, and of pieces that were never seen: the hardest, and as they come."""
    drawn = pieces.draw(1500)
    order, count = np.argsort(-probability(drawn)), 3 * len(faces)
    others = drawn[np.concatenate([order[: count // 2], order[-(count - count // 2) :]])]
    pictures = np.concatenate([faces, others])
    dataset = ArrayDataset(pictures, (np.arange(len(pictures)) < len(faces)).astype("int32"))
    transform = T.Compose(AUGMENTED if augmented else [], order=("image", "image_category"))
    yield from DataLoader(dataset, RandomSampler(dataset, BATCH, seed=epoch), transform)


def train(net: Net, epochs: int, augmented: bool) -> None:
    """Train in place."""
    faces, _ = load_faces()
    pieces = Pieces(LEARNED, seed=1)
    gm, optimizer = GradManager().attach(net.parameters()), Adam(net.parameters(), lr=2e-3)

    @compile
    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.loss.cross_entropy(net(x), y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - epoch / epochs)
        for x, y in epoch_of(faces, pieces, partial(probability, net), augmented, epoch):
            step(mge.tensor(scaled(x)), mge.tensor(y))


def test(net: Net) -> tuple[float, float]:
    """The share of held-out faces that are seen, and of other pieces that are taken for faces."""
    _, faces = load_faces()
    others = Pieces(HELD_OUT, seed=2).draw(5000)
    shares = [float((probability(net, x) > SURE).mean()) for x in (faces, others)]
    return shares[0], shares[1]


def probability(net: Net, pictures: np.ndarray) -> np.ndarray:
    """How likely each picture (N, 25, 25, 1) is a face."""
    net.eval()
    with no_grad():
        found = F.softmax(net(mge.tensor(scaled(pictures))), axis=1).numpy()[:, 1]
    net.train()
    return found


def draw(net: Net, path: Path) -> None:
    """All held-out faces, and the other pieces that look most like faces, with probabilities."""
    _, faces = load_faces()
    others = Pieces(HELD_OUT, seed=2).draw(5000)
    likeliest = others[np.argsort(-probability(net, others))[: len(faces)]]
    figure, places = plt.subplots(10, 5, figsize=(5, 11))
    for pictures, rows in ((faces, places[:5]), (likeliest, places[5:])):
        for picture, likely, axes in zip(
            pictures, probability(net, pictures), rows.flat, strict=True
        ):
            axes.imshow(picture[..., 0], cmap="gray")
            right = (likely > SURE) == (pictures is faces)
            axes.set_title(
                f"{likely:.0%}", color="tab:green" if right else "tab:red", fontsize=8, pad=2
            )
            axes.set(xticks=[], yticks=[])
    figure.suptitle(
        "How likely each is a face: 25 held-out faces,\nand the other pieces that look like one",
        y=0.925,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    """Train with and without augmentation, then draw what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("build/faces.png"))
    given = parser.parse_args()
    for augmented in (False, True):
        mge.random.seed(0)
        np.random.seed(0)
        net = Net()
        train(net, given.epochs, augmented)
        seen, wrong = test(net)
        name = "with augmentation" if augmented else "without augmentation"
        print(f"{name}: {seen:.0%} of 25 held-out faces seen, {wrong:.2%} of other pieces, too")
    draw(net, given.out)
    print(f"what the second says of each is in {given.out}")


if __name__ == "__main__":
    main()
