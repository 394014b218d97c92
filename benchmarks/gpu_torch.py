"""Training steps T1 to T5 in PyTorch on a GPU; prints a line of JSON. Times are those of events.

python benchmarks/gpu_torch.py T1|...|T5 eager|compile SECONDS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from peer_torch import OPTIMIZER_CLASSES
from torch_models import load
from workloads import OPTIMIZERS, WORKLOADS, data_of

LOSSES = 5
BLOCK = 10


def main() -> None:
    """Measure one workload in one mode."""
    key, mode, seconds = sys.argv[1:]
    print(json.dumps(training(key, mode, float(seconds))))


def training(key: str, mode: str, seconds: float) -> dict[str, Any]:
    """A step: its first losses, and the median time."""
    work = WORKLOADS[key]
    model: Any = load(work.model).cuda().train()
    x, y = (torch.from_numpy(a).cuda() for a in data_of(work))
    settings: dict[str, Any] = dict(OPTIMIZERS[work.opt])
    optimizer = OPTIMIZER_CLASSES[work.opt](model.parameters(), **settings, fused=True)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x).flatten(0, -2), y.flatten())

    forward: Any = torch.compile(loss_of) if mode == "compile" else loss_of

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss

    began = time.perf_counter()
    losses = [step().item()]
    first = time.perf_counter() - began
    losses += [step().item() for _ in range(LOSSES - 1)]
    return {"losses": losses, "first": first, "median": median(step, seconds)}


def median(step: Any, seconds: float) -> float:
    """Milliseconds per step of as many blocks as there is time for, after one more."""
    found, end = [], 0.0
    while len(found) < 4 or time.perf_counter() < end:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(BLOCK):
            step()
        after.record()
        after.synchronize()
        found.append(before.elapsed_time(after) / BLOCK)
        end = end or time.perf_counter() + seconds
    return statistics.median(found[1:])


if __name__ == "__main__":
    main()
