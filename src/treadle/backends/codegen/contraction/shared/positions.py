"""Index maps of convolutions whose results are channels-last: the rows are output positions.

  op              rows             columns          terms                 source of a
  conv            output position  output channel   tap, channel          x in its padding
  gradient in x   input position   input channel    tap, output channel   dy in zeros

An element of a lies at row_table[m] + term_table[k] of its source. The gradient in x is computed
in parts, one for all positions which the same taps reach (see `convolution_maps`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treadle.backends.codegen.contraction.shared.geometry import phases_of, places_of
from treadle.backends.codegen.contraction.shared.offsets import (
    Offsets,
    Sums,
    Table,
    along,
    combined,
    count_of,
    grid,
    joined,
    scaled,
)
from treadle.backends.codegen.contraction.shared.spread import Margins
from treadle.backends.codegen.views import Dims, Shape, dense, sizes_of
from treadle.base.shape import product
from treadle.base.symbol import Dim
from treadle.ops.conv import ConvGradInput, Convolution


@dataclass(frozen=True, slots=True)
class RowPart:
    """Some rows of the result, and the terms of their sums, in positions and taps.

    Attributes:
        axes: along each axis, the cell of the source which the first tap of no offset would meet.
        taps: numbers of the taps that reach these rows.
        cells: one row per tap: cells from there to the one it meets.
        places: numbers of the rows among the positions of the result; None: all, in order.
    """

    axes: tuple[Table, ...]
    taps: Offsets
    cells: Offsets
    places: Offsets | None = None

    @staticmethod
    def whole(extents: Dims) -> RowPart:
        """One tap for every cell."""
        axes = tuple(along(n, 1) for n in extents)
        return RowPart(axes, np.zeros(1, np.int64), np.zeros((1, len(extents)), np.int64))

    @property
    def count(self) -> Dim:
        """The number of rows."""
        return product(map(count_of, self.axes))

    @property
    def is_open(self) -> bool:
        """True where an expression says how many rows there are."""
        return any(isinstance(axis, Sums) for axis in self.axes)

    def rows(self, strides: Dims) -> Table:
        """Offsets of the rows in a source with these strides of its spatial axes."""
        return joined(*(scaled(axis, by) for axis, by in zip(self.axes, strides, strict=True)))

    def reads(self, strides: Dims) -> Table:
        """Offsets of the taps."""
        return combined(self.cells, strides)

    def inside(self, lows: Shape, extents: Shape) -> list[RowPart]:
        """The same rows, apart by the taps that meet cells of the source, not of its margins.

        None where there are as many rows as an expression says.
        """
        axes = [axis for axis in self.axes if not isinstance(axis, Sums)]
        if len(axes) < len(self.axes):
            return []
        numbers = np.arange(int(self.count)) if self.places is None else self.places
        numbers = numbers.reshape([len(axis) for axis in axes])
        sides = [
            _apart(axis, self.cells[:, i] - low, extent)
            for i, (axis, low, extent) in enumerate(zip(axes, lows, extents, strict=True))
        ]
        parts = []
        for chosen in itertools.product(*sides):
            met = np.logical_and.reduce([taps for _, taps in chosen])
            part = RowPart(
                tuple(axis[rows] for axis, (rows, _) in zip(axes, chosen, strict=True)),
                self.taps[met],
                (self.cells - np.array(lows, np.int64))[met],
                numbers[np.ix_(*(rows for rows, _ in chosen))].ravel(),
            )
            parts.append(part)
        return parts


def _apart(axis: Offsets, cells: Offsets, extent: int) -> list[tuple[Offsets, Offsets]]:
    """Rows of an axis by the taps that meet one of `extent` cells there: (rows, taps)."""
    met = np.add.outer(axis, cells)
    kinds, which = np.unique((met >= 0) & (met < extent), axis=0, return_inverse=True)
    return [(np.flatnonzero(which.ravel() == i), kind) for i, kind in enumerate(kinds)]


def forward_part(op: Convolution, x: Dims, kernel: Shape) -> tuple[Margins, RowPart]:
    """x [N,C,*S] within its padding, and the one part of the result."""
    spatial = x[2:]
    lows = tuple(low for low, _ in op.padding)
    padded = tuple(n + low + high for n, (low, high) in zip(spatial, op.padding, strict=True))
    margins = Margins(lows, (1,) * len(spatial), padded)
    positions = sizes_of(op.window(kernel).extents(op.name, spatial, ""))
    axes = [np.arange(k) * d for k, d in zip(kernel, op.dilation, strict=True)]
    cells = _combinations(axes)
    starts = tuple(along(n, step) for n, step in zip(positions, op.strides, strict=True))
    return margins, RowPart(starts, np.arange(len(cells)), cells)


def gradient_parts(
    op: ConvGradInput, dy: Dims, kernel: Shape, *, phased: bool
) -> tuple[Margins, list[RowPart]]:
    """dy [N,O,*P] within zeros, and the parts of the gradient in x."""
    found = phases_of(op, dy, kernel, phased=phased)
    at, tap = dense(0, op.spatial).strides, dense(0, kernel).strides
    parts = []
    for chosen in found.phases:
        reads = [np.array(p.reads, np.int64).reshape(-1, 2) for p in chosen]
        cells = [r[:, 1] + low for r, low in zip(reads, found.lows, strict=True)]
        part = RowPart(
            axes=tuple(along(p.count, 1) for p in chosen),
            taps=grid(*(r[:, 0] * s for r, s in zip(reads, tap, strict=True))),
            cells=_combinations(cells),
            places=places_of(chosen, found.steps, at) if math.prod(found.steps) > 1 else None,
        )
        parts.append(part)
    return Margins(found.lows, found.spread, found.extents), parts


def _combinations(axes: Sequence[Offsets]) -> Offsets:
    """Every combination of one number per axis, the last axis fastest; one per row."""
    found = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    return found.reshape(-1, len(axes)).astype(np.int64)
