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
    Axis,
    Geometry,
    arguments_of,
    covered,
    table_of,
)
from treadle.backends.codegen.irregular.rows import over_rows, row_kernel, vector_loop, walk
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.program import Lowered, Ref
from treadle.base.dtype import DType
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type


def lower_average_rows(taps: Taps, axes: Sequence[Axis], dy: TensorType) -> Lowered:
    """One launch over rows of cells."""
    cells, wide = covered(axes), compute_type(dy.dtype)
    # Lanes behind the last window are divided, too.
    counts = [np.maximum(a.windows[:, 2], 1) for a in axes] + [np.ones(taps.lanes, np.int64)]
    constants = table_of(cells), np.concatenate(counts).astype(wide.numpy)
    rows = product(dy.shape[:2]) * cells[0].count * cells[1].count
    cost = 20 + taps.pitch * (1 + taps.columns * 0.3)
    refs = Ref("output", 0), Ref("input", 0), Ref("constant", 1)
    launch = over_rows(_kernel(dy.dtype, taps), (*refs, *arguments_of(cells)), rows, cost)
    return Lowered((launch,), constants=constants)


@functools.cache
def _kernel(dtype: DType, taps: Taps) -> Kernel:
    """Each row of the launch is a row of cells; `Geometry` tells which windows are over them."""
    wide, lanes = compute_type(dtype), taps.lanes
    target, dy, counts = pointer(dtype, "target"), pointer(dtype, "dy"), pointer(wide, "counts")
    geometry = Geometry()
    depths, heights, widths = geometry.extents

    def body(b: Builder, first: Value, stop: Value) -> None:
        memory = b.stack(wide, (1 + taps.step) * taps.pitch)
        zero = b.constant(0.0, wide, lanes)
        b.loop(0, (1 + taps.step) * taps.pitch, lanes, lambda i: b.store(memory, i, zero))
        line, spare = b.offset(memory, taps.lead), b.offset(memory, taps.pitch)
        along = b.offset(counts, b.add(depths, heights))

        def shares(plane: Value, d: Value, h: Value, w: Value, mask: Value | None) -> Value:
            row = b.mul(b.add(b.mul(b.add(b.mul(plane, depths), d), heights), h), widths)
            count = b.mul(b.load(counts, d), b.load(counts, b.add(depths, h)))
            number = b.mul(b.load(along, w, lanes), b.splat(count, lanes))
            return b.div(load_value(dy, b.add(row, w), lanes, mask), number)

        def one(number: Value, plane: Value, d: Value, h: Value) -> None:
            (d0, d1, _), (h0, h1, _) = geometry.window(b, 0, d), geometry.window(b, 1, h)

            def some(w: Value, mask: Value | None) -> None:
                def layer(i: Value, total: Value) -> tuple[Value, ...]:
                    def add(j: Value, inner: Value) -> Value:
                        return b.add(inner, shares(plane, i, j, w, mask))

                    return b.loop(h0, h1, 1, add, (total,))

                b.store(line, w, b.loop(d0, d1, 1, layer, (zero,))[0])

            vector_loop(b, 0, widths, lanes, some)
            width = geometry.counts[2]
            row = b.offset(target, b.mul(number, width)), width
            write_row(b, taps, [line] * taps.columns, spare, row, old=False)

        walk(b, first, stop, (geometry.counts[0], *geometry.counts[:2]), one)

    name = f"pool_grad_average_{dtype.name}_{taps.columns}_{taps.step}_{taps.pitch}"
    return row_kernel(name, (target, dy, counts, *geometry.parameters), body)
