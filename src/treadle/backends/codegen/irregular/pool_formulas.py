"""Windows along axes whose extents are expressions: their tables are written at each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows
from treadle.backends.codegen.kernel.ir import Kernel
from treadle.backends.codegen.kernel.language import Value, maximum, minimum
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim

Row = tuple[Value, Value, Value]
"""An entry of a table for a position."""
BYTES = 24
"""Of a row."""
_COST = 4.0
"""Nanoseconds that a row takes."""


@dataclass(frozen=True, slots=True)
class Formula:
    """Rows of a table as a formula of their number.

    Attributes:
        kind: "moving", "adaptive" or "steps".
        count: how many there are.
        numbers: what the formula knows besides.
    """

    kind: str
    count: Dim
    numbers: tuple[Dim, ...]

    def launch(self, place: Ref) -> Launch:
        """The launch that writes the rows to a place."""
        kernel = _kernel(self.kind)
        return over_rows(
            kernel, (place, *self.numbers), self.count, _COST, estimate(self.count) * BYTES
        )


def steps(count: Dim, *columns: tuple[int, int]) -> Formula:
    """Rows of three numbers, each of which begins at one number and moves in steps."""
    return Formula("steps", count, tuple(number for column in columns for number in column))


def _moving(i: Value, sizes: Sequence[Value]) -> Row:
    """(first, stop, cells that count) of window i of those that move in steps."""
    stride, before, reach, dilation, cells, low, high = sizes
    start = i * stride - before
    outside = maximum(0 - start, 0)
    skipped = ((outside + (dilation - 1)) // dilation) * dilation
    end = start + reach
    counted = minimum(end, high) - maximum(start, low)
    return start + skipped, minimum(end, cells), maximum(counted, 0)


def _adaptive(i: Value, sizes: Sequence[Value]) -> Row:
    """The same of windows that cover all cells."""
    cells, count = sizes
    first = (i * cells) // count
    behind = (i + 1) * cells + (count - 1)
    stop = behind // count
    return first, stop, stop - first


def _steps(i: Value, sizes: Sequence[Value]) -> Row:
    """Three numbers that move in steps."""
    one, two, three = (sizes[2 * j] + i * sizes[2 * j + 1] for j in range(3))
    return one, two, three


_KINDS: dict[str, tuple[Callable[[Value, Sequence[Value]], Row], tuple[str, ...]]] = {
    "moving": (_moving, ("stride", "before", "reach", "dilation", "cells", "low", "high")),
    "adaptive": (_adaptive, ("cells", "count")),
    "steps": (_steps, ("first0", "step0", "first1", "step1", "first2", "step2")),
}


@cache
def _kernel(kind: str) -> Kernel:
    """Rows of the launch are those of the table."""
    row, names = _KINDS[kind]
    e = RowBuilder()
    target, sizes = e.pointer(dt.int64, "windows"), e.sizes(*names)
    with e.loop(e.first, e.stop) as i:
        for j, number in enumerate(row(i, sizes)):
            target.store(i * 3 + j, number)
    return e.kernel(f"windows_{kind}")
