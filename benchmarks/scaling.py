"""How training by many processes would scale: measured kernels, a model of networks, and a check.

The kernels of one training step are measured in one process of one thread, in the program that
several would run, with reductions that nobody carries out. `treadle.distributed.simulator` puts
steps of 1 to 4,096 ranks together from that. The check runs 1, 2 and 4 processes on this machine
and holds their steps against the model with this machine's own link.

    python benchmarks/scaling.py [--check] [--plot docs/figures/scaling.svg] [--workloads T4 T5]
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TREADLE_NUM_THREADS", "1")

import numpy as np
from distributed import loss_of, prepared, steps
from peer_own import tensor
from workloads import WORKLOADS, data_of

import treadle.distributed as dist
from treadle.backends.program import Host
from treadle.base.table import lines
from treadle.distributed import group
from treadle.distributed.simulator import Cluster, Network, TrainingStep, predict
from treadle.engine.options import Options
from treadle.engine.plan import FINISH, START
from treadle.engine.targets import host
from treadle.jit import compile as compiled
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import Agreement
from treadle.runtime.comm.loopback import DoneHandle, Loopback

RANKS = tuple(1 << k for k in range(13))
NOISE = 0.01
GAMMA = 1 / 8e9
"""Seconds per byte of adding arrays up: what one core reads and writes of main memory."""
CLUSTERS = {
    "10 Gbit/s Ethernet": Cluster(Network(25e-6, 8 / 10e9, GAMMA), noise=NOISE),
    "the same, moved by the processor": Cluster(
        Network(25e-6, 8 / 10e9, GAMMA), offloads=False, noise=NOISE
    ),
    "100 Gbit/s InfiniBand": Cluster(Network(2e-6, 8 / 100e9, GAMMA), noise=NOISE),
}
GPU = 0.02
"""Time of a step on a processor 50 times as fast, beside that of one core here."""


class Silent(Loopback):
    """Two ranks, of which nobody hears: reductions are over when they begin."""

    size = 2

    def start_all_reduce(
        self, x: Any, kind: str, /, announced: Agreement | None = None
    ) -> DoneHandle:
        return DoneHandle(x)


def measured(key: str, repeats: int) -> TrainingStep:
    """The step of one rank, from the quickest run of each of its kernels."""
    groups.join(Silent())
    try:
        work = WORKLOADS[key]
        model, optimizer, gm = prepared(key, reduces=True)

        def update(x: Any, y: Any) -> Any:
            with gm:
                gm.backward(loss_of(model, x, y))
            optimizer.step().clear_grad()

        step = compiled(options=Options(reductions=1))(update)
        batch = [tensor(a) for a in data_of(work)]
        step(*batch)
        variant = step.variant(tuple(batch), {})
        stages, plan = variant.stages, variant.inspected.planned()
        if not isinstance(stages.target, host.Host):
            raise TypeError("the step is no program of the host")
        executor = stages.target.load_again(stages)  # Out of the cache, it has no steps to name.
        times = executor.profile(variant.binding().payloads(batch).arrays, repeats)
    finally:
        groups.leave()
    seconds = times[:, :, 2].min(axis=0) * 1e-9
    now, ready, nbytes, backward = 0.0, [], [], 0.0
    for number, found in enumerate(plan.steps):
        task = plan.host[found.task] if isinstance(found, Host) else None
        if task is None:
            now += float(seconds[number])
        elif task.phase == START:
            ready.append(now)
            nbytes.append(task.inputs[0][1].nbytes)
        elif task.phase == FINISH and not backward:
            backward = now
    return TrainingStep(work.title, tuple(ready), tuple(nbytes), backward, now - backward)


def checked(key: str, seconds: float, base: TrainingStep) -> list[tuple[str, ...]]:
    """Steps of 1, 2 and 4 processes of one thread beside what is predicted for them.

    Ranks share memory, and cores where there are fewer: how fast they are without reductions is
    measured in the same job, turn by turn, and what reductions add is predicted.
    """
    rows = []
    for count in (1, 2, 4):
        found = dist.launcher(lambda: in_group(key, seconds), n_gpus=count)()[0]
        alpha, beta = found["link"]
        # This link is a whole reduction as this group makes it: one hop says the same.
        here = Cluster(Network(alpha / 2, beta), offloads=False)
        times = {name: float(np.percentile(t, 20)) for name, t in found["times"].items()}
        alone, got = times["no reductions"], times["planned buckets"]
        guess = predict(base.times(alone / base.seconds), min(count, 2), here)
        rows.append(
            (
                str(count),
                f"{alone / base.seconds:.2f}",
                f"{alone * 1e3:.0f}",
                f"{got * 1e3:.0f}",
                f"{guess.seconds * 1e3:.0f}",
                f"{guess.seconds / got - 1:+.0%}",
                f"{alpha * 1e6:.0f} us + {beta * 2**30:.2f} s/GiB",
            )
        )
    return rows


def in_group(key: str, seconds: float) -> dict[str, Any]:
    """What one rank measures; alone, it reduces nothing."""
    if dist.get_world_size() > 1:
        return steps(key, seconds, ("no reductions", "planned buckets"))
    dist.init_process_group()
    found = steps(key, seconds, ("no reductions",))
    group.leave()
    times = found["times"]["no reductions"]
    both = dict.fromkeys(("no reductions", "planned buckets"), times)
    return {"times": both, "link": (0.0, 0.0)}


def table(found: dict[str, TrainingStep]) -> list[tuple[str, ...]]:
    """Efficiency by network, workload and number of ranks."""
    rows = []
    for key, step in found.items():
        for speed, name in ((1.0, "one core"), (GPU, "50 times as fast")):
            for network, cluster in CLUSTERS.items():
                made = [predict(step.times(speed), n, cluster) for n in (2, 16, 256, 4096)]
                cells = (f"{p.efficiency:.0%}" for p in made)
                rows.append((key, name, network, *cells, str(len(made[-1].buckets))))
    return rows


def plot(found: dict[str, TrainingStep], path: Path) -> None:
    """Efficiency over ranks, a panel per workload and speed of ranks."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    settings = importlib.import_module("matplotlib").rcParams
    settings.update({"svg.hashsalt": "treadle", "svg.fonttype": "none"})
    figure, panels = pyplot.subplots(2, len(found), figsize=(5 * len(found), 7), squeeze=False)
    colors = ("#b5562b", "#d9a441", "#35618f")
    for column, (key, step) in enumerate(found.items()):
        for row, (speed, name) in enumerate(((1.0, "one core per rank"), (GPU, "50 times faster"))):
            axes = panels[row][column]
            for color, style, (network, cluster) in zip(
                colors, ("-", "-", "--"), CLUSTERS.items(), strict=True
            ):
                made = [predict(step.times(speed), n, cluster).efficiency for n in RANKS]
                axes.plot(RANKS, made, style, color=color, marker="o", markersize=3, label=network)
            axes.set_xscale("log", base=2)
            axes.set_xticks(RANKS[::2], [f"{n:,}" for n in RANKS[::2]])
            axes.set_ylim(0, 1.05)
            axes.grid(color="#dddddd", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            ms = step.times(speed).seconds * 1e3
            axes.set_title(f"{key}: {step.name}\n{name}, {ms:.0f} ms a step", fontsize="medium")
            axes.set_xlabel("ranks")
            axes.set_ylabel("efficiency")
    panels[0][0].legend(frameon=False, fontsize="small", loc="lower left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=["T5", "T4"])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each group of the check")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    found = {key: measured(key, given.repeats) for key in given.workloads}
    for key, step in found.items():
        print(
            f"{key}: {step.name}: {len(step.nbytes)} gradients, {sum(step.nbytes) / 2**20:.1f} MiB;"
            f" backward ends at {step.backward * 1e3:.1f} ms, update {step.update * 1e3:.1f} ms;"
            f" first gradient at {np.divide(step.ready[0], step.seconds):.0%} of the step"
        )
    header = ("step", "rank", "network", "2", "16", "256", "4096 ranks", "buckets")
    print("\n".join(("", *lines(header, table(found)))))
    if given.check:
        key = given.workloads[-1]
        header = (
            "ranks",
            "of kernels alone",
            "no reductions ms",
            "reducing ms",
            "predicted ms",
            "error",
            "link",
        )
        print("\n".join(("", key, *lines(header, checked(key, given.seconds, found[key])))))
    if given.plot:
        plot(found, given.plot)


if __name__ == "__main__":
    main()
