"""Sliding windows: patches of planes, and patches added up to planes.

Both walk the same pairs of cells, of a plane and of a patch; what lies in the padding has no pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.pool_tables import (
    AXES,
    Geometry,
    arguments_of,
    moving,
    table_of,
)
from treadle.backends.codegen.irregular.pool_tables import Axis as Windows
from treadle.backends.codegen.irregular.rows import bits_of, over_rows, row_kernel, walk
from treadle.backends.codegen.irregular.scatter import element_types, is_half
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.shape import Shape, size_of
from treadle.base.types import TensorType
from treadle.ops.sliding import Patches, SlidingWindow, SlidingWindowTranspose

_NS = 1.2
"""Of one cell."""


def _windows(op: Patches, spatial: Shape) -> tuple[list[Windows], list[int]]:
    """Windows whose third number is their first kernel cell inside, and the kernel's extents."""
    axes, kernel = [], [1] * (3 - len(op.kernel)) + [int(k) for k in op.kernel]
    starts = [(0, 1)] * (3 - len(op.kernel))
    starts += [(p[0], s) for p, s in zip(op.padding, op.strides, strict=True)]
    for axis, (before, step) in zip(moving(op.window, spatial), starts, strict=True):
        first = axis.windows[:, 0]
        cell = (first - (np.arange(axis.count) * step - before)) // axis.dilation
        table = np.stack([first, axis.windows[:, 1], cell], 1)
        axes.append(Windows(axis.extent, table, axis.dilation))
    return axes, kernel


@lowers(SlidingWindow)
def lower_sliding_window(
    op: SlidingWindow, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """A row of patches at a time: zeros, and then the cells that are inside."""
    x = types[0]
    axes, kernel = _windows(op, x.shape[2:])
    cells = size_of(kernel)
    rows = size_of(x.shape[:2]) * axes[0].count * axes[1].count
    arguments = (Ref("output", 0), Ref("input", 0), *kernel, *arguments_of(axes))
    code = _cut_kernel(bits_of(x.dtype))
    launch = over_rows(code, arguments, rows, axes[2].count * cells * _NS)
    return Lowered((launch,), constants=(table_of(axes),))


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
    planes, dtype = size_of(patches.shape[:2]), patches.dtype
    count, half = planes * size_of(op.spatial), is_half(patches.dtype)
    out = Ref("output", 0)
    sums = Ref("workspace", 0) if half else out
    arguments = (sums, Ref("input", 0), *kernel, *arguments_of(axes))
    code = _add_kernel(*element_types(dtype, add=True))
    cost = size_of(patches.shape[2:]) * _NS
    launches: tuple[Launch, ...] = (over_rows(code, arguments, planes, cost),)
    if half:
        launches += (convert(out, sums, dtype, dt.float32, count, target),)
    return Lowered(launches, (4 * count,) if half else (), (table_of(axes),))


Bounds = Sequence[tuple[Value, Value, Value]]


def _pairs(
    b: Builder,
    geometry: Geometry,
    kernel: Sequence[Value],
    bounds: Bounds,
    body: Callable[[Value, Value], None],
) -> None:
    """`body(place in the plane, place in the patch)` for the cells of a patch that are inside."""
    _, height, width = geometry.extents

    def layer(d: Value, kd: Value) -> Value:
        def line(h: Value, kh: Value) -> Value:
            row = b.mul(b.add(b.mul(d, height), h), width)
            own = b.mul(b.add(b.mul(kd, kernel[1]), kh), kernel[2])

            def one(w: Value, kw: Value) -> Value:
                body(b.add(row, w), b.add(own, kw))
                return b.add(kw, 1)

            b.loop(bounds[2][0], bounds[2][1], geometry.dilations[2], one, (bounds[2][2],))
            return b.add(kh, 1)

        b.loop(bounds[1][0], bounds[1][1], geometry.dilations[1], line, (bounds[1][2],))
        return b.add(kd, 1)

    b.loop(bounds[0][0], bounds[0][1], geometry.dilations[0], layer, (bounds[0][2],))


@cache
def _cut_kernel(bits: DType) -> Kernel:
    """Each row of the launch is a row of patches."""
    target, x, geometry = pointer(bits, "target"), pointer(bits, "x"), Geometry()
    kernel = [size(f"kernel_{a}") for a in AXES]

    def body(b: Builder, first: Value, stop: Value) -> None:
        cells = b.mul(b.mul(kernel[0], kernel[1]), kernel[2])
        depths, heights, widths = geometry.counts

        def line(row: Value, plane: Value, d: Value, h: Value) -> None:
            source = b.offset(x, b.mul(plane, geometry.cells(b)))
            to = b.offset(target, b.mul(b.mul(row, widths), cells))
            b.zero(to, b.mul(widths, cells))
            outside = geometry.window(b, 0, d), geometry.window(b, 1, h)

            def one(w: Value) -> None:
                patch = b.offset(to, b.mul(w, cells))
                bounds = (*outside, geometry.window(b, 2, w))

                def move(place: Value, cell: Value) -> None:
                    b.store(patch, cell, b.load(source, place))

                _pairs(b, geometry, kernel, bounds, move)

            b.loop(0, widths, 1, one)

        walk(b, first, stop, (depths, depths, heights), line)

    return row_kernel(f"patches_{bits.name}", (target, x, *kernel, *geometry.parameters), body)


@cache
def _add_kernel(given: DType, kept: DType) -> Kernel:
    """Each row of the launch is a plane."""
    target, patches, geometry = pointer(kept, "target"), pointer(given, "patches"), Geometry()
    kernel = [size(f"kernel_{a}") for a in AXES]

    def body(b: Builder, first: Value, stop: Value) -> None:
        cells = b.mul(b.mul(kernel[0], kernel[1]), kernel[2])
        depths, heights, widths = geometry.counts
        windows = b.mul(b.mul(depths, heights), widths)

        def plane(i: Value) -> None:
            to = b.offset(target, b.mul(i, geometry.cells(b)))
            source = b.offset(patches, b.mul(b.mul(i, windows), cells))
            b.zero(to, geometry.cells(b))

            def one(number: Value, bounds: Bounds) -> None:
                patch = b.offset(source, b.mul(number, cells))

                def add(place: Value, cell: Value) -> None:
                    b.store(to, place, b.add(b.load(to, place), load_value(patch, cell)))

                _pairs(b, geometry, kernel, bounds, add)

            geometry.each_window(b, one)

        b.loop(first, stop, 1, plane)

    name = f"add_patches_{given.name}"
    return row_kernel(name, (target, patches, *kernel, *geometry.parameters), body)
