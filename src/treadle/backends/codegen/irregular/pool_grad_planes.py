"""Gradients of max_pool in planes, a row of windows at a time.

Columns that windows are apart from one another lie in memory at distances of their step; they are
brought together first: line (row, residue) holds the cells residue, residue + step, and so on, with
NaN for the padding, which is never a maximum. So every tap of a row of windows is a line that is
read in vectors. What each tap receives is kept in lines, too, which are added and spread again.

A row that holds a NaN itself is done window by window.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.pool_grad_pairs import mingled, separated
from treadle.backends.codegen.irregular.pool_maximum import find_maximum
from treadle.backends.codegen.irregular.pool_tables import Axis, Geometry, arguments_of, table_of
from treadle.backends.codegen.irregular.rows import (
    over_rows,
    overlapping_loop,
    row_kernel,
    vector_loop,
)
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type
from treadle.ops.windows import Window

_MOST_TAPS = 25
"""Taps of a window, which are written out."""
_LINES = 1 << 15
"""Elements of all lines."""


@dataclasses.dataclass(frozen=True, slots=True)
class Taps:
    """Windows as rows and columns of taps: constants of a kernel.

    Columns are `dilation` apart, and windows `step` columns; `padding` is that before the first.
    """

    rows: int
    columns: int
    step: int
    dilation: int
    padding: int
    lanes: int
    pitch: int

    def line(self, column: int) -> tuple[int, int]:
        """(residue, shift): window w has in this column cell w + shift of that residue's line."""
        shift, residue = divmod(column * self.dilation - self.padding, self.step)
        return residue, shift

    @property
    def shifts(self) -> tuple[int, int]:
        """The least and the greatest shift."""
        found = [self.line(k)[1] for k in range(self.columns)]
        return min(found), max(found)

    @property
    def lead(self) -> int:
        """Elements of a line before its first cell, and of what taps receive before window 0."""
        return max(-self.shifts[0], self.shifts[1], 0)

    @property
    def lines(self) -> int:
        """Lines of cells, of taps, of dy, and as many as hold a row of the result."""
        return self.rows * (self.step + self.columns) + 1 + self.step


def taps_of(window: Window, axes: Sequence[Axis], lanes: int) -> Taps | None:
    """The windows' taps; None where there are too many, or more than two axes."""
    rows = int(window.kernel[-2]) if len(window.kernel) > 1 else 1
    if axes[0].extent != 1 or axes[0].count != 1:
        return None
    return row_taps(window, axes, rows, lanes)


def row_taps(window: Window, axes: Sequence[Axis], rows: int, lanes: int) -> Taps | None:
    """So many rows of the columns of a window; None where there are too many."""
    columns, step, dilation = int(window.kernel[-1]), window.strides[-1], window.dilation[-1]
    if rows * columns > _MOST_TAPS or step > 2:
        return None
    taps = Taps(rows, columns, step, dilation, window.padding[-1][0], lanes, 0)
    longest = max(-(-axes[2].extent // step), axes[2].count) + 2 * taps.lead
    # Whole vectors at both ends. An odd number of cache lines keeps lines apart in the cache.
    pitch = (-(-longest // 16) + -(-2 * lanes // 16)) * 16
    taps = dataclasses.replace(taps, pitch=pitch + 16 * (pitch // 16 % 2 == 0))
    return taps if taps.lines * taps.pitch <= _LINES else None


def lower_grad_planes(
    taps: Taps, window: Window, axes: Sequence[Axis], x: TensorType, target: Target
) -> Lowered:
    """One launch over planes; sums of 16-bit floats are kept in a float32 workspace."""
    out, wide, planes = Ref("output", 0), compute_type(x.dtype), product(x.shape[:2])
    half, count = wide is not x.dtype, product(x.shape)
    sums = Ref("workspace", 0) if half else out
    flat = len(window.kernel) == 1
    step, dilation, padding = (
        (1, 1, 0) if flat else (window.strides[-2], window.dilation[-2], window.padding[-2][0])
    )
    kernel = _kernel(x.dtype, taps, dilation == 1)
    cost = axes[1].count * (20 + taps.pitch * taps.rows * (taps.columns + taps.step) * 0.25)
    arguments = (sums, Ref("input", 0), Ref("input", 1), step, padding, *arguments_of(axes))
    launches: tuple[Launch, ...] = (over_rows(kernel, arguments, planes, cost),)
    if half:
        launches += (convert(out, sums, x.dtype, dt.float32, count, target),)
    return Lowered(launches, (4 * count,) if half else (), (table_of(axes),))


@functools.cache
def _kernel(dtype: DType, taps: Taps, dense: bool) -> Kernel:
    """Each row of the launch is a plane; `dense` says that rows of taps are neighbors."""
    made = _Planes(dtype, taps, dense)
    name = f"pool_grad_planes_{dtype.name}_{taps.rows}_{taps.columns}_{taps.step}_{taps.pitch}"
    return row_kernel(name, made.parameters, made.write)


class _Planes:
    """The body."""

    def __init__(self, dtype: DType, taps: Taps, dense: bool) -> None:
        self.taps, self.dense, self.wide = taps, dense, compute_type(dtype)
        self.target, self.x = pointer(self.wide, "target"), pointer(dtype, "x")
        self.dy, self.geometry = pointer(dtype, "dy"), Geometry()
        self.step, self.padding = sizes = [size(name) for name in ("step", "padding")]
        pointers = (self.target, self.x, self.dy)
        self.parameters = (*pointers, *sizes, *self.geometry.parameters)

    def write(self, b: Builder, first: Value, stop: Value) -> None:
        lines = _Lines(b, self.taps, b.stack(self.wide, self.taps.lines * self.taps.pitch))
        lines.clear()
        height, width = self.geometry.extents[1:]
        heights, widths = self.geometry.counts[1:]

        def plane(i: Value) -> None:
            begin = b.mul(i, b.mul(height, width))
            to, source = b.offset(self.target, begin), b.offset(self.x, begin)
            given = b.offset(self.dy, b.mul(i, b.mul(heights, widths)))

            def row(h: Value, cleared: Value) -> Value:
                return self._row(b, lines, (to, source, given), h, cleared)

            (done,) = b.loop(0, heights, 1, row, (b.index(0),))
            self._zero(b, to, done, height)

        b.loop(first, stop, 1, plane)

    def _zero(self, b: Builder, to: Value, low: Value, high: Value) -> None:
        """Rows [low, high) of zeros."""
        width = self.geometry.extents[2]
        start = b.offset(to, b.mul(low, width))
        count = b.mul(b.sub(high, low), width)
        b.branch(b.compare("lt", low, high), lambda: b.zero(start, count))

    def _row(
        self,
        b: Builder,
        lines: _Lines,
        planes: tuple[Value, Value, Value],
        h: Value,
        cleared: Value,
    ) -> Value:
        """A row of windows; rows of the result before `cleared` hold something already."""
        (to, source, given), taps = planes, self.taps
        window = self.geometry.window(b, 1, h)
        width, widths = self.geometry.extents[2], self.geometry.counts[2]
        start = b.sub(b.mul(h, self.step), self.padding)

        def place_of(k: Value) -> tuple[Value, Value]:
            """The row of cells of a row of taps, and whether there is one."""
            place = b.add(start, b.mul(k, self.geometry.dilations[1]))
            below = b.compare("lt", place, self.geometry.extents[1])
            return place, b.bitwise("and", b.compare("le", 0, place), below)

        def take(k: Value, nan: Value) -> tuple[Value, ...]:
            place, within = place_of(k)
            line = b.offset(source, b.mul(place, width))
            gathered = functools.partial(lines.gather, k, line, width, nan)
            return b.branch(within, gathered, lambda: lines.blank(k, width, nan), (nan,))

        nothing = b.constant(False, dt.bool_, taps.lanes)
        (nan,) = b.loop(0, taps.rows, 1, take, (nothing,))
        dy = b.offset(given, b.mul(h, widths))
        # Rows without any window, and, of windows with gaps, all of them.
        behind = b.max(b.min(window[0], self.geometry.extents[1]) if self.dense else window[1], 0)
        self._zero(b, to, cleared, behind)
        cleared = b.max(cleared, behind)
        following = b.max(cleared, window[1])

        def exactly() -> None:
            self._zero(b, to, cleared, following)
            self._one_by_one(b, (to, source, dy), h)

        def in_lines() -> None:
            lines.divide(dy, widths)

            def give(k: Value) -> None:
                place, within = place_of(k)
                line, fresh = b.offset(to, b.mul(place, width)), b.compare("le", cleared, place)
                b.branch(within, lambda: lines.add(k, line, width, fresh))

            b.loop(0, taps.rows, 1, give)

        b.branch(b.reduce("or", nan), exactly, in_lines)
        return following

    def _one_by_one(self, b: Builder, planes: tuple[Value, Value, Value], h: Value) -> None:
        """A row of windows, where NaN are the greatest."""
        to, source, dy = planes
        outside = self.geometry.window(b, 0, b.index(0)), self.geometry.window(b, 1, h)

        def one(w: Value) -> None:
            bounds = (*outside, self.geometry.window(b, 2, w))
            _, at = find_maximum(b, self.geometry, source, bounds)

            def add() -> None:
                b.store(to, at, b.add(b.load(to, at), load_value(dy, w)))

            b.branch(b.compare("le", 0, at), add)

        b.loop(0, self.geometry.counts[2], 1, one)


class _Lines:
    """Lines on the stack, of equal length: cells, what taps receive, dy, and a row."""

    def __init__(self, b: Builder, taps: Taps, memory: Value) -> None:
        self.b, self.taps = b, taps
        count, columns = taps.rows * taps.step, taps.rows * taps.columns
        self.memory, self.dtype = memory, memory.dtype
        self.cells = b.offset(memory, taps.lead)
        self.shares = b.offset(self.cells, count * taps.pitch)
        self.dy = b.offset(memory, (count + columns) * taps.pitch)
        self.row = b.offset(self.dy, taps.pitch)

    def _cells(self, k: Value | int, residue: int) -> Value:
        """The line of cells of a row of taps."""
        line = self.b.add(self.b.mul(self.b.index(k), self.taps.step), residue)
        return self.b.offset(self.cells, self.b.mul(line, self.taps.pitch))

    def _shares(self, k: Value | int, column: int) -> Value:
        """What a tap receives."""
        line = self.b.add(self.b.mul(self.b.index(k), self.taps.columns), column)
        return self.b.offset(self.shares, self.b.mul(line, self.taps.pitch))

    def _constant(self, number: float) -> Value:
        return self.b.constant(number, self.dtype, self.taps.lanes)

    def clear(self) -> None:
        """NaN in the lines of cells, 0 in all others."""
        b, taps = self.b, self.taps
        cells, end = taps.rows * taps.step * taps.pitch, taps.lines * taps.pitch
        for first, stop, number in ((0, cells, math.nan), (cells, end, 0.0)):
            value = self._constant(number)
            b.loop(first, stop, taps.lanes, functools.partial(self._put, self.memory, value))

    def _put(self, line: Value, value: Value, i: Value) -> None:
        self.b.store(line, i, value)

    def blank(self, k: Value, width: Value, nan: Value) -> Value:
        """Row k of taps is in the padding."""
        b, value = self.b, self._constant(math.nan)
        count = b.div(b.add(width, self.taps.step - 1), self.taps.step)
        for residue in range(self.taps.step):
            line = self._cells(k, residue)
            b.loop(0, count, self.taps.lanes, functools.partial(self._put, line, value))
        return nan

    def gather(self, k: Value, source: Value, width: Value, nan: Value) -> Value:
        """The cells of a row for row k of taps; which lanes met NaN."""
        b, taps = self.b, self.taps
        lanes, step = taps.lanes, taps.step
        lines = [self._cells(k, residue) for residue in range(step)]

        def some(i: Value, mask: Value | None, found: Value) -> Value:
            left = b.sub(width, i)
            parts = [
                b.first_lanes(b.sub(left, v * lanes), lanes) if mask is not None else None
                for v in range(step)
            ]
            values = [
                load_value(source, b.add(i, v * lanes), lanes, part) for v, part in enumerate(parts)
            ]
            for v, part in enumerate(parts):
                found = b.bitwise("or", found, b.compare("ne", values[v], values[v]))
                if part is not None:
                    values[v] = b.select(part, values[v], self._constant(math.nan))
            at = b.div(i, step)
            for line, value in zip(
                lines, values if step == 1 else separated(b, values), strict=True
            ):
                b.store(line, at, value)
            return found

        return vector_loop(b, 0, width, lanes * step, some, (nan,))[0]

    def divide(self, dy: Value, windows: Value) -> None:
        """What every tap of a row of windows receives of dy."""
        b, taps, lanes = self.b, self.taps, self.taps.lanes

        def take(w: Value, mask: Value | None) -> None:
            b.store(self.dy, w, load_value(dy, w, lanes, mask))

        vector_loop(b, 0, windows, lanes, take)
        columns = [taps.line(c) for c in range(taps.columns)]

        def some(w: Value) -> None:
            def cell(k: int, c: int) -> Value:
                residue, shift = columns[c]
                return b.load(self._cells(k, residue), b.add(w, shift), lanes)

            order = [(k, c) for k in range(taps.rows) for c in range(taps.columns)]
            best = cell(*order[0])
            best = b.max(best, self._constant(-math.inf))
            for tap in order[1:]:
                best = b.max(cell(*tap), best)  # The second one where the first is NaN.
            left, zero = b.load(self.dy, w, lanes), self._constant(0.0)
            for k, c in order:
                hit = b.compare("eq", cell(k, c), best)
                b.store(self._shares(k, c), w, b.select(hit, left, zero))
                left = b.select(hit, zero, left)

        b.loop(0, windows, lanes, some)

    def add(self, k: Value, to: Value, width: Value, fresh: Value) -> None:
        """What row k of taps received, to a row of the result: stored where it is fresh."""
        b, taps = self.b, self.taps
        lines = [self._shares(k, c) for c in range(taps.columns)]

        def write(*, old: bool) -> None:
            write_row(b, taps, lines, self.row, (to, width), old=old)

        b.branch(fresh, lambda: write(old=False), lambda: write(old=True))


def write_row(
    b: Builder,
    taps: Taps,
    lines: Sequence[Value],
    spare: Value,
    row: tuple[Value, Value],
    *,
    old: bool,
) -> None:
    """What columns of taps receive, one line each, to a row of the result (place, cells).

    With `old` it is added to what is there. The spare line takes the row's end.
    """
    (to, width), lanes = row, taps.lanes
    whole = b.bitwise("and", width, -taps.step * lanes)

    def some(j: Value) -> None:
        for v, value in enumerate(_columns(b, taps, lines, j)):
            place = b.add(j, v * lanes)
            known = b.add(value, load_value(to, place, lanes)) if old else value
            store_value(to, place, known)

    def part(j: Value, mask: Value | None) -> None:
        value = b.load(spare, b.sub(j, whole), lanes)
        known = b.add(value, load_value(to, j, lanes, mask)) if old else value
        store_value(to, j, known, mask)

    def rest() -> None:
        for v, value in enumerate(_columns(b, taps, lines, whole)):
            b.store(spare, v * lanes, value)
        if old:
            vector_loop(b, whole, width, lanes, part)
        else:
            overlapping_loop(b, whole, width, lanes, part)

    b.loop(0, whole, taps.step * lanes, some)
    b.branch(b.compare("lt", whole, width), rest)


def _columns(b: Builder, taps: Taps, lines: Sequence[Value], first: Value) -> list[Value]:
    """The sums of `step` vectors of columns, which begin at a multiple of `step`."""
    made, i = [], b.div(first, taps.step)
    for residue in range(taps.step):
        parts = [
            b.load(line, b.sub(i, shift), taps.lanes)
            for line, (owner, shift) in zip(lines, map(taps.line, range(taps.columns)), strict=True)
            if owner == residue
        ]
        nothing = b.constant(0.0, lines[0].dtype, taps.lanes)
        made.append(functools.reduce(b.add, parts or [nothing]))
    return made if taps.step == 1 else mingled(b, made)
