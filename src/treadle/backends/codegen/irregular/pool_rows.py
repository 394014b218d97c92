"""Pooling by whole rows: rows of cells are combined to one line, and that line to a row of windows.

The line lies on the stack with its padding, so that all windows are alike; it is read in vectors,
in steps of one or two cells by shuffles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np

from treadle.backends.codegen.irregular.pool_tables import (
    Axis,
    Geometry,
    OpenAxis,
    arguments_of,
    with_table,
)
from treadle.backends.codegen.irregular.rows import (
    over_rows,
    overlapping_loop,
    row_kernel,
    vector_loop,
    walk,
)
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Number, Value, pointer, size
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Array, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import at_most, estimate
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.windows import Window

LONGEST = 4096
"""Cells of a line, padding included."""
_WIDEST = 16
"""Cells of a window along a line, which are written out."""

Kind = Literal["max", "average"]


def takes(window: Window, x: TensorType, target: Target) -> bool:
    """Whether lines of x and windows over them are short enough."""
    longest = at_most(x.shape[-1])
    if longest is None:
        return False
    width = longest + sum(window.padding[-1])
    reach = (int(window.kernel[-1]) - 1) * window.dilation[-1]
    spare = window.strides[-1] * 2 * target.lanes(x.dtype) + reach
    return int(window.kernel[-1]) <= _WIDEST and width + spare <= LONGEST


def lowest(dtype: DType) -> Number:
    """What no element is below."""
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def number(b: Builder, value: Number, like: Value) -> Value:
    """A constant of another value's type."""
    return b.constant(float(value) if like.dtype.is_float else value, like.dtype, like.lanes)


def lower_rows(
    window: Window,
    axes: Sequence[Axis] | Sequence[OpenAxis],
    x: TensorType,
    kind: Kind,
    target: Target,
) -> Lowered:
    """One launch over the rows of windows."""
    cells, step = int(window.kernel[-1]), window.strides[-1]
    kernel = _kernel(kind, x.dtype, cells, step, window.dilation[-1], target.lanes(x.dtype))
    wide = dt.float64 if x.dtype is dt.float64 else dt.float32
    constants: list[Array] = []
    refs = [Ref("output", 0), Ref("input", 0)]
    if kind == "average":
        if not isinstance(axes[2], Axis):
            raise NotImplementedError("averages of rows of symbolic extents")
        constants.append(axes[2].windows[:, 2].astype(wide.numpy))
        refs.append(Ref("constant", 1))
    rows = product(x.shape[:2]) * axes[0].count * axes[1].count
    extent, count = estimate(axes[2].extent), estimate(axes[2].count)
    cost = 10 + 0.15 * (axes[1].cells * extent + 2 * cells * count)
    padding = window.padding[-1][0]
    launch = over_rows(kernel, (*refs, padding, *arguments_of(axes)), rows, cost)
    return with_table(axes, Lowered((launch,), constants=tuple(constants)))


@cache
def _kernel(kind: Kind, dtype: DType, cells: int, step: int, dilation: int, lanes: int) -> Kernel:
    target, x, geometry = pointer(dtype, "target"), pointer(dtype, "x"), Geometry()
    wide = dt.float32 if dtype.is_float and dtype.itemsize == 2 else dtype
    counts = [pointer(wide, "counts")] if kind == "average" else []
    padding = size("padding")
    nothing: Number = 0 if kind == "average" else lowest(dtype)

    def body(b: Builder, first: Value, stop: Value) -> None:
        line = b.stack(wide, LONGEST)
        blank = b.constant(nothing, wide, lanes)
        b.loop(0, LONGEST, lanes, lambda i: b.store(line, i, blank))
        inside, plane_size = b.offset(line, padding), geometry.cells(b)
        depths, heights, widths = geometry.counts

        def row(number_: Value, plane: Value, d: Value, h: Value) -> None:
            source = b.offset(x, b.mul(plane, plane_size))
            over_d, over_h = geometry.window(b, 0, d), geometry.window(b, 1, h)
            _combine_rows(b, kind, geometry, source, inside, (over_d, over_h), blank)
            to, outside = b.mul(number_, widths), b.mul(over_d[2], over_h[2])

            def some(w: Value, mask: Value | None) -> None:
                value = _along(b, kind, line, b.mul(w, step), (cells, step, dilation, lanes))
                if counts:
                    across = b.load(counts[0], w, lanes, mask)
                    counted = b.mul(across, b.splat(b.cast(outside, wide), lanes))
                    value = b.div(value, b.max(counted, 1.0))
                store_value(target, b.add(to, w), value, mask)

            overlapping_loop(b, 0, widths, lanes, some)

        walk(b, first, stop, (depths, depths, heights), row)

    name = f"pool_rows_{kind}_{dtype.name}_{cells}_{step}_{dilation}"
    return row_kernel(name, (target, x, *counts, padding, *geometry.parameters), body)


def _merge(b: Builder, kind: Kind, x: Value, y: Value) -> Value:
    """The sum, or the greater one; NaN where either is."""
    if kind == "average":
        return b.add(x, y)
    greater = b.max(x, y)  # y where either is NaN
    return b.select(b.compare("ne", x, x), x, greater) if x.dtype.is_float else greater


def _combine_rows(
    b: Builder,
    kind: Kind,
    geometry: Geometry,
    source: Value,
    line: Value,
    bounds: Sequence[tuple[Value, Value, Value]],
    blank: Value,
) -> None:
    """Every cell of the line from the cells above one another in the windows' rows."""
    _, height, width = geometry.extents
    (d0, d1, _), (h0, h1, _) = bounds
    step_d, step_h = geometry.dilations[:2]

    def some(w: Value, mask: Value | None) -> None:
        def layer(d: Value, total: Value) -> tuple[Value, ...]:
            def one(h: Value, inner: Value) -> Value:
                place = b.add(b.mul(b.add(b.mul(d, height), h), width), w)
                return _merge(b, kind, inner, load_value(source, place, blank.lanes, mask))

            return b.loop(h0, h1, step_h, one, (total,))

        (total,) = b.loop(d0, d1, step_d, layer, (blank,))
        # Whole vectors: what lies behind the row stays blank.
        b.store(line, w, total if mask is None else b.select(mask, total, blank))

    vector_loop(b, 0, width, blank.lanes, some)


def _along(
    b: Builder, kind: Kind, line: Value, start: Value, window: tuple[int, int, int, int]
) -> Value:
    """Windows side by side, the first of which begins at `start`."""
    cells = cells_of(b, line, start, window)
    total = cells[0]
    for cell in cells[1:]:
        total = _merge(b, kind, total, cell)
    return total


def cells_of(
    b: Builder, line: Value, start: Value, window: tuple[int, int, int, int]
) -> list[Value]:
    """Cell by cell of a window (cells, step, dilation, lanes): those of `lanes` windows."""
    count, step, dilation, lanes = window
    pairs: dict[int, tuple[Value, Value]] = {}

    def cell(at: int) -> Value:
        if step == 1 or lanes == 1:
            return b.load(line, b.add(start, at), lanes)
        if step > 2:
            places = b.add(b.splat(b.add(start, at), lanes), b.mul(b.iota(dt.int64, lanes), step))
            return b.gather(line, places)
        even = at & ~1
        if even not in pairs:
            low = b.add(start, even)
            pairs[even] = b.load(line, low, lanes), b.load(line, b.add(low, lanes), lanes)
        return b.shuffle(*pairs[even], range(at & 1, 2 * lanes, 2))

    return [cell(k * dilation) for k in range(count)]
