"""Kernels of the gradients of channels-last pooling."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from treadle.backends.codegen.irregular.pool_tables import Bounds, Windows
from treadle.backends.codegen.irregular.rows import RowBuilder
from treadle.backends.codegen.irregular.window_parts import (
    Channels,
    Volume,
    VolumeRecord,
    WindowConfig,
    each_cell,
    each_channels,
    greater,
    volume,
)
from treadle.backends.codegen.kernel.builder import Builder, Changing
from treadle.backends.codegen.kernel.language import Pointer, Value, fma, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.base import dtype as dt
from treadle.base.dtype import DType

Rows = tuple[Value, Value]
"""Rows of cells, [first, stop)."""
Places = tuple[Pointer, Pointer, Pointer]
"""Of an image of x and of the result, and of a cell of dy."""


class MaximaParameters(Record[P, S], covers=dt.int64, windows=Windows):
    """Parameters of `maxima_grad_kernel`."""

    target: VolumeRecord[P, S]
    x: VolumeRecord[P, S]
    dy: VolumeRecord[P, S]
    covers: P
    channels: S
    strip: S
    strips: S
    windows: Windows[P, S]


@functools.cache
def maxima_grad_kernel(
    spec: WindowConfig, kept: DType, *, tiled: bool, strips: bool
) -> RecordedKernel:
    """dy to the first maxima of x; a row of the launch is a strip of rows of an image.

    Windows across the edge of a strip are looked at twice; without `strips`, an image has only one.
    `covers` says of rows of cells which rows of windows, from the first to the one behind the last,
    have them. Sums are of type `kept`. With `tiled`, every cell is in one window: nothing is added.
    """
    made = _MaximaGrad(spec, kept, tiled, strips)
    e, p = made.e, made.p
    with e.rows(p.strips, p.strips) as (_, n, number):
        low = number * p.strip
        high = minimum(low + p.strip, p.windows.extents[1])
        begin = p.covers[low * 3]
        end = p.covers[high * 3 + -2]
        made.write(n, (low, high), (begin, end))
    name = f"window_max_grad_{spec.name}{'_tiled' * tiled}{'_strips' * strips}"
    return RecordedKernel(e.kernel(name), p)


class _MaximaGrad:
    """Parameters, and the loops over a strip of an image."""

    def __init__(self, spec: WindowConfig, kept: DType, tiled: bool, strips: bool) -> None:
        self.spec, self.kept, self.tiled, self.strips = spec, kept, tiled, strips
        self.e = e = RowBuilder()
        self.p = e.record(
            MaximaParameters[Pointer, Value],
            target=partial(volume, e, kept, "target"),
            x=partial(volume, e, spec.dtype, "x"),
            dy=partial(volume, e, spec.dtype, "dy"),
        )
        self.geometry = self.p.windows

    def write(self, n: Value, rows: Rows, windows: tuple[Value, Value]) -> None:
        """The rows of cells, from rows of windows.

        They are cleared shortly before they are added to, but for windows along depth.
        """
        e, to, deep = self.e, self.p.target.at(n), self.spec.deep
        rolling = not (self.tiled or deep)
        if deep and not self.tiled:
            self._clear(to, rows)
        cleared, depths = [rows[0]], self.geometry.counts[0]
        with (
            e.loop(depths, carrying=cleared) if deep else nullcontext(e.index(0)) as d,
            e.loop(*windows, carrying=cleared) as h,
        ):
            outside = self.geometry.window(0, d), self.geometry.window(1, h)
            needed = maximum(cleared[0], minimum(outside[1][1], rows[1]))
            if rolling:
                self._clear(to, (cleared[0], needed))
            self._row(n, (d, h), outside, to, rows)
            cleared[0] = needed
        if rolling:
            self._clear(to, (cleared[0], rows[1]))

    def _row(
        self, n: Value, at: tuple[Value, Value], outside: Bounds, to: Pointer, rows: Rows
    ) -> None:
        """A row of windows."""
        source, given = self.p.x.at(n), self.p.dy.at(n, *at)
        with self.e.loop(self.geometry.counts[2]) as w:
            bounds = (*outside, self.geometry.window(2, w))
            place = given + w * self.p.dy.steps[3]
            for c in each_channels(self.e, self.spec, self.p.channels):
                self._window(bounds, rows, (source, to, place), c)

    def _clear(self, to: Pointer, rows: Rows) -> None:
        """Zeros in rows of cells, at all depths."""
        e, (depth, _, width) = self.e, self.geometry.extents
        _, *steps = self.p.target.steps
        with e.loop(depth) as d, e.loop(*rows) as h:
            start = to + (d * steps[0] + h * steps[1])
            with e.loop(width) as w:
                place = start + w * steps[2]
                for c in each_channels(e, self.spec, self.p.channels):
                    c.store(place, c.constant(0.0, self.kept))

    def _window(self, bounds: Bounds, rows: Rows, places: Places, channels: Channels) -> None:
        """One window; what a NaN takes to find out is left out where there is none."""
        source, to, given = places
        before, inside = self._cut(bounds, *rows) if self.strips else (None, bounds)
        values = channels.load(given)

        def spread(best: Sequence[Value], exact: bool) -> None:
            left = values
            if before is not None:
                left = self._spread(before, (source, None), channels, (best, left), exact)
            self._spread(inside, (source, to), channels, (best, left), exact)

        if channels.count == 1:
            spread(self._exactly_greatest(bounds, source, channels), True)
            return
        best, total = self._greatest(bounds, source, channels)
        unordered = [t != t for t in total]
        some = functools.reduce(operator.or_, unordered)
        with self.e.when(some.reduce("or")):
            spread(self._exactly_greatest(bounds, source, channels), True)
        with self.e.otherwise():
            spread(best, False)

    def _greatest(
        self, bounds: Bounds, source: Pointer, channels: Channels
    ) -> tuple[list[Value], list[Value]]:
        """The greatest cell of a window, if none is NaN, and a sum that is NaN if one is."""
        best = channels.constant(-math.inf, self.spec.wide)
        total = channels.constant(0.0, self.spec.wide)
        with self._cells(bounds, [self.p.x], (best, total)) as (place,):
            here = channels.load(source, place)
            best[:] = map(maximum, here, best)
            total[:] = map(operator.add, here, total)
        return best, total

    def _exactly_greatest(self, bounds: Bounds, source: Pointer, channels: Channels) -> list[Value]:
        """The greatest cell of a window, NaN if one is."""
        best = channels.constant(-math.inf, self.spec.wide)
        with self._cells(bounds, [self.p.x], best) as (place,):
            here = channels.load(source, place)
            best[:] = map(greater, best, here)
        return best

    def _spread(
        self,
        bounds: Bounds,
        places: tuple[Pointer, Pointer | None],
        channels: Channels,
        given: tuple[Sequence[Value], Sequence[Value]],
        exact: bool,
    ) -> list[Value]:
        """Values to the first cells that are the greatest: stored, 0 elsewhere, or added.

        `given` is (greatest, value). Returns the values that found no cell yet; without a result
        that is all.
        """
        (source, to), (best, values) = places, given
        left = [*values]
        with self._cells(bounds, [self.p.x, self.p.target], left) as at:
            chosen: list[Value] = []
            cells = channels.load(source, at[0])
            for i, (x, greatest, value) in enumerate(zip(cells, best, [*left], strict=True)):
                hit = x == greatest
                if exact:
                    hit = hit | (x != x)
                chosen.append(select(hit, value, 0.0))
                left[i] = select(hit, 0.0, value)
            if to is not None:
                if not self.tiled:
                    chosen = list(map(operator.add, channels.load(to, at[1]), chosen))
                channels.store(to, chosen, at[1])
        return left

    def _cells(
        self, bounds: Bounds, volumes: Sequence[Volume], carrying: Changing[Any]
    ) -> AbstractContextManager[list[Value]]:
        return each_cell(self.geometry, bounds, volumes, self.spec.deep, carrying)

    def _cut(self, bounds: Bounds, low: Value, high: Value) -> tuple[Bounds, Bounds]:
        """A window's cells in rows before `low`, and those in [low, high)."""
        along_d, (first, stop, counted), along_w = bounds
        step = self.geometry.dilations[1]
        behind = maximum(low - first, 0)
        skipped = (behind + (step - 1)) // step
        edge = first + skipped * step
        before = along_d, (first, minimum(edge, stop), counted), along_w
        return before, (along_d, (edge, minimum(stop, high), counted), along_w)


class AveragesParameters(Record[P, S], windows=Windows):
    """Parameters of `averages_grad_kernel`."""

    target: VolumeRecord[P, S]
    dy: VolumeRecord[P, S]
    counts: P
    channels: S
    windows: Windows[P, S]


@functools.cache
def averages_grad_kernel(spec: WindowConfig) -> RecordedKernel:
    """Return the kernel; a row of the launch is a row of cells: means over windows over each.

    Here `windows` tell of cells: (first window, behind the last one, 0) along every axis. What
    windows are divided by is the product of three factors of `counts`, along each axis.
    """
    e = RowBuilder()
    p = e.record(
        AveragesParameters[Pointer, Value],
        target=partial(volume, e, spec.dtype, "target"),
        dy=partial(volume, e, spec.dtype, "dy"),
        counts=spec.wide,
    )
    geometry = p.windows
    depths, heights, widths = geometry.counts
    starts = e.index(0), geometry.extents[0], geometry.extents[0] + geometry.extents[1]
    with e.rows(depths, depths, heights) as (_, n, d, h):
        outside = geometry.window(0, d), geometry.window(1, h)
        source, to = p.dy.at(n), p.target.at(n, d, h)
        with e.loop(widths) as w:
            bounds = (*outside, geometry.window(2, w))
            place = to + w * p.target.steps[3]
            for c in each_channels(e, spec, p.channels):
                c.store(place, _shares(e, spec, bounds, p.dy, source, (p.counts, starts), c))
    return RecordedKernel(e.kernel(f"window_average_grad_{spec.name}"), p)


def _shares(
    e: Builder,
    spec: WindowConfig,
    bounds: Bounds,
    dy: Volume,
    source: Pointer,
    counts: tuple[Pointer, tuple[Value, ...]],
    channels: Channels,
) -> list[Value]:
    """The sum of dy, divided, over the windows of a cell."""
    (table, starts), steps = counts, dy.steps[1:]
    sums = channels.constant(0.0, spec.wide)

    def add(axis: int, place: Value | int, factor: Value | None) -> None:
        """The windows along an axis and those behind it."""
        first, stop, _ = bounds[axis]
        only = axis == 0 and not spec.deep
        with nullcontext(first) if only else e.loop(first, stop, carrying=sums) as i:
            here = place + i * steps[axis]
            count = table[starts[axis] + i]
            total = count if factor is None else factor * count
            if axis < 2:
                add(axis + 1, here, total)
                return
            share = (1.0 / total).splat(spec.lanes)
            values = channels.load(source, here)
            sums[:] = [fma(v, share, s) for v, s in zip(values, sums, strict=True)]

    add(0, 0, None)
    return sums
