"""Pooling, cell by cell: maxima, averages, their gradients, and gathers at maxima, of any windows.

`pool_rows` is quicker for what it takes. Gradients are scattered plane by plane, in the order of
the windows; sums of 16-bit floats are kept in a float32 workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Literal

import numpy as np

from treadle.backends.codegen.irregular import pool_rows
from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.pool_grad_average import lower_average_rows
from treadle.backends.codegen.irregular.pool_grad_pairs import are_pairs, lower_grad_pairs
from treadle.backends.codegen.irregular.pool_grad_planes import lower_grad_planes, row_taps, taps_of
from treadle.backends.codegen.irregular.pool_grad_rows import lower_grad_rows, takes_plane
from treadle.backends.codegen.irregular.pool_maximum import Bounds, find_maximum
from treadle.backends.codegen.irregular.pool_tables import (
    Axis,
    Geometry,
    OpenAxis,
    adaptive,
    arguments_of,
    covers,
    is_open,
    moving,
    open_adaptive,
    open_moving,
    with_table,
)
from treadle.backends.codegen.irregular.rows import over_rows, row_kernel, vector_loop, walk
from treadle.backends.codegen.irregular.scatter import is_half
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import Shape, product
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.adaptive_pool import (
    AdaptiveAvgPool,
    AdaptiveAvgPoolGrad,
    AdaptiveMaxPool,
    AdaptiveMaxPoolGather,
    AdaptiveMaxPoolGrad,
)
from treadle.ops.pool import (
    AverageWindow,
    AvgPool,
    AvgPoolGrad,
    MaxPool,
    MaxPoolGather,
    MaxPoolGrad,
    MaxWindow,
    Pooling,
)
from treadle.ops.precision import compute_type
from treadle.ops.windows import Window

Kind = Literal["max", "max_gather", "average"]
Axes = Sequence[Axis] | Sequence[OpenAxis]


def windows_of(op: Pooling, spatial: Shape) -> tuple[Window | None, tuple[Axis, ...]]:
    """The windows of an op over these extents; as moving ones, too, where they are."""
    if isinstance(op, AverageWindow):
        return op.window, moving(op.window, spatial, op.count_include_pad)
    if isinstance(op, MaxWindow):
        return op.window, moving(op.window, spatial)
    counts = [int(m) for m in op.extents(spatial, "")]
    axes = adaptive(spatial, counts)
    if any(int(n) % m for n, m in zip(spatial, counts, strict=True)):
        return None, axes
    steps = tuple(int(n) // m for n, m in zip(spatial, counts, strict=True))
    return Window(steps, steps, ((0, 0),) * len(steps), (1,) * len(steps)), axes


def _planes(x: TensorType) -> Dim:
    return product(x.shape[:2])


def _window_cells(axes: Axes) -> float:
    """About how many cells a window has."""
    return float(np.prod([a.cells for a in axes]))


@lowers(MaxPool, AdaptiveMaxPool, AvgPool, AdaptiveAvgPool)
def lower_pool(
    op: Pooling, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """A row of windows at a time."""
    x = types[0]
    kind: pool_rows.Kind = "max" if isinstance(op, (MaxPool, AdaptiveMaxPool)) else "average"
    if is_open(x.shape[2:]):
        return _lower_open(kind, op, x, target)
    window, axes = windows_of(op, x.shape[2:])
    if kind == "average" and covers(axes):
        return _plane_average(x, target)
    if window is not None and pool_rows.takes(window, x, target):
        return pool_rows.lower_rows(window, axes, x, kind, target)
    return _pooled(kind, x, axes)


def open_windows(op: Pooling, spatial: Shape) -> tuple[OpenAxis, ...]:
    """The windows of an op over extents that are expressions."""
    if isinstance(op, AverageWindow):
        return open_moving(op.window, spatial, op.count_include_pad)
    if isinstance(op, MaxWindow):
        return open_moving(op.window, spatial)
    return open_adaptive(spatial, [int(m) for m in op.extents(spatial, "")])


def _lower_open(kind: pool_rows.Kind, op: Pooling, x: TensorType, target: Target) -> Lowered:
    axes = open_windows(op, x.shape[2:])
    is_one = not isinstance(op, (AverageWindow, MaxWindow)) and all(a.count == 1 for a in axes)
    if kind == "average" and is_one:
        return _plane_average(x, target)
    if kind == "max" and isinstance(op, MaxWindow) and pool_rows.takes(op.window, x, target):
        return pool_rows.lower_rows(op.window, axes, x, kind, target)
    return _pooled(kind, x, axes)


@lowers(MaxPoolGather, AdaptiveMaxPoolGather)
def lower_gather(
    op: Pooling, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """A row of windows at a time."""
    spatial = types[0].shape[2:]
    if is_open(spatial):
        return _pooled("max_gather", types[0], open_windows(op, spatial))
    return _pooled("max_gather", types[0], windows_of(op, spatial)[1])


def _plane_average(x: TensorType, target: Target) -> Lowered:
    """One window that covers every plane."""
    cells = product(x.shape[2:])
    kernel = _plane_kernel(x.dtype, target.lanes(x.dtype))
    arguments = (Ref("output", 0), Ref("input", 0), cells)
    return Lowered((over_rows(kernel, arguments, _planes(x), 8 + estimate(cells) * 0.15),))


@cache
def _plane_kernel(dtype: DType, lanes: int) -> Kernel:
    """Each row of the launch is a plane, summed in two vectors in turns."""
    target, x, cells = pointer(dtype, "target"), pointer(dtype, "x"), size("cells")
    wide = compute_type(dtype)

    def body(b: Builder, first: Value, stop: Value) -> None:
        def plane(i: Value) -> None:
            source = b.offset(x, b.mul(i, cells))

            def some(j: Value, mask: Value | None, one: Value, two: Value) -> tuple[Value, Value]:
                return two, b.add(one, load_value(source, j, lanes, mask))

            zero = b.constant(0.0, wide, lanes)
            total = b.reduce("add", b.add(*vector_loop(b, 0, cells, lanes, some, (zero, zero))))
            store_value(target, i, b.div(total, b.cast(cells, wide)))

        b.loop(first, stop, 1, plane)

    return row_kernel(f"plane_average_{dtype.name}", (target, x, cells), body)


def _pooled(kind: Kind, x: TensorType, axes: Axes) -> Lowered:
    refs = [Ref("output", 0), Ref("input", 0)]
    if kind == "max_gather":
        refs.append(Ref("input", 1))
    rows = _planes(x) * axes[0].count * axes[1].count
    cost = estimate(axes[2].count) * (4 + 1.5 * _window_cells(axes))
    kernel = _pool_kernel(kind, x.dtype)
    launch = over_rows(kernel, (*refs, *arguments_of(axes)), rows, cost)
    return with_table(axes, Lowered((launch,)))


@cache
def _pool_kernel(kind: Kind, dtype: DType) -> Kernel:
    target, x, geometry = pointer(dtype, "target"), pointer(dtype, "x"), Geometry()
    values = [pointer(dtype, "values")] if kind == "max_gather" else []
    depths, heights, widths = geometry.counts

    def body(b: Builder, first: Value, stop: Value) -> None:
        cells = geometry.cells(b)

        def line(row: Value, plane: Value, d: Value, h: Value) -> None:
            begin = b.mul(plane, cells)
            source = b.offset(x, begin)
            others = [b.offset(v, begin) for v in values]
            outside = geometry.window(b, 0, d), geometry.window(b, 1, h)

            def one(w: Value) -> None:
                bounds = (*outside, geometry.window(b, 2, w))
                place = b.add(b.mul(row, widths), w)
                if kind == "average":
                    store_value(target, place, _average(b, geometry, source, bounds))
                else:
                    _store_maximum(b, geometry, source, bounds, (target, place), others)

            b.loop(0, widths, 1, one)

        walk(b, first, stop, (depths, depths, heights), line)

    return row_kernel(f"pool_{kind}_{dtype.name}", (target, x, *values, *geometry.parameters), body)


def _store_maximum(
    b: Builder,
    geometry: Geometry,
    source: Value,
    bounds: Bounds,
    to: tuple[Value, Value],
    values: Sequence[Value],
) -> None:
    """The maximum itself, or what stands there in `values`."""
    target, place = to
    best, at = find_maximum(b, geometry, source, bounds)
    known = b.compare("le", 0, at)
    if values:
        found, empty = load_value(values[0], b.max(at, 0)), pool_rows.number(b, 0, best)
    else:
        found, empty = best, pool_rows.number(b, pool_rows.lowest(target.dtype), best)
    store_value(target, place, b.select(known, found, empty))


def _average(b: Builder, geometry: Geometry, source: Value, bounds: Bounds) -> Value:
    wide = compute_type(source.dtype)

    def cell(place: Value, total: Value) -> tuple[Value, ...]:
        return (b.add(total, load_value(source, place)),)

    (total,) = geometry.over(b, bounds, cell, (b.constant(0.0, wide),))
    return b.div(total, _divisor(b, bounds, wide))


def _divisor(b: Builder, bounds: Bounds, wide: DType) -> Value:
    counted = b.mul(b.mul(bounds[0][2], bounds[1][2]), bounds[2][2])
    return b.cast(b.max(counted, 1), wide)


# -- gradients ---------------------------------------------------------------------------------


@lowers(MaxPoolGrad, AdaptiveMaxPoolGrad)
def lower_maxima_grad(
    op: Pooling, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """dy to the first maximum of every window, plane by plane."""
    x = types[0]
    if is_open(x.shape[2:]):
        return _spread(True, x, x, open_windows(op, x.shape[2:]), target)
    window, axes = windows_of(op, x.shape[2:])
    if window is not None and are_pairs(window, axes):
        return lower_grad_pairs(axes, x, target)
    taps = None if window is None else taps_of(window, axes, target.lanes(x.dtype))
    if window is not None and taps is not None:
        return lower_grad_planes(taps, window, axes, x, target)
    if window is not None and takes_plane(x) and pool_rows.takes(window, x, target):
        return lower_grad_rows(window, axes, x, target)
    return _spread(True, x, x, axes, target)


@lowers(AvgPoolGrad, AdaptiveAvgPoolGrad)
def lower_averages_grad(
    op: AvgPoolGrad | AdaptiveAvgPoolGrad,
    types: tuple[TensorType, ...],
    frozen: tuple[bool, ...],
    target: Target,
) -> Lowered:
    """dy, divided, to all cells of every window, plane by plane."""
    result, dtype = op.infer(types[0])[0], types[0].dtype
    if is_open(op.spatial):
        return _spread(False, types[0], result, open_windows(op, op.spatial), target)
    window, axes = windows_of(op, op.spatial)
    taps = None if window is None else row_taps(window, axes, 1, target.lanes(dtype))
    if taps is not None:
        return lower_average_rows(taps, axes, types[0])
    return _spread(False, types[0], result, axes, target)


def _spread(
    maxima: bool, given: TensorType, result: TensorType, axes: Axes, target: Target
) -> Lowered:
    dtype, count = given.dtype, product(result.shape)
    out, half = Ref("output", 0), is_half(given.dtype)
    sums = Ref("workspace", 0) if half else out
    refs = (sums, Ref("input", 0), Ref("input", 1)) if maxima else (sums, Ref("input", 0))
    windows = float(np.prod([estimate(a.count) for a in axes]))
    cost = windows * (6 + 1.5 * _window_cells(axes))
    kernel = _spread_kernel(maxima, dtype)
    arguments = (*refs, *arguments_of(axes))
    launches: tuple[Launch, ...] = (over_rows(kernel, arguments, _planes(given), cost),)
    if half:
        launches += (convert(out, sums, dtype, dt.float32, count, target),)
    return with_table(axes, Lowered(launches, (4 * count,) if half else ()))


@cache
def _spread_kernel(maxima: bool, dtype: DType) -> Kernel:
    """Each row of the launch is a plane."""
    wide = compute_type(dtype)
    target, geometry = pointer(wide, "target"), Geometry()
    dy, xs = pointer(dtype, "dy"), [pointer(dtype, "x")] if maxima else []

    def body(b: Builder, first: Value, stop: Value) -> None:
        cells = geometry.cells(b)
        depths, heights, widths = geometry.counts
        windows = b.mul(b.mul(depths, heights), widths)

        def plane(i: Value) -> None:
            begin = b.mul(i, cells)
            to, origin = b.offset(target, begin), b.offset(dy, b.mul(i, windows))
            b.zero(to, cells)

            def one(number: Value, bounds: Bounds) -> None:
                value = load_value(origin, number)
                if maxima:
                    _, at = find_maximum(b, geometry, b.offset(xs[0], begin), bounds)
                    b.branch(b.compare("le", 0, at), partial(_add, b, to, at, value))
                    return
                share = b.div(value, _divisor(b, bounds, wide))
                geometry.over(b, bounds, lambda place: _add(b, to, place, share))

            geometry.each_window(b, one)

        b.loop(first, stop, 1, plane)

    name = f"pool_grad_{'max' if maxima else 'average'}_{dtype.name}"
    return row_kernel(name, (target, *xs, dy, *geometry.parameters), body)


def _add(b: Builder, to: Value, place: Value, value: Value) -> tuple[Value, ...]:
    b.store(to, place, b.add(b.load(to, place), value))
    return ()
