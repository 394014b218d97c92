"""Elements and rows added or replaced by integer indices, in the order of the indices.

Nothing is shared between items: each owns columns of the table and walks all indices in order. So
there are no atomics, the last write stays, and sums do not depend on the number of threads.
Indices out of range, for which the reference raises, write the nearest row (`rows.resolve`).
"""

from __future__ import annotations

from functools import cache, partial

from treadle.backends.codegen.irregular.copying import NS_PER_BYTE, convert, copy
from treadle.backends.codegen.irregular.gather import LineAxes, Lines, LineSizes
from treadle.backends.codegen.irregular.positions import RowRegion, region_of
from treadle.backends.codegen.irregular.rows import (
    RowBuilder,
    bits_of,
    over_rows,
    place,
    resolve,
    vector_loop,
)
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.gather import IndexAdd, Indexing, IndexUpdate
from treadle.ops.gather_along import AddAlongAxis, Along, ScatterAlongAxis

_PANEL_BYTES = 256
"""Columns of a table that one item owns."""


def is_half(dtype: DType) -> bool:
    """Return whether sums of a type are kept in float32."""
    return dtype.is_float and dtype.itemsize == 2


def element_types(dtype: DType, add: bool) -> tuple[DType, DType]:
    """Types that a scatter reads and writes: floats are added as such, all else moves as bits."""
    if not add or not dtype.is_float:
        return bits_of(dtype), bits_of(dtype)
    return dtype, dt.float32 if is_half(dtype) else dtype


def updated(
    scatter: Launch,
    x: TensorType,
    target: Target,
    table: Ref,
    before: tuple[Launch, ...] = (),
    workspaces: tuple[Dim, ...] = (),
) -> Lowered:
    """x copied to `table`, what `before` computes, the scatter, and the table as the output.

    Sums of 16-bit floats are kept in a workspace, the table, and rounded once.
    """
    out, source, count = Ref("output", 0), Ref("input", 0), product(x.shape)
    if table == out:
        whole = copy(out, source, count * x.dtype.itemsize)
        return Lowered((*before, whole, scatter), workspaces, in_place=((0, 0),))
    widen = convert(table, source, dt.float32, x.dtype, count, target)
    narrow = convert(out, table, x.dtype, dt.float32, count, target)
    return Lowered((*before, widen, scatter, narrow), (4 * count, *workspaces))


def table_of(x: TensorType, add: bool) -> Ref:
    """Return the place a scatter writes to: for sums of 16-bit floats, float32 workspace 0."""
    return Ref("workspace", 0) if add and is_half(x.dtype) else Ref("output", 0)


@lowers(IndexAdd, IndexUpdate)
def lower_index_scatter(
    op: Indexing, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """Rows of v [outer, count, width] to x [outer, extent, width]."""
    x, add = types[0], isinstance(op, IndexAdd)
    table = table_of(x, add)
    region = region_of(op, x, types[2:], 2, 0 if table.kind == "output" else 1)
    scatter = _scatter_rows(region, x.dtype, add, table, target)
    return updated(scatter, x, target, table, region.launches, region.workspaces)


def _scatter_rows(region: RowRegion, dtype: DType, add: bool, table: Ref, target: Target) -> Launch:
    given, kept = element_types(dtype, add)
    lanes = target.lanes(kept)
    width, count = estimate(region.width), estimate(region.count)
    narrow = width < lanes
    panel = _PANEL_BYTES // kept.itemsize
    kernel = _scatter_kernel(given, kept, region.dtype, add, 1 if narrow else lanes, panel)
    panels = -(-region.width // panel)
    sizes = region.extent, region.count, region.width, panels
    rows = _ScatteredRows(table, Ref("input", 1), region.index, *sizes)
    each = 3 + min(width, panel) * (1.0 if narrow else NS_PER_BYTE * kept.itemsize)
    nbytes = region.outer * region.count * region.width * (given.itemsize + 2 * kept.itemsize)
    return over_rows(kernel, rows, region.outer * panels, count * each, nbytes)


class _Scattered(Record[P, S]):
    """v, which goes where the index says."""

    table: P
    v: P
    index: P


class _ScatteredRows(_Scattered[P, S]):
    extent: S
    count: S
    width: S
    panels: S


@cache
def _scatter_kernel(
    given: DType, kept: DType, index_type: DType, add: bool, lanes: int, panel: int
) -> RecordedKernel:
    """Return the kernel; each row of the launch is a panel of columns, for all indices."""
    e = RowBuilder()
    p = e.record(_ScatteredRows[Pointer, Value], table=kept, v=given, index=index_type)

    with e.rows(p.panels, p.panels) as (_, outer, number):
        start = number * panel
        end = minimum(start + panel, p.width)

        with e.loop(p.count) as j:
            found = resolve(p.index[j], p.extent)
            row = (outer * p.extent + found) * p.width
            to = p.table + row
            source = p.v + (outer * p.count + j) * p.width

            for i, mask in vector_loop(e, start, end, lanes):
                value = load_value(source, i, lanes, mask)
                if add:
                    value = to.load(i, lanes, mask) + value
                to.store(i, value, mask)
    verb = "add" if add else "put"
    return RecordedKernel(e.kernel(f"{verb}_rows_{given.name}_{index_type.name}_{lanes}"), p)


@lowers(AddAlongAxis, ScatterAlongAxis)
def lower_scatter_along(
    op: Along, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """Every line by itself; its indices in order."""
    x, index, _ = types
    add, lines = isinstance(op, AddAlongAxis), Lines(op, x, index)
    table = table_of(x, add)
    given, kept = element_types(x.dtype, add)
    if lines.is_last:
        return _lower_last(lines, x, index, add, target)
    kernel = _along_kernel(given, kept, index.dtype, add, lines.rank)
    panel = _PANEL_BYTES // kept.itemsize
    sizes, panels = lines.sizes, -(-lines.sizes.across // panel)
    inner = _Inner(table, Ref("input", 2), Ref("input", 1), sizes, panel, panels, lines.axes)
    cost = estimate(sizes.count) * min(estimate(sizes.across), panel) * 1.5
    scatter = over_rows(kernel, inner, lines.number * panels, cost)
    return updated(scatter, x, target, table)


def _lower_last(
    lines: Lines, x: TensorType, index: TensorType, add: bool, target: Target
) -> Lowered:
    """Lines along the last axis; where they are all of x, each is copied just before its update."""
    table = table_of(x, add)
    copies = table.kind == "output" and x.shape[:-1] == index.shape[:-1]
    kinds = element_types(x.dtype, add)
    kernel = _along_last_kernel(*kinds, index.dtype, add, lines.rank, copies)
    extent, count = lines.sizes.extent, lines.sizes.count
    refs = (table, Ref("input", 0), Ref("input", 2), Ref("input", 1))
    cost = estimate(count) * 1.5
    cost += copies * estimate(extent) * x.dtype.itemsize * NS_PER_BYTE
    scatter = over_rows(kernel, _Last(*refs, extent, count, lines.axes), lines.number, cost)
    if copies:
        return Lowered((scatter,), in_place=((0, 0),))
    return updated(scatter, x, target, table)


class _Last(Record[P, S]):
    table: P
    x: P
    v: P
    index: P
    extent: S
    count: S
    axes: LineAxes[P, S]


@cache
def _along_last_kernel(
    given: DType, kept: DType, index_type: DType, add: bool, rank: int, copies: bool
) -> RecordedKernel:
    """Return the kernel; each row of the launch is a line."""
    e = RowBuilder()
    axes, kind = partial(LineAxes.of, e, rank), _Last[Pointer, Value]
    p = e.record(kind, table=kept, x=kept, v=given, index=index_type, axes=axes)
    with e.rows(*p.axes.grid) as (_, *at):
        start, row = place(at, p.axes.strides), place(at, p.axes.steps)
        to = p.table + start
        if copies:
            to.copy_from(p.x + start, p.extent)
        with e.loop(row, row + p.count) as origin:
            found = resolve(p.index[origin], p.extent)
            value = load_value(p.v, origin)
            if add:
                value = to[found] + value
            to[found] = value
    name = f"{'add' if add else 'put'}_along_last_{given.name}_{index_type.name}_{rank}"
    return RecordedKernel(e.kernel(name + "_copies" * copies), p)


class _Inner(_Scattered[P, S]):
    sizes: LineSizes[P, S]
    panel: S
    panels: S
    axes: LineAxes[P, S]


@cache
def _along_kernel(
    given: DType, kept: DType, index_type: DType, add: bool, rank: int
) -> RecordedKernel:
    """Return the kernel; a row of the launch is some lines; elements one by one: they may meet."""
    e = RowBuilder()
    axes, sizes, kind = partial(LineAxes.of, e, rank), LineSizes, _Inner[Pointer, Value]
    p = e.record(kind, table=kept, v=given, index=index_type, sizes=sizes, axes=axes)
    with e.rows(*p.axes.grid, p.panels) as (_, *at):
        to, row = p.table + place(at[:-1], p.axes.strides), place(at[:-1], p.axes.steps)
        start = at[-1] * p.panel
        end = minimum(start + p.panel, p.sizes.across)
        with e.loop(p.sizes.count) as j:
            here = row + j * p.sizes.step
            with e.loop(start, end) as column:
                origin = here + column
                found = resolve(p.index[origin], p.sizes.extent)
                position = found * p.sizes.stride + column
                value = load_value(p.v, origin)
                if add:
                    value = to[position] + value
                to[position] = value
    name = f"{'add' if add else 'put'}_along_{given.name}_{index_type.name}_{rank}"
    return RecordedKernel(e.kernel(name), p)
