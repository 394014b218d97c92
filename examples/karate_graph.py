"""A graph network: who follows whom when a club falls apart, known of two members only.

Zachary's karate club: 34 members, and 78 pairs who met outside of it. Then its instructor and its
administrator fell out, and the club split. A graph convolution network (Kipf and Welling, 2017)
knows the sides of these two, and who met whom; it says the sides of the other 32. The picture has a
disc for each member, in the color of what the network says, with a ring in the color of the side
that the member took. Needs the extra `examples`.

    python examples/karate_graph.py [--steps 200] [--out build/karate_graph.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager, no_grad
from treadle.jit import compile
from treadle.optimizer import Adam

MEMBERS, INSTRUCTOR, ADMINISTRATOR = 34, 0, 33
MET = {
    0: (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31),
    1: (2, 3, 7, 13, 17, 19, 21, 30),
    2: (3, 7, 8, 9, 13, 27, 28, 32),
    3: (7, 12, 13),
    4: (6, 10),
    5: (6, 10, 16),
    6: (16,),
    8: (30, 32, 33),
    9: (33,),
    13: (33,),
    14: (32, 33),
    15: (32, 33),
    18: (32, 33),
    19: (33,),
    20: (32, 33),
    22: (32, 33),
    23: (25, 27, 29, 32, 33),
    24: (25, 27, 31),
    25: (31,),
    26: (29, 33),
    27: (33,),
    28: (31, 33),
    29: (32, 33),
    30: (32, 33),
    31: (32, 33),
    32: (33,),
}
WITH_ADMINISTRATOR = (9, 14, 15, 18, 20, *range(22, 34))
PAIRS = np.array([(a, b) for a, others in MET.items() for b in others])


class GraphConv(M.Module):
    """Each member's new features are a mean of its own and its friends', mixed by a matrix.

    Args:
        neighbors: (members, members), how much of each is in the mean.
        inputs, outputs: features.
    """

    def __init__(self, neighbors: np.ndarray, inputs: int, outputs: int) -> None:
        super().__init__()
        self.neighbors = mge.tensor(neighbors)
        self.mix = M.Linear(inputs, outputs)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return F.matmul(self.neighbors, self.mix(x))


class Net(M.Module):
    """Two graph convolutions: from who a member is to scores of both sides."""

    def __init__(self) -> None:
        super().__init__()
        neighbors = mean_of_neighbors()
        self.first = GraphConv(neighbors, MEMBERS, 16)
        self.second = GraphConv(neighbors, 16, 2)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return self.second(F.relu(self.first(x)))


def mean_of_neighbors() -> np.ndarray:
    """The matrix D^-1/2 (A + I) D^-1/2 of the paper, where A says who met whom."""
    adjacent = np.eye(MEMBERS, dtype="float32")
    adjacent[PAIRS[:, 0], PAIRS[:, 1]] = adjacent[PAIRS[:, 1], PAIRS[:, 0]] = 1
    scale = adjacent.sum(axis=1) ** -0.5
    return scale[:, None] * adjacent * scale


def sides() -> np.ndarray:
    """Whom each member went with: 0 the instructor, 1 the administrator."""
    found = np.zeros(MEMBERS, "int32")
    found[list(WITH_ADMINISTRATOR)] = 1
    return found


def train(net: Net, steps: int) -> None:
    """Train in place on two members."""
    known = [INSTRUCTOR, ADMINISTRATOR]
    features, wanted = mge.tensor(np.eye(MEMBERS, dtype="float32")), mge.tensor(sides()[known])
    gm, optimizer = GradManager().attach(net.parameters()), Adam(net.parameters(), 1e-2)

    @compile
    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.loss.cross_entropy(net(x)[known], wanted)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    for i in range(1, steps + 1):
        loss = step(features)
        if i % (steps // 4 or 1) == 0:
            print(f"step {i:4d}  loss {loss.item():.4f}")


def places() -> np.ndarray:
    """Where members are drawn (34, 2): near those whom they met."""
    _, vectors = np.linalg.eigh(mean_of_neighbors())
    # The largest eigenvalue says how many people somebody met; the next two, who belongs together.
    found = np.sign(vectors[:, [-2, -3]]) * np.abs(vectors[:, [-2, -3]]) ** 0.6
    found += np.random.default_rng(0).normal(0, 1e-3, found.shape)
    for _ in range(100):  # Discs that overlap push each other away.
        apart = found[:, None] - found
        distance = np.hypot(apart[..., 0], apart[..., 1]) + np.eye(MEMBERS)
        push = np.clip(0.07 - distance, 0, None) / distance
        found += 0.3 * (push[..., None] * apart).sum(axis=1)
    return np.asarray(found)


def draw(administrator: np.ndarray, path: Path) -> None:
    """The club; `administrator` says how likely each member goes with that side."""
    figure, axes = plt.subplots(figsize=(9, 6.5))
    where = places()
    for pair in PAIRS:
        axes.plot(*where[pair].T, color="0.8", linewidth=0.8, zorder=1)
    rings = np.array(["tab:blue", "tab:red"])[sides()]
    discs = axes.scatter(
        *where.T, s=330, c=administrator, cmap="coolwarm", vmin=0, vmax=1, edgecolors=rings,
        linewidths=3, zorder=2,
    )  # fmt: skip
    names = {INSTRUCTOR: "I", ADMINISTRATOR: "A"}
    for member, place in enumerate(where):
        axes.annotate(names.get(member, str(member)), place, ha="center", va="center", fontsize=9)
    bar = figure.colorbar(discs, ticks=[0, 1], fraction=0.03)
    bar.ax.set_yticklabels(["with the instructor (I)", "with the administrator (A)"])
    bar.set_label("disc: what the network says; ring: what happened")
    axes.set(title="Zachary's karate club, two of whose members are known", xticks=[], yticks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    """Train, count, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("build/karate_graph.png"))
    given = parser.parse_args()
    mge.random.seed(0)
    net = Net()
    train(net, given.steps)
    with no_grad():
        scores = net(mge.tensor(np.eye(MEMBERS, dtype="float32")))
        administrator = F.softmax(scores, axis=1).numpy()[:, 1]
    right = int(((administrator > 0.5) == sides()).sum()) - 2
    print(f"{right} of the {MEMBERS - 2} other members told right")
    draw(administrator, given.out)
    print(f"the club is drawn in {given.out}")


if __name__ == "__main__":
    main()
