"""Positions of extrema along an axis: argmax and argmin.

The first of equals is found, and the first NaN before any number, as in NumPy. Lanes keep the
best value they saw and where; all of them begin with the first element, so none is ever empty.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, reduce

from treadle.backends.codegen.irregular.rows import (
    RowBuilder,
    RowCost,
    RowParameters,
    over_rows,
    vector_loop,
)
from treadle.backends.codegen.kernel.language import Pointer, Value, select, shuffle
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.reduce import ArgExtremum, Argmax, Argmin

Better = Callable[[Value, Value], Value]
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
        cost = RowCost(20, 0.8 / lanes, extent)
        return Lowered((over_rows(kernel, _Line(*refs, extent), outer, cost, nbytes),))
    kernel = _inner_kernel(x.dtype, lanes, largest)
    panels = -(-inner // lanes)
    given = _Panel(*refs, extent, inner, panels)
    cost = RowCost(3, 1, extent)
    return Lowered((over_rows(kernel, given, outer * panels, cost, nbytes),))


class _Line(RowParameters[P, S]):
    extent: S


class _Panel(_Line[P, S]):
    inner: S
    panels: S


def _comes_first(largest: bool, x: Value, best: Value) -> Value:
    """Return whether x comes before `best`, whatever their positions."""
    wins = x <= best if largest else best <= x
    if not x.dtype.is_float:
        return ~wins
    # "Not at most" is true of NaN, which only another NaN keeps from winning.
    return ~wins & (best == best)


Found = tuple[Value, Value]
"""The best values seen, by lane, and their positions."""


def _merge(better: Better, one: Found, two: Found) -> Found:
    """The better of two by lane, of equals the earlier one."""
    wins, loses = better(two[0], one[0]), better(one[0], two[0])
    level = ~(wins | loses)
    earlier = level & (two[1] < one[1])
    wins = wins | earlier
    return select(wins, two[0], one[0]), select(wins, two[1], one[1])


@cache
def _last_kernel(dtype: DType, lanes: int, largest: bool) -> RecordedKernel:
    """Return the kernel; each row of the launch is a line."""
    e = RowBuilder()
    p = e.record(_Line[Pointer, Value], target=dt.int32, x=dtype)
    better = partial(_comes_first, largest)
    places = e.iota(dt.int32, lanes) if lanes > 1 else e.constant(0, dt.int32)
    with e.loop(e.first, e.stop) as i:
        line = p.x + i * p.extent
        start, zero = load_value(line, 0).splat(lanes), e.constant(0, dt.int32, lanes)
        block = _CHAINS * lanes
        full = p.extent & -block
        chains = [[start, zero] for _ in range(_CHAINS)]
        with e.loop(0, full, block, carrying=(*chains,)) as j:
            # All chains note where their block begins.
            here = j.cast(dt.int32).splat(lanes)
            for c, chain in enumerate(chains):
                best, at = chain
                value = load_value(line, j + c * lanes, lanes)
                wins = better(value, best)
                chain[:] = select(wins, value, best), select(wins, here, at)
        whole = [(best, at + (places + c * lanes)) for c, (best, at) in enumerate(chains)]
        rest = [start, zero]
        for j, mask in vector_loop(e, full, p.extent, lanes, carrying=rest):
            value = load_value(line, j, lanes, mask)
            wins = better(value, rest[0])
            if mask is not None:
                wins = wins & mask
            here = j.cast(dt.int32).splat(lanes) + places
            rest[:] = select(wins, value, rest[0]), select(wins, here, rest[1])
        found = reduce(partial(_merge, better), [*whole, (rest[0], rest[1])])
        p.target[i] = _first_of_lanes(better, found)
    return RecordedKernel(e.kernel(f"arg{'max' if largest else 'min'}_last_{dtype.name}"), p)


def _first_of_lanes(better: Better, found: Found) -> Value:
    """The position of the best lane; of equals the least one."""
    while found[0].lanes > 1:
        half = found[0].lanes // 2
        low, high = (
            tuple(shuffle(v, v, range(start, start + half)) for v in found) for start in (0, half)
        )
        found = _merge(better, (low[0], low[1]), (high[0], high[1]))
    return found[1]


@cache
def _inner_kernel(dtype: DType, lanes: int, largest: bool) -> RecordedKernel:
    """Return the kernel; each row of the launch is `lanes` columns side by side."""
    e = RowBuilder()
    p = e.record(_Panel[Pointer, Value], target=dt.int32, x=dtype)
    with e.rows(p.panels, p.panels) as (_, outer, panel):
        start = panel * lanes
        mask = e.first_lanes(p.inner - start, lanes)
        slab = p.x + (outer * p.extent * p.inner + start)
        found = [load_value(slab, 0, lanes, mask), e.constant(0, dt.int32, lanes)]
        with e.loop(1, p.extent, carrying=found) as j:
            best, at = found
            value = load_value(slab, j * p.inner, lanes, mask)
            wins = _comes_first(largest, value, best)
            here = j.cast(dt.int32).splat(lanes)
            found[:] = select(wins, value, best), select(wins, here, at)
        p.target.store(outer * p.inner + start, found[1], mask)
    return RecordedKernel(e.kernel(f"arg{'max' if largest else 'min'}_inner_{dtype.name}"), p)
