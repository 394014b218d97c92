"""Forecast a time series: airline passengers, two years ahead, by a recurrent network.

The series is the one of Box and Jenkins: passengers of international flights, in thousands, for
each month of 1949 to 1960. A GRU reads 24 months and predicts the next; forecasts become its input
again. It learns from the first ten years. What it says of the last two is held against what most
people would guess: the same month of the year before, times the growth of that year. Needs the
extra `examples` to draw it.

    python examples/forecast.py [--epochs 40] [--out build/forecast.png]
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

YEAR, SEEN, HELD_OUT = 12, 24, 24
PASSENGERS = np.array(
    [
        *(112, 118, 132, 129, 121, 135, 148, 148, 136, 119, 104, 118),  # 1949
        *(115, 126, 141, 135, 125, 149, 170, 170, 158, 133, 114, 140),
        *(145, 150, 178, 163, 172, 178, 199, 199, 184, 162, 146, 166),
        *(171, 180, 193, 181, 183, 218, 230, 242, 209, 191, 172, 194),
        *(196, 196, 236, 235, 229, 243, 264, 272, 237, 211, 180, 201),
        *(204, 188, 235, 227, 234, 264, 302, 293, 259, 229, 203, 229),
        *(242, 233, 267, 269, 270, 315, 364, 347, 312, 274, 237, 278),
        *(284, 277, 317, 313, 318, 374, 413, 405, 355, 306, 271, 306),
        *(315, 301, 356, 348, 355, 422, 465, 467, 404, 347, 305, 336),
        *(340, 318, 362, 348, 363, 435, 491, 505, 404, 359, 310, 337),
        *(360, 342, 406, 396, 420, 472, 548, 559, 463, 407, 362, 405),
        *(417, 391, 419, 461, 472, 535, 622, 606, 508, 461, 390, 432),  # 1960
    ],
    "float32",
)


class Net(M.Module):
    """A GRU over growths since a year before, and a layer that says the next."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.cells = M.GRU(1, width, batch_first=True)
        self.out = M.Linear(width, 1)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        states, _ = self.cells(x)
        return self.out(states[:, -1])


def growths(series: np.ndarray) -> np.ndarray:
    """Logarithms of what a month has more than the same month of the year before, times ten."""
    return 10 * np.log(series[YEAR:] / series[:-YEAR])


def train(net: Net, series: np.ndarray, epochs: int) -> float:
    """Train in place on all windows of a series; the last loss."""
    steps = growths(series)
    windows = np.lib.stride_tricks.sliding_window_view(steps, SEEN + 1)
    x, y = mge.tensor(windows[:, :-1, None]), mge.tensor(windows[:, -1:])
    gm, optimizer = GradManager().attach(net.parameters()), Adam(net.parameters(), 3e-3)

    @compile
    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.loss.square_loss(net(x), y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    for epoch in range(1, epochs + 1):
        loss = step(x, y)
        if epoch % (epochs // 5 or 1) == 0:
            print(f"epoch {epoch:4d}  loss {loss.item():.4f}")
    return float(loss.item())


def forecast(net: Net, series: np.ndarray, months: int) -> np.ndarray:
    """The months behind a series; each is made of those before."""
    found = series.copy()
    with no_grad():
        for _ in range(months):
            seen = growths(found)[-SEEN:]
            growth = net(mge.tensor(seen[None, :, None])).item() / 10
            found = np.append(found, found[-YEAR] * np.exp(growth)).astype("float32")
    return found[-months:]


def guess(series: np.ndarray, months: int) -> np.ndarray:
    """The same months of the last year, times its growth, year by year."""
    year = series[-YEAR:]
    growth = year.sum() / series[-2 * YEAR : -YEAR].sum()
    return np.concatenate([year * growth ** (i + 1) for i in range(months // YEAR)])


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The mean of what forecasts are off, relative to what came."""
    return float(np.mean(np.abs(found - wanted) / wanted))


def draw(past: np.ndarray, wanted: np.ndarray, lines: dict[str, np.ndarray], path: Path) -> None:
    """The series and the forecasts of its end."""
    figure, axes = plt.subplots(figsize=(9, 4.5))
    years = 1949 + np.arange(len(past) + len(wanted)) / YEAR
    axes.plot(years, [*past, *wanted], color="0.2", label="passengers")
    for (name, line), color in zip(lines.items(), ("tab:blue", "tab:orange"), strict=True):
        axes.plot(years[-len(line) :], line, "--", color=color, label=name)
    axes.axvline(years[len(past)], color="0.7", linewidth=1)
    axes.set(xlabel="year", ylabel="thousands a month", title="Two years that were not seen")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    """Train, forecast, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("build/forecast.png"))
    given = parser.parse_args()
    mge.random.seed(0)
    past, wanted = PASSENGERS[:-HELD_OUT], PASSENGERS[-HELD_OUT:]
    net = Net()
    train(net, past, given.epochs)
    lines = {"recurrent network": forecast(net, past, HELD_OUT)}
    lines["last year and its growth"] = guess(past, HELD_OUT)
    for name, line in lines.items():
        print(f"{name}: {error(line, wanted):.1%} off")
    draw(past, wanted, lines, given.out)
    print(f"the forecast is drawn in {given.out}")


if __name__ == "__main__":
    main()
