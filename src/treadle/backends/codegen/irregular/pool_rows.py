"""Pooling by whole rows: rows of cells are combined to one line, and that line to a row of windows.

The line lies on the stack with its padding, so that all windows are alike; it is read in vectors,
in steps of one or two cells by shuffles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial, reduce
from typing import Literal

import numpy as np

from treadle.backends.codegen.irregular.pool_tables import (
    Bounds,
    Geometry,
    OpenAxis,
    WindowAxis,
    Windows,
    arguments_of,
    with_table,
)
from treadle.backends.codegen.irregular.rows import (
    RowBuilder,
    RowParameters,
    over_rows,
    overlapping_loop,
    vector_loop,
)
from treadle.backends.codegen.kernel.builder import builder_of
from treadle.backends.codegen.kernel.language import (
    Number,
    Pointer,
    Value,
    maximum,
    select,
    shuffle,
)
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.estimates import at_most, estimate
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type
from treadle.ops.windows import Window

LONGEST = 4096
"""Cells of a line, padding included."""
_WIDEST = 16
"""Cells of a window along a line, which are written out."""

Kind = Literal["max", "average"]


def takes(window: Window, x: TensorType, target: Target) -> bool:
    """Return whether lines of x and windows over them are short enough."""
    longest = at_most(x.shape[-1])
    if longest is None:
        return False
    width = longest + sum(window.padding[-1])
    reach = (int(window.kernel[-1]) - 1) * window.dilation[-1]
    spare = window.strides[-1] * 2 * target.lanes(x.dtype) + reach
    return int(window.kernel[-1]) <= _WIDEST and width + spare <= LONGEST


def lowest(dtype: DType) -> Number:
    """Return the number that no element is below."""
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def number(value: Number, like: Value) -> Value:
    """A constant of another value's type."""
    return like.constant(float(value) if like.dtype.is_float else value)


def lower_rows(
    window: Window,
    axes: Sequence[WindowAxis] | Sequence[OpenAxis],
    x: TensorType,
    kind: Kind,
    target: Target,
) -> Lowered:
    """One launch over the rows of windows."""
    cells, step = int(window.kernel[-1]), window.strides[-1]
    kernel = _kernel(kind, x.dtype, cells, step, window.dilation[-1], target.lanes(x.dtype))
    wide = dt.float64 if x.dtype is dt.float64 else dt.float32
    constants: list[Array] = []
    counts = None
    if kind == "average":
        if not isinstance(axes[2], WindowAxis):
            raise NotImplementedError("averages of rows of symbolic extents")
        constants.append(axes[2].windows[:, 2].astype(wide.numpy))
        counts = Ref("constant", 1)
    rows = product(x.shape[:2]) * axes[0].count * axes[1].count
    extent, count = estimate(axes[2].extent), estimate(axes[2].count)
    cost = 10 + 0.15 * (axes[1].cells * extent + 2 * cells * count)
    padding = window.padding[-1][0]
    given = _PooledRows(Ref("output", 0), Ref("input", 0), counts, padding, arguments_of(axes))
    launch = over_rows(kernel, given, rows, cost)
    return with_table(axes, Lowered((launch,), constants=tuple(constants)))


class _PooledRows(RowParameters[P, S], windows=Windows):
    counts: P | None
    padding: S
    windows: Windows[P, S]


@cache
def _kernel(
    kind: Kind, dtype: DType, cells: int, step: int, dilation: int, lanes: int
) -> RecordedKernel:
    e, wide = RowBuilder(), compute_type(dtype)
    counts = wide if kind == "average" else None
    p = e.record(_PooledRows[Pointer, Value], target=dtype, x=dtype, counts=counts)
    geometry = p.windows
    line = e.stack(wide, LONGEST)
    blank = e.constant(0 if kind == "average" else lowest(dtype), wide, lanes)
    with e.loop(0, LONGEST, lanes) as i:
        line[i] = blank
    inside, plane_size = line + p.padding, geometry.cells()
    depths, heights, widths = geometry.counts
    with e.rows(depths, depths, heights) as (row, plane, d, h):
        source = p.x + plane * plane_size
        over_d, over_h = geometry.window(0, d), geometry.window(1, h)
        _combine_rows(kind, geometry, source, inside, (over_d, over_h), blank)
        to, outside = row * widths, over_d[2] * over_h[2]
        for w, mask in overlapping_loop(e, 0, widths, lanes):
            value = _along(kind, line, w * step, (cells, step, dilation, lanes))
            if p.counts is not None:
                across = p.counts.load(w, lanes, mask)
                counted = across * outside.cast(wide).splat(lanes)
                value = value / maximum(counted, 1.0)
            store_value(p.target, to + w, value, mask)
    name = f"pool_rows_{kind}_{dtype.name}_{cells}_{step}_{dilation}"
    return RecordedKernel(e.kernel(name), p)


def _merge(kind: Kind, x: Value, y: Value) -> Value:
    """The sum, or the greater one; NaN where either is."""
    if kind == "average":
        return x + y
    greater = maximum(x, y)  # y where either is NaN
    return select(x != x, x, greater) if x.dtype.is_float else greater


def _combine_rows(
    kind: Kind, geometry: Geometry, source: Pointer, line: Pointer, bounds: Bounds, blank: Value
) -> None:
    """Every cell of the line from the cells above one another in the windows' rows."""
    e, (_, height, width) = geometry.e, geometry.extents
    (d0, d1, _), (h0, h1, _) = bounds
    step_d, step_h = geometry.dilations[:2]
    for w, mask in vector_loop(e, 0, width, blank.lanes):
        found = [blank]
        with (
            e.loop(d0, d1, step_d, carrying=found) as d,
            e.loop(h0, h1, step_h, carrying=found) as h,
        ):
            place = (d * height + h) * width + w
            found[0] = _merge(kind, found[0], load_value(source, place, blank.lanes, mask))
        # Whole vectors: what lies behind the row stays blank.
        line[w] = found[0] if mask is None else select(mask, found[0], blank)


def _along(kind: Kind, line: Pointer, start: Value, window: tuple[int, int, int, int]) -> Value:
    """Windows side by side, the first of which begins at `start`."""
    return reduce(partial(_merge, kind), cells_of(line, start, window))


def cells_of(line: Pointer, start: Value, window: tuple[int, int, int, int]) -> list[Value]:
    """Cell by cell of a window (cells, step, dilation, lanes): those of `lanes` windows."""
    count, step, dilation, lanes = window
    pairs: dict[int, tuple[Value, Value]] = {}

    def cell(at: int) -> Value:
        if step == 1 or lanes == 1:
            return line.load(start + at, lanes)
        if step > 2:
            places = (start + at).splat(lanes) + builder_of(start).iota(dt.int64, lanes) * step
            return line.gather(places)
        even = at & ~1
        if even not in pairs:
            low = start + even
            pairs[even] = line.load(low, lanes), line.load(low + lanes, lanes)
        return shuffle(*pairs[even], range(at & 1, 2 * lanes, 2))

    return [cell(k * dilation) for k in range(count)]
