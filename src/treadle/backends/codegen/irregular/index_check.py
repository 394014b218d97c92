"""Whether indices lie in their range: the least and the greatest of them, compared once.

Many indices are looked at in panels, which note what they find; all of them write the same place,
and any one will do.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Literal

from treadle.backends.codegen.irregular.rows import over_rows, row_kernel, vector_loop
from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
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
    target = pointer(dt.int64, "target")

    def body(b: Builder, lo: Value, hi: Value) -> None:
        for i in range(2):
            b.store(target, i, b.constant(0, dt.int64))

    return builder.kernel("clear_check", (target,), body)


@cache
def _check(index_type: DType, lanes: int) -> Kernel:
    target, index = pointer(dt.int64, "target"), pointer(index_type, "index")
    names = "low", "high", "count", "panel", "found"
    low, high, count, panel, flag = sizes = [size(n) for n in names]

    def look(b: Builder, row: Value) -> None:
        start = b.mul(row, panel)
        end = b.min(b.add(start, panel), count)
        first = b.splat(b.load(index, start), lanes)

        def turn(i: Value, mask: Value | None, least: Value, most: Value) -> tuple[Value, Value]:
            found = b.load(index, i, lanes, mask)
            if mask is not None:
                found = b.select(mask, found, first)
            return b.min(least, found), b.max(most, found)

        lines = vector_loop(b, start, end, lanes, turn, (first, first))
        least, most = _one(b, "min", lines[0]), _one(b, "max", lines[1])
        below = b.compare("lt", least, low)
        outside = b.bitwise("or", below, b.compare("le", high, most))

        def note() -> None:
            b.store(target, 1, b.select(below, least, most))
            b.store(target, 0, flag)

        b.branch(outside, note)

    def body(b: Builder, first: Value, stop: Value) -> None:
        b.loop(first, stop, 1, partial(look, b))

    return row_kernel(f"check_indices_{index_type.name}", (target, index, *sizes), body)


def _one(b: Builder, code: Literal["min", "max"], found: Value) -> Value:
    """The lanes of a vector as one number."""
    return b.cast(b.reduce(code, found) if found.lanes > 1 else found, dt.int64)
