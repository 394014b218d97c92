"""Inference over random input sizes, op by op: images per second of a network as it is written.

Every call has another batch size and other extents; nothing is compiled, quantized or padded.

    python benchmarks/random_sizes.py [--calls 40] [--largest 256] [--markdown]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import models
import numpy as np

import treadle as mge
import treadle.module as M

BATCHES = (1, 8)
"""Images of a call, least and most."""
NETS: dict[str, Callable[[], M.Module]] = {
    "ResNet-18": lambda: models.ResNet((2, 2, 2, 2), False, 1000, False),
    "MobileNetV2": models.MobileNetV2,
}


def sizes(count: int, largest: int, rng: np.random.Generator) -> list[tuple[int, int, int]]:
    """(images, rows, columns) of every call."""
    batches = rng.integers(BATCHES[0], BATCHES[1] + 1, count)
    extents = rng.integers(min(64, largest), largest + 1, (count, 2))
    return [(int(n), int(h), int(w)) for n, (h, w) in zip(batches, extents, strict=True)]


def row(name: str, calls: int, largest: int) -> tuple[str, ...]:
    """A network's figures: sizes that were met, images and megapixels per second."""
    mge.random.seed(0)
    net = NETS[name]()
    net.eval()
    rng = np.random.default_rng(0)
    met = sizes(calls + 1, largest, rng)
    images = pixels = 0
    seconds = 0.0
    for number, (n, h, w) in enumerate(met):
        x = mge.tensor(rng.random((n, 3, h, w), np.float32))
        begin = time.perf_counter()
        if not np.isfinite(net(x).numpy()).all():
            raise ArithmeticError(f"{name} gives no numbers for {n} x {h} x {w}")
        if number:  # the first call loads code
            seconds += time.perf_counter() - begin
            images, pixels = images + n, pixels + n * h * w
    different = f"{len(set(met))}"
    return name, different, f"{images / seconds:.1f}", f"{pixels / seconds / 1e6:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--largest", type=int, default=256, help="rows and columns")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    mge.set_default_device("cpux")
    head = ("network", "sizes", "images/s", "megapixels/s")
    rows = [row(name, given.calls, given.largest) for name in NETS]
    if given.markdown:
        rows.insert(0, ("---",) * len(head))
        print("\n".join(f"| {' | '.join(cells)} |" for cells in (head, *rows)))
    else:
        print("\n".join("".join(cell.rjust(14) for cell in cells) for cells in (head, *rows)))


if __name__ == "__main__":
    main()
