"""Runs before the port opens that show whether requests may run together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import IndexRangeError
from treadle.serve.joining import Arrays, Rows

Shapes = tuple[tuple[int, ...], ...]
Program = Callable[[Sequence[Array]], list[Array]]
"""Dense arrays of one program's input types to new arrays; threads may call it at once."""
_CLOSE = 1e-2
"""Largest difference of a row's results from those that it has alone, relative to the largest."""
_TIMED = 5


def are_apart(run: Program, rows: Shapes, dtypes: Sequence[np.dtype[Any]], count: int) -> bool:
    """Return whether rows have the results together that they have one by one, on random data.

    Args:
        run: the program of any number of rows up to the count.
        rows: shapes of one.
        dtypes: their element types.
        count: rows that run together.
    """
    generator = np.random.default_rng(0)
    one = [(1, *shape) for shape in rows]
    return are_joinable(run, Rows(), [made_up(generator, one, dtypes) for _ in range(count)])


def made_up(
    generator: np.random.Generator,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[np.dtype[Any]],
) -> list[Array]:
    """Random inputs; integers are 0 and 1, since they may be indices of small tables."""
    return [
        generator.integers(0, 2, shape).astype(dtype)
        if dtype.kind in "biu"
        else generator.standard_normal(shape).astype(dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def are_joinable(run: Program, joining: Rows, requests: Sequence[Arrays]) -> bool:
    """Return whether requests have the results together that they have one by one."""
    try:
        together = joining.parted(requests, run(joining.joined(requests)))
        for arrays, parts in zip(requests, together, strict=True):
            for part, own in zip(parts, run(arrays), strict=True):
                if part.shape != own.shape or not _alike(part, own):
                    return False
    except IndexRangeError:  # These are no data for the model.
        return False
    return True


def price_of_runs(run: Program, short: Arrays, long: Arrays) -> float:
    """Return how many elements of inputs take as long as a run without any.

    Args:
        run: the program.
        short, long: requests of one row.
    """
    sizes = [sum(array.size for array in arrays) for arrays in (short, long)]
    seconds = [_seconds(run, arrays) for arrays in (short, long)]
    each = (seconds[1] - seconds[0]) / max(sizes[1] - sizes[0], 1)
    return max(seconds[0] / each - sizes[0], 0) if each > 0 else float("inf")


def _seconds(run: Program, arrays: Arrays) -> float:
    """The least time of some runs."""
    found = []
    for _ in range(_TIMED):
        started = time.perf_counter()
        run(arrays)
        found.append(time.perf_counter() - started)
    return min(found)


def _alike(x: Array, y: Array) -> bool:
    if x.dtype.kind in "biu":
        return bool((x == y).all())
    wide, other = x.astype(np.float64), y.astype(np.float64)
    size = max(float(np.abs(other).max(initial=0, where=np.isfinite(other))), 1e-6)
    return bool(np.allclose(wide, other, rtol=0, atol=_CLOSE * size, equal_nan=True))


__all__ = ["Program", "Shapes", "are_apart", "are_joinable", "made_up", "price_of_runs"]
