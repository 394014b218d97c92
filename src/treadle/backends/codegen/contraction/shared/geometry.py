"""Index maps of convolutions: which matrices, built from which offsets, are multiplied.

  op              m               n                k               source of b
  conv            output channel  output position  channel, tap    x within its padding
  gradient in x   input channel   input position   channel, tap    dy within zeros
  gradient in w   output channel  channel, tap     image, output   x within its padding

An element of b lies at terms[k] + columns[n] of its source. Where strides make some taps reach some
input positions only, the gradient in x is computed in parts, one for all positions with the same
taps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from treadle.backends.codegen.contraction.shared.launch import Area
from treadle.backends.codegen.contraction.shared.offsets import (
    Offsets,
    Table,
    along,
    count_of,
    grid,
    joined,
    scaled,
    steps_of,
)
from treadle.backends.codegen.contraction.shared.pack import Copies
from treadle.backends.codegen.views import Dims, Shape, dense, extents, sizes_of
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical, maximum
from treadle.ops.conv import ConvGradInput, ConvGradWeight, Convolution


@dataclass(frozen=True, slots=True)
class Planes:
    """Planes of a source as kernels read them: with cells among zeros, or as they are."""

    count: Dim
    extents: Dims
    lows: Shape
    steps: Shape
    spread: Dims

    @property
    def strides(self) -> Dims:
        """Elements from cell to cell along each axis."""
        return dense(0, self.spread).strides

    @property
    def size(self) -> Dim:
        """Elements of a plane."""
        return product(self.spread)


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """Some columns of the result, and the terms their sums are made of.

    Attributes:
        terms, columns: offsets of b's rows and columns.
        start: where these terms begin in a row of a.
        places: offsets of the columns in the result; None: they are all there are, in order.
    """

    terms: Table
    columns: Table
    start: int = 0
    places: Offsets | None = None


@dataclass(frozen=True, slots=True)
class ConvolutionGeometry:
    """A convolution as a product, in parts: see the table at the top.

    Attributes:
        batch: batch axes, the last of which is the group.
        m: rows.
        planes: the source of b, which is operand 0.
        b_batch: elements of that source from batch to batch.
        a_batch, a_row: steps of the rows of a, which is operand 1.
        parts: of the columns.
        packing: how a is made rows, if it does not consist of them.
        order: offsets of a row's elements, for the same purpose, and `order_steps` from group to
            group and row to row.
    """

    batch: Dims
    m: int
    planes: Planes
    b_batch: Dims
    a_batch: Dims
    a_row: Dim
    parts: tuple[ColumnPart, ...]
    packing: Area | None = None
    order: Offsets | None = None
    order_steps: tuple[int, int] = (0, 0)

    @property
    def n(self) -> Dim:
        """All columns."""
        total: Dim = 0
        for part in self.parts:
            total = total + count_of(part.columns)
        return total


def _axes(extents: Dims, *steps: Dims) -> list[Table]:
    """Offsets along several axes, whose steps are products."""
    return [along(n, product(by)) for n, *by in zip(extents, *steps, strict=True)]


def geometry_of(op: Convolution, first: Dims, second: Dims, *, phased: bool) -> ConvolutionGeometry:
    """A convolution of operands with these shapes as a product.

    `phased` lets the gradient in x treat positions in phases, whose columns lie apart.
    """
    if isinstance(op, ConvGradInput):
        return _in_x(op, first, second, phased=phased)
    if isinstance(op, ConvGradWeight):
        return _in_weight(op, first, second)
    return _forward(op, first, second)


def _padded(op: Convolution, x: Dims) -> Planes:
    """x [N,C,*S] within its padding."""
    spatial = x[2:]
    lows = tuple(low for low, _ in op.padding)
    spread = tuple(n + low + high for n, (low, high) in zip(spatial, op.padding, strict=True))
    return Planes(x[0] * x[1], spatial, lows, (1,) * len(spatial), spread)


def _forward(op: Convolution, x: Dims, weight: Shape) -> ConvolutionGeometry:
    """x [N,C,*S], weight [O,C/groups,*K]."""
    planes, groups = _padded(op, x), op.groups
    positions = sizes_of(op.window(weight[2:]).extents(op.name, x[2:], ""))
    outputs, k = weight[0] // groups, math.prod(weight[1:])
    size, strides = planes.size, planes.strides
    part = ColumnPart(
        terms=joined(along(weight[1], size), *_axes(weight[2:], op.dilation, strides)),
        columns=joined(*_axes(positions, op.strides, strides)),
    )
    return ConvolutionGeometry(
        batch=(x[0], groups),
        m=outputs,
        planes=planes,
        b_batch=(x[1] * size, weight[1] * size),
        a_batch=(0, outputs * k),
        a_row=k,
        parts=(part,),
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """Input positions first, first + step, ... of one axis: `reads` are the taps that reach them,
    and how far from position q of the phase the cell of dy is that each of them meets."""

    first: int
    count: Dim
    reads: tuple[tuple[int, int], ...]


def _phases(op: ConvGradInput, axis: int, taps: int, step: int) -> list[Phase]:
    """The phases of an axis; the same taps reach positions that are a multiple of `step` apart."""
    n, low, dilation = sizes_of(op.spatial)[axis], op.padding[axis][0], op.dilation[axis]
    found = []
    for first in range(1 if step == 1 else min(step, n)):
        ways = [(t, first + low - t * dilation) for t in range(taps)]
        reads = tuple((t, way // step) for t, way in ways if way % step == 0)
        found.append(Phase(first, -(-(n - first) // step), reads))
    return found


@dataclass(frozen=True, slots=True)
class Phases:
    """The gradient in x in phases, over dy within zeros.

    Attributes:
        steps: distances of the positions of a phase.
        lows, spread, extents: where the cells of dy come to lie: see `Planes`.
        phases: one per axis, in every combination.
    """

    steps: Shape
    lows: Shape
    spread: Shape
    extents: Dims
    phases: tuple[tuple[Phase, ...], ...]


def phases_of(op: ConvGradInput, dy: Dims, kernel: Shape, *, phased: bool) -> Phases:
    """The phases of the gradient in x for a dy of this shape; one, unless `phased`."""
    ones = (1,) * len(kernel)
    steps, spread = (op.strides, ones) if phased else (ones, op.strides)
    cells = tuple((n - 1) * s + 1 for n, s in zip(dy[2:], spread, strict=True))
    phases = [_phases(op, i, kernel[i], step) for i, step in enumerate(steps)]
    ways = [[(p, way) for p in axis for _, way in p.reads] for axis in phases]
    lows = tuple(max([0, *(-way for _, way in axis)]) for axis in ways)
    ends = (
        reduce(maximum, (p.count + way for p, way in axis), n)
        for n, axis in zip(cells, ways, strict=True)
    )
    extent = tuple(low + end for low, end in zip(lows, ends, strict=True))
    return Phases(steps, lows, spread, extent, tuple(itertools.product(*phases)))


def _in_x(op: ConvGradInput, dy: Dims, weight: Shape, *, phased: bool) -> ConvolutionGeometry:
    """dy [N,O,*P], weight [O,C/groups,*K]; the result is [N,C,*S].

    dx[i] is the sum of w[t] * dy[p] over all p and t with p * s + t * d - low = i. Where positions
    are treated in phases, each phase is a convolution of dy; else dy is spread by its strides.
    """
    spatial, groups, weight = sizes_of(op.spatial), op.groups, tuple(map(int, weight))
    kernel = weight[2:]
    outputs, inputs, taps = weight[0] // groups, weight[1], math.prod(kernel)
    found = phases_of(op, dy, kernel, phased=phased)
    lows, steps = found.lows, found.steps
    planes = Planes(dy[0] * dy[1], dy[2:], lows, found.spread, found.extents)
    size, strides = planes.size, planes.strides
    at, tap = dense(0, spatial).strides, dense(0, kernel).strides
    several = math.prod(steps) > 1
    parts: list[ColumnPart] = []
    orders: list[Offsets] = []
    for chosen in found.phases:
        reads = [np.array(p.reads, np.int64).reshape(-1, 2) for p in chosen]
        met = [scaled(r[:, 1] + low, s) for r, low, s in zip(reads, lows, strides, strict=True)]
        part = ColumnPart(
            terms=joined(along(outputs, size), *met),
            columns=joined(*_axes(tuple(p.count for p in chosen), strides)),
            start=sum(map(len, orders)),
            places=places_of(chosen, steps, at) if several else None,
        )
        parts.append(part)
        orders.append(
            grid(
                steps_of(outputs, inputs * taps),
                *(r[:, 0] * s for r, s in zip(reads, tap, strict=True)),
            )
        )
    order = np.concatenate(orders)
    return ConvolutionGeometry(
        batch=(dy[0], groups),
        m=inputs,
        planes=planes,
        b_batch=(dy[1] * size, outputs * size),
        a_batch=(0, inputs * len(order)),
        a_row=len(order),
        parts=tuple(parts),
        order=order,
        order_steps=(outputs * inputs * taps, taps),
    )


def places_of(phases: Sequence[Phase], steps: Shape, at: Shape) -> Offsets:
    """Numbers of the positions of one phase per axis, `steps` apart, where those of an axis are
    `at` apart."""
    return grid(
        *(
            steps_of(extents((p.count,))[0], s * w) + p.first * w
            for p, s, w in zip(phases, steps, at, strict=True)
        )
    )


def _in_weight(op: ConvGradWeight, x: Dims, dy: Dims) -> ConvolutionGeometry:
    """x [N,C,*S], dy [N,O,*P]; the result is [O,C/groups,*K]."""
    planes, groups, images = _padded(op, x), op.groups, x[0]
    inputs, outputs, positions = x[1] // groups, dy[1] // groups, product(dy[2:])
    size, strides = planes.size, planes.strides
    k = images * positions
    part = ColumnPart(
        terms=joined(along(images, x[1] * size), *_axes(dy[2:], op.strides, strides)),
        columns=joined(along(inputs, size), *_axes(extents(op.kernel), op.dilation, strides)),
    )
    groupwise = Copies(groups, outputs * positions, outputs * k)
    imagewise = Copies(images, dy[1] * positions, positions)
    packing = Area(outputs, positions, positions, 1, k, (groupwise, imagewise))
    return ConvolutionGeometry(
        batch=(groups,),
        m=outputs,
        planes=planes,
        b_batch=(inputs * size,),
        a_batch=(outputs * k,),
        a_row=k,
        parts=(part,),
        packing=None if is_identical(images, 1) else packing,
    )
