"""One training step as one native program: eager, compiled, and many steps per call.

A network of two hidden layers learns in which of two interleaved spirals a point lies. The same
step, from the same weights and on the same batches, runs op by op, as a compiled function, and in
sink mode; the losses are compared, and so are the times and how often Python was entered.

    python examples/compiled_mlp.py [--steps 600] [--batch 128] [--device cpux] [--explain]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.optimizer import Adam

Batch = tuple[mge.Tensor, mge.Tensor]
Step = Callable[[mge.Tensor, mge.Tensor], mge.Tensor]
PER_CALL = 50
"""Steps of one native call in sink mode."""


def spirals(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points (count, 2) of two spirals with a little noise, and which one each belongs to."""
    labels = rng.integers(0, 2, count)
    distance = np.sqrt(rng.random(count))
    angle = 9 * distance + np.pi * labels
    points = np.stack([distance * np.cos(angle), distance * np.sin(angle)], 1)
    points += rng.normal(0, 0.01, points.shape)
    return points.astype("float32"), labels.astype("int32")


def make_batches(steps: int, batch: int) -> list[Batch]:
    """What the steps learn from."""
    rng = np.random.default_rng(0)
    return [(mge.tensor(x), mge.tensor(y)) for x, y in (spirals(batch, rng) for _ in range(steps))]


def make_step() -> tuple[M.Module, Step]:
    """A network, always with the same first weights, and a step that trains it."""
    mge.random.seed(3)
    net = M.Sequential(M.Linear(2, 128), M.ReLU(), M.Linear(128, 128), M.ReLU(), M.Linear(128, 2))
    manager = GradManager().attach(net.parameters())
    optimizer = Adam(net.parameters(), lr=3e-3)

    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with manager:
            loss = F.loss.cross_entropy(net(x), y)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return net, step


def accuracy(net: M.Module) -> float:
    """On points that were not learned from."""
    points, labels = spirals(2000, np.random.default_rng(1))
    return float((net(mge.tensor(points)).numpy().argmax(1) == labels).mean())


def report(what: str, losses: list[float], net: M.Module, seconds: float, steps: int) -> None:
    print(
        f"{what:8}  loss {losses[0]:.4f} -> {losses[-1]:.4f}   accuracy {accuracy(net):.1%}   "
        f"{seconds / steps * 1e6:.0f} us per step"
    )


def run_steps(step: Step, batches: list[Batch]) -> tuple[list[float], float]:
    """The loss of every step, and the seconds of all but the first, which may compile."""
    losses = [step(*batches[0])]
    start = time.perf_counter()
    losses += [step(*batch) for batch in batches[1:]]
    seconds = time.perf_counter() - start
    return [loss.item() for loss in losses], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cpux", help="such as opencl0")
    parser.add_argument("--explain", action="store_true", help="print what became of the step")
    options = parser.parse_args()
    mge.set_default_device(options.device)
    batches = make_batches(options.steps, options.batch)

    net, step = make_step()
    eager, seconds = run_steps(step, batches)
    report("eager", eager, net, seconds, options.steps - 1)

    net, step = make_step()
    compiled_step = mge.jit.compile(step)
    compiled, seconds = run_steps(compiled_step, batches)
    report("compiled", compiled, net, seconds, options.steps - 1)

    net, step = make_step()
    sunk_step = mge.jit.compile(step)
    sunk_step.compile(*batches[0])  # so that only running is measured
    start = time.perf_counter()
    sunk = [loss.item() for loss in mge.jit.sink(sunk_step, batches, PER_CALL)]
    report("sink", sunk, net, time.perf_counter() - start, options.steps)

    ends = [min(i + PER_CALL, options.steps) for i in range(0, options.steps, PER_CALL)]
    same = sunk == [compiled[end - 1] for end in ends]
    gap = max(abs(a - b) for a, b in zip(eager, compiled, strict=True))
    print(f"largest difference of a loss, eager and compiled: {gap:.1e}")
    print(f"sink and compiled agree bit for bit: {'yes' if same else 'no'}")
    print(f"compiled  {compiled_step.counters}")
    print(f"sink      {sunk_step.counters}")
    if options.explain:
        print(f"\n{compiled_step.explain()}")


if __name__ == "__main__":
    main()
