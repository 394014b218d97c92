"""Elements and rows picked by integer indices: take, index, take_along_axis.

Elements move as bits, so one kernel serves every type of a size. Indices out of range, for which
the reference raises, read the nearest element (`rows.resolve`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from treadle.backends.codegen.irregular.positions import Region, region_of
from treadle.backends.codegen.irregular.rows import (
    Arguments,
    RowBuilder,
    bits_of,
    over_rows,
    overlapping_loop,
    place,
    resolve,
)
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product, row_major_strides
from treadle.base.symbol import Dim, is_identical
from treadle.base.types import TensorType
from treadle.ops.gather import Index, Take
from treadle.ops.gather_along import Along, TakeAlongAxis

_PANEL = 1024
"""Elements that a kernel picks one by one, per row."""


@lowers(Take)
def lower_take(
    op: Take, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """Rows [outer, count, width] of x [outer, extent, width]."""
    x, index = types
    shape = x.shape
    axis = op.axis % len(shape)
    outer, width = product(shape[:axis]), product(shape[axis + 1 :])
    region = Region(outer, shape[axis], width, product(index.shape), Ref("input", 1), index.dtype)
    return Lowered((pick(region, x.dtype, target),))


@lowers(Index)
def lower_index(
    op: Index, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """The indices joined to one, then rows as in `take`."""
    region = region_of(op, types[0], types[1:], 1)
    launches = (*region.launches, pick(region, types[0].dtype, target))
    return Lowered(launches, region.workspaces)


def pick(region: Region, dtype: DType, target: Target) -> Launch:
    """output[outer, j, :] = x[outer, index[j], :]."""
    outer, extent, width, count = region.outer, region.extent, region.width, region.count
    refs = Ref("output", 0), Ref("input", 0), region.index
    nbytes = 2 * outer * count * width * dtype.itemsize
    if width == 1:
        kernel = _pick_elements(bits_of(dtype), region.dtype, _lanes(dtype, target))
        panels = -(-count // _PANEL)
        cost = min(estimate(count), _PANEL) * 0.7
        return over_rows(kernel, (*refs, extent, count, panels), outer * panels, cost, nbytes)
    kernel = _pick_rows(bits_of(dtype), region.dtype)
    cost = 5 + estimate(width) * dtype.itemsize * 0.05
    return over_rows(kernel, (*refs, extent, count, width), outer * count, cost, nbytes)


def _lanes(dtype: DType, target: Target) -> int:
    """Lanes of a gather: as many as addresses fill a register; narrow types have no gathers."""
    return target.vector_bytes // 8 if dtype.itemsize >= 4 else 1


@cache
def _pick_rows(bits: DType, index_type: DType) -> Kernel:
    e = RowBuilder()
    target, x = e.pointer(bits, "target"), e.pointer(bits, "x")
    index = e.pointer(index_type, "index")
    extent, count, width = e.sizes("extent", "count", "width")

    with e.rows(count, count) as (row, outer, j):
        found = resolve(index[j], extent)
        source = (outer * extent + found) * width
        (target + row * width).copy_from(x + source, width)
    return e.kernel(f"pick_rows_{bits.name}_{index_type.name}")


@cache
def _pick_elements(bits: DType, index_type: DType, lanes: int) -> Kernel:
    e = RowBuilder()
    target, x = e.pointer(bits, "target"), e.pointer(bits, "x")
    index = e.pointer(index_type, "index")
    extent, count, panels = e.sizes("extent", "count", "panels")

    with e.rows(panels, panels) as (_, outer, panel):
        source, row = x + outer * extent, target + outer * count
        start = panel * _PANEL
        end = minimum(start + _PANEL, count)

        for j, mask in overlapping_loop(e, start, end, lanes):
            found = resolve(index.load(j, lanes, mask), extent.splat(lanes))
            row.store(j, read(source, found, mask), mask)
    return e.kernel(f"pick_elements_{bits.name}_{index_type.name}")


def read(source: Pointer, places: Value, mask: Value | None) -> Value:
    """Elements at places, one per lane."""
    return source[places] if places.lanes == 1 else source.gather(places, mask)


# -- along one axis ----------------------------------------------------------------------------


class Lines:
    """An `Along` op as independent lines: for each, `steps` indices into `extent` elements.

    Lines are numbered over all axes but `axis` and, where that is not the last one, the last one,
    over which `across` lines lie side by side. Strides are in elements.
    """

    def __init__(self, op: Along, x: TensorType, index: TensorType) -> None:
        mine, theirs = x.shape, index.shape
        axis, last = op.axis % len(mine), len(mine) - 1
        strides, steps = row_major_strides(mine), row_major_strides(theirs)
        own = [a for a in range(len(mine)) if a not in (axis, last)]
        self.is_last = axis == last
        self.extent, self.stride = mine[axis], strides[axis]
        self.count, self.step = theirs[axis], steps[axis]
        self.across: Dim = 1 if self.is_last else theirs[last]
        axes = _merged([(theirs[a], strides[a], steps[a]) for a in own])
        self.grid = [a[0] for a in axes]
        self.sizes: list[Dim] = [*self.grid, *(a[1] for a in axes), *(a[2] for a in axes)]
        """Extents, strides in x and strides in the index of the axes that number the lines."""

    @property
    def number(self) -> Dim:
        """The number of groups of `across` lines."""
        return product(self.grid)


def _merged(axes: Sequence[tuple[Dim, Dim, Dim]]) -> list[tuple[Dim, Dim, Dim]]:
    """Axes (extent, stride, step) with neighbors joined where they are one axis in memory."""
    found: list[tuple[Dim, Dim, Dim]] = []
    for extent, stride, step in axes:
        ends = extent * stride, extent * step
        if found and all(map(is_identical, found[-1][1:], ends)):
            found[-1] = (found[-1][0] * extent, stride, step)
        elif extent != 1:
            found.append((extent, stride, step))
    return found or [(1, 0, 0)]


@lowers(TakeAlongAxis)
def lower_take_along_axis(
    op: TakeAlongAxis, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """Every line by itself."""
    x, index = types
    lines = Lines(op, x, index)
    refs = Ref("output", 0), Ref("input", 0), Ref("input", 1)
    lanes, cost = _lanes(x.dtype, target), 0.8 * estimate(lines.across)
    rank = len(lines.grid)
    if lines.is_last:
        kernel = _along_last(bits_of(x.dtype), index.dtype, rank, lanes)
        panels = -(-lines.count // _PANEL)
        arguments: Arguments = (*refs, lines.extent, lines.count, panels, *lines.sizes)
        rows, cost = lines.number * panels, 0.8 * min(estimate(lines.count), _PANEL)
    else:
        kernel = _along_inner(bits_of(x.dtype), index.dtype, rank, lanes)
        own = lines.extent, lines.stride, lines.count, lines.step, lines.across
        arguments = (*refs, *own, *lines.sizes)
        rows = lines.number * lines.count
    return Lowered((over_rows(kernel, arguments, rows, cost),))


def line_sizes(e: Builder, rank: int) -> tuple[list[Value], list[Value], list[Value]]:
    """Parameters for `Lines.sizes`."""
    numbers = range(rank)
    grid, strides, steps = (e.sizes(*(f"{n}{i}" for i in numbers)) for n in ("n", "stride", "step"))
    return grid, strides, steps


@cache
def _along_last(bits: DType, index_type: DType, rank: int, lanes: int) -> Kernel:
    e = RowBuilder()
    target, x = e.pointer(bits, "target"), e.pointer(bits, "x")
    index = e.pointer(index_type, "index")
    extent, count, panels = e.sizes("extent", "count", "panels")
    grid, strides, steps = line_sizes(e, rank)
    with e.rows(*grid, panels) as (_, *at):
        source = x + place(at[:-1], strides)
        own = place(at[:-1], steps)
        numbers, row = index + own, target + own
        start = at[-1] * _PANEL

        for j, mask in overlapping_loop(e, start, minimum(start + _PANEL, count), lanes):
            found = resolve(numbers.load(j, lanes, mask), extent.splat(lanes))
            row.store(j, read(source, found, mask), mask)
    return e.kernel(f"take_along_last_{bits.name}_{index_type.name}_{rank}")


@cache
def _along_inner(bits: DType, index_type: DType, rank: int, lanes: int) -> Kernel:
    e = RowBuilder()
    target, x = e.pointer(bits, "target"), e.pointer(bits, "x")
    index = e.pointer(index_type, "index")
    extent, stride, count, step = e.sizes("extent", "stride", "count", "step")
    across, (grid, strides, steps) = e.size("across"), line_sizes(e, rank)
    with e.rows(*grid, count) as (_, *at):
        source = x + place(at[:-1], strides)
        own = place(at[:-1], steps) + at[-1] * step
        numbers, row = index + own, target + own
        columns = e.iota(dt.int64, lanes) if lanes > 1 else e.index(0)

        for j, mask in overlapping_loop(e, 0, across, lanes):
            found = resolve(numbers.load(j, lanes, mask), extent.splat(lanes))
            column = columns + j.splat(lanes)
            places = found * stride.splat(lanes) + column
            row.store(j, read(source, places, mask), mask)
    return e.kernel(f"take_along_{bits.name}_{index_type.name}_{rank}")
