"""Means of samples over regions of maps: the corners of all samples of a cell in one pass.

The channels of a map lie side by side, so a vector holds several of them, and a cell costs four
loads and multiply-adds of vectors for each of its samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product as pairs
from typing import NamedTuple

from treadle.backends.codegen.irregular.rows import (
    RowBuilder,
    RowParameters,
    over_rows,
    resolve,
    vector_loop,
)
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type
from treadle.ops.regions import RegionMean

_MOST_WRITTEN_OUT = 16
"""Samples of a cell whose weights are kept while all channels are summed."""


@lowers(RegionMean)
def lower_region_mean(
    op: RegionMean, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """Lower to a launch whose rows are the cells of all regions."""
    x, images, rows, _, columns, _ = types
    samples = op.sampling
    n, height, width, channels = x.shape
    count, (down, across) = images.shape[0], op.grid
    lanes = target.lanes(compute_type(x.dtype))
    kinds = images.dtype, rows.dtype, columns.dtype
    kernel = _kernel(x.dtype, kinds, samples, lanes)
    taps = Ref("input", 2), Ref("input", 3), Ref("input", 4), Ref("input", 5)
    corners = 4 * samples[0] * samples[1]
    cost = corners * (2 + estimate(channels) * 0.35 / lanes)
    cells = count * down * across
    nbytes = cells * channels * (1 + corners) * x.dtype.itemsize
    sizes = n, height, width, channels, down, across
    given = _Regions(Ref("output", 0), Ref("input", 0), Ref("input", 1), *taps, *sizes)
    return Lowered((over_rows(kernel, given, cells, cost, nbytes),))


class _Regions(RowParameters[P, S]):
    images: P
    rows: P
    row_weights: P
    columns: P
    column_weights: P
    maps: S
    height: S
    width: S
    channels: S
    down: S
    across: S


class _SideLines(NamedTuple):
    """The lines of one side: two numbers and two weights for each."""

    numbers: Pointer
    weights: Pointer
    extent: Value
    stride: Value

    def taps(self, first: Value) -> list[tuple[Value, Value]]:
        """Offsets and weights of both lines beside sample line `first`."""
        return [
            (
                resolve(self.numbers[first * 2 + i], self.extent) * self.stride,
                load_value(self.weights, first * 2 + i),
            )
            for i in (0, 1)
        ]


@cache
def _kernel(
    dtype: DType, kinds: tuple[DType, DType, DType], samples: tuple[int, int], lanes: int
) -> RecordedKernel:
    e, wide = RowBuilder(), compute_type(dtype)
    floats = dict.fromkeys(("target", "x", "row_weights", "column_weights"), dtype)
    numbers = dict(zip(("images", "rows", "columns"), kinds, strict=True))
    p = e.record(_Regions[Pointer, Value], **floats, **numbers)
    width, channels, down, across = p.width, p.channels, p.down, p.across
    sides = (
        _SideLines(p.rows, p.row_weights, p.height, width * channels),
        _SideLines(p.columns, p.column_weights, width, channels),
    )
    share = e.constant(1.0 / (samples[0] * samples[1]), wide)

    with e.rows(down, down, across) as (row, region, i, j):
        source = p.x + resolve(p.images[region], p.maps) * (p.height * width * channels)
        to = p.target + row * channels
        firsts = (region * down + i) * samples[0], (region * across + j) * samples[1]

        def corners(a: Value | int, b: Value | int) -> list[tuple[Pointer, Value]]:
            """The four elements around a sample of the cell, and their weights."""
            taps = [
                side.taps(first + s) for side, first, s in zip(sides, firsts, (a, b), strict=True)
            ]
            return [
                (source + (up + left), (wy * wx * share).splat(lanes))
                for (up, wy), (left, wx) in pairs(*taps)
            ]

        few = samples[0] * samples[1] <= _MOST_WRITTEN_OUT
        known = [c for s in pairs(*map(range, samples)) for c in corners(*s)] if few else []
        for c, mask in vector_loop(e, 0, channels, lanes):
            total = [e.constant(0.0, wide, lanes)]
            if few:
                total[0] = _added(total[0], known, c, lanes, mask)
            else:
                with (
                    e.loop(samples[0], carrying=total) as a,
                    e.loop(samples[1], carrying=total) as b,
                ):
                    total[0] = _added(total[0], corners(a, b), c, lanes, mask)
            store_value(to, c, total[0], mask)
    name = "_".join(k.name for k in (dtype, *kinds))
    return RecordedKernel(e.kernel(f"region_mean_{name}_{samples[0]}_{samples[1]}_{lanes}"), p)


def _added(
    total: Value,
    corners: Sequence[tuple[Pointer, Value]],
    channel: Value,
    lanes: int,
    mask: Value | None,
) -> Value:
    for corner, weight in corners:
        total = total + load_value(corner, channel, lanes, mask) * weight
    return total
