"""The training of digits_cnn.py in PyTorch, for comparing accuracy and wall time on one machine.

Same data, network, batches per epoch, optimizer and schedule; other first weights and order. It
imports nothing of Treadle, so any Python with PyTorch and scikit-learn runs it:

    python examples/digits_torch.py [--epochs 12]
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


def make_network() -> nn.Module:
    """The network of digits_cnn.py."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.2)),
        nn.Linear(128, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    epochs = parser.parse_args().epochs
    torch.manual_seed(7)
    digits = load_digits()
    images = torch.from_numpy((digits.images[:, None] / 16).astype("float32"))
    labels = torch.from_numpy(digits.target.astype("int64"))
    held_out = torch.from_numpy(np.arange(len(labels)) % 5 == 0)
    x, y = images[~held_out], labels[~held_out]

    net = make_network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    started = time.perf_counter()
    for _ in range(epochs):
        net.train()
        order = torch.randperm(len(y))
        for start in range(0, len(y), BATCH):
            chosen = order[start : start + BATCH]
            loss = F.cross_entropy(net(x[chosen]), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    seconds = time.perf_counter() - started
    net.eval()
    with torch.no_grad():
        accuracy = (net(images[held_out]).argmax(1) == labels[held_out]).float().mean().item()
    print(f"PyTorch {torch.__version__}: {accuracy:.2%} after {epochs} epochs in {seconds:.1f} s")


if __name__ == "__main__":
    main()
