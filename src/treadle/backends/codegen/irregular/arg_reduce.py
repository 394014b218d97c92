"""Positions of extrema along an axis: argmax and argmin.

The first of equals is found, and the first NaN before any number, as in NumPy. Lanes keep the
best value they saw and where; all of them begin with the first element, so none is ever empty.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, reduce

from treadle.backends.codegen.irregular.rows import over_rows, row_kernel, vector_loop, walk
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.reduce import ArgExtremum, Argmax, Argmin

Better = Callable[[Builder, Value, Value], Value]


_CHAINS = 4
"""Vectors compared side by side along a line: one alone would wait for its comparisons."""


@lowers(Argmax, Argmin)
def lower_arg_extremum(
    op: ArgExtremum, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """x as [outer, extent, inner]: lanes run along the axis if it is the last, else across it."""
    x = types[0]
    shape = x.shape
    axis = op.axis % len(shape)
    outer, extent, inner = product(shape[:axis]), shape[axis], product(shape[axis + 1 :])
    lanes = min(target.lanes(x.dtype), target.lanes(dt.int32))
    largest = isinstance(op, Argmax)
    refs, nbytes = (Ref("output", 0), Ref("input", 0)), product(shape) * x.dtype.itemsize
    if inner == 1:
        kernel = _last_kernel(x.dtype, lanes, largest)
        cost = 20 + estimate(extent) * 0.8 / lanes
        return Lowered((over_rows(kernel, (*refs, extent), outer, cost, nbytes),))
    kernel = _inner_kernel(x.dtype, lanes, largest)
    panels = -(-inner // lanes)
    arguments = (*refs, extent, inner, panels)
    return Lowered((over_rows(kernel, arguments, outer * panels, 3 + estimate(extent), nbytes),))


def _better(largest: bool, b: Builder, x: Value, best: Value) -> Value:
    """Whether x comes before `best`, whatever their positions."""
    wins = b.compare("le", x, best) if largest else b.compare("le", best, x)
    if not x.dtype.is_float:
        return b.invert(wins)
    # "Not at most" is true of NaN, which only another NaN keeps from winning.
    return b.bitwise("and", b.invert(wins), b.compare("eq", best, best))


Found = tuple[Value, Value]
"""The best values seen, by lane, and their positions."""


def _merge(b: Builder, better: Better, one: Found, two: Found) -> Found:
    """The better of two by lane, of equals the earlier one."""
    wins, loses = better(b, two[0], one[0]), better(b, one[0], two[0])
    level = b.invert(b.bitwise("or", wins, loses))
    earlier = b.bitwise("and", level, b.compare("lt", two[1], one[1]))
    wins = b.bitwise("or", wins, earlier)
    return b.select(wins, two[0], one[0]), b.select(wins, two[1], one[1])


@cache
def _last_kernel(dtype: DType, lanes: int, largest: bool) -> Kernel:
    target, x, extent = pointer(dt.int32, "target"), pointer(dtype, "x"), size("extent")
    better = partial(_better, largest)
    block = _CHAINS * lanes

    def body(b: Builder, first: Value, stop: Value) -> None:
        places = b.iota(dt.int32, lanes) if lanes > 1 else b.constant(0, dt.int32)

        def row(i: Value) -> None:
            line = b.offset(x, b.mul(i, extent))
            start = b.splat(load_value(line, 0), lanes)
            zero = b.constant(0, dt.int32, lanes)

            def turn(j: Value, *found: Value) -> tuple[Value, ...]:
                # All chains note where their block begins.
                here, after = b.splat(b.cast(j, dt.int32), lanes), []
                for c in range(_CHAINS):
                    value = load_value(line, b.add(j, c * lanes), lanes)
                    wins = better(b, value, found[2 * c])
                    after += [b.select(wins, value, found[2 * c])]
                    after += [b.select(wins, here, found[2 * c + 1])]
                return tuple(after)

            full = b.bitwise("and", extent, -block)
            chains = b.loop(0, full, block, turn, (start, zero) * _CHAINS)
            whole = [
                (chains[2 * c], b.add(chains[2 * c + 1], b.add(places, c * lanes)))
                for c in range(_CHAINS)
            ]

            def rest(j: Value, mask: Value | None, best: Value, at: Value) -> Found:
                value = load_value(line, j, lanes, mask)
                wins = better(b, value, best)
                if mask is not None:
                    wins = b.bitwise("and", wins, mask)
                here = b.add(b.splat(b.cast(j, dt.int32), lanes), places)
                return b.select(wins, value, best), b.select(wins, here, at)

            best, at = vector_loop(b, full, extent, lanes, rest, (start, zero))
            found = reduce(partial(_merge, b, better), [*whole, (best, at)])
            b.store(target, i, _first_of_lanes(b, better, found))

        b.loop(first, stop, 1, row)

    name = f"arg{'max' if largest else 'min'}_last_{dtype.name}"
    return row_kernel(name, (target, x, extent), body)


def _first_of_lanes(b: Builder, better: Better, found: Found) -> Value:
    """The position of the best lane; of equals the least one."""
    while found[0].lanes > 1:
        half = found[0].lanes // 2
        low, high = (
            tuple(b.shuffle(v, v, range(start, start + half)) for v in found) for start in (0, half)
        )
        found = _merge(b, better, (low[0], low[1]), (high[0], high[1]))
    return found[1]


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
                value = load_value(slab, b.mul(j, inner), lanes, mask)
                wins = _better(largest, b, value, best)
                here = b.splat(b.cast(j, dt.int32), lanes)
                return b.select(wins, value, best), b.select(wins, here, at)

            initial = load_value(slab, 0, lanes, mask), b.constant(0, dt.int32, lanes)
            _, at = b.loop(1, extent, 1, turn, initial)
            b.store(target, b.add(b.mul(outer, inner), start), at, mask)

        walk(b, first, stop, (panels, panels), columns)

    name = f"arg{'max' if largest else 'min'}_inner_{dtype.name}"
    return row_kernel(name, (target, x, *sizes), body)
