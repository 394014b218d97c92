"""Five of the examples in PyTorch, to compare on one machine: the same networks, data and steps.

    python examples/beside_torch.py [faces|tumors|forecast|karate_graph|digits_vae ...]

Each is trained by Treadle and by PyTorch in turn, both as their users write it: a compiled step
here, an eager loop there. Prints what came out and the seconds that training took. Needs PyTorch
and the extra `examples`.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import treadle as mge

sys.path.insert(0, str(Path(__file__).parent))
import digits_vae
import faces
import forecast
import karate_graph
import tumors

Told = tuple[str, float, float]
"""What is compared, its value, and the seconds of training."""


def timed(train: Callable[[], object]) -> float:
    """Seconds that a call takes; what it prints is left out."""
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        train()
    return time.perf_counter() - began


def fit(
    optimizer: torch.optim.Optimizer, loss_of: Callable[..., torch.Tensor], *batch: torch.Tensor
) -> None:
    """One step."""
    optimizer.zero_grad()
    loss_of(*batch).backward()
    optimizer.step()


# -- a table ---------------------------------------------------------------------------------------


def tumors_here() -> Told:
    x, y, held_out = tumors.load_data()
    net = tumors.make_net()
    seconds = timed(lambda: tumors.train(net, 60))
    likely = tumors.probability(net, x[held_out])
    return "area under the curve", tumors.area(likely, y[held_out] != tumors.BENIGN), seconds


def tumors_there() -> Told:
    x, y, held_out = tumors.load_data()
    net = nn.Sequential(
        nn.Linear(30, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 32), nn.ReLU(),
        nn.Dropout(0.3), nn.Linear(32, 2),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    known = torch.tensor(x[~held_out]), torch.tensor(y[~held_out]).long()
    other = torch.tensor(x[held_out])
    generator = torch.Generator().manual_seed(0)

    def train() -> None:
        for _ in range(60):
            net.train()
            for rows in torch.randperm(len(known[0]), generator=generator).split(32):
                fit(optimizer, lambda a, b: F.cross_entropy(net(a), b), *(k[rows] for k in known))
            net.eval()
            with torch.no_grad():
                net(other)

    seconds = timed(train)
    with torch.no_grad():
        likely = 1 - net(other).softmax(1)[:, tumors.BENIGN].numpy()
    return "area under the curve", tumors.area(likely, y[held_out] != tumors.BENIGN), seconds


# -- a time series ---------------------------------------------------------------------------------


def forecast_here() -> Told:
    past, wanted = forecast.PASSENGERS[: -forecast.HELD_OUT], forecast.PASSENGERS[-24:]
    net = forecast.Net()
    seconds = timed(lambda: forecast.train(net, past, 40))
    return "mean error", forecast.error(forecast.forecast(net, past, 24), wanted), seconds


class Recurrent(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.cells, self.out = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(x)[0][:, -1])


def forecast_there() -> Told:
    past, wanted = forecast.PASSENGERS[: -forecast.HELD_OUT], forecast.PASSENGERS[-24:]
    windows = np.lib.stride_tricks.sliding_window_view(
        forecast.growths(past), forecast.SEEN + 1
    ).copy()
    x, y = torch.tensor(windows[:, :-1, None]), torch.tensor(windows[:, -1:])
    net = Recurrent()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def train() -> None:
        for _ in range(40):
            fit(optimizer, lambda a, b: F.mse_loss(net(a), b), x, y)

    seconds, found = timed(train), past
    with torch.no_grad():
        for _ in range(24):
            seen = torch.tensor(forecast.growths(found)[-forecast.SEEN :])
            growth = float(net(seen[None, :, None])) / 10
            month = found[-forecast.YEAR] * np.exp(growth)
            found = np.append(found, month).astype("float32")
    return "mean error", forecast.error(found[-24:], wanted), seconds


# -- a graph ---------------------------------------------------------------------------------------


def karate_graph_here() -> Told:
    net = karate_graph.Net()
    seconds = timed(lambda: karate_graph.train(net, 200))
    said = net(mge.tensor(np.eye(karate_graph.MEMBERS, dtype="float32"))).numpy().argmax(axis=1)
    return "members told right", float((said == karate_graph.sides()).sum() - 2), seconds


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.neighbors = torch.tensor(karate_graph.mean_of_neighbors())
        self.first, self.second = nn.Linear(karate_graph.MEMBERS, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.neighbors @ self.second(F.relu(self.neighbors @ self.first(x)))


def karate_graph_there() -> Told:
    known = [karate_graph.INSTRUCTOR, karate_graph.ADMINISTRATOR]
    net, x = Graph(), torch.eye(karate_graph.MEMBERS)
    wanted = torch.tensor(karate_graph.sides()[known]).long()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def train() -> None:
        for _ in range(200):
            fit(optimizer, lambda a: F.cross_entropy(net(a)[known], wanted), x)

    seconds = timed(train)
    said = net(x).argmax(1).numpy()
    return "members told right", float((said == karate_graph.sides()).sum() - 2), seconds


# -- digits and a plane ----------------------------------------------------------------------------


def digits_vae_here() -> Told:
    net, found = digits_vae.Autoencoder(), []
    seconds = timed(lambda: found.append(digits_vae.train(net, *digits_vae.load_data(), 60)))
    return "nats of a digit", found[0], seconds


class Autoencoder(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()

        def three(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(
                nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                nn.Linear(width, outputs),
            )  # fmt: skip

        self.encoder, self.decoder = three(64, 4), three(2, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        logits = self.decoder(mean + (0.5 * log_variance).exp() * torch.randn_like(mean))
        pixels = (F.softplus(logits) - logits * x).sum(1)
        place = 0.5 * (log_variance.exp() + mean * mean - 1 - log_variance).sum(1)
        return (pixels + place).mean()


def digits_vae_there() -> Told:
    digits, test = (torch.tensor(x) for x in digits_vae.load_data())
    net = Autoencoder()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def train() -> None:
        for _ in range(60):
            order = torch.randperm(len(digits))
            for start in range(0, len(order) - 63, 64):
                fit(optimizer, net, digits[order[start : start + 64]])

    seconds = timed(train)
    with torch.no_grad():
        return "nats of a digit", float(net(test)), seconds


# -- faces -----------------------------------------------------------------------------------------


def faces_here() -> Told:
    np.random.seed(0)
    net = faces.Net()
    seconds = timed(lambda: faces.train(net, 40, augmented=True))
    return "held-out faces seen", faces.test(net)[0], seconds


class Faces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((1, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(a, b, 3, 1, 1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(576, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def faces_there() -> Told:
    """With Treadle's pictures and augmentation: torchvision's work on other kinds of pictures."""
    np.random.seed(0)
    known, held_out = faces.load_faces()
    pieces, net = faces.Pieces(faces.LEARNED, seed=1), Faces()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def probability(pictures: np.ndarray) -> np.ndarray:
        net.eval()
        with torch.no_grad():
            found = net(torch.tensor(faces.scaled(pictures))).softmax(1)[:, 1].numpy()
        net.train()
        return found

    def train() -> None:
        for epoch in range(40):
            optimizer.param_groups[0]["lr"] = 2e-3 * (1 - epoch / 40)
            for x, y in faces.epoch_of(known, pieces, probability, True, epoch):
                batch = torch.tensor(faces.scaled(x)), torch.tensor(y).long()
                fit(optimizer, lambda a, b: F.cross_entropy(net(a), b), *batch)

    seconds = timed(train)
    seen = float((probability(held_out) > faces.SURE).mean())
    return "held-out faces seen", seen, seconds


EXAMPLES = ("faces", "tumors", "forecast", "karate_graph", "digits_vae")


def main(names: list[str]) -> None:
    """Run them in turn, and print a table."""
    print(f"{'example':13} {'':9} {'':22} {'value':>8} {'seconds':>8}")
    for name in names or EXAMPLES:
        for framework, ending in (("Treadle", "here"), ("PyTorch", "there")):
            mge.random.seed(0)
            torch.manual_seed(0)
            what, value, seconds = globals()[f"{name}_{ending}"]()
            print(f"{name:13} {framework:9} {what:22} {value:8.4g} {seconds:8.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
