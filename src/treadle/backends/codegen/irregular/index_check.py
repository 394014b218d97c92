"""Checks that indices lie in their range: the least and the greatest of them, compared once.

Many indices are looked at in panels, which note what they find; all of them write the same place,
and any one will do.
"""

from __future__ import annotations

from functools import cache

from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows, vector_loop
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.check import CheckIndices

_PANEL, _SMALL_PANEL = 4096, 128
"""Indices that one item looks at; the latter where a device wants many items."""


@lowers(CheckIndices)
def lower_check(
    op: CheckIndices, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """Lower to a pass over the indices."""
    index, count = types[0].dtype, product(types[0].shape)
    kernel = _check(index, target.lanes(index))
    out, found = Ref("output", 0), 2 * op.number + 1
    clear = _clear().launch(_Found(out), serial=True, nbytes=16)
    panel = _SMALL_PANEL if target.fine else _PANEL
    given = _Indices(out, Ref("input", 0), op.low, op.high, count, panel, found)
    cost, nbytes = min(estimate(count), panel) * 0.1, count * index.itemsize
    return Lowered((clear, over_rows(kernel, given, -(-count // panel), cost, nbytes)))


class _Found(Record[P, S]):
    target: P


class _Indices(_Found[P, S]):
    index: P
    low: S
    high: S
    count: S
    panel: S
    found: S


@cache
def _clear() -> RecordedKernel:
    e = KernelBuilder()
    p = e.record(_Found[Pointer, Value], target=dt.int64)
    for i in range(2):
        p.target[i] = 0
    return RecordedKernel(e.kernel("clear_check"), p)


@cache
def _check(index_type: DType, lanes: int) -> RecordedKernel:
    e = RowBuilder()
    p = e.record(_Indices[Pointer, Value], target=dt.int64, index=index_type)
    with e.loop(e.first, e.stop) as row:
        start = row * p.panel
        end = minimum(start + p.panel, p.count)
        first = p.index[start].splat(lanes)
        limits = [first, first]
        for i, mask in vector_loop(e, start, end, lanes, carrying=limits):
            found = p.index.load(i, lanes, mask)
            if mask is not None:
                found = select(mask, found, first)
            limits[:] = minimum(limits[0], found), maximum(limits[1], found)
        least = limits[0].reduce("min").cast(dt.int64)
        most = limits[1].reduce("max").cast(dt.int64)
        below = least < p.low
        outside = below | (p.high <= most)
        with e.when(outside):
            p.target.store(1, select(below, least, most))
            p.target[0] = p.found
    return RecordedKernel(e.kernel(f"check_indices_{index_type.name}"), p)
