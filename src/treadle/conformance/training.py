"""Training: networks learn on the device as they do on the host."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import treadle
import treadle.functional as F
import treadle.module as M
from treadle import amp, jit, random
from treadle.autodiff import GradManager
from treadle.base.array import Array
from treadle.base.env import of_child
from treadle.conformance.check import Check, CheckFailed, Measured, require
from treadle.conformance.subject import Subject
from treadle.optimizer import SGD, Adam
from treadle.quantization import quantize_qat
from treadle.tensor import Tensor

Step = Callable[[Tensor, Tensor], Tensor]
_IMAGE, _CLASSES, _BATCH = 8, 4, 8
_ALLOWED = 2e-2
"""Relative distance of losses after many steps: roundings grow, wrong gradients grow faster."""


class Flat(M.Module):
    """All axes but the first one as one."""

    def forward(self, x: Tensor) -> Tensor:
        """[n, ...] to [n, features]."""
        return F.flatten(x, 1)


class Transformer(M.Module):
    """Rows of an image as a sequence: attention, a feed-forward block, the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = M.Linear(_IMAGE, 16)
        self.attention = M.MultiHeadAttention(16, 2)
        self.first, self.second = M.LayerNorm(16), M.LayerNorm(16)
        self.wide, self.narrow = M.Linear(16, 32), M.Linear(32, 16)
        self.head = M.Linear(16, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 1, rows, columns] to [n, classes]."""
        x = self.embed(x.reshape(-1, _IMAGE, _IMAGE))
        x = self.first(x + _first(self.attention(x, x, x)))
        x = self.second(x + self.narrow(F.relu(self.wide(x))))
        logits: Tensor = self.head(x.mean(axis=1))
        return logits


def _first(result: Any) -> Tensor:
    made: Tensor = result[0] if isinstance(result, tuple) else result
    return made


def mlp() -> M.Module:
    """Two linear layers."""
    return M.Sequential(Flat(), M.Linear(_IMAGE**2, 16), M.ReLU(), M.Linear(16, _CLASSES))


def cnn() -> M.Module:
    """Convolution, batch norm, pooling, dropout, linear."""
    return M.Sequential(
        M.Conv2d(1, 4, 3, padding=1),
        M.BatchNorm2d(4),
        M.ReLU(),
        M.MaxPool2d(2),
        Flat(),
        M.Dropout(0.1),
        M.Linear(4 * (_IMAGE // 2) ** 2, _CLASSES),
    )


NETWORKS: dict[str, Callable[[], M.Module]] = {"mlp": mlp, "cnn": cnn, "transformer": Transformer}


def checks(subject: Subject) -> Iterator[Check]:
    """Three networks, eager and compiled; mixed precision; with rounding; checkpoints."""
    for name, build in NETWORKS.items():
        yield Check("Training", name, partial(follows, subject, build, _eager))
        if name == "mlp" or not subject.quick:
            yield Check("Training", f"{name}/compiled", partial(follows, subject, build, _compiled))
    yield Check("Training", "mixed_precision", partial(mixed_precision, subject))
    yield Check("Training", "with_rounding", partial(with_rounding, subject))
    yield Check("Training", "checkpoint", partial(checkpoint, subject))


# -- steps -------------------------------------------------------------------------------------


@contextmanager
def on(device: str) -> Iterator[None]:
    """Make new tensors on a device."""
    before = treadle.get_default_device()
    treadle.set_default_device(device)
    try:
        yield
    finally:
        treadle.set_default_device(before)


def _step(net: M.Module, adam: bool) -> Step:
    manager = GradManager().attach(net.parameters())
    parameters = list(net.parameters())
    optimizer = Adam(parameters, lr=0.01) if adam else SGD(parameters, lr=0.1, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        with manager:
            loss = F.loss.cross_entropy(net(images), labels)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return step


def _eager(net: M.Module) -> Step:
    return _step(net, adam=False)


def _compiled(net: M.Module) -> Step:
    made: Step = jit.compile(_step(net, adam=True))
    return made


def _mixed(net: M.Module) -> Step:
    step = _step(net, adam=False)

    def cast(images: Tensor, labels: Tensor) -> Tensor:
        with amp.autocast(low_prec_dtype="bfloat16"):
            return step(images, labels)

    return cast


def data(subject: Subject) -> tuple[Array, Array]:
    """Images whose class can be learned, and the classes."""
    rng = subject.rng(11)
    labels = rng.integers(0, _CLASSES, _BATCH).astype(np.int32)
    images = rng.normal(size=(_BATCH, 1, _IMAGE, _IMAGE))
    images += labels[:, None, None, None] * 0.5
    return images.astype(np.float32), labels


def train(
    subject: Subject, device: str, build: Callable[[], M.Module], make: Callable[[M.Module], Step]
) -> tuple[list[float], M.Module]:
    """Losses of some steps with everything on one device, and the network."""
    steps = 5 if subject.quick else 50
    images, labels = data(subject)
    with on(device):
        random.seed(7)
        net = build()
        net.train()
        step = make(net)
        x, y = treadle.tensor(images), treadle.tensor(labels)
        losses = [float(step(x, y).item()) for _ in range(steps)]
    return losses, net


def follows(
    subject: Subject,
    build: Callable[[], M.Module],
    make: Callable[[M.Module], Step],
    allowed: float = _ALLOWED,
) -> Measured:
    """Check that losses are the host's, step by step, and fall."""
    expected, _ = train(subject, "cpux", build, make)
    place = str(subject.place())
    got, net = train(subject, place, build, make)
    places = {str(p.device) for p in net.parameters()}
    require(places == {place}, f"parameters are on {', '.join(sorted(places))}")
    scale = max(expected[0], 0.1)
    for number, (x, y) in enumerate(zip(got, expected, strict=True)):
        near = abs(x - y) <= allowed * scale
        require(near, f"the loss of step {number} is {x:.5f}, on the host it is {y:.5f}")
    require(got[-1] < got[0], f"the loss went from {got[0]:.4f} to {got[-1]:.4f}")
    return {"first loss": got[0], "last loss": got[-1]}


def mixed_precision(subject: Subject) -> Measured:
    """Check that the curve stays close with products in bfloat16."""
    return follows(subject, mlp, _mixed, allowed=0.1)


def with_rounding(subject: Subject) -> Measured:
    """Layers that round as their integer versions will are trained as well."""

    def build() -> M.Module:
        net: M.Module = quantize_qat(mlp(), inplace=False)
        return net

    return follows(subject, build, _eager, allowed=0.1)


# -- files -------------------------------------------------------------------------------------

_READ = """
import sys
import treadle
state = treadle.load(sys.argv[1], map_location="cpu0")
print(sum(float(v.sum()) if hasattr(v, "sum") else 0.0 for v in state.values()))
"""


def checkpoint(subject: Subject) -> None:
    """Checkpoints that were saved on the device load on the host of a process without the
    backend.
    """
    _, net = train(subject, str(subject.place()), mlp, _eager)
    state = net.state_dict()
    expected = sum(float(np.sum(np.asarray(v))) for v in state.values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state.mge")
        treadle.save(
            {k: treadle.tensor(v, device=str(subject.place())) for k, v in state.items()}, path
        )
        without = of_child({**subject.environment, "TREADLE_BACKENDS": "off"})
        command = [sys.executable, "-P", "-c", _READ, str(path)]
        done = subprocess.run(command, env=without, capture_output=True, text=True, timeout=120)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        raise CheckFailed(f"a checkpoint does not load without the backend: {last[0]}")
    got = float(done.stdout)
    require(abs(got - expected) < 1e-3, f"a checkpoint changed: sum {got}, it was {expected}")
