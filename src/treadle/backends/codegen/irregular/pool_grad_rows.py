"""Gradients of max_pool by whole rows: first the places of a row's maxima, in vectors, then sums.

The first maximum of a window is found in two steps. Of the cells above one another the first
greatest is kept with the number of its row; of such columns the greatest wins, of equals the one
whose row is the first, of those the leftmost. Columns are shared by windows that overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.pool_rows import LONGEST, cells_of, lowest
from treadle.backends.codegen.irregular.pool_tables import Axis, Geometry, arguments_of, table_of
from treadle.backends.codegen.irregular.rows import (
    over_rows,
    row_kernel,
    vector_loop,
)
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
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


def takes_plane(x: TensorType) -> bool:
    """Whether places in a plane of x fit what they are kept in."""
    return size_of(x.shape[2:]) < _NOWHERE


def lower_grad_rows(window: Window, axes: Sequence[Axis], x: TensorType, target: Target) -> Lowered:
    """One launch over planes; sums of 16-bit floats are kept in a float32 workspace."""
    out, wide, planes = Ref("output", 0), compute_type(x.dtype), product(x.shape[:2])
    half, count = wide is not x.dtype, product(x.shape)
    sums = Ref("workspace", 0) if half else out
    shape = int(window.kernel[-1]), window.strides[-1], window.dilation[-1], target.lanes(wide)
    kernel = _kernel(x.dtype, shape)
    padding = window.padding[-1][0]
    refs = sums, Ref("input", 0), Ref("input", 1)
    rows = axes[0].count * axes[1].count
    cost = rows * (10 + axes[2].count * (2 + 0.3 * shape[0]) + axes[2].extent * 0.5)
    arguments = (*refs, padding, *arguments_of(axes))
    launches: tuple[Launch, ...] = (over_rows(kernel, arguments, planes, cost),)
    if half:
        launches += (convert(out, sums, x.dtype, dt.float32, count, target),)
    return Lowered(launches, (4 * count,) if half else (), (table_of(axes),))


@dataclass(frozen=True, slots=True)
class _Line:
    """Columns on the stack: their greatest values, the first rows that have them; the results."""

    values: Value
    rows: Value
    places: Value
    lanes: int

    def blank(self, b: Builder) -> Value:
        """What columns without cells hold."""
        return b.constant(lowest(self.values.dtype), self.values.dtype, self.lanes)

    def clear(self, b: Builder) -> None:
        """No column has cells."""
        value = self.blank(b)
        nowhere = b.constant(_NOWHERE, dt.int32, self.lanes)

        def blank(i: Value) -> None:
            b.store(self.values, i, value)
            b.store(self.rows, i, nowhere)

        b.loop(0, LONGEST, self.lanes, blank)


@cache
def _kernel(dtype: DType, shape: tuple[int, int, int, int]) -> Kernel:
    """Each row of the launch is a plane."""
    wide, lanes = compute_type(dtype), shape[3]
    target, x, dy = pointer(wide, "target"), pointer(dtype, "x"), pointer(dtype, "dy")
    geometry, padding = Geometry(), size("padding")

    def body(b: Builder, first: Value, stop: Value) -> None:
        kept = [b.stack(kind, LONGEST) for kind in (wide, dt.int32, dt.int32)]
        line = _Line(kept[0], kept[1], kept[2], lanes)
        line.clear(b)
        cells, (depths, heights, widths) = geometry.cells(b), geometry.counts
        windows = b.mul(b.mul(depths, heights), widths)

        def plane(i: Value) -> None:
            to, source = b.offset(target, b.mul(i, cells)), b.offset(x, b.mul(i, cells))
            given = b.offset(dy, b.mul(i, windows))
            b.zero(to, cells)

            def row(d: Value, h: Value) -> None:
                over = geometry.window(b, 0, d), geometry.window(b, 1, h)
                below = [b.compare("lt", low, high) for low, high, _ in over]

                def spread() -> None:
                    _columns(b, geometry, source, line, padding, over)
                    _places(b, line, padding, widths, shape)
                    begin = b.mul(b.add(b.mul(d, heights), h), widths)
                    row_dy = b.offset(given, begin)
                    _add_row(b, to, row_dy, line.places, widths)

                b.branch(b.bitwise("and", *below), spread)

            b.loop(0, depths, 1, lambda d: b.loop(0, heights, 1, lambda h: row(d, h)))

        b.loop(first, stop, 1, plane)

    name = f"pool_grad_rows_{dtype.name}_" + "_".join(map(str, shape))
    return row_kernel(name, (target, x, dy, padding, *geometry.parameters), body)


def _wins(b: Builder, x: Value, best: Value) -> Value:
    """x > best, and NaN before numbers."""
    return b.bitwise("and", b.invert(b.compare("le", x, best)), b.compare("eq", best, best))


def _columns(
    b: Builder,
    geometry: Geometry,
    source: Value,
    line: _Line,
    padding: Value,
    over: Sequence[tuple[Value, Value, Value]],
) -> None:
    """The first greatest cell of every column, in rows d0 to d1 of h0 to h1."""
    _, height, width = geometry.extents
    (d0, d1, _), (h0, h1, _) = over
    (step_d, step_h, _), lanes = geometry.dilations, line.lanes

    def some(w: Value, mask: Value | None) -> None:
        def at(d: Value, h: Value) -> tuple[Value, Value]:
            row = b.mul(b.add(b.mul(d, height), h), width)
            value = load_value(source, b.add(row, w), lanes, mask)
            return value, b.splat(b.cast(row, dt.int32), lanes)

        def layer(d: Value, begin: Value, found: tuple[Value, ...]) -> tuple[Value, ...]:
            def one(h: Value, best: Value, row: Value) -> tuple[Value, ...]:
                value, here = at(d, h)
                wins = _wins(b, value, best)
                return b.select(wins, value, best), b.select(wins, here, row)

            return b.loop(begin, h1, step_h, one, found)

        first = layer(d0, b.add(h0, step_h), at(d0, h0))
        others = b.add(d0, step_d), d1, step_d
        best, row = b.loop(*others, lambda d, *found: layer(d, h0, found), first)
        if mask is not None:
            # Whole vectors are stored: what lies behind the row stays blank.
            best, row = b.select(mask, best, line.blank(b)), b.select(mask, row, _NOWHERE)
        b.store(line.values, b.add(padding, w), best)
        b.store(line.rows, b.add(padding, w), row)

    vector_loop(b, 0, width, lanes, some)


def _places(
    b: Builder, line: _Line, padding: Value, widths: Value, shape: tuple[int, int, int, int]
) -> None:
    """The place in the plane of every window's maximum, or `_NOWHERE`."""
    cells, step, dilation, lanes = shape
    first = b.mul(b.iota(dt.int32, lanes), step) if lanes > 1 else b.constant(0, dt.int32)

    def some(w: Value) -> None:
        start = b.mul(w, step)
        values = cells_of(b, line.values, start, shape)
        rows = cells_of(b, line.rows, start, shape)
        column = b.add(b.splat(b.cast(b.sub(start, padding), dt.int32), lanes), first)
        best, row, at = values[0], rows[0], column
        for k in range(1, cells):
            ahead, behind = _wins(b, values[k], best), _wins(b, best, values[k])
            level = b.invert(b.bitwise("or", ahead, behind))
            above = b.bitwise("and", level, b.compare("lt", rows[k], row))
            wins = b.bitwise("or", ahead, above)
            best, row = b.select(wins, values[k], best), b.select(wins, rows[k], row)
            at = b.select(wins, b.add(column, k * dilation), at)
        known = b.compare("ne", row, _NOWHERE)
        b.store(line.places, w, b.select(known, b.add(row, at), _NOWHERE))

    # Whole vectors: the line is longer than the row.
    b.loop(0, widths, lanes, some)


def _add_row(b: Builder, to: Value, dy: Value, places: Value, widths: Value) -> None:
    """dy added at the places of a row of windows."""

    def one(w: Value) -> None:
        found = b.load(places, w)

        def add() -> None:
            place = b.cast(found, dt.int64)
            b.store(to, place, b.add(b.load(to, place), load_value(dy, w)))

        b.branch(b.compare("ne", found, _NOWHERE), add)

    b.loop(0, widths, 1, one)
