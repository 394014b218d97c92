"""Pooling of ATen over one to three axes, with places of maxima."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.indexing import counted
from treadle.interop.torch.layers import pairs, spread
from treadle.interop.torch.shaping import extents
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops import reduce
from treadle.ops.adaptive_pool import (
    AdaptiveAvgPool,
    AdaptiveAvgPoolGrad,
    AdaptiveMaxPool,
    AdaptiveMaxPoolGrad,
)
from treadle.ops.gather import Take
from treadle.ops.gather_along import ScatterAlongAxis, TakeAlongAxis
from treadle.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad

V = GraphOperand
Ints = Sequence[int]
Window = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]


def _window(rank: int, kernel: Ints, stride: Ints, padding: Ints) -> Window:
    sides = spread(kernel, rank)
    return sides, spread(tuple(stride) or sides, rank), pairs(padding, rank)


def _batched(x: V, rank: int) -> V:
    """x with a batch axis; ATen's may lack it."""
    return x if x.type.ndim == rank + 2 else x.reshape((1, *extents(x)))


# -- maxima ------------------------------------------------------------------------------------


@lowers("max_pool2d.default", "max_pool3d.default", "max_pool1d.default")
def _max_pool(call: OperatorCall, x: V, kernel: Ints, *rest: Any) -> V:
    made: V = _pooled(call, x, kernel, *rest).reshape(call.shape)
    return made


def _pooled(
    call: OperatorCall,
    x: V,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil: bool = False,
) -> V:
    rank = call.rank
    window = _window(rank, kernel, stride, padding)
    y = MaxPool(*window, spread(dilation, rank), bool(ceil))(_batched(x, rank))
    return y.reshape((*extents(x)[:-rank], *extents(y)[2:]))


@lowers("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _max_pool_places(
    call: OperatorCall,
    x: V,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil: bool = False,
) -> tuple[V, V]:
    """Return maxima and, where the program reads them, their places; the gradient needs none."""
    rank = call.rank
    sides, strides, padded = _window(rank, kernel, stride, padding)
    steps, ceil = spread(dilation, rank), bool(ceil)
    if not call.is_whole:
        y = MaxPool(sides, strides, padded, steps, ceil)(_batched(x, rank)).reshape(call.shape)
        nothing = call.builder.constant(np.zeros((1,) * len(call.shape), np.int64))
        return y, nothing.broadcast_to(call.shape)
    lines = [
        [[o * s - p[0] + t * d for t in range(k)] for o in range(n)]
        for n, k, s, p, d in zip(call.shape[-rank:], sides, strides, padded, steps, strict=True)
    ]
    return _maxima(call, x, lines)


def _maxima(call: OperatorCall, x: V, lines: Sequence[Sequence[Sequence[int]]]) -> tuple[V, V]:
    """Greatest elements of windows and their flat places: the first, or the last NaN.

    Args:
        lines: for each axis and each window along it, the cells that it covers; those beyond the
            axis take no part.
    """
    rank = len(lines)
    shape, spatial = extents(x), extents(x)[-rank:]
    widest = math.prod(max(len(w) for w in line) for line in lines)
    table = np.full((math.prod(len(line) for line in lines), widest), -1, np.int64)
    for row, window in zip(table, itertools.product(*lines), strict=True):
        cells = [
            np.ravel_multi_index(cell, spatial)
            for cell in itertools.product(*window)
            if all(0 <= c < n for c, n in zip(cell, spatial, strict=True))
        ]
        row[: len(cells)] = cells
        row[len(cells) :] = cells[0]  # again the first, which is as great as itself
    wide = x.reshape((*shape[:-rank], math.prod(spatial)))
    axis = wide.type.ndim - 1
    places = call.builder.constant(table)
    seen = Take(axis)(wide, places)
    found = reduce.Argmax(axis + 1, True)(seen).astype(dt.int64)
    values = TakeAlongAxis(axis + 1)(seen, found)
    ones = (1,) * axis
    full = places.reshape((*ones, *table.shape)).broadcast_to(extents(seen))
    cells_of = TakeAlongAxis(axis + 1)(full, found)
    return values.reshape(call.shape), cells_of.reshape(call.shape)


@lowers("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default")
def _max_pool_backward(
    call: OperatorCall,
    dy: V,
    x: V,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    places: V,
) -> V:
    rank = call.rank
    window = _window(rank, kernel, stride, padding)
    grad = MaxPoolGrad(*window, spread(dilation, rank), ceil_mode)
    return grad(_batched(x, rank), _batched(dy, rank)).reshape(call.shape)


def _cells(extent: int, count: int) -> list[list[int]]:
    """Return the cells that each of so many windows covers."""
    return [list(range(i * extent // count, -(-(i + 1) * extent // count))) for i in range(count)]


@lowers("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _adaptive_max(call: OperatorCall, x: V, output: Ints) -> tuple[V, V]:
    """The places as those of `max_pool2d_with_indices`."""
    if not math.prod(call.shape):
        nothing = call.builder.constant(np.zeros(call.shape, np.int64))
        return x.constant(0).broadcast_to(call.shape), nothing
    lines = [_cells(n, m) for n, m in zip(extents(x)[-len(output) :], output, strict=True)]
    if call.is_whole:
        return _maxima(call, x, lines)
    y = AdaptiveMaxPool(tuple(output))(_batched(x, len(output))).reshape(call.shape)
    nothing = call.builder.constant(np.zeros((1,) * len(call.shape), np.int64))
    return y, nothing.broadcast_to(call.shape)


@lowers("adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default")
def _adaptive_max_backward(call: OperatorCall, dy: V, x: V, places: V) -> V:
    rank = call.rank
    grad = AdaptiveMaxPoolGrad(extents(dy)[-rank:])
    return grad(_batched(x, rank), _batched(dy, rank)).reshape(call.shape)


# -- averages ----------------------------------------------------------------------------------


def _share(x: V, sides: Ints, divisor: int | None) -> V:
    """Averages over whole windows, in the share of another divisor."""
    return x if divisor is None else x * (math.prod(sides) / divisor)


@lowers("max_unpool2d.default", "max_unpool3d.default")
def _max_unpool(call: OperatorCall, x: V, places: V, output: Ints, *rest: Any) -> V:
    """Maxima at their places in a plane of zeros, where the last of a place stays."""
    count = math.prod(extents(x)[: x.type.ndim - call.rank])
    lines, plane = (count, math.prod(extents(x)) // count), x.constant(0)
    plane = plane.broadcast_to((count, math.prod(output)))
    taken = counted("max_unpool", places.reshape(lines), plane, 1)
    return ScatterAlongAxis(1)(plane, taken, x.reshape(lines)).reshape(call.shape)


def _widened(window: Window, given: Ints, found: Ints) -> Window:
    """The window with so much padding at the ends that the last ones are whole."""
    sides, strides, padding = window
    wide = []
    for k, s, (low, high), n, out in zip(sides, strides, padding, given, found, strict=True):
        wide.append((low, max(high, (out - 1) * s + k - low - n)))
    return sides, strides, tuple(wide)


@lowers("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(
    call: OperatorCall,
    x: V,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> V:
    rank = call.rank
    window = _window(rank, kernel, stride, padding)
    if divisor_override is not None and ceil_mode:
        window, ceil_mode = _widened(window, extents(x)[-rank:], call.shape[-rank:]), False
    pool = AvgPool(*window, count_include_pad or divisor_override is not None, ceil_mode)
    y = _share(pool(_batched(x, rank)), window[0], divisor_override)
    return y.reshape(call.shape)


@lowers("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def _avg_pool_backward(
    call: OperatorCall,
    dy: V,
    x: V,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: Any,
) -> V:
    rank = call.rank
    window = _window(rank, kernel, stride, padding)
    if divisor_override is not None and ceil_mode:
        window, ceil_mode = _widened(window, extents(x)[-rank:], extents(dy)[-rank:]), False
    included = count_include_pad or divisor_override is not None
    grad = AvgPoolGrad(*window, included, ceil_mode, extents(x)[-rank:])
    return _share(grad(_batched(dy, rank)), window[0], divisor_override).reshape(call.shape)


@lowers("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive(call: OperatorCall, x: V, output: Ints) -> V:
    if set(output) == {1}:
        return reduce.Mean(tuple(range(x.type.ndim - len(output), x.type.ndim)), True)(x)
    return AdaptiveAvgPool(tuple(output))(_batched(x, len(output))).reshape(call.shape)


@lowers("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def _adaptive_backward(call: OperatorCall, dy: V, x: V) -> V:
    rank = call.rank
    grad = AdaptiveAvgPoolGrad(extents(dy)[-rank:], extents(x)[-rank:])
    return grad(_batched(dy, rank)).reshape(call.shape)
