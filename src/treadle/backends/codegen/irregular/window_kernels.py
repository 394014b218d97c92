"""Kernels of channels-last pooling: maxima, averages, and values at the maxima."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

from treadle.backends.codegen.irregular.pool_rows import lowest
from treadle.backends.codegen.irregular.pool_tables import Bounds, Geometry, Windows
from treadle.backends.codegen.irregular.rows import RowBuilder
from treadle.backends.codegen.irregular.window_parts import (
    Channels,
    Volume,
    VolumeRecord,
    WindowConfig,
    each_cell,
    each_channels,
    each_row,
    first_cell,
    greater,
    has_cells,
    volume,
    wins,
)
from treadle.backends.codegen.kernel.builder import Builder, Changing
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, select
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S

Kind = Literal["max", "gather", "average"]


class WindowParameters(Record[P, S], windows=Windows):
    """Parameters of `window_kernel`; operands are x and, for a gather, what is gathered."""

    target: VolumeRecord[P, S]
    operands: tuple[VolumeRecord[P, S], ...]
    channels: S
    windows: Windows[P, S]


@cache
def window_kernel(kind: Kind, spec: WindowConfig) -> RecordedKernel:
    """Return the kernel; a row of the launch is a row of windows."""
    e = RowBuilder()
    names = ("x", "values") if kind == "gather" else ("x",)
    p = e.record(
        WindowParameters[Pointer, Value],
        target=partial(volume, e, spec.dtype, "target"),
        operands=lambda: tuple([volume(e, spec.dtype, name) for name in names]),
    )
    geometry, x = p.windows, p.operands[0]
    depths, heights, widths = geometry.counts
    with e.rows(depths, depths, heights) as (_, n, d, h):
        outside = geometry.window(0, d), geometry.window(1, h)
        sources = [operand.at(n) for operand in p.operands]
        to = p.target.at(n, d, h)
        with e.loop(widths) as w:
            bounds = (*outside, geometry.window(2, w))
            place = to + w * p.target.steps[3]
            for c in each_channels(e, spec, p.channels):
                window = _Window(e, spec, geometry, bounds, c)
                if kind == "gather":
                    found = window.gathered(x, p.operands[1], *sources)
                elif kind == "max":
                    found = window.maximum(x, sources[0])
                else:
                    found = window.average(x, sources[0])
                c.store(place, found)
    return RecordedKernel(e.kernel(f"window_{kind}_{spec.name}"), p)


@dataclass(frozen=True, slots=True)
class _Window:
    """Some channels of one window, and what is made of its cells."""

    e: Builder
    spec: WindowConfig
    geometry: Geometry
    bounds: Bounds
    channels: Channels

    def maximum(self, x: Volume, source: Pointer) -> list[Value]:
        """The greatest cells; NaN where one is."""
        best = self.channels.constant(lowest(self.spec.dtype), self.spec.wide)
        with self._cells([x], best) as (place,):
            values = self.channels.load(source, place)
            best[:] = map(greater, best, values)
        return best

    def average(self, x: Volume, source: Pointer) -> list[Value]:
        """The sums of the cells, row by row, divided by how many count."""
        e, channels, (w0, w1, _), step = self.e, self.channels, self.bounds[2], x.steps[3]
        total = channels.constant(0.0, self.spec.wide)
        zero = [*total]
        with each_row(self.geometry, self.bounds, [x], self.spec.deep, total) as (row,):
            sums = [*zero]
            with e.loop(w0, w1, self.geometry.dilations[2], carrying=sums) as w:
                place = row + w * step
                sums[:] = map(operator.add, sums, channels.load(source, place))
            total[:] = map(operator.add, total, sums)
        counted = self.bounds[0][2] * self.bounds[1][2] * self.bounds[2][2]
        count = maximum(counted, 1).cast(self.spec.wide).splat(self.spec.lanes)
        return [sum_ / count for sum_ in total]

    def gathered(self, x: Volume, values: Volume, source: Pointer, given: Pointer) -> list[Value]:
        """The values where the first maxima are; 0 for a window without cells."""
        first_x, first_value = (
            first_cell(self.geometry, self.bounds, volume) for volume in (x, values)
        )
        best = self.channels.load(source, first_x)
        found = self.channels.load(given, first_value)
        with self._cells([x, values], (best, found)) as places:
            here = self.channels.load(source, places[0])
            there = self.channels.load(given, places[1])
            taken = list(map(wins, here, best))
            best[:] = map(select, taken, here, best)
            found[:] = map(select, taken, there, found)
        known = has_cells(self.bounds)
        return [select(known, value, 0.0) for value in found]

    def _cells(
        self, volumes: Sequence[Volume], carrying: Changing[Any]
    ) -> AbstractContextManager[list[Value]]:
        return each_cell(self.geometry, self.bounds, volumes, self.spec.deep, carrying)
