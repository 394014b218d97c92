"""Numbers that have nothing to do with networks: the Mandelbrot set on any device.

Points of the plane are iterated by array operations, eagerly, as a compiled program, and by NumPy;
the picture is drawn with characters, results and times are compared.

    python examples/mandelbrot.py [--device cpux] [--size 512] [--turns 60] [--out picture.pgm]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F

PER_CALL = 20
"""Turns of one call of the program."""
SHADES = " .:-=+*#%@"
Points = tuple[Any, Any, Any]


def turn(zr: Any, zi: Any, count: Any, cr: Any, ci: Any, where: Any) -> Points:
    """z = z^2 + c where |z| is at most 2, and how many turns that has been so."""
    inside = zr * zr + zi * zi <= 4.0
    real, imaginary = zr * zr - zi * zi + cr, 2.0 * zr * zi + ci
    return where(inside, real, zr), where(inside, imaginary, zi), where(inside, count + 1.0, count)


def turns(zr: Any, zi: Any, count: Any, cr: Any, ci: Any) -> Points:
    """Some turns at once: the program's kernels keep what is between them in registers."""
    for _ in range(PER_CALL):
        zr, zi, count = turn(zr, zi, count, cr, ci, F.where)
    return zr, zi, count


def with_numpy(zr: Any, zi: Any, count: Any, cr: Any, ci: Any) -> Points:
    """The same on the host, for comparison."""
    for _ in range(PER_CALL):
        zr, zi, count = turn(zr, zi, count, cr, ci, np.where)
    return zr, zi, count


def run(function: Callable[..., Points], c: tuple[Any, Any], calls: int) -> tuple[Any, float]:
    """Turns until each point left, and the seconds of the fastest of three runs."""
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        zr, zi, count = c[0] * 0.0, c[1] * 0.0, c[0] * 0.0
        for _ in range(calls):
            zr, zi, count = function(zr, zi, count, *c)
        counted = count if isinstance(count, np.ndarray) else count.numpy()
        best = min(best, time.perf_counter() - begin)
    return counted, best


def picture(counts: np.ndarray[Any, Any], rows: int = 20, columns: int = 60) -> str:
    """A small picture of characters."""
    height, width = counts.shape
    few = counts[:: max(height // rows, 1), :: max(width // columns, 1)]
    shade = (few / max(float(counts.max()), 1.0) * (len(SHADES) - 1)).astype(int)
    return "\n".join("".join(SHADES[s] for s in row) for row in shade)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpux", help="such as opencl0")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--out", type=Path, help="a file for the picture, as PGM")
    given = parser.parse_args()
    real = np.linspace(-2.2, 0.8, given.size, dtype=np.float32)
    imaginary = np.linspace(-1.2, 1.2, given.size, dtype=np.float32)
    grid = tuple(np.ascontiguousarray(a) for a in np.meshgrid(real, imaginary))
    on_device = tuple(mge.tensor(a, device=given.device) for a in grid)
    calls = -(-given.turns // PER_CALL)
    ways: dict[str, tuple[Callable[..., Points], tuple[Any, ...]]] = {
        "NumPy": (with_numpy, grid),
        "op by op": (turns, on_device),
        "compiled": (mge.jit.compile(turns), on_device),
    }
    found = {name: run(function, c, calls) for name, (function, c) in ways.items()}
    print(picture(found["compiled"][0]))
    for name, (_, seconds) in found.items():
        where = "the host" if name == "NumPy" else str(on_device[0].device)
        points = given.size**2 * calls * PER_CALL / seconds
        print(
            f"{name:9} on {where:9} {seconds * 1e3:9.1f} ms {points / 1e6:9.0f} M points x turns/s"
        )
    # At the set's edge the last bit decides: programs contract x * y + z to one rounding.
    differ = max(float((found[n][0] != found["NumPy"][0]).mean()) for n in ("op by op", "compiled"))
    print(f"points whose count differs from NumPy's: {differ:.2%}")
    if given.out:
        grey = (found["compiled"][0] / (calls * PER_CALL) * 255).astype(np.uint8)
        given.out.write_bytes(b"P5 %d %d 255\n" % (given.size, given.size) + grey.tobytes())


if __name__ == "__main__":
    main()
