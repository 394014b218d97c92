"""Windows along axes whose extents are expressions: their tables are written at each call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
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


class Moving(Record[P, S]):
    """(first, stop, cells that count) of windows that move in steps."""

    stride: S
    before: S
    reach: S
    dilation: S
    cells: S
    low: S
    high: S

    def row(self: Moving[Pointer, Value], i: Value) -> Row:
        """Window i."""
        start = i * self.stride - self.before
        outside = maximum(0 - start, 0)
        skipped = ((outside + (self.dilation - 1)) // self.dilation) * self.dilation
        end = start + self.reach
        counted = minimum(end, self.high) - maximum(start, self.low)
        return start + skipped, minimum(end, self.cells), maximum(counted, 0)


class Patch(Record[P, S]):
    """(first, stop, first kernel cell inside) of windows that move in steps."""

    stride: S
    before: S
    reach: S
    dilation: S
    cells: S

    def row(self: Patch[Pointer, Value], i: Value) -> Row:
        """Window i."""
        start = i * self.stride - self.before
        skipped = (maximum(0 - start, 0) + (self.dilation - 1)) // self.dilation
        stop = minimum(start + self.reach, self.cells)
        return start + skipped * self.dilation, stop, skipped


class Adaptive(Record[P, S]):
    """The same of windows that cover all cells."""

    cells: S
    count: S

    def row(self: Adaptive[Pointer, Value], i: Value) -> Row:
        """Window i."""
        first = (i * self.cells) // self.count
        behind = (i + 1) * self.cells + (self.count - 1)
        stop = behind // self.count
        return first, stop, stop - first


class Progressions(Record[P, S]):
    """Three numbers, each of which begins at one number and moves in steps."""

    first0: S
    step0: S
    first1: S
    step1: S
    first2: S
    step2: S

    def row(self: Progressions[Pointer, Value], i: Value) -> Row:
        """Row i."""
        one, two = self.first0 + i * self.step0, self.first1 + i * self.step1
        return one, two, self.first2 + i * self.step2


class _Table(Record[P, S], windows=dt.int64):
    windows: P
    formula: Moving[P, S] | Patch[P, S] | Adaptive[P, S] | Progressions[P, S]


@dataclass(frozen=True, slots=True)
class Formula:
    """Rows of a table, `count` of them, as a formula of their number."""

    count: Dim
    of: Moving[Ref, Dim] | Patch[Ref, Dim] | Adaptive[Ref, Dim] | Progressions[Ref, Dim]

    def launch(self, place: Ref) -> Launch:
        """The launch that writes the rows to a place."""
        kind: Any = type(self.of)
        nbytes = estimate(self.count) * BYTES
        return over_rows(_kernel(kind), _Table(place, self.of), self.count, _COST, nbytes)


@cache
def _kernel(kind: Any) -> RecordedKernel:
    """Return the kernel; rows of the launch are those of the table."""
    e = RowBuilder()
    p = e.record(_Table[Pointer, Value], formula=kind)
    with e.loop(e.first, e.stop) as i:
        for j, number in enumerate(p.formula.row(i)):
            p.windows.store(i * 3 + j, number)
    return RecordedKernel(e.kernel(f"windows_{kind.__name__.lower()}"), p)
