"""What a new extent costs, and what a plan for many costs later, beside a program for each extent.

    python benchmarks/extents.py [--lengths 30] [--most 1000] [--only layers,rows] [--bert]

Each row is a function under `dynamic=`, whose plans are shared, and with `dynamic=False`, which
makes a program for every length. "first" is the first call of the one, in a fresh cache, "new
length" the median of first calls of later lengths, "added" what they take more than the second
call of the same length, "found" the part of it that finds the program, which can be told from noise
where runs take long, "alone" the first call without shared plans (whose kernels are there by then),
"ratio" that of medians of 40 later calls: the shared plan over the program of the same length, both
called in turns.

First and second calls follow a call of another length, as they would in a program that meets many,
and nothing is compiled between them: a compilation leaves caches of the processor cold and gives
unused memory back, which the next call would pay for.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ["TREADLE_CACHE_DIR"] = tempfile.mkdtemp(prefix="extents-")

import numpy as np

import treadle as mge
import treadle.functional as F

WIDTH = 256
Function = Callable[[mge.Tensor], mge.Tensor]
LONGEST = 512
"""Tokens that BERT's table of positions is made for."""


def layers(x: mge.Tensor) -> mge.Tensor:
    for _ in range(6):
        x = F.softmax(F.gelu(x) * 2 + x, axis=1) + F.nn.layer_norm(x, (WIDTH,), False)
    return x


def transformer(x: mge.Tensor) -> mge.Tensor:
    for packed, up, down in WEIGHTS:
        normed = F.nn.layer_norm(x, (WIDTH,), False)
        q, k, v = F.split(F.matmul(normed, packed), 3, axis=1)
        q, k, v = (F.transpose(F.reshape(t, (t.shape[0], 4, -1)), (1, 0, 2)) for t in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.reshape(F.transpose(seen, (1, 0, 2)), x.shape)
        x = x + F.matmul(F.gelu(F.matmul(F.nn.layer_norm(x, (WIDTH,), False), up)), down)
    return x


def weights(seed: int, *shape: int) -> mge.Tensor:
    data = np.random.default_rng(seed).standard_normal(shape) / shape[0] ** 0.5
    return mge.tensor(data.astype("float32"))


SHAPES = (WIDTH, 3 * WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
WEIGHTS = [[weights(3 * i + j, *shape) for j, shape in enumerate(SHAPES)] for i in range(4)]

FUNCTIONS: dict[str, Function] = {
    "six layers of gelu, softmax, layer norm": layers,
    "four layers of a transformer": transformer,
    "halves of rows, joined and padded": lambda x: F.nn.pad(
        F.concat([x[x.shape[0] // 2 :], x[: x.shape[0] // 2]]), ((1, 2), (0, 0)), mode="constant"
    ),
    "softmax of rows, scaled by the extent": lambda x: F.softmax(x / x.shape[0], axis=1),
    "largest, concat, cumulative sum": lambda x: F.cumsum(
        F.concat([x, x * F.argmax(x, axis=0)]), axis=0
    ),
}


def bert() -> Function:
    """BERT-base of one text, whose tokens are made from rows."""
    from models import Bert
    from weights import BERT

    layers, dim, heads, hidden, _, vocabulary = BERT
    model = Bert(layers, dim, heads, hidden, LONGEST, vocabulary)
    model.eval()
    return lambda x: model((F.abs(x[:, :1].reshape(1, -1)) * 1000).astype("int32"))


def rows(n: int) -> mge.Tensor:
    return mge.tensor(np.random.default_rng(n).standard_normal((n, WIDTH), "float32"))


def seconds(call: Function, x: mge.Tensor) -> float:
    start = time.perf_counter()
    call(x).numpy()
    return time.perf_counter() - start


def _program(function: Any) -> Any:
    """The program of the length that was met last."""
    return function.variants[-1].runner.executor


def _after(function: Any, other: mge.Tensor, x: mge.Tensor) -> tuple[float, float]:
    """Seconds of a call of x whose memory is at hand, behind a call of another length.

    Returns:
        All, and those of finding the program.
    """
    function(other).numpy()
    x.numpy().sum()
    start = time.perf_counter()
    function.variant((x,), {})
    found = time.perf_counter() - start
    return found + seconds(function, x), found


def compiled(function: Function, shared: bool) -> Function:
    if not shared:
        return mge.jit.compile(dynamic=False)(function)
    return mge.jit.compile(dynamic={0: {0: "n"}})(function)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, default=30)
    parser.add_argument("--most", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="functions with one of these in their names")
    parser.add_argument("--bert", action="store_true", help="BERT-base alone, a tenth of the calls")
    parsed = parser.parse_args()
    most, turns, functions = parsed.most, 40, FUNCTIONS
    if parsed.bert:
        most, turns, functions = LONGEST, 4, {"BERT-base": bert()}
    only = parsed.only.split(",")
    functions = {n: f for n, f in functions.items() if any(part in n for part in only)}
    lengths = random.Random(parsed.seed).sample(range(128, most), parsed.lengths)
    heads = (
        "first ms",
        "new length ms",
        "added ms",
        "found ms",
        "alone ms",
        "ratio, median",
        "worst",
    )
    print(f"| function | {' | '.join(heads)} |")
    print("|---" * (1 + len(heads)) + "|")
    for name, function in functions.items():
        inputs = [rows(n) for n in lengths]
        one, many = compiled(function, True), compiled(function, False)
        cold = seconds(one, inputs[0])
        programs, new, added, finding = {_program(one)}, [], [], []
        for x in inputs[1:]:
            (first, found), (second, again) = (_after(one, inputs[0], x) for _ in range(2))
            new.append(first)
            if _program(one) in programs:
                added.append(first - second)
                finding.append(found - again)
            programs.add(_program(one))
        alone = [seconds(many, x) for x in inputs]
        later = []
        for x in inputs:
            times = [(seconds(one, x), seconds(many, x)) for _ in range(turns)]
            shared, own = map(statistics.median, zip(*times, strict=True))
            later.append(shared / own)
        known, made = statistics.median(new), statistics.median(alone[1:])
        print(
            f"| {name} | {cold * 1e3:.0f} | {known * 1e3:.1f}"
            f" | {statistics.median(added) * 1e3:.2f} | {statistics.median(finding) * 1e3:.2f}"
            f" | {made * 1e3:.1f}"
            f" | {statistics.median(later):.2f} | {max(later):.2f} |"
        )


if __name__ == "__main__":
    main()
