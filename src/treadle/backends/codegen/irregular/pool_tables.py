"""Windows of a pooling op, as tables for its kernels.

One to three spatial axes become three, depth, height and width, with extents of 1 in front. Along
an axis window i covers the cells first[i], first[i] + dilation, ... below stop[i]: moving and
adaptive windows are the same to a kernel, and none reaches into the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from treadle.backends.codegen.irregular.pool_formulas import (
    BYTES,
    Adaptive,
    Formula,
    Moving,
    Patch,
    Progressions,
)
from treadle.backends.codegen.kernel.builder import Builder, Changing, builder_of
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, Record, S
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.estimates import estimate
from treadle.base.shape import Shape
from treadle.base.symbol import Dim, Expr
from treadle.ops.windows import Window


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """Windows along one axis over `extent` cells: (first, stop, cells that count) of each."""

    extent: int
    windows: Array
    dilation: int = 1

    @property
    def count(self) -> int:
        """Number of windows."""
        return len(self.windows)

    @property
    def cells(self) -> float:
        """About how many cells a window has."""
        return float(np.mean(self.windows[:, 1] - self.windows[:, 0]) / self.dilation)


@dataclass(frozen=True, slots=True)
class OpenAxis:
    """The same where extents are expressions: a formula gives windows of about so many cells."""

    extent: Dim
    formula: Formula
    cells: float
    dilation: int = 1

    @property
    def count(self) -> Dim:
        """Number of windows."""
        return self.formula.count


_SINGLE = WindowAxis(1, np.array([[0, 1, 1]]))


def is_open(spatial: Shape) -> bool:
    """Return whether extents of planes are expressions."""
    return any(isinstance(n, Expr) for n in spatial)


def open_moving(
    window: Window, spatial: Shape, include_padding: bool = True
) -> tuple[OpenAxis, ...]:
    """Axes of windows that move in steps over extents that are expressions."""
    axes = []
    for i, (n, m) in enumerate(zip(spatial, window.extents("window", spatial, ""), strict=True)):
        before, after = window.padding[i]
        kernel, dilation = int(window.kernel[i]), window.dilation[i]
        low, high = (-before, n + after) if include_padding else (0, n)
        reach = (kernel - 1) * dilation + 1
        formula = Moving[Ref, Dim](window.strides[i], before, reach, dilation, n, low, high)
        axes.append(OpenAxis(n, Formula(m, formula), kernel, dilation))
    return _open_three(axes)


def open_patches(window: Window, spatial: Shape) -> tuple[OpenAxis, ...]:
    """The same axes for patches: a window's third number is its first kernel cell inside."""
    axes = []
    for i, (n, m) in enumerate(zip(spatial, window.extents("window", spatial, ""), strict=True)):
        before, kernel, dilation = window.padding[i][0], int(window.kernel[i]), window.dilation[i]
        reach = (kernel - 1) * dilation + 1
        formula = Patch[Ref, Dim](window.strides[i], before, reach, dilation, n)
        axes.append(OpenAxis(n, Formula(m, formula), kernel, dilation))
    return _open_three(axes, 0)


def open_adaptive(spatial: Shape, counts: Sequence[int]) -> tuple[OpenAxis, ...]:
    """Axes of `counts` windows that cover the cells, whose number is an expression."""
    return _open_three(
        [
            OpenAxis(n, Formula(m, Adaptive(n, m)), estimate(n) / m)
            for n, m in zip(spatial, counts, strict=True)
        ]
    )


def _open_three(axes: list[OpenAxis], third: int = 1) -> tuple[OpenAxis, ...]:
    single = OpenAxis(1, Formula(1, Progressions(0, 0, 1, 0, third, 0)), 1.0)
    return (*[single] * (3 - len(axes)), *axes)


def moving(window: Window, spatial: Shape, include_padding: bool = True) -> tuple[WindowAxis, ...]:
    """Axes of windows that move in steps."""
    extents = window.extents("window", spatial, "")
    axes = []
    for i, (n, m) in enumerate(zip(spatial, extents, strict=True)):
        before, after = window.padding[i]
        dilation, cells = window.dilation[i], int(n)
        start = np.arange(int(m)) * window.strides[i] - before
        reach = (int(window.kernel[i]) - 1) * dilation + 1
        first = np.where(start < 0, start + -(start // dilation) * dilation, start)
        stop = np.minimum(start + reach, cells)
        low, high = (-before, cells + after) if include_padding else (0, cells)
        counted = np.minimum(start + reach, high) - np.maximum(start, low)
        table = np.stack([first, stop, np.maximum(counted, 0)], 1)
        axes.append(WindowAxis(cells, table, dilation))
    return _three(axes)


def adaptive(spatial: Shape, counts: Sequence[int]) -> tuple[WindowAxis, ...]:
    """Axes of `counts` windows that cover the cells."""
    axes = []
    for n, m in zip(spatial, counts, strict=True):
        i = np.arange(m)
        first, stop = i * int(n) // m, -(-(i + 1) * int(n) // m)
        axes.append(WindowAxis(int(n), np.stack([first, stop, stop - first], 1)))
    return _three(axes)


def covers(axes: Sequence[WindowAxis]) -> bool:
    """Return whether there is one window, of all cells."""
    return all(a.windows.tolist() == [[0, a.extent, a.extent]] for a in axes)


def is_tiling(axes: Sequence[WindowAxis]) -> bool:
    """Return whether every cell is in one window, and only in one."""

    def follow(axis: WindowAxis) -> bool:
        first, stop = axis.windows[:, 0], axis.windows[:, 1]
        ends = bool(first[0] == 0 and stop[-1] == axis.extent)
        return ends and axis.dilation == 1 and bool((first[1:] == stop[:-1]).all())

    return all(follow(axis) for axis in axes)


def covered(axes: Sequence[WindowAxis]) -> tuple[WindowAxis, ...]:
    """The other way around: axes of cells, and over which windows each one's neighbors are.

    Row p is (first window that has cell p, the one behind the last, 0); windows are the extent.
    """
    found = []
    for axis in axes:
        cells = np.arange(axis.extent)
        first = np.searchsorted(axis.windows[:, 1], cells, side="right")
        stop = np.searchsorted(axis.windows[:, 0], cells, side="right")
        found.append(
            WindowAxis(axis.count, np.stack([first, np.maximum(stop, first), 0 * cells], 1))
        )
    return tuple(found)


def _three(axes: list[WindowAxis]) -> tuple[WindowAxis, ...]:
    return (*[_SINGLE] * (3 - len(axes)), *axes)


def table_of(axes: Sequence[WindowAxis]) -> Array:
    """Return the constant that kernels read: three numbers per window, axis after axis."""
    return np.ascontiguousarray(np.concatenate([a.windows for a in axes]).astype(np.int64))


def arguments_of(axes: Sequence[WindowAxis | OpenAxis]) -> Windows[Ref, Dim]:
    """Arguments of a kernel whose table of windows is constant number 0."""
    sizes = zip(*[(a.extent, a.count, a.dilation) for a in axes], strict=True)
    return Windows(Ref("constant", 0), *sizes)


def with_table(axes: Sequence[WindowAxis] | Sequence[OpenAxis], found: Lowered) -> Lowered:
    """Launches that read a table of windows as constant number 0, with that table.

    What says where windows of symbolic extents lie is computed first, in a workspace.
    """
    known = [a for a in axes if isinstance(a, WindowAxis)]
    if len(known) == len(axes):
        return replace(found, constants=(table_of(known), *found.constants))
    place, at = Ref("workspace", len(found.workspaces)), 0
    made: list[Launch] = []
    for axis in axes:
        if isinstance(axis, OpenAxis):
            made.append(axis.formula.launch(replace(place, offset=at)))
            at = at + BYTES * axis.count
    moved = [_moved(launch, place) for launch in found.launches]
    return replace(found, launches=(*made, *moved), workspaces=(*found.workspaces, at))


def _moved(launch: Launch, table: Ref) -> Launch:
    """A launch with another place for the table; other constants move up by one."""

    def one(given: Ref | Dim) -> Ref | Dim:
        if not isinstance(given, Ref) or given.kind != "constant":
            return given
        return table if given.index == 0 else replace(given, index=given.index - 1)

    return replace(launch, arguments=tuple(one(a) for a in launch.arguments))


Bounds = Sequence[tuple[Value, Value, Value]]
"""Of a window along every axis: its first cell, the one behind its last, cells that count."""


def along(name: str) -> tuple[str, ...]:
    """Names of sizes along depth, height and width."""
    return tuple([f"{name}_{axis}" for axis in "dhw"])


class Windows(
    Record[P, S],
    windows=dt.int64,
    extents=along("extent"),
    counts=along("count"),
    dilations=along("dilation"),
):
    """The parameters that describe windows, and what they tell."""

    windows: P
    extents: tuple[S, ...]
    counts: tuple[S, ...]
    dilations: tuple[S, ...]

    @property
    def e(self: Geometry) -> Builder:
        """The builder of the kernel."""
        return builder_of(self.windows)

    def cells(self: Geometry) -> Value:
        """Cells of a plane."""
        depth, height, width = self.extents
        return depth * height * width

    def window(self: Geometry, axis: int, number: Value) -> tuple[Value, Value, Value]:
        """A window's bounds along an axis."""
        row = number
        for count in self.counts[:axis]:
            row = row + count
        at = row * 3
        first, stop, counted = (self.windows[at + i] for i in range(3))
        return first, stop, counted

    @contextmanager
    def over(self: Geometry, bounds: Bounds, *, carrying: Changing[Any] = ()) -> Iterator[Value]:
        """A block for every cell of a window, in row-major order: its place in the plane."""
        e, (_, height, width) = self.e, self.extents
        (d0, d1, _), (h0, h1, _), (w0, w1, _) = bounds
        step_d, step_h, step_w = self.dilations
        with (
            e.loop(d0, d1, step_d, carrying=carrying) as d,
            e.loop(h0, h1, step_h, carrying=carrying) as h,
        ):
            row = (d * height + h) * width
            with e.loop(w0, w1, step_w, carrying=carrying) as w:
                yield row + w

    @contextmanager
    def each_window(self: Geometry) -> Iterator[tuple[Value, Bounds]]:
        """A block for every window of a plane: its number and its bounds."""
        e, (deep, high, wide) = self.e, self.counts
        with e.loop(deep) as d:
            depth = self.window(0, d)
            with e.loop(high) as h:
                height = self.window(1, h)
                row = (d * high + h) * wide
                with e.loop(wide) as w:
                    yield row + w, (depth, height, self.window(2, w))


Geometry = Windows[Pointer, Value]
