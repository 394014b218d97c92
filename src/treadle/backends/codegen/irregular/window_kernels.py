"""Kernels of channels-last pooling: maxima, averages, and values at the maxima."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from treadle.backends.codegen.irregular.pool_rows import lowest
from treadle.backends.codegen.irregular.pool_tables import Geometry
from treadle.backends.codegen.irregular.rows import row_kernel, walk
from treadle.backends.codegen.irregular.window_parts import (
    Bounds,
    Channels,
    Operand,
    Spec,
    each_cell,
    each_channels,
    each_row,
    first_cell,
    greater,
    has_cells,
    wins,
)
from treadle.backends.codegen.kernel import ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value

Kind = Literal["max", "gather", "average"]


@cache
def window_kernel(kind: Kind, spec: Spec) -> Kernel:
    """A row of the launch is a row of windows; `values` are what is gathered."""
    target, x, geometry = Operand.of(spec.dtype, "target"), Operand.of(spec.dtype, "x"), Geometry()
    others = [Operand.of(spec.dtype, "values")] if kind == "gather" else []
    channels = ir.size("channels")
    depths, heights, widths = geometry.counts

    def body(b: Builder, first: Value, stop: Value) -> None:
        def row(_: Value, n: Value, d: Value, h: Value) -> None:
            outside = geometry.window(b, 0, d), geometry.window(b, 1, h)
            sources = [operand.at(b, n) for operand in (x, *others)]
            to = target.at(b, n, d, h)

            def one(w: Value) -> None:
                bounds = (*outside, geometry.window(b, 2, w))
                place = b.offset(to, b.mul(w, target.steps[3]))

                def some(c: Channels) -> None:
                    window = _Window(b, spec, geometry, bounds, c)
                    if kind == "gather":
                        found = window.gathered(x, others[0], *sources)
                    elif kind == "max":
                        found = window.maximum(x, sources[0])
                    else:
                        found = window.average(x, sources[0])
                    c.store(b, place, found)

                each_channels(b, spec, b.index(0), channels, some)

            b.loop(0, widths, 1, one)

        walk(b, first, stop, (depths, depths, heights), row)

    parameters = [p for operand in (target, x, *others) for p in operand.parameters]
    name = f"window_{kind}_{spec.name}"
    return row_kernel(name, (*parameters, channels, *geometry.parameters), body)


@dataclass(frozen=True, slots=True)
class _Window:
    """Some channels of one window, and what is made of its cells."""

    b: Builder
    spec: Spec
    geometry: Geometry
    bounds: Bounds
    channels: Channels

    def maximum(self, x: Operand, source: Value) -> tuple[Value, ...]:
        """The greatest cells; NaN where one is."""

        def cell(_: Sequence[Value], places: Sequence[Value], *best: Value) -> tuple[Value, ...]:
            values = self.channels.load(self.b, source, places[0])
            return tuple(greater(self.b, *pair) for pair in zip(best, values, strict=True))

        start = self.channels.constant(self.b, lowest(self.spec.dtype), self.spec.wide)
        return self._cells([x], cell, start)

    def average(self, x: Operand, source: Value) -> tuple[Value, ...]:
        """The sums of the cells, row by row, divided by how many count."""
        b, (w0, w1, _) = self.b, self.bounds[2]
        zero = self.channels.constant(b, 0.0, self.spec.wide)

        def row(_: Sequence[Value], places: Sequence[Value], *total: Value) -> tuple[Value, ...]:
            def cell(w: Value, *sums: Value) -> tuple[Value, ...]:
                place = b.add(places[0], b.mul(w, x.steps[3]))
                return self._sums(sums, self.channels.load(b, source, place))

            return self._sums(total, b.loop(w0, w1, self.geometry.dilations[2], cell, zero))

        sums = each_row(b, self.geometry, self.bounds, [x], self.spec.deep, row, zero)
        counted = b.mul(b.mul(self.bounds[0][2], self.bounds[1][2]), self.bounds[2][2])
        count = b.splat(b.cast(b.max(counted, 1), self.spec.wide), self.spec.lanes)
        return tuple(b.div(total, count) for total in sums)

    def gathered(
        self, x: Operand, values: Operand, source: Value, given: Value
    ) -> tuple[Value, ...]:
        """The values where the first maxima are; 0 for a window without cells."""
        b, count = self.b, self.channels.count
        first_x, first_value = (
            first_cell(b, self.geometry, self.bounds, operand) for operand in (x, values)
        )
        best = self.channels.load(b, source, first_x)
        found = self.channels.load(b, given, first_value)

        def cell(_: Sequence[Value], places: Sequence[Value], *known: Value) -> tuple[Value, ...]:
            here = self.channels.load(b, source, places[0])
            there = self.channels.load(b, given, places[1])
            taken = [wins(b, x, y) for x, y in zip(here, known[:count], strict=True)]
            pairs = zip(taken * 2, here + there, known, strict=True)
            return tuple(b.select(*pair) for pair in pairs)

        values_found = self._cells([x, values], cell, (*best, *found))[count:]
        known = has_cells(b, self.bounds)
        return tuple(b.select(known, value, 0.0) for value in values_found)

    def _cells(
        self,
        operands: Sequence[Operand],
        body: Callable[..., tuple[Value, ...]],
        initial: Sequence[Value],
    ) -> tuple[Value, ...]:
        deep = self.spec.deep
        return each_cell(self.b, self.geometry, self.bounds, operands, deep, body, initial)

    def _sums(self, some: Sequence[Value], others: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(self.b.add(x, y) for x, y in zip(some, others, strict=True))
