"""Text in pictures of many sizes: PP-OCR's models beside ONNX Runtime, from the first run on.

    pip install --no-deps --target build/zoo rapidocr_onnxruntime==1.4.4
    python benchmarks/picture_sizes.py [--models build/zoo] [--widths 500] [--pictures 200]

Recognition reads lines of 48 rows and random widths, detection pictures of random heights and
widths. Ours compiles by symbols: each size comes to it once and then again, and what the first run
of a size took more is the price of a new one. ONNX Runtime has its defaults, on as many threads.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
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

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    model = mge.jit.compile(dynamic=True)(load(path))
    programs: set[Any] = set()
    first, later, theirs = [], [], []
    for number, shape in enumerate(shapes):
        array = np.random.default_rng(number).random(shape, np.float32)
        x = mge.tensor(array)
        first.append(seconds(lambda x=x: _numpy(model(x))))
        known = len(programs)
        runner = model.variants[-1].runner
        programs.add(getattr(runner, "executor", runner))
        if len(programs) > known:
            first[-1] = float("nan")  # compiled; counted apart
        later.append(min(seconds(lambda x=x: _numpy(model(x))) for _ in range(3)))
        theirs.append(
            min(seconds(lambda a=array: session.run(None, {given.name: a})) for _ in range(3))
        )
        (wanted,) = session.run(None, {given.name: array})
        worst = float(np.abs(_numpy(model(x)) - wanted).max())
        if not worst < 1e-3:
            raise ArithmeticError(f"{name} at {shape} differs by {worst}")
    pairs = [(a / b, b / c) for a, b, c in zip(first, later, theirs, strict=True)]
    fresh = [a for a, _ in pairs if a == a]
    ratios = [b for _, b in pairs]
    cells = (
        f"{len(set(shapes))}", f"{len(programs)}",
        f"{statistics.median(fresh):.2f}", f"{np.percentile(fresh, 99):.2f}", f"{max(fresh):.2f}",
        f"{1e3 * statistics.median(later):.1f}", f"{1e3 * statistics.median(theirs):.1f}",
        f"{statistics.median(ratios):.2f}", f"{max(ratios):.2f}",
    )  # fmt: skip
    return f"| {name} | {' | '.join(cells)} |"


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
    print("| model | sizes | programs | first run over later, median | 99th percentile | worst "
          "| ms | ONNX Runtime, ms | over it, median | worst |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    folder = given.models / FILES
    for name, file, shapes in (
        ("recognition", RECOGNITION, lines),
        ("detection", DETECTION, pictures),
    ):
        print(row(name, folder / file, shapes, given.threads), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pictures-") as cache:
        os.environ.setdefault("TREADLE_CACHE_DIR", cache)
        main()
