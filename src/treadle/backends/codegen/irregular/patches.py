"""Sliding windows: patches of planes, and patches added up to planes.

Both walk the same pairs of cells, of a plane and of a patch; what lies in the padding has no pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np

from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.pool_tables import (
    Bounds,
    Geometry,
    OpenAxis,
    WindowAxis,
    Windows,
    along,
    arguments_of,
    is_open,
    moving,
    open_patches,
    with_table,
)
from treadle.backends.codegen.irregular.rows import RowBuilder, RowParameters, bits_of, over_rows
from treadle.backends.codegen.irregular.scatter import element_types, is_half
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import Shape, product, size_of
from treadle.base.types import TensorType
from treadle.ops.sliding import Patches, SlidingWindow, SlidingWindowTranspose

_NS = 1.2
"""Of one cell."""


Axes = Sequence[WindowAxis] | Sequence[OpenAxis]


def _windows(op: Patches, spatial: Shape) -> tuple[Axes, list[int]]:
    """Windows whose third number is their first kernel cell inside, and the kernel's extents."""
    kernel = [1] * (3 - len(op.kernel)) + [int(k) for k in op.kernel]
    if is_open(spatial):
        return open_patches(op.window, spatial), kernel
    axes = []
    starts = [(0, 1)] * (3 - len(op.kernel))
    starts += [(p[0], s) for p, s in zip(op.padding, op.strides, strict=True)]
    for axis, (before, step) in zip(moving(op.window, spatial), starts, strict=True):
        first = axis.windows[:, 0]
        cell = (first - (np.arange(axis.count) * step - before)) // axis.dilation
        table = np.stack([first, axis.windows[:, 1], cell], 1)
        axes.append(WindowAxis(axis.extent, table, axis.dilation))
    return axes, kernel


@lowers(SlidingWindow)
def lower_sliding_window(
    op: SlidingWindow, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """A row of patches at a time: zeros, and then the cells that are inside."""
    x = types[0]
    axes, kernel = _windows(op, x.shape[2:])
    cells = size_of(kernel)
    rows = product(x.shape[:2]) * axes[0].count * axes[1].count
    given = _Cut(Ref("output", 0), Ref("input", 0), (*kernel,), arguments_of(axes))
    code = _cut_kernel(bits_of(x.dtype))
    launch = over_rows(code, given, rows, estimate(axes[2].count) * cells * _NS)
    return with_table(axes, Lowered((launch,)))


@lowers(SlidingWindowTranspose)
def lower_sliding_window_transpose(
    op: SlidingWindowTranspose,
    types: tuple[TensorType, ...],
    frozen: tuple[bool, ...],
    target: Target,
) -> Lowered:
    """A plane at a time: patch after patch is added."""
    patches = types[0]
    axes, kernel = _windows(op, op.spatial)
    planes, dtype = product(patches.shape[:2]), patches.dtype
    count, half = planes * product(op.spatial), is_half(patches.dtype)
    out = Ref("output", 0)
    sums = Ref("workspace", 0) if half else out
    given = _Added(sums, Ref("input", 0), (*kernel,), arguments_of(axes))
    code = _add_kernel(*element_types(dtype, add=True))
    cost = estimate(product(patches.shape[2:])) * _NS
    launches: tuple[Launch, ...] = (over_rows(code, given, planes, cost),)
    if half:
        launches += (convert(out, sums, dtype, dt.float32, count, target),)
    return with_table(axes, Lowered(launches, (4 * count,) if half else ()))


@contextmanager
def _pairs(
    e: Builder, geometry: Geometry, kernel: Sequence[Value], bounds: Bounds
) -> Iterator[tuple[Value, Value]]:
    """A block for the cells of a patch that are inside: places in the plane and in the patch."""
    _, height, width = geometry.extents
    (d0, d1, kd), (h0, h1, kh), (w0, w1, kw) = bounds
    step_d, step_h, step_w = geometry.dilations
    layers, lines, cells = [kd], [kh], [kw]
    with e.loop(d0, d1, step_d, carrying=layers) as d:
        lines[:] = [kh]
        with e.loop(h0, h1, step_h, carrying=lines) as h:
            row = (d * height + h) * width
            own = (layers[0] * kernel[1] + lines[0]) * kernel[2]
            cells[:] = [kw]
            with e.loop(w0, w1, step_w, carrying=cells) as w:
                yield row + w, own + cells[0]
                cells[0] = cells[0] + 1
            lines[0] = lines[0] + 1
        layers[0] = layers[0] + 1


class _Cut(RowParameters[P, S], kernel=along("kernel"), windows=Windows):
    kernel: tuple[S, ...]
    windows: Windows[P, S]


class _Added(Record[P, S], kernel=along("kernel"), windows=Windows):
    target: P
    patches: P
    kernel: tuple[S, ...]
    windows: Windows[P, S]


@cache
def _cut_kernel(bits: DType) -> RecordedKernel:
    """Return the kernel; each row of the launch is a row of patches."""
    e = RowBuilder()
    p = e.record(_Cut[Pointer, Value], target=bits, x=bits)
    kernel, geometry = p.kernel, p.windows
    cells = kernel[0] * kernel[1] * kernel[2]
    depths, heights, widths = geometry.counts
    with e.rows(depths, depths, heights) as (row, plane, d, h):
        source = p.x + plane * geometry.cells()
        to = p.target + row * widths * cells
        to.zero(widths * cells)
        outside = geometry.window(0, d), geometry.window(1, h)
        with e.loop(widths) as w:
            patch = to + w * cells
            bounds = (*outside, geometry.window(2, w))
            with _pairs(e, geometry, kernel, bounds) as (place, cell):
                patch[cell] = source[place]
    return RecordedKernel(e.kernel(f"patches_{bits.name}"), p)


@cache
def _add_kernel(given: DType, kept: DType) -> RecordedKernel:
    """Return the kernel; each row of the launch is a plane."""
    e = RowBuilder()
    p = e.record(_Added[Pointer, Value], target=kept, patches=given)
    kernel, geometry = p.kernel, p.windows
    cells = kernel[0] * kernel[1] * kernel[2]
    depths, heights, widths = geometry.counts
    windows = depths * heights * widths
    with e.loop(e.first, e.stop) as i:
        to = p.target + i * geometry.cells()
        source = p.patches + i * windows * cells
        to.zero(geometry.cells())
        with geometry.each_window() as (number, bounds):
            patch = source + number * cells
            with _pairs(e, geometry, kernel, bounds) as (place, cell):
                to[place] += load_value(patch, cell)
    return RecordedKernel(e.kernel(f"add_patches_{given.name}"), p)
