"""A residual network in PyTorch on handwritten digits, on any device: only its name differs.

    python examples/resnet_torch.py [--device cpu|treadle:0|treadle:1] [--compile] [--epochs 4]

On a device of Treadle the program imports `treadle.torch`, and ends with what ran on the host
because the device has no kernel for it.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

BATCH = 64


class Block(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(wider),
            nn.ReLU(),
            nn.Conv2d(wider, wider, 3, padding=1, bias=False),
            nn.BatchNorm2d(wider),
        )
        self.around = nn.Identity()
        if stride > 1 or wider != channels:
            around = nn.Conv2d(channels, wider, 1, stride, bias=False)
            self.around = nn.Sequential(around, nn.BatchNorm2d(wider))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.around(x))


def make_network() -> nn.Module:
    """A ResNet for images of 8x8 with one channel; 10 classes."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=0, help="only the first ones; 0: all")
    options = parser.parse_args()
    device = options.device
    on_treadle = device.startswith("treadle")
    if on_treadle:
        import treadle.torch  # makes the device known to PyTorch

    torch.manual_seed(7)
    digits = load_digits()
    count = options.images or len(digits.target)
    images = torch.from_numpy((digits.images[:count, None] / 16).astype("float32"))
    labels = torch.from_numpy(digits.target[:count].astype("int64"))
    held_out = torch.from_numpy(np.arange(count) % 5 == 0)
    x, y = images[~held_out].to(device), labels[~held_out].to(device)

    net = make_network().to(device)
    run = torch.compile(net, backend="treadle") if options.compile else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.02)
    started = time.perf_counter()
    for epoch in range(options.epochs):
        net.train()
        order = torch.randperm(len(y))
        total = torch.zeros((), device=device)
        for start in range(0, len(y) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH].to(device)
            loss = F.cross_entropy(run(x[chosen]), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch + 1}: loss {total.item() / (len(y) // BATCH):.4f}")
    seconds = time.perf_counter() - started
    net.eval()
    with torch.no_grad():
        right = net(images[held_out].to(device)).argmax(1).cpu() == labels[held_out]
    print(f"{device}: {right.float().mean():.2%} after {options.epochs} epochs in {seconds:.1f} s")
    if on_treadle:
        names = sorted({row.op for row in treadle.fallback_report()})
        print("on the host:", " ".join(names) or "nothing")


if __name__ == "__main__":
    main()
