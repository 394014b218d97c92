"""Checks that indices lie in their range: the least and the greatest of them, compared once.

Many indices are looked at in panels, which note what they find; all of them write the same place,
and any one will do.
"""

from __future__ import annotations

from functools import cache

from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows, vector_loop
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.ir import Kernel
from treadle.backends.codegen.kernel.language import maximum, minimum, select
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
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
    """A pass over the indices."""
    index, count = types[0].dtype, product(types[0].shape)
    kernel = _check(index, target.lanes(index))
    clear = Launch(_clear(), (Ref("output", 0),), serial=True, nbytes=16)
    panel = _SMALL_PANEL if target.fine else _PANEL
    arguments = Ref("output", 0), Ref("input", 0), op.low, op.high, count, panel, 2 * op.number + 1
    cost, nbytes = min(estimate(count), panel) * 0.1, count * index.itemsize
    return Lowered((clear, over_rows(kernel, arguments, -(-count // panel), cost, nbytes)))


@cache
def _clear() -> Kernel:
    e = KernelBuilder()
    target = e.pointer(dt.int64, "target")
    for i in range(2):
        target[i] = 0
    return e.kernel("clear_check")


@cache
def _check(index_type: DType, lanes: int) -> Kernel:
    e = RowBuilder()
    target, index = e.pointer(dt.int64, "target"), e.pointer(index_type, "index")
    low, high, count, panel, flag = e.sizes("low", "high", "count", "panel", "found")
    with e.loop(e.first, e.stop) as row:
        start = row * panel
        end = minimum(start + panel, count)
        first = index[start].splat(lanes)
        limits = [first, first]
        for i, mask in vector_loop(e, start, end, lanes, carrying=limits):
            found = index.load(i, lanes, mask)
            if mask is not None:
                found = select(mask, found, first)
            limits[:] = minimum(limits[0], found), maximum(limits[1], found)
        least = limits[0].reduce("min").cast(dt.int64)
        most = limits[1].reduce("max").cast(dt.int64)
        below = least < low
        outside = below | (high <= most)
        with e.when(outside):
            target.store(1, select(below, least, most))
            target[0] = flag
    return e.kernel(f"check_indices_{index_type.name}")
