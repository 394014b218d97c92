"""Pooling, cell by cell: maxima, averages, their gradients, and gathers at maxima, of any windows.

`pool_rows` is quicker for what it takes. Gradients are scattered plane by plane, in the order of
the windows; sums of 16-bit floats are kept in a float32 workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np

from treadle.backends.codegen.irregular import pool_rows
from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.pool_grad_average import lower_average_rows
from treadle.backends.codegen.irregular.pool_grad_pairs import are_pairs, lower_grad_pairs
from treadle.backends.codegen.irregular.pool_grad_planes import lower_grad_planes, row_taps, taps_of
from treadle.backends.codegen.irregular.pool_grad_rows import lower_grad_rows, takes_plane
from treadle.backends.codegen.irregular.pool_maximum import find_maximum
from treadle.backends.codegen.irregular.pool_tables import (
    Bounds,
    Geometry,
    OpenAxis,
    WindowAxis,
    Windows,
    adaptive,
    arguments_of,
    covers,
    is_open,
    moving,
    open_adaptive,
    open_moving,
    with_table,
)
from treadle.backends.codegen.irregular.rows import (
    RowBuilder,
    RowParameters,
    over_rows,
    vector_loop,
)
from treadle.backends.codegen.irregular.scatter import is_half
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, select
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
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
    SpreadAverages,
)
from treadle.ops.precision import compute_type
from treadle.ops.windows import Window

Kind = Literal["max", "max_gather", "average"]
Axes = Sequence[WindowAxis] | Sequence[OpenAxis]


def windows_of(op: Pooling, spatial: Shape) -> tuple[Window | None, tuple[WindowAxis, ...]]:
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
    given = _PooledPlanes(Ref("output", 0), Ref("input", 0), cells)
    return Lowered((over_rows(kernel, given, _planes(x), 8 + estimate(cells) * 0.15),))


class _PooledPlanes(RowParameters[P, S]):
    cells: S


@cache
def _plane_kernel(dtype: DType, lanes: int) -> RecordedKernel:
    """Return the kernel; each row of the launch is a plane, summed in two vectors in turns."""
    e, wide = RowBuilder(), compute_type(dtype)
    p = e.record(_PooledPlanes[Pointer, Value], target=dtype, x=dtype)
    with e.loop(e.first, e.stop) as i:
        source = p.x + i * p.cells
        sums = [e.constant(0.0, wide, lanes)] * 2
        for j, mask in vector_loop(e, 0, p.cells, lanes, carrying=sums):
            sums[:] = sums[1], sums[0] + load_value(source, j, lanes, mask)
        total = (sums[0] + sums[1]).reduce("add")
        store_value(p.target, i, total / p.cells.cast(wide))
    return RecordedKernel(e.kernel(f"plane_average_{dtype.name}"), p)


def _pooled(kind: Kind, x: TensorType, axes: Axes) -> Lowered:
    values = Ref("input", 1) if kind == "max_gather" else None
    rows = _planes(x) * axes[0].count * axes[1].count
    cost = estimate(axes[2].count) * (4 + 1.5 * _window_cells(axes))
    given = _Pooled(Ref("output", 0), Ref("input", 0), values, arguments_of(axes))
    launch = over_rows(_pool_kernel(kind, x.dtype), given, rows, cost)
    return with_table(axes, Lowered((launch,)))


class _Pooled(RowParameters[P, S], windows=Windows):
    values: P | None
    windows: Windows[P, S]


@cache
def _pool_kernel(kind: Kind, dtype: DType) -> RecordedKernel:
    e = RowBuilder()
    values = dtype if kind == "max_gather" else None
    p = e.record(_Pooled[Pointer, Value], target=dtype, x=dtype, values=values)
    geometry = p.windows
    depths, heights, widths = geometry.counts
    cells = geometry.cells()
    with e.rows(depths, depths, heights) as (row, plane, d, h):
        begin = plane * cells
        source = p.x + begin
        others = None if p.values is None else p.values + begin
        outside = geometry.window(0, d), geometry.window(1, h)
        with e.loop(widths) as w:
            bounds = (*outside, geometry.window(2, w))
            place = row * widths + w
            if kind == "average":
                result = _average(geometry, source, bounds)
            else:
                result = _maximum(e, geometry, source, bounds, others)
            store_value(p.target, place, result)
    return RecordedKernel(e.kernel(f"pool_{kind}_{dtype.name}"), p)


def _maximum(
    e: Builder, geometry: Geometry, source: Pointer, bounds: Bounds, values: Pointer | None
) -> Value:
    """The maximum itself, or what stands there in `values`."""
    best, at = find_maximum(e, geometry, source, bounds)
    known = at >= 0
    if values is not None:
        found = load_value(values, maximum(at, 0))
        return select(known, found, pool_rows.number(0, best))
    return select(known, best, pool_rows.number(pool_rows.lowest(source.dtype), best))


def _average(geometry: Geometry, source: Pointer, bounds: Bounds) -> Value:
    wide = compute_type(source.dtype)
    total = [geometry.e.constant(0.0, wide)]
    with geometry.over(bounds, carrying=total) as place:
        total[0] = total[0] + load_value(source, place)
    return total[0] / _divisor(bounds, wide)


def _divisor(bounds: Bounds, wide: DType) -> Value:
    counted = bounds[0][2] * bounds[1][2] * bounds[2][2]
    return maximum(counted, 1).cast(wide)


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
    op: SpreadAverages, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
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
    x, dy = (Ref("input", 0), Ref("input", 1)) if maxima else (None, Ref("input", 0))
    windows = float(np.prod([estimate(a.count) for a in axes]))
    cost = windows * (6 + 1.5 * _window_cells(axes))
    spread = _Spread(sums, x, dy, arguments_of(axes))
    launch = over_rows(_spread_kernel(maxima, dtype), spread, _planes(given), cost)
    launches: tuple[Launch, ...] = (launch,)
    if half:
        launches += (convert(out, sums, dtype, dt.float32, count, target),)
    return with_table(axes, Lowered(launches, (4 * count,) if half else ()))


class _Spread(Record[P, S], windows=Windows):
    target: P
    x: P | None
    dy: P
    windows: Windows[P, S]


@cache
def _spread_kernel(maxima: bool, dtype: DType) -> RecordedKernel:
    """Return the kernel; each row of the launch is a plane."""
    wide, x = compute_type(dtype), dtype if maxima else None
    e = RowBuilder()
    p = e.record(_Spread[Pointer, Value], target=wide, x=x, dy=dtype)
    geometry = p.windows
    cells = geometry.cells()
    depths, heights, widths = geometry.counts
    windows = depths * heights * widths
    with e.loop(e.first, e.stop) as i:
        begin = i * cells
        to, origin = p.target + begin, p.dy + i * windows
        to.zero(cells)
        with geometry.each_window() as (number, bounds):
            value = load_value(origin, number)
            if p.x is not None:
                _, at = find_maximum(e, geometry, p.x + begin, bounds)
                with e.when(at >= 0):
                    to[at] += value
            else:
                share = value / _divisor(bounds, wide)
                with geometry.over(bounds) as place:
                    to[place] += share
    return RecordedKernel(e.kernel(f"pool_grad_{'max' if maxima else 'average'}_{dtype.name}"), p)
