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
import operator
from collections.abc import Sequence

from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.pool_grad_pairs import mingled, separated
from treadle.backends.codegen.irregular.pool_maximum import find_maximum
from treadle.backends.codegen.irregular.pool_tables import (
    WindowAxis,
    Windows,
    arguments_of,
    table_of,
)
from treadle.backends.codegen.irregular.rows import (
    Gradient,
    RowBuilder,
    over_rows,
    overlapping_loop,
    vector_loop,
)
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
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


def taps_of(window: Window, axes: Sequence[WindowAxis], lanes: int) -> Taps | None:
    """The windows' taps; None where there are too many, or more than two axes."""
    rows = int(window.kernel[-2]) if len(window.kernel) > 1 else 1
    if axes[0].extent != 1 or axes[0].count != 1:
        return None
    return row_taps(window, axes, rows, lanes)


def row_taps(window: Window, axes: Sequence[WindowAxis], rows: int, lanes: int) -> Taps | None:
    """Return `rows` rows of a window's columns as taps; None where there are too many."""
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
    taps: Taps, window: Window, axes: Sequence[WindowAxis], x: TensorType, target: Target
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
    windows = arguments_of(axes)
    given = _Parameters(sums, Ref("input", 0), Ref("input", 1), step, padding, windows)
    launches: tuple[Launch, ...] = (over_rows(kernel, given, planes, cost),)
    if half:
        launches += (convert(out, sums, x.dtype, dt.float32, count, target),)
    return Lowered(launches, (4 * count,) if half else (), (table_of(axes),))


class _Parameters(Gradient[P, S], windows=Windows):
    step: S
    padding: S
    windows: Windows[P, S]


@functools.cache
def _kernel(dtype: DType, taps: Taps, dense: bool) -> RecordedKernel:
    """Return the kernel; rows of the launch are planes; `dense`: rows of taps are neighbors."""
    planes = _GradientPlanes(dtype, taps, dense)
    planes.write()
    name = f"pool_grad_planes_{dtype.name}_{taps.rows}_{taps.columns}_{taps.step}_{taps.pitch}"
    return RecordedKernel(planes.e.kernel(name), planes.p)


class _GradientPlanes:
    """The body."""

    def __init__(self, dtype: DType, taps: Taps, dense: bool) -> None:
        self.taps, self.dense, wide = taps, dense, compute_type(dtype)
        self.e, kind = RowBuilder(), _Parameters[Pointer, Value]
        e = self.e
        self.p = e.record(kind, target=wide, x=dtype, dy=dtype)
        self.geometry = self.p.windows
        self.lines = _StackLines(e, taps, e.stack(wide, taps.lines * taps.pitch))

    def write(self) -> None:
        """Plane after plane, row of windows after row."""
        e, (_, height, width) = self.e, self.geometry.extents
        _, heights, widths = self.geometry.counts
        self.lines.clear()
        with e.loop(e.first, e.stop) as i:
            begin = i * (height * width)
            to, source = self.p.target + begin, self.p.x + begin
            given = self.p.dy + i * (heights * widths)
            cleared = [e.index(0)]
            with e.loop(heights, carrying=cleared) as h:
                cleared[0] = self._row((to, source, given), h, cleared[0])
            self._zero(to, cleared[0], height)

    def _zero(self, to: Pointer, low: Value, high: Value) -> None:
        """Rows [low, high) of zeros."""
        width = self.geometry.extents[2]
        start = to + low * width
        count = (high - low) * width
        with self.e.when(low < high):
            start.zero(count)

    def _row(self, planes: tuple[Pointer, Pointer, Pointer], h: Value, cleared: Value) -> Value:
        """A row of windows; rows of the result before `cleared` hold something already."""
        (to, source, given), e, taps, lines = planes, self.e, self.taps, self.lines
        window = self.geometry.window(1, h)
        (_, height, width), widths = self.geometry.extents, self.geometry.counts[2]
        start = h * self.p.step - self.p.padding

        def place_of(k: Value) -> tuple[Value, Value]:
            """The row of cells of a row of taps, and whether there is one."""
            place = start + k * self.geometry.dilations[1]
            below = place < height
            return place, (place >= 0) & below

        nan = [e.constant(False, dt.bool_, taps.lanes)]
        with e.loop(taps.rows, carrying=nan) as k:
            place, within = place_of(k)
            line = source + place * width
            with e.when(within, changing=nan):
                nan[0] = lines.gather(k, line, width, nan[0])
            with e.otherwise():
                lines.blank(k, width)
        dy = given + h * widths
        # Rows without any window, and, of windows with gaps, all of them.
        behind = maximum(minimum(window[0], height) if self.dense else window[1], 0)
        self._zero(to, cleared, behind)
        cleared = maximum(cleared, behind)
        following = maximum(cleared, window[1])
        with e.when(nan[0].reduce("or")):
            self._zero(to, cleared, following)
            self._one_by_one((to, source, dy), h)
        with e.otherwise():
            lines.divide(dy, widths)
            with e.loop(taps.rows) as k:
                place, within = place_of(k)
                row, fresh = to + place * width, cleared <= place
                with e.when(within):
                    lines.add(k, row, width, fresh)
        return following

    def _one_by_one(self, planes: tuple[Pointer, Pointer, Pointer], h: Value) -> None:
        """A row of windows, where NaN are the greatest."""
        (to, source, dy), e, geometry = planes, self.e, self.geometry
        outside = geometry.window(0, e.index(0)), geometry.window(1, h)
        with e.loop(geometry.counts[2]) as w:
            bounds = (*outside, geometry.window(2, w))
            _, at = find_maximum(e, geometry, source, bounds)
            with e.when(at >= 0):
                to[at] += load_value(dy, w)


class _StackLines:
    """Lines on the stack, of equal length: cells, what taps receive, dy, and a row."""

    def __init__(self, e: Builder, taps: Taps, memory: Pointer) -> None:
        self.e, self.taps, self.memory = e, taps, memory
        count, columns = taps.rows * taps.step, taps.rows * taps.columns
        self.cells = memory + taps.lead
        self.shares = self.cells + count * taps.pitch
        self.dy = memory + (count + columns) * taps.pitch
        self.row = self.dy + taps.pitch

    def _cells(self, k: Value | int, residue: int) -> Pointer:
        """The line of cells of a row of taps."""
        line = k * self.taps.step + residue
        return self.cells + line * self.taps.pitch

    def _shares(self, k: Value | int, column: int) -> Pointer:
        """Return the share of a tap."""
        line = k * self.taps.columns + column
        return self.shares + line * self.taps.pitch

    def _constant(self, number: float) -> Value:
        return self.e.constant(number, self.memory.dtype, self.taps.lanes)

    def clear(self) -> None:
        """NaN in the lines of cells, 0 in all others."""
        taps = self.taps
        cells, end = taps.rows * taps.step * taps.pitch, taps.lines * taps.pitch
        for first, stop, number in ((0, cells, math.nan), (cells, end, 0.0)):
            value = self._constant(number)
            with self.e.loop(first, stop, taps.lanes) as i:
                self.memory[i] = value

    def blank(self, k: Value, width: Value) -> None:
        """Row k of taps is in the padding."""
        value = self._constant(math.nan)
        count = (width + (self.taps.step - 1)) // self.taps.step
        for residue in range(self.taps.step):
            line = self._cells(k, residue)
            with self.e.loop(0, count, self.taps.lanes) as i:
                line[i] = value

    def gather(self, k: Value, source: Pointer, width: Value, nan: Value) -> Value:
        """The cells of a row for row k of taps; which lanes met NaN."""
        e, lanes, step = self.e, self.taps.lanes, self.taps.step
        lines = [self._cells(k, residue) for residue in range(step)]
        found = [nan]
        for i, mask in vector_loop(e, 0, width, lanes * step, carrying=found):
            left = width - i
            parts = [
                e.first_lanes(left - v * lanes, lanes) if mask is not None else None
                for v in range(step)
            ]
            values = [
                load_value(source, i + v * lanes, lanes, part) for v, part in enumerate(parts)
            ]
            for v, part in enumerate(parts):
                found[0] = found[0] | (values[v] != values[v])
                if part is not None:
                    values[v] = select(part, values[v], math.nan)
            at = i // step
            for line, value in zip(lines, values if step == 1 else separated(values), strict=True):
                line[at] = value
        return found[0]

    def divide(self, dy: Pointer, windows: Value) -> None:
        """Divide dy of a row of windows among their taps."""
        e, taps, lanes = self.e, self.taps, self.taps.lanes
        for w, mask in vector_loop(e, 0, windows, lanes):
            self.dy[w] = load_value(dy, w, lanes, mask)
        columns = [taps.line(c) for c in range(taps.columns)]
        order = [(k, c) for k in range(taps.rows) for c in range(taps.columns)]

        def cell(k: int, c: int, w: Value) -> Value:
            residue, shift = columns[c]
            return self._cells(k, residue).load(w + shift, lanes)

        with e.loop(0, windows, lanes) as w:
            best = cell(*order[0], w)
            best = maximum(best, -math.inf)
            for tap in order[1:]:
                best = maximum(cell(*tap, w), best)  # The second one where the first is NaN.
            left, zero = self.dy.load(w, lanes), self._constant(0.0)
            for k, c in order:
                hit = cell(k, c, w) == best
                self._shares(k, c).store(w, select(hit, left, zero))
                left = select(hit, zero, left)

    def add(self, k: Value, to: Pointer, width: Value, fresh: Value) -> None:
        """Add the share of row k of taps to a row of the result; store it where that is fresh."""
        e, taps = self.e, self.taps
        lines = [self._shares(k, c) for c in range(taps.columns)]
        with e.when(fresh):
            write_row(e, taps, lines, self.row, (to, width), old=False)
        with e.otherwise():
            write_row(e, taps, lines, self.row, (to, width), old=True)


def write_row(
    e: Builder,
    taps: Taps,
    lines: Sequence[Pointer],
    spare: Pointer,
    row: tuple[Pointer, Value],
    *,
    old: bool,
) -> None:
    """Write the shares of columns of taps, one line each, to a row of the result (place, cells).

    With `old` it is added to what is there. The spare line takes the row's end.
    """
    (to, width), lanes = row, taps.lanes
    whole = width & (-taps.step * lanes)

    def put(place: Value, value: Value, mask: Value | None = None) -> None:
        known = value + load_value(to, place, lanes, mask) if old else value
        store_value(to, place, known, mask)

    with e.loop(0, whole, taps.step * lanes) as j:
        for v, value in enumerate(_columns(taps, lines, j)):
            put(j + v * lanes, value)
    with e.when(whole < width):
        for v, value in enumerate(_columns(taps, lines, whole)):
            spare[v * lanes] = value
        rest = vector_loop if old else overlapping_loop
        for j, mask in rest(e, whole, width, lanes):
            put(j, spare.load(j - whole, lanes), mask)


def _columns(taps: Taps, lines: Sequence[Pointer], first: Value) -> list[Value]:
    """The sums of `step` vectors of columns, which begin at a multiple of `step`."""
    made, i = [], first // taps.step
    for residue in range(taps.step):
        parts = [
            line.load(i - shift, taps.lanes)
            for line, (owner, shift) in zip(lines, map(taps.line, range(taps.columns)), strict=True)
            if owner == residue
        ]
        nothing = i.home.constant(0.0, lines[0].dtype, taps.lanes)
        made.append(functools.reduce(operator.add, parts or [nothing]))
    return made if taps.step == 1 else mingled(made)
