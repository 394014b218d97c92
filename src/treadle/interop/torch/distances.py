"""Distances between rows of ATen, and products of three factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.graph.builder import GraphOperand
from treadle.interop.torch.shaping import extents
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce, unary
from treadle.ops.gather import IndexAdd, Take
from treadle.ops.select import Where

V = GraphOperand


def _size(apart: V, p: float) -> V:
    """The norm over the last axis."""
    last, size = (apart.type.ndim - 1,), unary.Abs()(apart)
    if p == 2:
        return unary.Sqrt()(reduce.Sum(last, False)(apart * apart))
    if p == 1:
        return reduce.Sum(last, False)(size)
    if p == 0:
        some = logic.NotEqual()(apart, apart.constant(0)).astype(apart.type.dtype)
        return reduce.Sum(last, False)(some)
    if math.isinf(p):
        if not extents(apart)[-1]:
            return apart.constant(0).broadcast_to(extents(apart)[:-1])
        return reduce.Max(last, False)(size)
    total = reduce.Sum(last, False)(ew.Pow()(size, size.constant(p)))
    return ew.Pow()(total, total.constant(1 / p))


def _slope(apart: V, p: float, distance: V) -> V:
    """Return the derivative of the distance, [..., 1], by the difference of two rows; 0 where
    nothing is between them.
    """
    sign, size, zero = unary.Sign()(apart), unary.Abs()(apart), apart.constant(0)
    if p == 0:
        return apart * 0
    if p == 1:
        return sign
    if math.isinf(p):
        return Where()(logic.Equal()(size, distance), sign, zero)
    none = logic.Equal()(distance, distance.constant(0))
    safe = Where()(none, distance.constant(1), distance)
    if p == 2:
        return Where()(none, zero, apart / safe)
    # Of quotients, which neither overflow nor vanish.
    share = ew.Pow()(size / safe, size.constant(p - 1))
    still = none | logic.Equal()(size, size.constant(0))
    return Where()(still, zero, sign * share)


def _between(x: V, y: V) -> V:
    """x [..., m, d] and y [..., n, d]: the differences, [..., m, n, d]."""
    *lead, m, d = extents(x)
    *other, n, _ = extents(y)
    return x.reshape((*lead, m, 1, d)) - y.reshape((*other, 1, n, d))


@lowers("_cdist_forward.default")
def _cdist(call: OperatorCall, x: V, y: V, p: float, mode: Any) -> V:
    return _size(_between(x, y), p).broadcast_to(call.shape)


@lowers("_cdist_backward.default")
def _cdist_backward(call: OperatorCall, dy: V, x: V, y: V, p: float, distance: V) -> V:
    wide = (*extents(distance), 1)
    slope = _slope(_between(x, y), p, distance.reshape(wide)) * dy.reshape(wide)
    made = reduce.Sum((slope.type.ndim - 2,), False)(slope)
    surplus = tuple(range(made.type.ndim - len(call.shape)))
    made = reduce.Sum(surplus, False)(made) if surplus else made
    narrow = tuple(
        i for i, (m, n) in enumerate(zip(extents(made), call.shape, strict=True)) if m != n
    )
    return reduce.Sum(narrow, True)(made) if narrow else made


def _pairs(call: OperatorCall, rows: int) -> tuple[V, V]:
    first, second = np.triu_indices(rows, 1)
    return (
        call.builder.constant(first.astype(np.int64)),
        call.builder.constant(second.astype(np.int64)),
    )


@lowers("_pdist_forward.default")
def _pdist(call: OperatorCall, x: V, p: float = 2.0) -> V:
    first, second = _pairs(call, extents(x)[0])
    return _size(Take(0)(x, first) - Take(0)(x, second), p)


@lowers("_pdist_backward.default")
def _pdist_backward(call: OperatorCall, dy: V, x: V, p: float, distance: V) -> V:
    first, second = _pairs(call, extents(x)[0])
    apart, wide = Take(0)(x, first) - Take(0)(x, second), (*extents(distance), 1)
    slope = _slope(apart, p, distance.reshape(wide)) * dy.reshape(wide)
    zeros = x.constant(0).broadcast_to(extents(x))
    made: V = IndexAdd((0,))(IndexAdd((0,))(zeros, slope, first), -slope, second)
    return made


@lowers("_trilinear.default")
def _trilinear(
    call: OperatorCall,
    x: V,
    y: V,
    z: V,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> V:
    """The product of three factors with axes inserted, summed over axes."""
    factors = []
    for factor, places in zip((x, y, z), (expand1, expand2, expand3), strict=True):
        shape = list(extents(factor))
        for place in sorted(places):
            shape.insert(place, 1)
        factors.append(factor.reshape(tuple(shape)))
    product = factors[0] * factors[1] * factors[2]
    axes = tuple(sorted(d % product.type.ndim for d in sumdim))
    made: V = reduce.Sum(axes, False)(product) if axes else product
    return made
