"""A table: is a tumor benign or malignant, by 30 numbers measured on cells?

The table is the one of the University of Wisconsin that scikit-learn ships: 569 tumors. Every
fourth is held out. The Trainer runs the loop: validation, the best weights, early stopping. A
logistic regression of scikit-learn is what a network has to reach. Needs the extra `examples`.

    python examples/tumors.py [--epochs 60] [--out build/tumors.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import Trainer
from treadle.autodiff import no_grad
from treadle.data import DataLoader, RandomSampler, SequentialSampler
from treadle.data.dataset import ArrayDataset
from treadle.optimizer import AdamW

BENIGN = 1


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers (569, 30) of mean 0 and deviation 1, classes, and which rows are held out."""
    table = load_breast_cancer()
    held_out = np.arange(len(table.data)) % 4 == 0
    known = table.data[~held_out]
    numbers = (table.data - known.mean(axis=0)) / known.std(axis=0)
    return numbers.astype("float32"), table.target.astype("int32"), held_out


def make_net() -> M.Module:
    """Two hidden layers with dropout, since rows are few."""
    return M.Sequential(
        M.Linear(30, 64), M.ReLU(), M.Dropout(0.3), M.Linear(64, 32), M.ReLU(), M.Dropout(0.3),
        M.Linear(32, 2),
    )  # fmt: skip


def train(net: M.Module, epochs: int) -> list[dict[str, float]]:
    """Train in place; what the Trainer noted of each epoch."""
    x, y, held_out = load_data()
    known, other = (ArrayDataset(x[rows], y[rows]) for rows in (~held_out, held_out))
    trainer = Trainer(
        net,
        AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2),
        F.loss.cross_entropy,
        metrics={"accuracy": F.topk_accuracy},
        progress=False,
    )
    trainer.fit(
        DataLoader(known, RandomSampler(known, 32, seed=0)),
        epochs,
        DataLoader(other, SequentialSampler(other, 143)),
    )
    return trainer.history


def probability(net: M.Module, x: np.ndarray) -> np.ndarray:
    """How likely each tumor is malignant."""
    net.eval()
    with no_grad():
        return 1 - F.softmax(net(mge.tensor(x)), axis=1).numpy()[:, BENIGN]


def curve(likely: np.ndarray, malignant: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares of benign and of malignant tumors above each threshold."""
    order = np.argsort(-likely, kind="stable")
    found = np.cumsum(malignant[order]) / malignant.sum()
    alarms = np.cumsum(~malignant[order]) / (~malignant).sum()
    return np.append(0, alarms), np.append(0, found)


def area(likely: np.ndarray, malignant: np.ndarray) -> float:
    """The area under the curve: how often a malignant tumor is above a benign one."""
    alarms, found = curve(likely, malignant)
    return float(np.trapezoid(found, alarms))


def draw(answers: dict[str, np.ndarray], malignant: np.ndarray, path: Path) -> None:
    """What each model finds, at how many false alarms."""
    figure, axes = plt.subplots(figsize=(6, 5))
    for name, likely in answers.items():
        alarms, found = curve(likely, malignant)
        label = f"{name} ({area(likely, malignant):.4f})"
        axes.step(100 * alarms, 100 * found, where="post", label=label)
    axes.set(xlim=(-1, 40), ylim=(60, 100.5))
    axes.set(xlabel="benign tumors taken for malignant, %", ylabel="malignant tumors found, %")
    axes.set_title(f"{len(malignant)} tumors that were held out")
    axes.legend(title="area under the curve", loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    """Train, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("build/tumors.png"))
    given = parser.parse_args()
    mge.random.seed(0)
    x, y, held_out = load_data()
    net = make_net()
    train(net, given.epochs)
    linear = LogisticRegression(max_iter=1000).fit(x[~held_out], y[~held_out])
    answers = {
        "network": probability(net, x[held_out]),
        "logistic regression": 1 - linear.predict_proba(x[held_out])[:, BENIGN],
    }
    malignant = y[held_out] != BENIGN
    for name, likely in answers.items():
        right = float(((likely > 0.5) == malignant).mean())
        print(f"{name}: {right:.1%} right, area {area(likely, malignant):.4f}")
    draw(answers, malignant, given.out)
    print(f"the curves are in {given.out}")


if __name__ == "__main__":
    main()
