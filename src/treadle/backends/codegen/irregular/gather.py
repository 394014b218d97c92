"""Elements and rows picked by integer indices: take, index, take_along_axis.

Elements move as bits, so one kernel serves every type of a size. Indices out of range, for which
the reference raises, read the nearest element (`rows.resolve`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from treadle.backends.codegen.irregular.positions import RowRegion, region_of
from treadle.backends.codegen.irregular.rows import (
    RowBuilder,
    RowParameters,
    bits_of,
    over_rows,
    overlapping_loop,
    place,
    resolve,
)
from treadle.backends.codegen.kernel.builder import Builder, numbered
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
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
    region = RowRegion(
        outer, shape[axis], width, product(index.shape), Ref("input", 1), index.dtype
    )
    return Lowered((pick(region, x.dtype, target),))


@lowers(Index)
def lower_index(
    op: Index, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """The indices joined to one, then rows as in `take`."""
    region = region_of(op, types[0], types[1:], 1)
    launches = (*region.launches, pick(region, types[0].dtype, target))
    return Lowered(launches, region.workspaces)


def pick(region: RowRegion, dtype: DType, target: Target) -> Launch:
    """output[outer, j, :] = x[outer, index[j], :]."""
    outer, extent, width, count = region.outer, region.extent, region.width, region.count
    given = Ref("output", 0), Ref("input", 0), region.index, extent, count
    nbytes = 2 * outer * count * width * dtype.itemsize
    if width == 1:
        kernel = _pick_elements(bits_of(dtype), region.dtype, _lanes(dtype, target))
        panels = -(-count // _PANEL)
        cost = min(estimate(count), _PANEL) * 0.7
        return over_rows(kernel, _Elements(*given, panels), outer * panels, cost, nbytes)
    kernel = _pick_rows(bits_of(dtype), region.dtype)
    cost = 5 + estimate(width) * dtype.itemsize * 0.05
    return over_rows(kernel, _GatheredRows(*given, width), outer * count, cost, nbytes)


def _lanes(dtype: DType, target: Target) -> int:
    """Lanes of a gather: as many as addresses fill a register; narrow types have no gathers."""
    return target.vector_bytes // 8 if dtype.itemsize >= 4 else 1


class _Picked(RowParameters[P, S]):
    """`count` indices of axis 1 of x [outer, extent, ...]."""

    index: P
    extent: S
    count: S


class _GatheredRows(_Picked[P, S]):
    width: S


class _Elements(_Picked[P, S]):
    panels: S


@cache
def _pick_rows(bits: DType, index_type: DType) -> RecordedKernel:
    e = RowBuilder()
    p = e.record(_GatheredRows[Pointer, Value], target=bits, x=bits, index=index_type)

    with e.rows(p.count, p.count) as (row, outer, j):
        found = resolve(p.index[j], p.extent)
        source = (outer * p.extent + found) * p.width
        (p.target + row * p.width).copy_from(p.x + source, p.width)
    return RecordedKernel(e.kernel(f"pick_rows_{bits.name}_{index_type.name}"), p)


@cache
def _pick_elements(bits: DType, index_type: DType, lanes: int) -> RecordedKernel:
    e = RowBuilder()
    p = e.record(_Elements[Pointer, Value], target=bits, x=bits, index=index_type)

    with e.rows(p.panels, p.panels) as (_, outer, panel):
        source, row = p.x + outer * p.extent, p.target + outer * p.count
        start = panel * _PANEL
        end = minimum(start + _PANEL, p.count)

        for j, mask in overlapping_loop(e, start, end, lanes):
            found = resolve(p.index.load(j, lanes, mask), p.extent.splat(lanes))
            row.store(j, read(source, found, mask), mask)
    return RecordedKernel(e.kernel(f"pick_elements_{bits.name}_{index_type.name}"), p)


def read(source: Pointer, places: Value, mask: Value | None) -> Value:
    """Elements at places, one per lane."""
    return source[places] if places.lanes == 1 else source.gather(places, mask)


# -- along one axis ----------------------------------------------------------------------------


class LineSizes(Record[P, S]):
    """A line of `extent` elements and `count` indices, and how many lie side by side."""

    extent: S
    stride: S
    count: S
    step: S
    across: S


class LineAxes(Record[P, S]):
    """Extents, strides in x and strides in the index of the axes that number lines."""

    grid: tuple[S, ...]
    strides: tuple[S, ...]
    steps: tuple[S, ...]

    @staticmethod
    def of(e: Builder, rank: int) -> LineAxes[Pointer, Value]:
        """Parameters of a kernel."""
        names = [numbered(name, rank) for name in ("n", "stride", "step")]
        return e.record(LineAxes[Pointer, Value], grid=names[0], strides=names[1], steps=names[2])


class Lines:
    """An `Along` op as independent lines, whose strides are in elements.

    Lines are numbered over all axes but `axis` and, where that is not the last one, the last one,
    over which `across` lines lie side by side. `number` is that of the groups of these.
    """

    def __init__(self, op: Along, x: TensorType, index: TensorType) -> None:
        mine, theirs = x.shape, index.shape
        axis, last = op.axis % len(mine), len(mine) - 1
        strides, steps = row_major_strides(mine), row_major_strides(theirs)
        own = [a for a in range(len(mine)) if a not in (axis, last)]
        self.is_last = axis == last
        across: Dim = 1 if self.is_last else theirs[last]
        self.sizes = LineSizes[Ref, Dim](
            mine[axis], strides[axis], theirs[axis], steps[axis], across
        )
        axes = _merged([(theirs[a], strides[a], steps[a]) for a in own])
        self.axes = LineAxes[Ref, Dim](*zip(*axes, strict=True))
        self.rank, self.number = len(axes), product(self.axes.grid)


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
    lines, refs = Lines(op, x, index), (Ref("output", 0), Ref("input", 0), Ref("input", 1))
    kinds, sizes = (bits_of(x.dtype), index.dtype), lines.sizes
    lanes, rows = _lanes(x.dtype, target), lines.number
    if lines.is_last:
        panels = -(-sizes.count // _PANEL)
        given = _LastLines(*refs, sizes.extent, sizes.count, panels, lines.axes)
        cost = 0.8 * min(estimate(sizes.count), _PANEL)
        launch = over_rows(_along_last(*kinds, lines.rank, lanes), given, rows * panels, cost)
    else:
        kernel, inner = (
            _along_inner(*kinds, lines.rank, lanes),
            _InnerLines(*refs, sizes, lines.axes),
        )
        cost = 0.8 * estimate(sizes.across)
        launch = over_rows(kernel, inner, rows * sizes.count, cost)
    return Lowered((launch,))


class _LastLines(_Elements[P, S]):
    axes: LineAxes[P, S]


class _InnerLines(RowParameters[P, S]):
    index: P
    sizes: LineSizes[P, S]
    axes: LineAxes[P, S]


@cache
def _along_last(bits: DType, index_type: DType, rank: int, lanes: int) -> RecordedKernel:
    e = RowBuilder()
    axes, kind = partial(LineAxes.of, e, rank), _LastLines[Pointer, Value]
    p = e.record(kind, target=bits, x=bits, index=index_type, axes=axes)
    with e.rows(*p.axes.grid, p.panels) as (_, *at):
        source = p.x + place(at[:-1], p.axes.strides)
        own = place(at[:-1], p.axes.steps)
        numbers, row = p.index + own, p.target + own
        start = at[-1] * _PANEL

        for j, mask in overlapping_loop(e, start, minimum(start + _PANEL, p.count), lanes):
            found = resolve(numbers.load(j, lanes, mask), p.extent.splat(lanes))
            row.store(j, read(source, found, mask), mask)
    return RecordedKernel(e.kernel(f"take_along_last_{bits.name}_{index_type.name}_{rank}"), p)


@cache
def _along_inner(bits: DType, index_type: DType, rank: int, lanes: int) -> RecordedKernel:
    e = RowBuilder()
    axes, kind = partial(LineAxes.of, e, rank), _InnerLines[Pointer, Value]
    p = e.record(kind, target=bits, x=bits, index=index_type, sizes=LineSizes, axes=axes)
    line = p.sizes
    with e.rows(*p.axes.grid, line.count) as (_, *at):
        source = p.x + place(at[:-1], p.axes.strides)
        own = place(at[:-1], p.axes.steps) + at[-1] * line.step
        numbers, row = p.index + own, p.target + own
        columns = e.iota(dt.int64, lanes) if lanes > 1 else e.index(0)

        for j, mask in overlapping_loop(e, 0, line.across, lanes):
            found = resolve(numbers.load(j, lanes, mask), line.extent.splat(lanes))
            column = columns + j.splat(lanes)
            places = found * line.stride.splat(lanes) + column
            row.store(j, read(source, places, mask), mask)
    return RecordedKernel(e.kernel(f"take_along_{bits.name}_{index_type.name}_{rank}"), p)
