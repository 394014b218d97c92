"""Text in pictures of many sizes: PP-OCR's models beside ONNX Runtime, from the first run on.

    pip install --no-deps --target build/zoo rapidocr_onnxruntime==1.4.4
    python benchmarks/picture_sizes.py [--models build/zoo] [--widths 500] [--pictures 200]

A number of 0 leaves a row out.

Recognition reads lines of 48 rows and random widths, detection pictures of random heights and
widths. Ours compiles by symbols: each size comes to it once and then again, each time behind a run
of another size, and what the first run of a size took more than the second is the price of a new
one; the third over the second says how much of that is noise. ONNX Runtime has its defaults, on as
many threads, and comes when ours has run all sizes: its threads go on looking for work after a run,
which made whatever ran next look slow.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
FILES = "rapidocr_onnxruntime/models"
RECOGNITION, DETECTION = "ch_PP-OCRv4_rec_infer.onnx", "ch_PP-OCRv4_det_infer.onnx"


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def row(name: str, path: Path, shapes: list[tuple[int, ...]], threads: int) -> str:
    """Run a model at all shapes; the row of the table."""
    import onnxruntime as ort

    import treadle as mge
    from treadle.interop.onnx import load

    model = mge.jit.compile(dynamic=True)(load(path))
    other = mge.tensor(_picture(len(shapes), shapes[0]))
    programs: set[Any] = set()
    first, second, third, least = [], [], [], []
    for number, shape in enumerate(shapes):
        x = mge.tensor(_picture(number, shape))
        behind = []
        for _ in range(3):
            _numpy(model(other))
            behind.append(seconds(lambda x=x: _numpy(model(x))))
        least.append(min(seconds(lambda x=x: _numpy(model(x))) for _ in range(3)))
        runner = model.variants[-1].runner
        program = getattr(runner, "executor", runner)
        if program in programs:  # Otherwise it was compiled.
            for times, taken in zip((first, second, third), behind, strict=True):
                times.append(taken)
        programs.add(program)

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    theirs = []
    for number, shape in enumerate(shapes):
        array = _picture(number, shape)
        run = partial(session.run, None, {given.name: array})
        theirs.append(min(seconds(run) for _ in range(3)))
        worst = float(np.abs(_numpy(model(mge.tensor(array))) - run()[0]).max())
        if not worst < 1e-3:
            raise ArithmeticError(f"{name} at {shape} differs by {worst}")
    fresh, noise = _over(first, second), _over(third, second)
    beside = _over(least, theirs)
    cells = (
        f"{len(set(shapes))}", f"{len(programs)}",
        f"{statistics.median(fresh):.2f}", f"{np.percentile(fresh, 99):.2f}",
        f"{statistics.median(noise):.2f}", f"{np.percentile(noise, 99):.2f}",
        f"{1e3 * statistics.median(least):.1f}", f"{1e3 * statistics.median(theirs):.1f}",
        f"{statistics.median(beside):.2f}", f"{max(beside):.2f}",
    )  # fmt: skip
    return f"| {name} | {' | '.join(cells)} |"


def _picture(seed: int, shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(seed).random(shape, np.float32)


def _over(ours: list[float], others: list[float]) -> list[float]:
    return [a / b for a, b in zip(ours, others, strict=True)]


def _numpy(result: Any) -> Array:
    one = result[0] if isinstance(result, list | tuple) else result
    return one.numpy()  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path("build/zoo"))
    parser.add_argument("--widths", type=int, default=500)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    rng = random.Random(given.seed)
    lines = [(1, 3, 48, w) for w in rng.sample(range(40, 1200), given.widths)]
    sides = range(64, 641, 32)  # the models ask for multiples of 32
    pictures = rng.sample([(1, 3, h, w) for h in sides for w in sides], given.pictures)
    print("| model | sizes | programs | first run over second, median | 99th percentile "
          "| third over second, median | 99th percentile "
          "| ms | ONNX Runtime, ms | over it, median | worst |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    folder = given.models / FILES
    for name, file, shapes in (
        ("recognition", RECOGNITION, lines),
        ("detection", DETECTION, pictures),
    ):
        if shapes:
            print(row(name, folder / file, shapes, given.threads), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pictures-") as cache:
        os.environ.setdefault("TREADLE_CACHE_DIR", cache)
        main()
