"""Images of ATen read at places of a grid, over two and three axes, with their gradients."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.shaping import extents, part
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops import logic, reduce, unary
from treadle.ops.gather_along import AddAlongAxis, TakeAlongAxis
from treadle.ops.movement import Concat
from treadle.ops.select import Clip, Where

V = GraphOperand
_LINEAR, _NEAREST, _CUBIC = 0, 1, 2
_ZEROS, _BORDER = 0, 1
_SHARPNESS = -0.75
"""The free coefficient of PyTorch's cubic."""


@dataclass(frozen=True, slots=True)
class Tap:
    """A cell along one axis that a place reads.

    Attributes:
        index: which cell, int64, inside of the axis.
        weight, slope: its share, and how that changes with the grid's coordinate.
    """

    index: V
    weight: V
    slope: V


@dataclass(frozen=True, slots=True)
class _Axis:
    extent: int
    padding: int
    aligned: bool

    def place(self, coordinate: V) -> V:
        """Return the place in cells of a coordinate from -1 to 1."""
        if self.aligned:
            return (coordinate + 1.0) * ((self.extent - 1) / 2)
        return ((coordinate + 1.0) * self.extent - 1.0) * 0.5

    @property
    def step(self) -> float:
        """Derivative of the place by the coordinate."""
        return (self.extent - 1) / 2 if self.aligned else self.extent / 2

    def inside(self, place: V) -> tuple[V, V]:
        """The place that the padding puts it to, and how that changes with it."""
        one, zero = place.constant(1.0), place.constant(0.0)
        if self.padding == _ZEROS:
            return place, one.broadcast_to(extents(place))
        sign = one.broadcast_to(extents(place))
        if self.padding != _BORDER:
            place, sign = self._reflected(place)
        top = float(self.extent - 1)
        within = logic.Greater()(place, zero) & logic.Less()(place, place.constant(top))
        return Clip(0.0, top)(place), Where()(within, sign, zero)

    def _reflected(self, place: V) -> tuple[V, V]:
        low = 0.0 if self.aligned else -0.5
        span = float(self.extent - 1 if self.aligned else self.extent)
        one = place.constant(1.0)
        if span <= 0:
            still = place.constant(0.0).broadcast_to(extents(place))
            return still, still
        away = place - low
        below = logic.Less()(away, away.constant(0.0))
        size = unary.Abs()(away)
        turns = unary.Floor()(size / span)
        rest = size - turns * span
        odd = logic.NotEqual()(turns - unary.Floor()(turns * 0.5) * 2.0, one.constant(0.0))
        sign = Where()(below, -one, one)
        return Where()(odd, span - rest, rest) + low, Where()(odd, -sign, sign)

    def tap(self, index: V, weight: V, slope: V) -> Tap:
        """One cell; those outside have no weight."""
        top = float(self.extent - 1)
        within = logic.GreaterEqual()(index, index.constant(0.0)) & logic.LessEqual()(
            index, index.constant(top)
        )
        zero = weight.constant(0.0)
        known = Where()(within, index, zero).astype(dt.int64)
        return Tap(known, Where()(within, weight, zero), Where()(within, slope, zero))


def _linear(axis: _Axis, coordinate: V) -> list[Tap]:
    place, change = axis.inside(axis.place(coordinate))
    low = unary.Floor()(place)
    share, slope = place - low, change * axis.step
    return [axis.tap(low, 1.0 - share, -slope), axis.tap(low + 1.0, share, slope)]


def _nearest(axis: _Axis, coordinate: V) -> list[Tap]:
    place, _ = axis.inside(axis.place(coordinate))
    one = place.constant(1.0).broadcast_to(extents(place))
    return [axis.tap(unary.RoundEven()(place), one, one * 0.0)]


def _cubic(axis: _Axis, coordinate: V) -> list[Tap]:
    """Four cells around; the padding moves each of them."""
    place = axis.place(coordinate)
    low, taps = unary.Floor()(place), []
    share, a = place - low, _SHARPNESS
    for offset in (-1, 0, 1, 2):
        away = share + 1.0 if offset == -1 else share if not offset else offset - share
        sign = 1.0 if offset <= 0 else -1.0
        if offset in (0, 1):
            weight = ((a + 2) * away - (a + 3)) * away * away + 1.0
            slope = (3 * (a + 2) * away - 2 * (a + 3)) * away
        else:
            weight = ((away - 5.0) * away + 8.0) * away * a - 4 * a
            slope = ((3 * away - 10.0) * away + 8.0) * a
        index, _ = axis.inside(low + float(offset))
        taps.append(axis.tap(index, weight, slope * (sign * axis.step)))
    return taps


_TAPS: dict[int, Callable[[_Axis, V], list[Tap]]] = {
    _LINEAR: _linear,
    _NEAREST: _nearest,
    _CUBIC: _cubic,
}


def _axes(x: V, grid: V, mode: int, padding: int, aligned: bool) -> list[list[Tap]]:
    """Taps for each axis, of [batch, 1, places]; the grid names the last axis first."""
    batch, rank = extents(x)[0], x.type.ndim - 2
    count = math.prod(extents(grid)[1:-1])
    found = []
    for i, extent in enumerate(extents(x)[2:]):
        at = rank - 1 - i
        line = part(grid, grid.type.ndim - 1, at, at + 1).reshape((batch, 1, count))
        found.append(_TAPS[mode](_Axis(extent, padding, aligned), line))
    return found


def _corners(x: V, axes: Sequence[Sequence[Tap]]) -> Iterator[tuple[V, tuple[Tap, ...]]]:
    """Flat indices of what is read, of [batch, channels, places], with their taps."""
    batch, channels, *spatial = extents(x)
    for taps in itertools.product(*axes):
        index = taps[0].index
        for tap, extent in zip(taps[1:], spatial[1:], strict=True):
            index = index * extent + tap.index
        yield index.broadcast_to((batch, channels, extents(index)[-1])), taps


def _share(taps: Sequence[Tap]) -> V:
    return functools.reduce(operator.mul, (t.weight for t in taps))


@lowers("grid_sampler_2d.default", "grid_sampler_3d.default")
def _sampled(call: OperatorCall, x: V, grid: V, mode: int, padding: int, aligned: bool) -> V:
    batch, channels, *spatial = extents(x)
    lined = x.reshape((batch, channels, math.prod(spatial)))
    axes = _axes(x, grid, mode, padding, aligned)
    parts = [TakeAlongAxis(2)(lined, index) * _share(taps) for index, taps in _corners(x, axes)]
    return functools.reduce(operator.add, parts).reshape(call.shape)


@lowers("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def _sampled_backward(
    call: OperatorCall,
    dy: V,
    x: V,
    grid: V,
    mode: int,
    padding: int,
    aligned: bool,
    mask: Sequence[bool],
) -> tuple[V | None, V]:
    batch, channels, *spatial = extents(x)
    shape = (batch, channels, math.prod(spatial))
    lined, axes = x.reshape(shape), _axes(x, grid, mode, padding, aligned)
    given = dy.reshape((batch, channels, math.prod(extents(dy)[2:])))
    dx = x.constant(0).broadcast_to(shape)
    zero = grid.constant(0).broadcast_to((batch, extents(given)[-1]))
    changes = [zero] * len(spatial)
    for index, taps in _corners(x, axes):
        if mask[0]:
            dx = AddAlongAxis(2)(dx, index, given * _share(taps))
        if mode == _NEAREST:
            continue
        along = reduce.Sum((1,), False)(given * TakeAlongAxis(2)(lined, index))
        for i, tap in enumerate(taps):
            slopes = (t.slope if t is tap else t.weight for t in taps)
            slope = functools.reduce(operator.mul, slopes).reshape(extents(along))
            changes[i] = changes[i] + along * slope
    wide = (*extents(grid)[:-1], 1)
    columns = [c.reshape(wide) for c in reversed(changes)]
    return (dx.reshape(extents(x)) if mask[0] else None), Concat(len(wide) - 1)(*columns)
