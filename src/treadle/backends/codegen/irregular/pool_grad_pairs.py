"""Gradients of max_pool over windows of two by two cells side by side: nothing is added up.

Rows are taken apart into even and odd columns, so that the four cells of a window are the same lane
of four vectors; what they receive is put together again. The last vectors of a row end with it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from treadle.backends.codegen.irregular.pool_tables import WindowAxis
from treadle.backends.codegen.irregular.rows import Gradient, RowBuilder, over_rows
from treadle.backends.codegen.kernel.language import (
    Pointer,
    Value,
    maximum,
    minimum,
    select,
    shuffle,
)
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base.dtype import DType
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type
from treadle.ops.windows import Window


def are_pairs(window: Window, axes: Sequence[WindowAxis]) -> bool:
    """True if all windows have two by two cells, and neighbors no cell in common or between."""
    if len(window.kernel) != 2 or [int(k) for k in window.kernel] != [2, 2]:
        return False
    steps = window.strides == (2, 2) and window.dilation == (1, 1)
    first = all(low == 0 for low, _ in window.padding)
    return steps and first and all(2 * a.count <= a.extent for a in axes[1:])


def lower_grad_pairs(axes: Sequence[WindowAxis], x: TensorType, target: Target) -> Lowered:
    """One launch over planes."""
    (_, height, width), planes = axes, product(x.shape[:2])
    lanes = target.lanes(x.dtype)
    while lanes > width.count:
        lanes //= 2
    cost = (
        4 + height.count * (4 + 8 * -(-width.count // lanes)) + height.extent * width.extent * 0.1
    )
    refs = Ref("output", 0), Ref("input", 0), Ref("input", 1)
    given = _PairPlanes(*refs, height.extent, width.extent, height.count, width.count)
    return Lowered((over_rows(_kernel(x.dtype, lanes), given, planes, cost),))


class _PairPlanes(Gradient[P, S]):
    height: S
    width: S
    heights: S
    widths: S


@functools.cache
def _kernel(dtype: DType, lanes: int) -> RecordedKernel:
    """Return the kernel; each row of the launch is a plane."""
    e = RowBuilder()
    p = e.record(_PairPlanes[Pointer, Value], target=dtype, x=dtype, dy=dtype)
    height, width, heights, widths = p.height, p.width, p.heights, p.widths
    covered, last = widths * 2, widths - lanes
    nothing = e.constant(0.0, compute_type(dtype)).cast(dtype)
    with e.loop(e.first, e.stop) as i:
        begin = i * (height * width)
        to, source = p.target + begin, p.x + begin
        given = p.dy + i * (heights * widths)
        with e.loop(heights) as h:
            place = h * 2 * width
            rows = [to + place, to + place + width]
            cells = [source + place, source + place + width]
            shares = given + h * widths
            with e.loop(0, widths, lanes) as w:
                at = minimum(w, last)
                _windows(lanes, rows, cells, shares, at)
            for line in rows:
                with e.loop(covered, width) as j:
                    line[j] = nothing
        done = heights * 2 * width
        left, rest = height * width - done, to + done
        with e.when(left > 0):
            rest.zero(left)
    return RecordedKernel(e.kernel(f"pool_grad_pairs_{dtype.name}_{lanes}"), p)


def _windows(
    lanes: int, rows: Sequence[Pointer], cells: Sequence[Pointer], dy: Pointer, first: Value
) -> None:
    """Write the gradient of as many windows as there are lanes, from window `first` on."""
    column = first * 2
    found: list[Value] = []
    for line in cells:
        pair = [load_value(line, column + v * lanes, lanes) for v in range(2)]
        found += separated(pair)
    best = functools.reduce(_greater, found)
    left, shares = load_value(dy, first, lanes), []
    for x in found:
        # NaN is its own first maximum.
        hit = (x == best) | (x != x)
        shares.append(select(hit, left, 0.0))
        left = select(hit, 0.0, left)
    for r, line in enumerate(rows):
        for v, value in enumerate(mingled(shares[2 * r : 2 * r + 2])):
            store_value(line, column + v * lanes, value)


def _greater(known: Value, value: Value) -> Value:
    """The greater one; NaN where either is."""
    return select(known != known, known, maximum(known, value))


def separated(vectors: Sequence[Value]) -> list[Value]:
    """Elements of even and of odd number of two vectors in a row."""
    one, two = vectors
    if one.lanes == 1:
        return [one, two]
    return [shuffle(one, two, range(r, 2 * one.lanes, 2)) for r in range(2)]


def mingled(vectors: Sequence[Value]) -> list[Value]:
    """The inverse of `separated`."""
    one, two = vectors
    lanes = one.lanes
    if lanes == 1:
        return [one, two]
    order = [i // 2 + i % 2 * lanes for i in range(2 * lanes)]
    return [shuffle(one, two, order[v * lanes : (v + 1) * lanes]) for v in range(2)]
