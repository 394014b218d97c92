"""Convolutions of bfloat16 and bytes, and gradients in x, channels-last, as products of words.

Rows are positions; their runs are the channels that a tap meets, or those of a line of taps where
they follow one another and so fill more of a step. Where there is padding, or channels are no
neighbors, x (or dy) is copied first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction.direct.panels import Weight
from treadle.backends.codegen.contraction.pairs.lower import multiply_tabled, steps_of_runs
from treadle.backends.codegen.contraction.pairs.packed import terms_per_step
from treadle.backends.codegen.contraction.pairs.tiles import Multiplier
from treadle.backends.codegen.contraction.shared.body import Reading
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.offsets import (
    Offsets,
    Table,
    along,
    count_of,
    every,
    joined,
    steps_of,
)
from treadle.backends.codegen.contraction.shared.positions import RowPart
from treadle.backends.codegen.contraction.shared.problem import Matrix
from treadle.backends.codegen.contraction.shared.spread import Margins, SpreadOperand, spread
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered
from treadle.base.symbol import Dim, is_identical

_MOST = 1 << 31
"""Offsets are numbers of 32 bits."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """A convolution as a product.

    Attributes:
        source: x or dy as it lies.
        margins, part: the zeros around it, and the rows of the product.
        weight: as it lies.
        line: taps of a line of the window whose cells are neighbors.
        flat: whether the images follow one another in the rows.
    """

    source: SpreadOperand
    margins: Margins
    part: RowPart
    weight: Weight
    line: int
    flat: bool


def lower_pixel_pairs(
    pixels: Pixels, reading: Reading, frozen: tuple[bool, ...], target: Target, unit: Multiplier
) -> Lowered | Support:
    """The launches: a copy of x where it is needed, the panels, the product."""
    given, weight, part = pixels.source, pixels.weight, pixels.part
    problem = replace(reading.problem, a=given.matrix, tables=True)
    launches = Launches(problem, target, reading.constants, frozen)
    anyway = given.strides[1] != 1
    source = spread(launches, given, pixels.margins, anyway=anyway, dtype=unit.a)
    if source.reach >= _MOST:
        return no("size-limit", "offsets into the operand do not fit in 31 bits")
    spatial = source.strides[2:]
    rows = part.rows(spatial)
    channels = source.shape[1] // weight.groups
    batch: tuple[Dim, ...] = (channels,)
    if pixels.flat:
        rows = joined(along(source.shape[0], source.strides[0]), rows)
    else:
        batch = (source.strides[0], channels)
    starts, order = _runs(pixels, channels, part.reads(spatial), spatial[-1])
    b = _matrix(weight, flat=pixels.flat)
    a = replace(source.matrix, batch=batch, row=1, column=1)
    launches.problem = replace(problem, a=a, b=b, k=order.size, m=count_of(rows)).simplified()
    multiply_tabled(launches, unit, rows, steps_of_runs(starts, order, unit.a))
    return launches.lowered()


def _matrix(weight: Weight, *, flat: bool) -> Matrix:
    """Return the matrix whose columns the product takes from the weight."""
    matrix = weight.matrix
    step = weight.taps if weight.turned else matrix.row
    return replace(matrix, batch=matrix.batch if flat else (0, *matrix.batch), row=1, column=step)


def _runs(pixels: Pixels, channels: int, reads: Table, neighbor: Dim) -> tuple[Table, Offsets]:
    """Return the starts of runs in a row, and of their terms behind the start of a column."""
    weight, taps = pixels.weight, pixels.part.taps
    step = int(weight.matrix.row) if weight.turned else weight.taps
    order = np.add.outer(taps, steps_of(channels, step))
    line = pixels.line
    follows = (
        line > 1 and is_identical(neighbor, channels) and weight.groups == 1 and not weight.turned
    )
    many = terms_per_step(weight.matrix.dtype)
    if follows and -(-line * channels // many) < line * -(-channels // many):
        return every(reads, line), order.reshape(len(taps) // line, -1)
    return reads, order
