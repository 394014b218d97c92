"""Gradients of averages in rows: rows of windows above a row of cells are added, then spread.

All columns of a window receive the same, so that one line of sums, read at several places, is all
that a row of the result is made of; it is written once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from treadle.backends.codegen.irregular.pool_grad_planes import Taps, write_row
from treadle.backends.codegen.irregular.pool_tables import (
    WindowAxis,
    Windows,
    arguments_of,
    covered,
    table_of,
)
from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows, vector_loop
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.program import Lowered, Ref
from treadle.base.dtype import DType
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type


def lower_average_rows(taps: Taps, axes: Sequence[WindowAxis], dy: TensorType) -> Lowered:
    """One launch over rows of cells."""
    cells, wide = covered(axes), compute_type(dy.dtype)
    # Lanes behind the last window are divided, too.
    counts = [np.maximum(a.windows[:, 2], 1) for a in axes] + [np.ones(taps.lanes, np.int64)]
    constants = table_of(cells), np.concatenate(counts).astype(wide.numpy)
    rows = product(dy.shape[:2]) * cells[0].count * cells[1].count
    cost = 20 + taps.pitch * (1 + taps.columns * 0.3)
    given = _Spread(Ref("output", 0), Ref("input", 0), Ref("constant", 1), arguments_of(cells))
    launch = over_rows(_kernel(dy.dtype, taps), given, rows, cost)
    return Lowered((launch,), constants=constants)


class _Spread(Record[P, S], windows=Windows):
    target: P
    dy: P
    counts: P
    windows: Windows[P, S]


@functools.cache
def _kernel(dtype: DType, taps: Taps) -> RecordedKernel:
    """Return the kernel; rows of the launch are rows of cells, `windows` the ones over them."""
    wide, lanes, kind = compute_type(dtype), taps.lanes, _Spread[Pointer, Value]
    e = RowBuilder()
    p = e.record(kind, target=dtype, dy=dtype, counts=wide)
    geometry = p.windows
    depths, heights, widths = geometry.extents
    memory = e.stack(wide, (1 + taps.step) * taps.pitch)
    zero = e.constant(0.0, wide, lanes)
    with e.loop(0, (1 + taps.step) * taps.pitch, lanes) as i:
        memory[i] = zero
    line, spare = memory + taps.lead, memory + taps.pitch
    along = p.counts + (depths + heights)

    def shares(plane: Value, d: Value, h: Value, w: Value, mask: Value | None) -> Value:
        row = ((plane * depths + d) * heights + h) * widths
        count = p.counts[d] * p.counts[depths + h]
        number = along.load(w, lanes) * count.splat(lanes)
        return load_value(p.dy, row + w, lanes, mask) / number

    with e.rows(geometry.counts[0], *geometry.counts[:2]) as (number, plane, d, h):
        (d0, d1, _), (h0, h1, _) = geometry.window(0, d), geometry.window(1, h)
        for w, mask in vector_loop(e, 0, widths, lanes):
            sums = [zero]
            with e.loop(d0, d1, carrying=sums) as i, e.loop(h0, h1, carrying=sums) as j:
                sums[0] = sums[0] + shares(plane, i, j, w, mask)
            line[w] = sums[0]
        width = geometry.counts[2]
        row = p.target + number * width, width
        write_row(e, taps, [line] * taps.columns, spare, row, old=False)
    name = f"pool_grad_average_{dtype.name}_{taps.columns}_{taps.step}_{taps.pitch}"
    return RecordedKernel(e.kernel(name), p)
