"""Products of float32, bfloat16 and int8 beside PyTorch's, in GFLOP/s (Gop/s), at best.

    python benchmarks/products.py [--rounds 3] [--threads 2] [--markdown]

The right operand is a weight, which does not change: programs of Treadle pack it once. PyTorch
multiplies by `F.linear`, and bytes by `torch._int_mm`. Each framework has a process of its own; the
processes take turns, and the least time of all turns counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

SHAPES = (
    # rows, terms, columns
    (4096, 4096, 4096),
    (1024, 1024, 1024),
    (1024, 256, 1024),
    (512, 512, 2048),
    (128, 768, 3072),
)
TYPES = ("float32", "bfloat16", "int8")
PEERS = {"own": "Treadle", "torch": "PyTorch"}
_SECONDS = 0.5
Call = Callable[[], object]


def own(threads: int) -> Iterator[tuple[str, Call]]:
    """Compiled products of Treadle."""
    import treadle as mge
    import treadle.functional as F
    from treadle.ops.matmul import IntMatmul

    mge.set_default_device("cpux")
    rng = np.random.default_rng(0)
    for m, k, n in SHAPES:
        x, w = (rng.standard_normal(shape, "float32") for shape in ((m, k), (n, k)))
        for dtype in TYPES[:2]:
            given = mge.tensor(x).astype(dtype)
            weight = mge.Parameter(mge.tensor(w).astype(dtype))
            linear = mge.jit.compile(lambda x, w=weight: F.linear(x, w))
            yield f"{dtype} {m}x{k}x{n}", lambda call=linear, x=given: call(x)
        short = [mge.tensor(rng.integers(-100, 100, s, dtype="int8")) for s in ((m, k), (k, n))]
        frozen = mge.Parameter(short[1])
        whole = mge.jit.compile(lambda x, w=frozen: x.apply(IntMatmul(), (x, w))[0])
        yield f"int8 {m}x{k}x{n}", lambda call=whole, x=short[0]: call(x)


def torch(threads: int) -> Iterator[tuple[str, Call]]:
    """Products of PyTorch."""
    import torch

    torch.set_num_threads(threads)
    for m, k, n in SHAPES:
        x, w = torch.randn(m, k), torch.randn(n, k)
        for dtype in (torch.float32, torch.bfloat16):
            given = x.to(dtype), w.to(dtype)
            name = str(dtype).removeprefix("torch.")
            yield f"{name} {m}x{k}x{n}", lambda xw=given: torch.nn.functional.linear(*xw)
        short = [torch.randint(-100, 100, s, dtype=torch.int8) for s in ((m, k), (k, n))]
        yield f"int8 {m}x{k}x{n}", lambda xw=short: torch._int_mm(*xw)


def measured(peer: str, threads: int) -> dict[str, float]:
    """Least seconds by type and shape."""
    found = {}
    for name, call in {"own": own, "torch": torch}[peer](threads):
        call()
        best, end = float("inf"), time.perf_counter() + _SECONDS
        while time.perf_counter() < end:
            began = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - began)
        found[name] = best
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--worker", choices=PEERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measured(args.worker, args.threads)))
        return
    best: dict[str, dict[str, float]] = {peer: {} for peer in PEERS}
    environment = os.environ | {"TREADLE_NUM_THREADS": str(args.threads)}
    for _ in range(args.rounds):
        for peer in PEERS:
            command = [sys.executable, __file__, "--worker", peer, "--threads", str(args.threads)]
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, env=environment
            )
            for name, seconds in json.loads(done.stdout.splitlines()[-1]).items():
                best[peer][name] = min(seconds, best[peer].get(name, seconds))
    rows = [("product", *PEERS.values(), "ratio")]
    for dtype in TYPES:
        for m, k, n in SHAPES:
            times = [best[peer][f"{dtype} {m}x{k}x{n}"] for peer in PEERS]
            rates = [f"{2 * m * k * n / t / 1e9:,.0f}" for t in times]
            rows.append((f"{dtype}, {m} x {k} by {n}", *rates, f"{times[1] / times[0]:.2f}"))
    mark = "| {} |" if args.markdown else "{}"
    for i, row in enumerate(rows):
        cells = row if args.markdown else (row[0].ljust(32), *(c.rjust(12) for c in row[1:]))
        print(mark.format((" | " if args.markdown else "").join(cells)))
        if args.markdown and not i:
            print("|---|---|---|---|")


if __name__ == "__main__":
    main()
