"""Kernels of the gradients of channels-last pooling."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from treadle.backends.codegen.irregular.pool_tables import Geometry
from treadle.backends.codegen.irregular.rows import row_kernel, walk
from treadle.backends.codegen.irregular.window_parts import (
    Bounds,
    Channels,
    Operand,
    Spec,
    each_cell,
    each_channels,
    greater,
)
from treadle.backends.codegen.kernel import ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value
from treadle.base import dtype as dt
from treadle.base.dtype import DType

Rows = tuple[Value, Value]
"""Rows of cells, [first, stop)."""
Places = tuple[Value, Value, Value]
"""Of an image of x and of the result, and of a cell of dy."""


@functools.cache
def maxima_grad_kernel(spec: Spec, kept: DType, *, tiled: bool, strips: bool) -> Kernel:
    """dy to the first maxima of x; a row of the launch is a strip of rows of an image.

    Windows across the edge of a strip are looked at twice; without `strips`, an image has only one.
    `covers` says of rows of cells which rows of windows, from the first to the one behind the last,
    have them. Sums are of type `kept`. With `tiled`, every cell is in one window: nothing is added.
    """
    made = _MaximaGrad(spec, kept, tiled, strips)
    channels, strip, count = (ir.size(name) for name in ("channels", "strip", "strips"))
    covers = ir.pointer(dt.int64, "covers")

    def body(b: Builder, first: Value, stop: Value) -> None:
        def part(_: Value, n: Value, number: Value) -> None:
            low = b.mul(number, strip)
            high = b.min(b.add(low, strip), made.geometry.extents[1])
            begin = b.load(covers, b.mul(low, 3))
            end = b.load(covers, b.add(b.mul(high, 3), -2))
            made.strip(b, n, (low, high), (begin, end), channels)

        walk(b, first, stop, (count, count), part)

    parameters = [p for operand in (made.target, made.x, made.dy) for p in operand.parameters]
    name = f"window_max_grad_{spec.name}{'_tiled' * tiled}{'_strips' * strips}"
    sizes = (covers, channels, strip, count)
    return row_kernel(name, (*parameters, *sizes, *made.geometry.parameters), body)


class _MaximaGrad:
    """Operands, and the loops over a strip of an image."""

    def __init__(self, spec: Spec, kept: DType, tiled: bool, strips: bool) -> None:
        self.spec, self.kept, self.tiled, self.strips = spec, kept, tiled, strips
        self.geometry = Geometry()
        self.target, self.x = Operand.of(kept, "target"), Operand.of(spec.dtype, "x")
        self.dy = Operand.of(spec.dtype, "dy")

    def strip(
        self,
        b: Builder,
        n: Value,
        rows: Rows,
        windows: tuple[Value, Value],
        channels: Value,
    ) -> None:
        """The rows of cells, from rows of windows.

        They are cleared shortly before they are added to, but for windows along depth.
        """
        to, zero = self.target.at(b, n), b.index(0)
        rolling = not (self.tiled or self.spec.deep)
        if self.spec.deep and not self.tiled:
            self._clear(b, to, rows, channels)

        def row(d: Value, h: Value, cleared: Value) -> Value:
            outside = self.geometry.window(b, 0, d), self.geometry.window(b, 1, h)
            needed = b.max(cleared, b.min(outside[1][1], rows[1]))
            if rolling:
                self._clear(b, to, (cleared, needed), channels)
            self._row(b, n, (d, h), outside, to, rows, channels)
            return needed

        def layer(d: Value, cleared: Value) -> tuple[Value, ...]:
            return b.loop(*windows, 1, lambda h, c: row(d, h, c), (cleared,))

        depths = self.geometry.counts[0]
        start = (rows[0],)
        (done,) = b.loop(0, depths, 1, layer, start) if self.spec.deep else layer(zero, *start)
        if rolling:
            self._clear(b, to, (done, rows[1]), channels)

    def _row(
        self,
        b: Builder,
        n: Value,
        at: tuple[Value, Value],
        outside: Bounds,
        to: Value,
        rows: Rows,
        channels: Value,
    ) -> None:
        """A row of windows."""
        source, given = self.x.at(b, n), self.dy.at(b, n, *at)

        def one(w: Value) -> None:
            bounds = (*outside, self.geometry.window(b, 2, w))
            place = b.offset(given, b.mul(w, self.dy.steps[3]))

            def some(c: Channels) -> None:
                self._window(b, bounds, rows, (source, to, place), c)

            each_channels(b, self.spec, b.index(0), channels, some)

        b.loop(0, self.geometry.counts[2], 1, one)

    def _clear(self, b: Builder, to: Value, rows: Rows, channels: Value) -> None:
        """Zeros in rows of cells, at all depths."""
        depth, _, width = self.geometry.extents
        _, *steps = self.target.steps

        def row(d: Value, h: Value) -> None:
            start = b.offset(to, b.add(b.mul(d, steps[0]), b.mul(h, steps[1])))

            def cell(w: Value) -> None:
                place = b.offset(start, b.mul(w, steps[2]))

                def some(c: Channels) -> None:
                    c.store(b, place, c.constant(b, 0.0, self.kept))

                each_channels(b, self.spec, b.index(0), channels, some)

            b.loop(0, width, 1, cell)

        b.loop(0, depth, 1, lambda d: b.loop(*rows, 1, lambda h: row(d, h)))

    def _window(
        self, b: Builder, bounds: Bounds, rows: Rows, places: Places, channels: Channels
    ) -> None:
        """One window; what a NaN takes to find out is left out where there is none."""
        source, to, given = places
        before, inside = self._cut(b, bounds, *rows) if self.strips else (None, bounds)
        values = channels.load(b, given)

        def spread(best: Sequence[Value], exact: bool) -> None:
            left: Sequence[Value] = values
            if before is not None:
                left = self._spread(b, before, (source, None), channels, (best, left), exact)
            self._spread(b, inside, (source, to), channels, (best, left), exact)

        def exactly() -> None:
            spread(self._exactly_greatest(b, bounds, source, channels), True)

        if channels.count == 1:
            exactly()
            return
        best, total = self._greatest(b, bounds, source, channels)
        unordered = [b.compare("ne", t, t) for t in total]
        some = functools.reduce(lambda x, y: b.bitwise("or", x, y), unordered)
        b.branch(b.reduce("or", some), exactly, lambda: spread(best, False))

    def _greatest(
        self, b: Builder, bounds: Bounds, source: Value, channels: Channels
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        """The greatest cell of a window, if none is NaN, and a sum that is NaN if one is."""
        count = channels.count

        def cell(_: Sequence[Value], place: Sequence[Value], *known: Value) -> tuple[Value, ...]:
            here = channels.load(b, source, place[0])
            best = [b.max(*pair) for pair in zip(here, known[:count], strict=True)]
            return (*best, *(b.add(x, t) for x, t in zip(here, known[count:], strict=True)))

        lowest = channels.constant(b, -math.inf, self.spec.wide)
        zero = channels.constant(b, 0.0, self.spec.wide)
        deep, start = self.spec.deep, (*lowest, *zero)
        found = each_cell(b, self.geometry, bounds, [self.x], deep, cell, start)
        return found[:count], found[count:]

    def _exactly_greatest(
        self, b: Builder, bounds: Bounds, source: Value, channels: Channels
    ) -> tuple[Value, ...]:
        """The greatest cell of a window, NaN if one is."""

        def cell(_: Sequence[Value], place: Sequence[Value], *best: Value) -> tuple[Value, ...]:
            here = channels.load(b, source, place[0])
            return tuple(greater(b, *pair) for pair in zip(best, here, strict=True))

        lowest = channels.constant(b, -math.inf, self.spec.wide)
        return each_cell(b, self.geometry, bounds, [self.x], self.spec.deep, cell, lowest)

    def _spread(
        self,
        b: Builder,
        bounds: Bounds,
        places: tuple[Value, Value | None],
        channels: Channels,
        given: tuple[Sequence[Value], Sequence[Value]],
        exact: bool,
    ) -> tuple[Value, ...]:
        """Values to the first cells that are the greatest: stored, 0 elsewhere, or added.

        `given` is (greatest, value). Returns the values that found no cell yet; without a result
        that is all.
        """
        (source, to), (best, values) = places, given

        def cell(_: Sequence[Value], at: Sequence[Value], *left: Value) -> tuple[Value, ...]:
            rest, chosen = [], []
            for x, greatest, value in zip(channels.load(b, source, at[0]), best, left, strict=True):
                hit = b.compare("eq", x, greatest)
                if exact:
                    hit = b.bitwise("or", hit, b.compare("ne", x, x))
                chosen.append(b.select(hit, value, 0.0))
                rest.append(b.select(hit, 0.0, value))
            if to is not None:
                if not self.tiled:
                    old = channels.load(b, to, at[1])
                    chosen = [b.add(x, y) for x, y in zip(old, chosen, strict=True)]
                channels.store(b, to, chosen, at[1])
            return tuple(rest)

        operands = [self.x, self.target]
        return each_cell(b, self.geometry, bounds, operands, self.spec.deep, cell, values)

    def _cut(self, b: Builder, bounds: Bounds, low: Value, high: Value) -> tuple[Bounds, Bounds]:
        """A window's cells in rows before `low`, and those in [low, high)."""
        along_d, (first, stop, counted), along_w = bounds
        step = self.geometry.dilations[1]
        behind = b.max(b.sub(low, first), 0)
        skipped = b.div(b.add(behind, b.sub(step, 1)), step)
        edge = b.add(first, b.mul(skipped, step))
        before = along_d, (first, b.min(edge, stop), counted), along_w
        return before, (along_d, (edge, b.min(stop, high), counted), along_w)


@functools.cache
def averages_grad_kernel(spec: Spec) -> Kernel:
    """A row of the launch is a row of cells: what the windows over a cell have, each divided.

    Here `Geometry` tells of cells: (first window, behind the last one, 0) along every axis. What
    windows are divided by is the product of three factors of `counts`, along each axis.
    """
    target, dy = Operand.of(spec.dtype, "target"), Operand.of(spec.dtype, "dy")
    counts, geometry, channels = ir.pointer(spec.wide, "counts"), Geometry(), ir.size("channels")
    depths, heights, widths = geometry.counts

    def body(b: Builder, first: Value, stop: Value) -> None:
        starts = b.index(0), geometry.extents[0], b.add(*geometry.extents[:2])

        def row(_: Value, n: Value, d: Value, h: Value) -> None:
            outside = geometry.window(b, 0, d), geometry.window(b, 1, h)
            source, to = dy.at(b, n), target.at(b, n, d, h)

            def one(w: Value) -> None:
                bounds = (*outside, geometry.window(b, 2, w))
                place = b.offset(to, b.mul(w, target.steps[3]))

                def some(c: Channels) -> None:
                    c.store(b, place, _shares(b, spec, bounds, dy, source, (counts, starts), c))

                each_channels(b, spec, b.index(0), channels, some)

            b.loop(0, widths, 1, one)

        walk(b, first, stop, (depths, depths, heights), row)

    parameters = [p for operand in (target, dy) for p in operand.parameters]
    name = f"window_average_grad_{spec.name}"
    return row_kernel(name, (*parameters, counts, channels, *geometry.parameters), body)


def _shares(
    b: Builder,
    spec: Spec,
    bounds: Bounds,
    dy: Operand,
    source: Value,
    counts: tuple[Value, tuple[Value, ...]],
    channels: Channels,
) -> tuple[Value, ...]:
    """The sum of dy, divided, over the windows of a cell."""
    table, starts = counts
    steps = dy.steps[1:]

    def along(
        axis: int, place: Value, factor: Value | None, sums: Sequence[Value]
    ) -> tuple[Value, ...]:
        def window(i: Value, *carried: Value) -> tuple[Value, ...]:
            here = b.add(place, b.mul(i, steps[axis]))
            count = b.load(table, b.add(starts[axis], i))
            total = count if factor is None else b.mul(factor, count)
            if axis < 2:
                return along(axis + 1, here, total, carried)
            share = b.splat(b.div(b.constant(1.0, spec.wide), total), spec.lanes)
            values = channels.load(b, source, here)
            return tuple(b.fma(v, share, s) for v, s in zip(values, carried, strict=True))

        first, stop, _ = bounds[axis]
        if axis == 0 and not spec.deep:
            return window(first, *sums)
        return b.loop(first, stop, 1, window, sums)

    return along(0, b.index(0), None, channels.constant(b, 0.0, spec.wide))
