"""Train a small convolutional network on real handwritten digits, then prove the checkpoint.

The data are scikit-learn's bundled digits: 1,797 scans of 8x8 pixels, 16 grey levels (E. Alpaydin
and C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998). Every fifth image is held out.

    python examples/digits_cnn.py [--epochs 12] [--out build/demo]

digits_torch.py does the same in PyTorch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.data import DataLoader
from treadle.data.dataset import ArrayDataset
from treadle.data.sampler import RandomSampler
from treadle.optimizer import AdamW, CosineAnnealingLR

SEED = 7
SHADES = " .:-=+*#%@"


class Net(M.Module):
    """Two convolutions, one pooling, two linear layers: about 80,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(1, 16, 3, padding=1)
        self.norm1 = M.BatchNorm2d(16)
        self.conv2 = M.Conv2d(16, 32, 3, padding=1)
        self.norm2 = M.BatchNorm2d(32)
        self.pool = M.MaxPool2d(2)
        self.drop = M.Dropout(0.2)
        self.hidden = M.Linear(32 * 4 * 4, 128)
        self.out = M.Linear(128, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.pool(F.relu(self.norm2(self.conv2(x))))
        x = F.relu(self.hidden(F.flatten(x, 1)))
        return self.out(self.drop(x))


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images (N, 1, 8, 8) in [0, 1] and their labels; a fixed split."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype("float32")
    labels = digits.target.astype("int32")
    held_out = np.arange(len(images)) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def predict(net: Net, images: np.ndarray) -> np.ndarray:
    """The most likely digit of every image."""
    net.eval()
    scores = [net(mge.Tensor(images[i : i + 256])).numpy() for i in range(0, len(images), 256)]
    net.train()
    return np.concatenate(scores).argmax(1)


def train(net: Net, epochs: int, console: Console) -> float:
    """Train and return the accuracy on the held-out images."""
    x_train, y_train, x_test, y_test = load_data()
    data = ArrayDataset(x_train, y_train)
    loader = DataLoader(data, RandomSampler(data, batch_size=64, seed=SEED))
    manager = GradManager().attach(net.parameters())
    optimizer = AdamW(net.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = CosineAnnealingLR(optimizer, epochs)
    accuracy = 0.0
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    live = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not live) as progress:
        task = progress.add_task("train", total=epochs * len(loader), epoch=1, loss=float("nan"))
        for epoch in range(1, epochs + 1):
            losses = []
            for images, labels in loader:
                with manager:
                    scores = net(mge.Tensor(images))
                    loss = F.loss.cross_entropy(scores, mge.Tensor(labels))
                    manager.backward(loss)
                optimizer.step().clear_grad()
                losses.append(loss.item())
                progress.update(task, advance=1, epoch=epoch, loss=np.mean(losses))
            schedule.step()
            accuracy = float((predict(net, x_test) == y_test).mean())
            line = f"epoch {epoch:2d}/{epochs}   loss {np.mean(losses):.4f}"
            console.print(f"{line}   test accuracy {accuracy:.2%}", highlight=False)
    return accuracy


def picture(image: np.ndarray) -> list[str]:
    """An image as lines of characters, two per pixel."""
    return ["".join(SHADES[int(v * 9.99)] * 2 for v in row) for row in image[0]]


def show_mistakes(net: Net, console: Console, most: int = 4) -> None:
    """Draw some held-out digits that the network got wrong."""
    _, _, x_test, y_test = load_data()
    guessed = predict(net, x_test)
    wrong = np.flatnonzero(guessed != y_test)
    console.print(f"\n{len(wrong)} of {len(y_test)} held-out digits are wrong:", highlight=False)
    shown = wrong[:most]
    titles = [f"{y_test[i]} read as {guessed[i]}".ljust(18) for i in shown]
    console.print("".join(titles), highlight=False, markup=False)
    for row in zip(*(picture(x_test[i]) for i in shown), strict=True):
        console.print("  ".join(row), highlight=False, markup=False)


def evaluate(path: str) -> float:
    """Accuracy of a saved network on the held-out images."""
    net = Net()
    net.load_state_dict(mge.load(path))
    _, _, x_test, y_test = load_data()
    return float((predict(net, x_test) == y_test).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--device", default="cpux", help="such as opencl0")
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--evaluate", metavar="FILE", help="only load FILE and print its accuracy")
    options = parser.parse_args()
    if options.evaluate:
        print(f"{evaluate(options.evaluate):.6f}")
        return
    console = Console()
    started = time.perf_counter()
    mge.set_default_device(options.device)
    mge.random.seed(SEED)
    net = Net()
    count = sum(p.size for p in net.parameters())
    x_train, _, x_test, _ = load_data()
    console.print(
        f"Learning {len(x_train)} handwritten digits, testing on {len(x_test)} others "
        f"({count:,} parameters)",
        highlight=False,
    )
    learning = time.perf_counter()
    accuracy = train(net, options.epochs, console)
    learning = time.perf_counter() - learning
    console.print(f"{options.epochs} epochs in {learning:.1f} s", highlight=False)
    show_mistakes(net, console)

    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "digits.mge"
    mge.save(net.state_dict(), str(path))
    command = [sys.executable, __file__, "--evaluate", str(path)]
    reloaded = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    console.print(
        f"\nSaved {path} ({path.stat().st_size // 1024} KiB); a fresh process reads it back: "
        f"{reloaded:.2%}",
        highlight=False,
    )
    seconds = time.perf_counter() - started
    console.print(f"Test accuracy {accuracy:.2%} after {seconds:.1f} s", highlight=False)
    if abs(reloaded - accuracy) > 1e-6:
        sys.exit("the reloaded network differs from the trained one")
    if options.epochs >= 12 and accuracy < 0.98:
        sys.exit("the network did not reach 98 %")


if __name__ == "__main__":
    main()
