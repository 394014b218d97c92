"""Windows along axes whose extents are expressions: their tables are written at each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.irregular.rows import over_rows, row_kernel
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim

Row = tuple[Value, Value, Value]
"""What a table says of a position."""
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


def _moving(b: Builder, i: Value, sizes: Sequence[Value]) -> Row:
    """(first, stop, cells that count) of window i of those that move in steps."""
    stride, before, reach, dilation, cells, low, high = sizes
    start = b.sub(b.mul(i, stride), before)
    outside = b.max(b.sub(0, start), 0)
    skipped = b.mul(b.div(b.add(outside, b.sub(dilation, 1)), dilation), dilation)
    end = b.add(start, reach)
    counted = b.sub(b.min(end, high), b.max(start, low))
    return b.add(start, skipped), b.min(end, cells), b.max(counted, 0)


def _adaptive(b: Builder, i: Value, sizes: Sequence[Value]) -> Row:
    """The same of windows that cover all cells."""
    cells, count = sizes
    first = b.div(b.mul(i, cells), count)
    behind = b.add(b.mul(b.add(i, 1), cells), b.sub(count, 1))
    stop = b.div(behind, count)
    return first, stop, b.sub(stop, first)


def _steps(b: Builder, i: Value, sizes: Sequence[Value]) -> Row:
    """Three numbers that move in steps."""
    one, two, three = (b.add(sizes[2 * j], b.mul(i, sizes[2 * j + 1])) for j in range(3))
    return one, two, three


_KINDS: dict[str, tuple[Callable[[Builder, Value, Sequence[Value]], Row], tuple[str, ...]]] = {
    "moving": (_moving, ("stride", "before", "reach", "dilation", "cells", "low", "high")),
    "adaptive": (_adaptive, ("cells", "count")),
    "steps": (_steps, ("first0", "step0", "first1", "step1", "first2", "step2")),
}


@cache
def _kernel(kind: str) -> Kernel:
    """Rows of the launch are those of the table."""
    row, names = _KINDS[kind]
    target, sizes = pointer(dt.int64, "windows"), [size(name) for name in names]

    def body(b: Builder, first: Value, stop: Value) -> None:
        def one(i: Value) -> None:
            for j, number in enumerate(row(b, i, sizes)):
                b.store(target, b.add(b.mul(i, 3), j), number)

        b.loop(first, stop, 1, one)

    return row_kernel(f"windows_{kind}", (target, *sizes), body)
