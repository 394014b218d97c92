"""Positions of extrema along an axis: argmax and argmin.

The first of equals is found, and the first NaN before any number, as in NumPy. Lanes keep the
best value they saw and where; all of them begin with the first element, so none is ever empty.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from treadle.backends.codegen.kernel_ir import Builder, Kernel, Value, pointer, size
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.rows import over_rows, row_kernel, vector_loop, walk
from treadle.backends.codegen.scalar_code import load_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.shape import size_of
from treadle.base.types import TensorType
from treadle.ops.reduce import ArgExtremum, Argmax, Argmin

Better = Callable[[Builder, Value, Value], Value]


@lowers(Argmax, Argmin)
def lower_arg_extremum(
    op: ArgExtremum, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """x as [outer, extent, inner]: lanes run along the axis if it is the last, else across it."""
    x = types[0]
    shape = tuple(int(d) for d in x.shape)
    axis = op.axis % len(shape)
    outer, extent, inner = size_of(shape[:axis]), shape[axis], size_of(shape[axis + 1 :])
    lanes = min(target.lanes(x.dtype), target.lanes(dt.int32))
    largest = isinstance(op, Argmax)
    refs, nbytes = (Ref("output", 0), Ref("input", 0)), size_of(shape) * x.dtype.itemsize
    if inner == 1:
        kernel = _last_kernel(x.dtype, lanes, largest)
        cost = 20 + extent * 1.2 / lanes
        return Lowered((over_rows(kernel, (*refs, extent), outer, cost, nbytes),))
    kernel = _inner_kernel(x.dtype, lanes, largest)
    panels = -(-inner // lanes)
    arguments = (*refs, extent, inner, panels)
    return Lowered((over_rows(kernel, arguments, outer * panels, 3 + extent, nbytes),))


def _better(largest: bool, b: Builder, x: Value, best: Value) -> Value:
    """Whether x comes before `best`, whatever their positions."""
    wins = b.compare("lt", best, x) if largest else b.compare("lt", x, best)
    if not x.dtype.is_float:
        return wins
    first_nan = b.bitwise("and", b.compare("ne", x, x), b.compare("eq", best, best))
    return b.bitwise("or", wins, first_nan)


@cache
def _last_kernel(dtype: DType, lanes: int, largest: bool) -> Kernel:
    target, x, extent = pointer(dt.int32, "target"), pointer(dtype, "x"), size("extent")
    better = partial(_better, largest)

    def body(b: Builder, first: Value, stop: Value) -> None:
        def row(i: Value) -> None:
            line = b.offset(x, b.mul(i, extent))
            start = b.splat(load_value(b, line, 0), lanes)
            places = b.iota(dt.int32, lanes) if lanes > 1 else b.constant(0, dt.int32)

            def turn(j: Value, mask: Value | None, best: Value, at: Value) -> tuple[Value, Value]:
                value = load_value(b, line, j, lanes, mask)
                wins = better(b, value, best)
                if mask is not None:
                    wins = b.bitwise("and", wins, mask)
                here = b.add(b.splat(b.cast(j, dt.int32), lanes), places)
                return b.select(wins, value, best), b.select(wins, here, at)

            zero = b.constant(0, dt.int32, lanes)
            best, at = vector_loop(b, 0, extent, lanes, turn, (start, zero))
            b.store(target, i, _first_of_lanes(b, best, at, better))

        b.loop(first, stop, 1, row)

    name = f"arg{'max' if largest else 'min'}_last_{dtype.name}"
    return row_kernel(name, (target, x, extent), body)


def _first_of_lanes(b: Builder, best: Value, at: Value, better: Better) -> Value:
    """The position of the best lane; of equals the least one."""
    value, place = b.extract(best, 0), b.extract(at, 0)
    for lane in range(1, best.lanes):
        other, there = b.extract(best, lane), b.extract(at, lane)
        wins, loses = better(b, other, value), better(b, value, other)
        level = b.bitwise("xor", b.bitwise("or", wins, loses), True)
        earlier = b.bitwise("and", level, b.compare("lt", there, place))
        wins = b.bitwise("or", wins, earlier)
        value, place = b.select(wins, other, value), b.select(wins, there, place)
    return place


@cache
def _inner_kernel(dtype: DType, lanes: int, largest: bool) -> Kernel:
    """Each row of the launch is `lanes` columns side by side."""
    target, x = pointer(dt.int32, "target"), pointer(dtype, "x")
    extent, inner, panels = sizes = [size(n) for n in ("extent", "inner", "panels")]

    def body(b: Builder, first: Value, stop: Value) -> None:
        def columns(_: Value, outer: Value, panel: Value) -> None:
            start = b.mul(panel, lanes)
            mask = b.first_lanes(b.sub(inner, start), lanes)
            slab = b.offset(x, b.add(b.mul(b.mul(outer, extent), inner), start))

            def turn(j: Value, best: Value, at: Value) -> tuple[Value, Value]:
                value = load_value(b, slab, b.mul(j, inner), lanes, mask)
                wins = _better(largest, b, value, best)
                here = b.splat(b.cast(j, dt.int32), lanes)
                return b.select(wins, value, best), b.select(wins, here, at)

            initial = load_value(b, slab, 0, lanes, mask), b.constant(0, dt.int32, lanes)
            _, at = b.loop(1, extent, 1, turn, initial)
            b.store(target, b.add(b.mul(outer, inner), start), at, mask)

        walk(b, first, stop, (panels, panels), columns)

    name = f"arg{'max' if largest else 'min'}_inner_{dtype.name}"
    return row_kernel(name, (target, x, *sizes), body)
