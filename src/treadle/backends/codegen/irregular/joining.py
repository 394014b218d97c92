"""Arrays joined along an axis, and boxes replaced: concat and slice_update."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from treadle.backends.codegen.irregular.copying import (
    NS_PER_BYTE,
    Copied,
    copy,
    copy_elements,
    copy_rows,
)
from treadle.backends.codegen.irregular.rows import RowBuilder, bits_of, over_rows, place
from treadle.backends.codegen.kernel.builder import numbered
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product, row_major_strides
from treadle.base.symbol import Dim, is_identical
from treadle.base.types import TensorType
from treadle.ops.movement import Concat
from treadle.ops.slicing import SliceUpdate

_LINE = 4096
"""Elements of a line that axes are joined to, at most."""


@lowers(Concat)
def lower_concat(
    op: Concat, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """One launch per input that has elements: its rows to where they belong."""
    shape = types[0].shape
    axis, itemsize = op.axis % len(shape), types[0].dtype.itemsize
    rows, inner = product(shape[:axis]), product(shape[axis + 1 :]) * itemsize
    widths = [t.shape[axis] * inner for t in types]
    launches: list[Launch] = []
    start: Dim = 0
    total = sum(widths)
    for i, width in enumerate(widths):
        to, origin = Ref("output", 0, start), Ref("input", i)
        if rows > 1 and width == itemsize:
            step = total // itemsize
            launches.append(copy_elements(to, origin, rows, types[0].dtype, step, 1))
        elif width:
            launches.append(copy_rows(to, origin, rows, width, total, width))
        start += width
    return Lowered(tuple(launches))


@lowers(SliceUpdate)
def lower_slice_update(
    op: SliceUpdate, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """x, and then the box over it."""
    x, v = types
    whole = copy(Ref("output", 0), Ref("input", 0), x.open_nbytes)
    box = (_write_box(op, x, v),) if all(v.shape) else ()
    return Lowered((whole, *box), in_place=((0, 0),))


def _write_box(op: SliceUpdate, x: TensorType, v: TensorType) -> Launch:
    strides = row_major_strides(x.shape)
    first = sum(a * s for a, s in zip(op.starts, strides, strict=True))
    moves = [s * step for s, step in zip(strides, op.steps, strict=True)]
    *grid, (width, step) = _axes(v.shape, moves)
    dense = is_identical(step, 1)
    kernel = _box_kernel(bits_of(x.dtype), len(grid), dense)
    extents, steps = zip(*grid, strict=True)
    given = _Box(Ref("output", 0), Ref("input", 1), first, width, step, extents, steps)
    cost = 5 + estimate(width) * (NS_PER_BYTE * x.dtype.itemsize if dense else 0.7)
    return over_rows(kernel, given, product(extents), cost, 2 * v.open_nbytes)


def _axes(extents: Sequence[Dim], steps: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """Axes (extent, step) of a box; two at least.

    Axes that are one in memory are joined, but not to a line that would keep all threads but one
    waiting.
    """
    found: list[tuple[Dim, Dim]] = []
    for extent, step in zip(extents, steps, strict=True):
        follows = bool(found) and is_identical(found[-1][1], extent * step)
        if follows and estimate(found[-1][0] * extent) <= _LINE:
            found[-1] = (found[-1][0] * extent, step)
        elif not is_identical(extent, 1):
            found.append((extent, step))
    return [(1, 0)] * (2 - len(found)) + found if found else [(1, 0), (1, 1)]


class _Box(Copied[P, S]):
    begin: S
    width: S
    step: S
    grid: tuple[S, ...]
    strides: tuple[S, ...]


@cache
def _box_kernel(bits: DType, rank: int, dense: bool) -> RecordedKernel:
    """Return the kernel; each row of the launch is a line of the box."""
    e = RowBuilder()
    grid, strides = numbered("n", rank), numbered("stride", rank)
    p = e.record(_Box[Pointer, Value], target=bits, source=bits, grid=grid, strides=strides)
    with e.rows(*p.grid) as (row, *at):
        to = p.target + (place(at, p.strides) + p.begin)
        origin = row * p.width
        if dense:
            to.copy_from(p.source + origin, p.width)
        else:
            with e.loop(p.width) as i:
                to.store(i * p.step, p.source[origin + i])
    name = f"write_box_{bits.name}_{rank}" + ("_dense" if dense else "")
    return RecordedKernel(e.kernel(name), p)
