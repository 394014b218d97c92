"""Weights of convolutions as panels [group][columns / width][tap][channel][width], in one pass.

A weight is [O,C/groups,*K]. Forward, the columns are output channels, each of which is one line of
channels and taps; for the gradient in x they are input channels, whose taps are a short line for
each output channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Generic, NamedTuple

import numpy as np

from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.offsets import grid, steps_of
from treadle.backends.codegen.contraction.shared.pack import transpose
from treadle.backends.codegen.contraction.shared.problem import Matrix
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.symbol import Dim


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight in memory: its matrix is [groups][output channels, channels x taps].

    `turned`: columns are input channels, and sums run over output channels.
    """

    matrix: Matrix
    groups: int
    outputs: int
    inputs: int
    taps: int
    turned: bool

    @property
    def columns(self) -> int:
        """Columns of a group."""
        return self.inputs if self.turned else self.outputs

    @property
    def channels(self) -> int:
        """Terms per tap."""
        return self.outputs if self.turned else self.inputs

    @property
    def terms(self) -> int:
        """Terms of a sum: (tap, channel)."""
        return self.taps * self.channels


def panels_of(launches: Launches, weight: Weight, tile: Tile) -> Matrix:
    """The weight as panels, made once for all runs where it never changes; batch: the group."""
    panels = -(-weight.columns // tile.width)
    count = weight.groups * panels * weight.terms * tile.width
    frozen, nbytes = launches.is_frozen(weight.matrix), count * tile.dtype.itemsize + 64
    place = launches.keep(nbytes) if frozen else launches.workspace(nbytes)
    into = launches.prelude if frozen else launches.launches
    into.append(_launch(launches, weight, tile, panels, place))
    made = replace(weight.matrix, kind=place.kind, index=place.index, dtype=tile.dtype, offset=0)
    batch = (panels * weight.terms * tile.width,)
    return replace(made, batch=batch, row=tile.width, column=1)


def _launch(launches: Launches, weight: Weight, tile: Tile, panels: int, place: Ref) -> Launch:
    matrix, taps = weight.matrix, steps_of(weight.taps, weight.channels)
    if weight.turned:
        lines, length, order = weight.outputs, weight.taps, taps
        steps = matrix.row, weight.taps * matrix.column
    else:
        lines, length, order = 1, weight.terms, grid(steps_of(weight.inputs, 1), taps)
        steps = 0, matrix.row
    given: PanelsParameters[Ref, Dim] = PanelsParameters(
        source=matrix.place,
        order=launches.constant(order.astype(np.int32)),
        target=place,
        group_step=matrix.batch[0],
        panels=panels,
        lines=lines,
        line_step=steps[0],
        length=length,
        n=weight.columns,
        column_step=steps[1],
        terms=weight.terms,
    )
    kernel = panels_kernel(tile, matrix.dtype)
    nbytes = 2 * weight.groups * panels * weight.terms * tile.width * tile.dtype.itemsize
    return kernel.launch(
        given,
        items=weight.groups * panels,
        serial=nbytes < 1 << 17,
        nbytes=nbytes,
    )


class PanelsParameters(NamedTuple, Generic[P, S]):
    """Parameters of a kernel that packs weights: see `panels_kernel`."""

    source: P
    order: P
    target: P
    lines: S
    line_step: S
    length: S
    n: S
    column_step: S
    terms: S
    panels: S
    group_step: S


@lru_cache(maxsize=64)
def panels_kernel(tile: Tile, source: DType) -> RecordedKernel:
    """A kernel whose item is a panel: element q of line l becomes its row order[q] + l.

    Squares of columns and terms are transposed in registers; columns beyond the last repeat it.
    """
    e, lanes, width = KernelBuilder(), tile.lanes, tile.width
    kind = PanelsParameters[Pointer, Value]
    p = e.record(kind, source=source, order=dt.int32, target=tile.dtype)

    def row(q: Value) -> Value:
        place: Value = p.order[q].cast(dt.int64)
        return place * width

    def vector(start: Pointer, target: Pointer, first: Value, last: Value) -> None:
        """A vector's columns of a line."""
        columns = [minimum(last, first + j) for j in range(lanes)]
        starts = [start + c * p.column_step for c in columns]
        whole = p.length - p.length % lanes
        with e.loop(0, whole, lanes) as q:
            rows = [start.load(q, lanes).cast(tile.dtype) for start in starts]
            for j, line in enumerate(transpose(rows)):
                target[row(q + j)] = line
        with e.loop(whole, p.length) as q:
            place = row(q)
            for j, start in enumerate(starts):
                target.store(place + j, start[q].cast(tile.dtype))

    with e.items() as i:
        group, panel = i // p.panels, i % p.panels
        column = panel * width
        last = minimum(p.n - column, width) - 1
        start = p.source + group * p.group_step
        start = start + column * p.column_step
        target = p.target + i * (p.terms * width)
        with e.loop(p.lines) as at:
            given, made = start + at * p.line_step, target + at * width
            with e.loop(0, width, lanes) as first:
                vector(given, made + first, first, last)
    return RecordedKernel(e.kernel(f"pack_weight_{source.name}_{tile.dtype.name}"), p)
