"""Gradients of max_pool by whole rows: first the places of a row's maxima, in vectors, then sums.

The first maximum of a window is found in two steps. Of the cells above one another the first
greatest is kept with the number of its row; of such columns the greatest wins, of equals the one
whose row is the first, of those the leftmost. Columns are shared by windows that overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.pool_rows import LONGEST, cells_of, lowest
from treadle.backends.codegen.irregular.pool_tables import (
    Bounds,
    Geometry,
    WindowAxis,
    Windows,
    arguments_of,
    table_of,
)
from treadle.backends.codegen.irregular.rows import Gradient, RowBuilder, over_rows, vector_loop
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import Pointer, Value, select
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.shape import product, size_of
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type
from treadle.ops.windows import Window

_NOWHERE = 2**31 - 1
"""The place of no cell: behind all others."""
Cell = Callable[[Value, Value], tuple[Value, Value]]
"""A column's value in a row, and the row."""


def takes_plane(x: TensorType) -> bool:
    """Return whether places in a plane of x fit what they are kept in."""
    return size_of(x.shape[2:]) < _NOWHERE


def lower_grad_rows(
    window: Window, axes: Sequence[WindowAxis], x: TensorType, target: Target
) -> Lowered:
    """One launch over planes; sums of 16-bit floats are kept in a float32 workspace."""
    out, wide, planes = Ref("output", 0), compute_type(x.dtype), product(x.shape[:2])
    half, count = wide is not x.dtype, product(x.shape)
    sums = Ref("workspace", 0) if half else out
    shape = int(window.kernel[-1]), window.strides[-1], window.dilation[-1], target.lanes(wide)
    kernel = _kernel(x.dtype, shape)
    padding = window.padding[-1][0]
    given = _RowPlanes(sums, Ref("input", 0), Ref("input", 1), padding, arguments_of(axes))
    rows = axes[0].count * axes[1].count
    cost = rows * (10 + axes[2].count * (2 + 0.3 * shape[0]) + axes[2].extent * 0.5)
    launches: tuple[Launch, ...] = (over_rows(kernel, given, planes, cost),)
    if half:
        launches += (convert(out, sums, x.dtype, dt.float32, count, target),)
    return Lowered(launches, (4 * count,) if half else (), (table_of(axes),))


@dataclass(frozen=True, slots=True)
class _Line:
    """Columns on the stack: their greatest values, the first rows that have them; the results."""

    values: Pointer
    rows: Pointer
    places: Pointer
    blank: Value  # what columns without cells hold

    @property
    def lanes(self) -> int:
        """Columns that are stored at once."""
        return self.blank.lanes

    def clear(self, e: Builder) -> None:
        """Mark all columns as having no cells."""
        nowhere = e.constant(_NOWHERE, dt.int32, self.lanes)
        with e.loop(0, LONGEST, self.lanes) as i:
            self.values[i] = self.blank
            self.rows[i] = nowhere


class _RowPlanes(Gradient[P, S], windows=Windows):
    padding: S
    windows: Windows[P, S]


@cache
def _kernel(dtype: DType, shape: tuple[int, int, int, int]) -> RecordedKernel:
    """Return the kernel; each row of the launch is a plane."""
    wide, lanes = compute_type(dtype), shape[3]
    e = RowBuilder()
    p = e.record(_RowPlanes[Pointer, Value], target=wide, x=dtype, dy=dtype)
    padding, geometry = p.padding, p.windows
    kept = [e.stack(kind, LONGEST) for kind in (wide, dt.int32, dt.int32)]
    line = _Line(kept[0], kept[1], kept[2], e.constant(lowest(wide), wide, lanes))
    line.clear(e)
    cells, (depths, heights, widths) = geometry.cells(), geometry.counts
    windows = depths * heights * widths
    with e.loop(e.first, e.stop) as i:
        to, source = p.target + i * cells, p.x + i * cells
        given = p.dy + i * windows
        to.zero(cells)
        with e.loop(depths) as d, e.loop(heights) as h:
            over_d, over_h = geometry.window(0, d), geometry.window(1, h)
            with e.when((over_d[0] < over_d[1]) & (over_h[0] < over_h[1])):
                _columns(geometry, source, line, padding, (over_d, over_h))
                _places(e, line, padding, widths, shape)
                begin = (d * heights + h) * widths
                _add_row(e, to, given + begin, line.places, widths)
    name = f"pool_grad_rows_{dtype.name}_" + "_".join(map(str, shape))
    return RecordedKernel(e.kernel(name), p)


def _wins(x: Value, best: Value) -> Value:
    """x > best, and NaN before numbers."""
    return ~(x <= best) & (best == best)


def _columns(
    geometry: Geometry, source: Pointer, line: _Line, padding: Value, over: Bounds
) -> None:
    """The first greatest cell of every column, in rows d0 to d1 of h0 to h1."""
    e, (_, height, width) = geometry.e, geometry.extents
    (d0, d1, _), (h0, h1, _) = over
    (step_d, step_h, _), lanes = geometry.dilations, line.lanes
    for w, mask in vector_loop(e, 0, width, lanes):

        def at(d: Value, h: Value, w: Value = w, mask: Value | None = mask) -> tuple[Value, Value]:
            row = (d * height + h) * width
            value = load_value(source, row + w, lanes, mask)
            return value, row.cast(dt.int32).splat(lanes)

        def layer(d: Value, begin: Value, found: list[Value], at: Cell = at) -> None:
            with e.loop(begin, h1, step_h, carrying=found) as h:
                best, row = found
                value, here = at(d, h)
                wins = _wins(value, best)
                found[:] = select(wins, value, best), select(wins, here, row)

        begin, found = h0 + step_h, [*at(d0, h0)]
        layer(d0, begin, found)
        with e.loop(d0 + step_d, d1, step_d, carrying=found) as d:
            layer(d, h0, found)
        best, row = found
        if mask is not None:
            # Whole vectors are stored: what lies behind the row stays blank.
            best, row = select(mask, best, line.blank), select(mask, row, _NOWHERE)
        line.values.store(padding + w, best)
        line.rows.store(padding + w, row)


def _places(
    e: Builder, line: _Line, padding: Value, widths: Value, shape: tuple[int, int, int, int]
) -> None:
    """The place in the plane of every window's maximum, or `_NOWHERE`."""
    cells, step, dilation, lanes = shape
    first = e.iota(dt.int32, lanes) * step if lanes > 1 else e.constant(0, dt.int32)
    # Whole vectors: the line is longer than the row.
    with e.loop(0, widths, lanes) as w:
        start = w * step
        values = cells_of(line.values, start, shape)
        rows = cells_of(line.rows, start, shape)
        column = (start - padding).cast(dt.int32).splat(lanes) + first
        best, row, at = values[0], rows[0], column
        for k in range(1, cells):
            ahead, behind = _wins(values[k], best), _wins(best, values[k])
            level = ~(ahead | behind)
            above = level & (rows[k] < row)
            wins = ahead | above
            best, row = select(wins, values[k], best), select(wins, rows[k], row)
            at = select(wins, column + k * dilation, at)
        known = row != _NOWHERE
        line.places[w] = select(known, row + at, _NOWHERE)


def _add_row(e: Builder, to: Pointer, dy: Pointer, places: Pointer, widths: Value) -> None:
    """dy added at the places of a row of windows."""
    with e.loop(widths) as w:
        found = places[w]
        with e.when(found != _NOWHERE):
            place = found.cast(dt.int64)
            to[place] += load_value(dy, w)
