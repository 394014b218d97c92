"""Convolutions of small integers, with channels-last operands, as products of words.

Rows are positions; their runs are the channels that a tap meets, or those of a line of taps where
they follow one another. Where there is padding, or channels are not neighbors, x is copied first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction.integers.lower import multiply_words, runs_of
from treadle.backends.codegen.contraction.integers.packed import terms_per_word
from treadle.backends.codegen.contraction.shared.body import Reading
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.offsets import (
    Offsets,
    Table,
    along,
    every,
    grid,
    joined,
    length_of,
    steps_of,
)
from treadle.backends.codegen.contraction.shared.positions import forward_part
from treadle.backends.codegen.contraction.shared.problem import Matrix
from treadle.backends.codegen.contraction.shared.spread import SpreadOperand, spread
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Strided
from treadle.backends.program import Lowered
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.conv import IntConv
from treadle.ops.movement import Reshape

_MOST = 1 << 31
"""Offsets are numbers of 32 bits."""
_MERGED = 1024
"""Most terms of a line of taps that is one run."""
WORD = 4
"""Bytes of a word."""


@dataclass(frozen=True, slots=True)
class Window:
    """A convolution and its operands; `flat`: the images follow one another in the rows."""

    op: IntConv
    x: Strided
    weight: Strided
    flat: bool

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return int(self.weight.shape[1])

    def is_ragged(self, target: Target) -> bool:
        """True if runs end amid a vector of bytes, so that what is behind them has to be there."""
        whole = target.lanes(dt.int32) * WORD
        line = self.weight.shape[-1] if self.op.groups == 1 and self.op.dilation[-1] == 1 else 1
        run = self.channels * (line if line * self.channels <= _MERGED else 1)
        return run < whole or run % WORD != 0

    def is_merged(self, source: SpreadOperand) -> bool:
        """Return whether the channels of neighboring taps follow one another."""
        neighbors = self.op.dilation[-1] == 1 and source.strides[-1] == self.channels
        return (
            neighbors and self.op.groups == 1 and self.weight.shape[-1] * self.channels <= _MERGED
        )


def lower_pixel_words(
    window: Window, kind: DType, reading: Reading, frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """The launches: a copy of x where it is needed, the panels, the product."""
    op, x = window.op, window.x
    weight = _matrix(window)
    if weight is None:
        return no("layout", "convolutions take dense weights")
    launches = Launches(reading.problem, target, reading.constants, frozen)
    margins, part = forward_part(op, x.shape, window.weight.shape[2:])
    given = SpreadOperand(Matrix.of("input", kind, x), x.shape, x.strides)
    anyway = x.strides[1] != 1 or window.is_ragged(target)
    source = spread(launches, given, margins, anyway=anyway, dtype=kind)
    if source.reach >= _MOST:
        return no("size-limit", "offsets into the operand do not fit in 31 bits")
    spatial = source.strides[2:]
    rows = part.rows(spatial)
    if window.flat:
        rows = joined(along(x.shape[0], source.strides[0]), rows)
    group = window.channels * source.strides[1]
    batch = (group,) if window.flat else (source.strides[0], group)
    a = replace(source.matrix, batch=batch, row=1, column=1)
    starts, order = _runs(window, source, part.reads(spatial))
    runs = runs_of(starts, order, terms_per_word(target, kind, weight.dtype))
    whole = replace(reading.problem, a=a, b=weight, k=order.size, tables=True)
    launches.problem = whole.simplified()
    multiply_words(launches, runs, rows, loose=source is not given)
    return launches.lowered()


def _matrix(window: Window) -> Matrix | None:
    """The weight: its columns are output channels, each of which is one line."""
    groups, (outputs, *line) = window.op.groups, window.weight.shape
    found = window.weight.after(Reshape((groups, outputs // groups, int(np.prod(line)))))
    if found is None or found.strides[-1] != 1:
        return None
    matrix = Matrix.of("input", dt.int8, found).transposed()
    return matrix if window.flat else replace(matrix, batch=(0, *matrix.batch))


def _runs(window: Window, source: SpreadOperand, reads: Table) -> tuple[Table, Offsets]:
    """Return the starts of runs in a row, and those of their terms in a line of the weight."""
    taps, line = length_of(reads), window.weight.shape[-1]
    order = grid(steps_of(taps, 1), steps_of(window.channels, taps))
    if window.is_merged(source):
        return every(reads, line), order.reshape(taps // line, -1)
    return reads, order.reshape(taps, -1)
