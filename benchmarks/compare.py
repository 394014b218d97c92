"""Whole workloads beside PyTorch: times, ratios of medians, memory, and a plot.

Every framework runs in a process of its own; the processes take turns in short blocks, so that
both meet the same state of the machine. Weights and data are the same, and results are compared.

    python benchmarks/compare.py [T1 T4 I3 I5 O2] [--seconds 6] [--plot FILE] [--markdown]
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing as mp
import os
import platform
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

GPT = (6, 256, 8, 128, 256)  # layers, dim, heads, seq, vocab
BERT = (12, 768, 12, 3072, 128, 30522)  # layers, dim, heads, hidden, seq, vocab
DECODE_FROM = 64


@dataclass(frozen=True)
class Workload:
    """What is timed: `kind` is a function of the peers, `items` what one call counts for."""

    title: str
    kind: str
    model: str = ""
    shape: tuple[int, ...] = ()
    batch: int = 1
    opt: str = ""
    items: int = 1


WORKLOADS = {
    "T1": Workload("MLP step, batch 128, Adam", "train", "mlp", (), 128, "adam"),
    "T4": Workload("GPT-mini step, batch 8, AdamW", "train", "gpt", GPT, 8, "adamw"),
    "I3": Workload("BERT-base forward, 128 tokens", "infer", "bert", BERT),
    "I5": Workload(
        "GPT-mini decoding, per token", "decode", "gpt", GPT, items=GPT[3] - DECODE_FROM
    ),
    "O2": Workload("gelu(x w + b) + r, 16.8 M", "chain"),
    "O2e": Workload("the same, eager", "chain"),
}
MODES = {"O2e": {"own": ("eager",), "torch": ("eager",)}}
PEERS = {"own": ("compile",), "torch": ("eager", "compile")}
TUNED = {  # keeps large results of PyTorch from faulting pages at every op
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "200000000",
}


def weights_for(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Weights that depend on names and shapes only."""
    found = {}
    for name in sorted(shapes):
        rng = np.random.default_rng(sum(map(ord, name)))
        shape = shapes[name]
        array = rng.standard_normal(shape).astype("float32") * 0.02
        found[name] = array + 1 if "ln" in name and name.endswith("weight") else array
    return found


def make_call(peer: str, key: str, mode: str) -> Any:
    """The function of a peer that runs the workload once."""
    module = importlib.import_module(f"peer_{peer}")
    module.set_threads(int(os.environ.get("TREADLE_NUM_THREADS", "2")))
    work, rng = WORKLOADS[key], np.random.default_rng(0)
    if work.kind == "chain":
        big = (4096, 4096)
        sizes: tuple[Any, ...] = (big, 4096, 4096, big)
        return module.chain(tuple(rng.standard_normal(s, "float32") for s in sizes), mode)
    weights = weights_for(module.shapes(work.model, work.shape))
    if work.model == "mlp":
        x = rng.standard_normal((work.batch, 784), "float32")
        y = rng.integers(0, 10, work.batch)
    else:
        tokens = rng.integers(0, work.shape[-1], (work.batch, 129))
        x, y = tokens[:, :-1].copy(), tokens[:, 1:].copy()
    if work.kind == "train":
        return module.train(work.model, work.shape, weights, x, y, work.opt, mode)
    if work.kind == "infer":
        return module.infer(work.model, work.shape, weights, x, mode)
    return module.decode(work.shape, weights, x, DECODE_FROM, mode)


def serve(pipe: Connection, peer: str, key: str, mode: str) -> None:
    """A worker: build, report the first results, then time blocks when asked to."""
    sys.path.insert(0, str(Path(__file__).parent))
    start = time.perf_counter()
    try:
        call = make_call(peer, key, mode)
        first = np.asarray(call(), "float64")
    except ImportError as error:
        pipe.send(error)
        return
    seconds = time.perf_counter() - start
    results = [first, *[np.asarray(call(), "float64") for _ in range(2)]]
    pipe.send((seconds, results))
    while (block := pipe.recv()) is not None:
        times, end = [], time.perf_counter() + block
        while not times or time.perf_counter() < end:
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        pipe.send(times)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


@dataclass
class Row:
    """One framework in one mode on one workload; times in seconds per item."""

    peer: str
    mode: str
    first: float
    times: list[float]
    memory: float
    results: list[np.ndarray]

    @property
    def median(self) -> float:
        return statistics.median(self.times)


def measure(key: str, seconds: float, peers: dict[str, tuple[str, ...]]) -> list[Row]:
    """Time all peers on a workload, in turns."""
    context = mp.get_context("spawn")
    workers: list[tuple[Any, Connection, Row]] = []
    for peer, modes in peers.items():
        for mode in MODES.get(key, {}).get(peer, modes):
            ours, theirs = context.Pipe()
            for name, value in TUNED.items():
                os.environ.pop(name, None)  # Set to nothing, they would count as 0.
                if peer == "torch":
                    os.environ[name] = value
            process = context.Process(target=serve, args=(theirs, peer, key, mode), daemon=True)
            process.start()
            found = ours.recv()
            if isinstance(found, ImportError):
                print(f"{peer} is not installed: {found}", file=sys.stderr)
                process.join()
                continue
            workers.append((process, ours, Row(peer, mode, found[0], [], 0.0, found[1])))
    block = 0.4
    for _ in range(max(1, round(seconds / block))):
        for _, pipe, row in workers:
            pipe.send(block)
            row.times += [t / WORKLOADS[key].items for t in pipe.recv()]
    for process, pipe, row in workers:
        pipe.send(None)
        row.memory = pipe.recv()
        process.join()
    return [row for _, _, row in workers]


def difference(rows: list[Row]) -> float:
    """Largest difference of results to the first peer's, relative to their size."""
    others = [r for r in rows if r.peer != rows[0].peer] or rows
    worst = 0.0
    for mine, theirs in zip(rows[0].results, others[0].results, strict=True):
        scale = max(float(np.abs(theirs).max()), 1e-30)
        worst = max(worst, float(np.abs(mine - theirs).max()) / scale)
    return worst


def table_of(results: dict[str, list[Row]]) -> Table:
    """All rows; the ratio is the best peer's median over Treadle's."""
    table = Table(title=f"{date.today()}, {platform.processor() or platform.machine()}")
    for name in ("", "workload", "who", "median ms", "p20 ms", "first s", "MiB", "ratio", "diff"):
        table.add_column(name, justify="left" if name in ("", "workload", "who") else "right")
    for key, rows in results.items():
        own = next(r for r in rows if r.peer == "own")
        best = min((r for r in rows if r.peer != "own"), key=lambda r: r.median, default=own)
        for row in rows:
            quick = sorted(row.times)[len(row.times) // 5]
            mine = row is own
            table.add_row(
                key if mine else "",
                WORKLOADS[key].title if mine else "",
                f"{'treadle' if row.peer == 'own' else row.peer} {row.mode}",
                f"{row.median * 1e3:.3f}",
                f"{quick * 1e3:.3f}",
                f"{row.first:.2f}",
                f"{row.memory:.0f}",
                f"{best.median / own.median:.2f}" if mine else "",
                f"{difference(rows):.1e}" if mine else "",
            )
    return table


def plot(results: dict[str, list[Row]], path: str) -> None:
    """Bars: how many times faster than the best peer."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    names, ratios = [], []
    for key, rows in results.items():
        own = next(r for r in rows if r.peer == "own")
        others = [r.median for r in rows if r.peer != "own"]
        if others:
            names.append(f"{key}  {WORKLOADS[key].title}")
            ratios.append(min(others) / own.median)
    figure, axes = pyplot.subplots(figsize=(8, 0.6 * len(names) + 1))
    bars = axes.barh(names[::-1], ratios[::-1], color="#35618f")
    axes.bar_label(bars, fmt="%.2f x", padding=4)
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_xlabel("times as fast as PyTorch's best mode (median of alternating runs)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--seconds", type=float, default=6.0, help="per framework and workload")
    parser.add_argument("--only", choices=sorted(PEERS), help="run one framework alone")
    parser.add_argument("--plot", metavar="FILE", help="write a picture (needs matplotlib)")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    given = parser.parse_args()
    peers = {given.only: PEERS[given.only]} if given.only else PEERS
    results = {key: measure(key, given.seconds, peers) for key in given.workloads}
    if given.only != "torch":
        table = table_of(results)
        if given.markdown:
            print_markdown(table)
        else:
            Console(width=130).print(table)
    if given.plot:
        plot(results, given.plot)


def print_markdown(table: Table) -> None:
    """The table as Markdown."""
    heads = [str(c.header) for c in table.columns]
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for cells in zip(*(list(c.cells) for c in table.columns), strict=True):
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
