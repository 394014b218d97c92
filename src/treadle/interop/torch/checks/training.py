"""Networks of PyTorch that are trained on one of Treadle's devices and on PyTorch's CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

_IMAGE, _CLASSES, _BATCH = 8, 4, 8
_ALLOWED = 2e-2
"""Relative distance of losses after many steps: roundings grow, wrong gradients grow faster."""


def _mlp() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(_IMAGE**2, 16), nn.Tanh(), nn.Linear(16, _CLASSES))


def _cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * (_IMAGE // 2) ** 2, _CLASSES),
    )


def _transformer() -> Any:
    """Rows of an image as a sequence."""
    return nn.Sequential(
        nn.Flatten(1, 2),
        nn.Linear(_IMAGE, 16),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(16 * _IMAGE, _CLASSES),
    )


def _losses(device: str, build: Callable[[], Any], how: str, steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(11)
    labels = torch.randint(_CLASSES, (_BATCH,), generator=generator)
    images = torch.randn(_BATCH, 1, _IMAGE, _IMAGE, generator=generator)
    images += labels[:, None, None, None] * 0.5
    torch.manual_seed(7)
    net: Any = build().to(device)
    x, y = images.to(device), labels.to(device)
    if how == "compiled" and device != "cpu":
        net = torch.compile(net, backend="treadle")
    optimizer: Any
    if how == "compiled":
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        kind = torch.device(device).type
        low = torch.autocast(kind, torch.bfloat16) if how == "mixed" else nullcontext()
        with low:
            loss: Any = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    places = {str(p.device) for p in net.parameters()}
    if places != {str(torch.device(device))}:
        raise AssertionError(f"parameters are on {', '.join(sorted(places))}")
    return found


def follows(build: Callable[[], Any], how: str, device: str, steps: int) -> dict[str, float]:
    """Train on both.

    Args:
        build: makes the network.
        how: "eager", "compiled" or "mixed" (products in bfloat16).
        device: of PyTorch.
        steps: how many.

    Returns:
        The first and the last loss.

    Raises:
        AssertionError: losses are not the CPU's, or do not fall.
    """
    wanted = _losses("cpu", build, how, steps)
    got = _losses(device, build, how, steps)
    allowed = (0.1 if how == "mixed" else _ALLOWED) * max(wanted[0], 0.1)
    for number, (x, y) in enumerate(zip(got, wanted, strict=True)):
        if not abs(x - y) <= allowed:
            raise AssertionError(f"the loss of step {number} is {x:.5f}, on the CPU {y:.5f}")
    if not got[-1] < got[0]:
        raise AssertionError(f"the loss went from {got[0]:.4f} to {got[-1]:.4f}")
    return {"first loss": got[0], "last loss": got[-1]}


CHECKS: dict[str, Callable[[str, int], dict[str, float]]] = {
    "mlp": partial(follows, _mlp, "eager"),
    "mlp/compiled": partial(follows, _mlp, "compiled"),
    "mlp/mixed_precision": partial(follows, _mlp, "mixed"),
    "cnn": partial(follows, _cnn, "eager"),
    "cnn/compiled": partial(follows, _cnn, "compiled"),
    "transformer": partial(follows, _transformer, "eager"),
    "transformer/compiled": partial(follows, _transformer, "compiled"),
}
