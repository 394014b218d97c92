"""Gradients of max_pool over windows of two by two cells side by side: nothing is added up.

Rows are taken apart into even and odd columns, so that the four cells of a window are the same lane
of four vectors; what they receive is put together again. The last vectors of a row end with it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from treadle.backends.codegen.irregular.pool_tables import Axis
from treadle.backends.codegen.irregular.rows import over_rows, row_kernel
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base.dtype import DType
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type
from treadle.ops.windows import Window


def are_pairs(window: Window, axes: Sequence[Axis]) -> bool:
    """Whether all windows have two by two cells, and neighbors no cell in common or between."""
    if len(window.kernel) != 2 or [int(k) for k in window.kernel] != [2, 2]:
        return False
    steps = window.strides == (2, 2) and window.dilation == (1, 1)
    first = all(low == 0 for low, _ in window.padding)
    return steps and first and all(2 * a.count <= a.extent for a in axes[1:])


def lower_grad_pairs(axes: Sequence[Axis], x: TensorType, target: Target) -> Lowered:
    """One launch over planes."""
    (_, height, width), planes = axes, product(x.shape[:2])
    lanes = target.lanes(x.dtype)
    while lanes > width.count:
        lanes //= 2
    sizes = height.extent, width.extent, height.count, width.count
    cost = (
        4 + height.count * (4 + 8 * -(-width.count // lanes)) + height.extent * width.extent * 0.1
    )
    refs = Ref("output", 0), Ref("input", 0), Ref("input", 1)
    return Lowered((over_rows(_kernel(x.dtype, lanes), (*refs, *sizes), planes, cost),))


@functools.cache
def _kernel(dtype: DType, lanes: int) -> Kernel:
    """Each row of the launch is a plane."""
    target, x, dy = (pointer(dtype, name) for name in ("target", "x", "dy"))
    sizes = [size(name) for name in ("height", "width", "heights", "widths")]
    height, width, heights, widths = sizes

    def body(b: Builder, first: Value, stop: Value) -> None:
        covered, last = b.mul(widths, 2), b.sub(widths, lanes)
        nothing = b.cast(b.constant(0.0, compute_type(dtype)), dtype)

        def plane(i: Value) -> None:
            begin = b.mul(i, b.mul(height, width))
            to, source = b.offset(target, begin), b.offset(x, begin)
            given = b.offset(dy, b.mul(i, b.mul(heights, widths)))

            def row(h: Value) -> None:
                place = b.mul(b.mul(h, 2), width)
                rows = [b.offset(to, place), b.offset(b.offset(to, place), width)]
                cells = [b.offset(source, place), b.offset(b.offset(source, place), width)]
                shares = b.offset(given, b.mul(h, widths))

                def some(w: Value) -> None:
                    at = b.min(w, last)
                    _windows(b, lanes, rows, cells, shares, at)

                b.loop(0, widths, lanes, some)
                for line in rows:
                    clear = functools.partial(b.store, line, value=nothing)
                    b.loop(covered, width, 1, lambda j, clear=clear: clear(j))

            b.loop(0, heights, 1, row)
            done = b.mul(b.mul(heights, 2), width)
            left, rest = b.sub(b.mul(height, width), done), b.offset(to, done)
            b.branch(b.compare("lt", 0, left), lambda: b.zero(rest, left))

        b.loop(first, stop, 1, plane)

    return row_kernel(f"pool_grad_pairs_{dtype.name}_{lanes}", (target, x, dy, *sizes), body)


def _windows(
    b: Builder,
    lanes: int,
    rows: Sequence[Value],
    cells: Sequence[Value],
    dy: Value,
    first: Value,
) -> None:
    """As many windows as there are lanes, from window `first` on."""
    column = b.mul(first, 2)
    found: list[Value] = []
    for line in cells:
        pair = [load_value(line, b.add(column, v * lanes), lanes) for v in range(2)]
        found += separated(b, pair)
    best = functools.reduce(functools.partial(_greater, b), found)
    left, shares = load_value(dy, first, lanes), []
    for x in found:
        # NaN is its own first maximum.
        hit = b.bitwise("or", b.compare("eq", x, best), b.compare("ne", x, x))
        shares.append(b.select(hit, left, 0.0))
        left = b.select(hit, 0.0, left)
    for r, line in enumerate(rows):
        for v, value in enumerate(mingled(b, shares[2 * r : 2 * r + 2])):
            store_value(line, b.add(column, v * lanes), value)


def _greater(b: Builder, known: Value, value: Value) -> Value:
    """The greater one; NaN where either is."""
    return b.select(b.compare("ne", known, known), known, b.max(known, value))


def separated(b: Builder, vectors: Sequence[Value]) -> list[Value]:
    """Elements of even and of odd number of two vectors in a row."""
    one, two = vectors
    if one.lanes == 1:
        return [one, two]
    return [b.shuffle(one, two, range(r, 2 * one.lanes, 2)) for r in range(2)]


def mingled(b: Builder, vectors: Sequence[Value]) -> list[Value]:
    """The inverse of `separated`."""
    one, two = vectors
    lanes = one.lanes
    if lanes == 1:
        return [one, two]
    order = [i // 2 + i % 2 * lanes for i in range(2 * lanes)]
    return [b.shuffle(one, two, order[v * lanes : (v + 1) * lanes]) for v in range(2)]
