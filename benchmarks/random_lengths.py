"""A transformer over texts of random lengths, beside PyTorch, ONNX Runtime and JAX.

    python benchmarks/random_lengths.py [--lengths 2000] [--most 1024] [--seed 0] [--threads 2]
    python benchmarks/random_lengths.py --alone 10000 --most 4096 --width 64

Four layers of 256 features (`--width`) with causal attention. Every framework has one function for
all lengths: ours with `dynamic=True`, PyTorch's with `torch.compile(dynamic=True)`, ONNX Runtime an
open axis, and JAX a program for each power of two, to which the rows are padded. All see the same
lengths and take turns, ten runs at a time; what one compiles on the way is in the time of that run.
Where one is not installed, its row is left out.

With `--alone N` ours runs N lengths, and what it has learnt about them is told: programs, the time
of a length's first run over that of a later one where its program was known (of 1,000 lengths), how
long the runs of all took, and memory over that of a process which runs the longest alone. With
`--threads 1` times are those of the thread, for machines that are not quiet.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Call = Callable[[Array], Array]

WIDTH, HEADS, LAYERS = 256, 4, 4
BLOCK = 10
"""Lengths that a framework runs before the next one has its turn."""
LOOKED_AT = 1000
"""Lengths that are run again, so that their first runs can be judged."""


def weights() -> list[list[Array]]:
    rng = np.random.default_rng(0)
    shapes = (WIDTH, 3 * WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
    return [
        [(rng.standard_normal(s) / s[0] ** 0.5).astype("float32") for s in shapes]
        for _ in range(LAYERS)
    ]


def rows(n: int) -> Array:
    return np.random.default_rng(n).standard_normal((n, WIDTH), "float32")


# -- frameworks --------------------------------------------------------------------------------


def own() -> tuple[Call, Any]:
    import treadle as mge
    import treadle.functional as F

    layers = [[mge.tensor(w) for w in layer] for layer in weights()]

    @mge.jit.compile(dynamic=True)
    def transformer(x: mge.Tensor) -> mge.Tensor:
        for packed, up, down in layers:
            parts = F.split(F.matmul(F.nn.layer_norm(x, (WIDTH,), False), packed), 3, axis=1)
            q, k, v = (F.transpose(F.reshape(t, (t.shape[0], HEADS, -1)), (1, 0, 2)) for t in parts)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + F.reshape(F.transpose(seen, (1, 0, 2)), x.shape)
            x = x + F.matmul(F.gelu(F.matmul(F.nn.layer_norm(x, (WIDTH,), False), up)), down)
        return x

    def call(x: Array) -> Array:
        return transformer(mge.tensor(x)).numpy()

    return call, transformer


def _torch_module() -> Any:
    import torch
    from torch.nn import functional as f

    class Transformer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i, layer in enumerate(weights()):
                for j, w in enumerate(layer):
                    self.register_buffer(f"w{i}{j}", torch.from_numpy(w))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i in range(LAYERS):
                packed, up, down = (getattr(self, f"w{i}{j}") for j in range(3))
                parts = (f.layer_norm(x, (WIDTH,)) @ packed).split(WIDTH, 1)
                q, k, v = (t.reshape(-1, HEADS, WIDTH // HEADS).transpose(0, 1) for t in parts)
                seen = f.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
                x = x + seen.transpose(0, 1).reshape(-1, WIDTH)
                x = x + f.gelu(f.layer_norm(x, (WIDTH,)) @ up) @ down
            return x

    return Transformer().eval()


def pytorch(threads: int) -> Call:
    import torch

    torch.set_num_threads(threads)
    compiled = torch.compile(_torch_module(), dynamic=True)

    def call(x: Array) -> Array:
        with torch.no_grad():
            return compiled(torch.from_numpy(x)).numpy()

    return call


def onnxruntime(threads: int) -> Call:
    import onnxruntime as ort
    import torch

    file = io.BytesIO()
    axes = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "n"}}}
    given = (torch.zeros(16, WIDTH),)
    torch.onnx.export(_torch_module(), given, file, opset_version=17, dynamo=False, **axes)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


def jax() -> Call:
    import jax
    import jax.numpy as jnp

    layers = [[jnp.asarray(w) for w in layer] for layer in weights()]

    def norm(x: Any) -> Any:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5)

    @jax.jit
    def transformer(x: Any) -> Any:
        for packed, up, down in layers:
            parts = jnp.split(norm(x) @ packed, 3, axis=1)
            q, k, v = (t.reshape(1, -1, HEADS, WIDTH // HEADS) for t in parts)
            seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + seen.reshape(-1, WIDTH)
            x = x + jax.nn.gelu(norm(x) @ up, approximate=False) @ down
        return x

    def call(x: Array) -> Array:
        # Rows behind the last one change none before it: attention is causal.
        room = max(16, 1 << (len(x) - 1).bit_length())
        padded = np.zeros((room, WIDTH), np.float32)
        padded[: len(x)] = x
        return np.asarray(transformer(padded))[: len(x)]

    return call


FRAMEWORKS: dict[str, tuple[str, Callable[[int], Call]]] = {
    "Treadle, `dynamic=True`": ("treadle", lambda threads: own()[0]),
    "PyTorch, `torch.compile(dynamic=True)`": ("torch", pytorch),
    "ONNX Runtime, open axis": ("onnxruntime", onnxruntime),
    "JAX, padded to powers of two": ("jax", lambda threads: jax()),
}


# -- tables ------------------------------------------------------------------------------------


def seconds(call: Call, x: Array, clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    call(x)
    return clock() - start


def percentile(values: Iterable[float], share: float) -> float:
    return float(np.percentile(list(values), share))


def beside_others(lengths: list[int], threads: int) -> None:
    """Print median, 99th percentile and sum of each framework's times over all lengths."""
    calls = {
        name: make(threads)
        for name, (package, make) in FRAMEWORKS.items()
        if importlib.util.find_spec(package)
    }
    wanted = calls[next(iter(calls))](rows(77))
    for name, call in calls.items():
        # Two lengths let everybody see that the axis changes, and show that results agree.
        call(rows(50))
        worst = float(np.abs(call(rows(77)) - wanted).max())
        if not worst < 1e-3:
            raise ArithmeticError(f"{name} differs by {worst}")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for at in range(0, len(lengths), BLOCK):
        for name, call in calls.items():
            times[name] += [seconds(call, rows(n)) for n in lengths[at : at + BLOCK]]
    print(
        "| framework | median ms | 99th percentile ms | longest ms | all s | ours over it, median |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    ours = next(iter(times.values()))
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(ours, found, strict=True))
        figures = statistics.median(found), percentile(found, 99), max(found)
        texts = [*(f"{1e3 * f:.2f}" for f in figures), f"{sum(found):.1f}", f"{ratio:.2f}"]
        print(f"| {name} | {' | '.join(texts)} |")


def alone(lengths: list[int], threads: int) -> None:
    """Print what ours has learnt after all lengths, and what their first runs took.

    One thread is measured by its own time, which other work on the machine is not part of.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    call, transformer = own()
    call(rows(50))
    call(rows(77))
    first: dict[int, float] = {}
    again: list[float] = []
    ratios: list[float] = []
    programs: set[Any] = set()
    for n in lengths:
        taken = seconds(call, rows(n), clock)
        if n in first:
            again.append(taken)
        else:
            first[n] = taken
            runner = transformer.variants[-1].runner
            program = getattr(runner, "executor", runner)
            is_known = program in programs
            programs.add(program)
            if is_known and len(ratios) < LOOKED_AT:
                later = min(seconds(call, rows(n), clock) for _ in range(3))
                ratios.append(taken / later)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    longest = subprocess.run(
        [
            *(sys.executable, __file__, "--longest", str(max(lengths))),
            *("--threads", str(threads), "--width", str(WIDTH)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    print(f"{len(lengths)} runs of {len(first)} lengths: {len(programs)} programs")
    print(
        f"first over later runs, {len(ratios)} with a known program: median"
        f" {statistics.median(ratios):.2f}, 99th percentile {percentile(ratios, 99):.2f}"
    )
    for name, found in (("first", first.values()), ("later", again)):
        if found:
            figures = 1e3 * percentile(found, 50), 1e3 * percentile(found, 99)
            print(
                f"{len(found)} {name} runs: {figures[0]:.2f} ms, 99th percentile {figures[1]:.2f}"
            )
    print(f"memory over that of the longest alone: {most / int(longest.stdout):.2f}")


def longest(n: int) -> None:
    """Print the largest memory of a process that runs one length alone."""
    call, _ = own()
    for _ in range(3):
        call(rows(n))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, default=2000)
    parser.add_argument("--most", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", type=int, default=0, metavar="N")
    parser.add_argument("--longest", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--width", type=int, default=WIDTH, help="features")
    given = parser.parse_args()
    globals()["WIDTH"] = given.width
    # Frameworks that are not told how many threads to use take every core of the process.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    os.environ.setdefault("TREADLE_NUM_THREADS", str(given.threads))
    rng = random.Random(given.seed)
    if given.longest:
        longest(given.longest)
    elif given.alone:
        alone([rng.randint(1, given.most) for _ in range(given.alone)], given.threads)
    else:
        beside_others([rng.randint(1, given.most) for _ in range(given.lengths)], given.threads)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="lengths-") as folder:
        os.environ.setdefault("TREADLE_CACHE_DIR", folder)
        main()
