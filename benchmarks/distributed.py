"""What reducing all gradients adds to a training step of two processes, and to one message.

Ranks have one thread each, so that two of them are on a machine with two cores what they would be
on two machines. Variants of the step take turns in one job: without any reduction, with planned
buckets, with buckets of given shares, with one bucket for all, and with one reduction per gradient
that is waited for at once. Figures are the 20th percentile of many turns; beside them stands what
the model of buckets predicts with the link as measured. The first call captures the step, and makes
its program or takes it from the cache; set `TREADLE_CACHE_DIR` to an empty folder to have it made.
The last line is a job of its own, from the launcher's call to its first sum on all ranks.

    python benchmarks/distributed.py [--ranks 2] [--workload T4] [--seconds 30]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from allreduce import arrays
from peer_own import OPTIMIZER_CLASSES, load, tensor
from workloads import OPTIMIZERS, WORKLOADS, data_of

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base.table import lines
from treadle.engine.options import Options
from treadle.jit import compile as compiled
from treadle.runtime.comm import buckets

VARIANTS: dict[str, Any] = {
    "no reductions": None,
    "planned buckets": "auto",
    "three shares": (0.5, 0.3, 0.2),
    "one bucket": 1 << 40,
    "one by one": "off",
}
LAUNCHES = 5
Step = Callable[[], float]


def prepared(key: str, reduces: bool) -> tuple[Any, Any, GradManager]:
    """Model, optimizer and manager of a workload; its gradients are averaged over all ranks."""
    work = WORKLOADS[key]
    model = load(work.model)
    optimizer = OPTIMIZER_CLASSES[work.opt](model.parameters(), **OPTIMIZERS[work.opt])
    callbacks = [dist.make_allreduce_cb("mean")] if reduces else None
    return model, optimizer, GradManager().attach(model.parameters(), callbacks)


def loss_of(model: Any, x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
    """The workload's loss."""
    scores = model(x)
    return F.loss.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))


def step_of(key: str, reductions: Any) -> Step:
    """A training step of the workload on this rank's data; returns the loss."""
    model, optimizer, gm = prepared(key, reductions is not None)

    def update(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = loss_of(model, x, y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    options = Options() if reductions is None else Options(reductions=reductions)
    step, (x, y) = compiled(options=options)(update), map(tensor, data_of(WORKLOADS[key]))
    return lambda: float(step(x, y).item())


def steps(key: str, seconds: float, names: Iterable[str] = tuple(VARIANTS)) -> dict[str, Any]:
    """Times of variants by turns, in seconds, and what the link is."""
    variants = {name: step_of(key, VARIANTS[name]) for name in names}
    times: dict[str, list[float]] = {name: [] for name in variants}
    losses, first = {}, {}
    for name, step in variants.items():
        begin = time.perf_counter()
        losses[name] = [step()]
        first[name] = time.perf_counter() - begin
        losses[name].append(step())
    # The first rank counts turns: all take as many.
    began, go_on = time.perf_counter(), True
    while go_on:
        for name, step in variants.items():
            dist.group_barrier()
            begin = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - begin)
        comm = dist.WORLD.communicator()
        go_on = comm.broadcast_value(time.perf_counter() - began < seconds, 0)
    link = buckets.link_of(comm)
    params = list(load(WORKLOADS[key].model).parameters())
    nbytes = [p.size * 4 for p in params]
    return {
        "times": times,
        "losses": losses,
        "first": first,
        "link": (link.alpha, link.beta),
        "gradients": len(nbytes),
        "bytes": sum(nbytes),
    }


def launched(ranks: int) -> float:
    """Seconds until a job is started and its first collective is over, the median of a few."""

    def first() -> float:
        F.distributed.all_reduce_sum(mge.tensor([1.0])).item()
        return time.time()

    found = []
    for _ in range(LAUNCHES):
        began = time.time()
        found.append(max(dist.launcher(first, n_gpus=ranks)()) - began)
    return float(np.median(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workload", default="T4", choices=[k for k in WORKLOADS if k[0] == "T"])
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    os.environ.setdefault("TREADLE_NUM_THREADS", "1")

    def measure() -> Any:
        return steps(given.workload, given.seconds), arrays(400)

    found, messages = dist.launcher(measure, n_gpus=given.ranks)()[0]
    turns = len(found["times"]["no reductions"])
    found["times"] = {k: sorted(v)[len(v) // 5] for k, v in found["times"].items()}
    base = found["times"]["no reductions"]
    link = buckets.ReductionCost(*found["link"])
    print(
        f"{given.workload}: {WORKLOADS[given.workload].title}, {given.ranks} ranks of "
        f"{os.environ['TREADLE_NUM_THREADS']} thread, {turns} turns\n"
        f"{found['gradients']} gradients of {found['bytes'] / 2**20:.1f} MiB; a reduction takes "
        f"{link.alpha * 1e6:.0f} us and {link.beta * 2**30:.2f} s per GiB\n"
    )
    print("\n".join(lines(("step", "ms", "added ms", "times", "first call s"), rows(found, base))))
    alone = link.seconds(found["bytes"]) * 1e3
    print(f"\nall of them at once, with nothing to hide behind: {alone:.1f} ms as modelled\n")
    print("\n".join(lines(("KiB", "mpi4py us", "Treadle us"), messages)))
    print(f"\nstarted and the first sum made: {launched(given.ranks):.2f} s")


def rows(found: dict[str, Any], base: float) -> list[tuple[str, ...]]:
    """One per variant. Losses must be those of the others, which all reduce in one way or none."""
    reduced = [found["losses"][name] for name in VARIANTS if VARIANTS[name] is not None]
    np.testing.assert_allclose(reduced, [reduced[0]] * len(reduced), rtol=1e-4)
    return [
        (
            name,
            f"{s * 1e3:.1f}",
            f"{(s - base) * 1e3:+.1f}",
            f"{s / base:.3f}",
            f"{found['first'][name]:.1f}",
        )
        for name, s in found["times"].items()
    ]


if __name__ == "__main__":
    main()
