"""Weights of convolutions as panels [group][columns / width][tap][channel][width], in one pass.

A weight is [O,C/groups,*K]. Forward, the columns are output channels, each of which is one line of
channels and taps; for the gradient in x they are input channels, whose taps are a short line for
each output channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from treadle.backends.codegen.contraction.shared.items import Contraction
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.offsets import grid, steps_of
from treadle.backends.codegen.contraction.shared.pack import transpose
from treadle.backends.codegen.contraction.shared.problem import Matrix
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.symbol import Dim

_SIZES = ("lines", "line_step", "length", "n", "column_step", "terms", "panels", "group_step")


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
    sizes = {"lines": lines, "line_step": steps[0], "length": length, "n": weight.columns}
    sizes |= {"column_step": steps[1], "terms": weight.terms, "panels": panels}
    arguments: dict[str, Ref | Dim] = {
        "source": Ref(matrix.kind, matrix.index, matrix.offset * matrix.dtype.itemsize),
        "order": launches.constant(order.astype(np.int32)),
        "target": place,
        "group_step": matrix.batch[0],
        **sizes,
    }
    kernel = panels_kernel(tile, matrix.dtype)
    nbytes = 2 * weight.groups * panels * weight.terms * tile.width * tile.dtype.itemsize
    return Launch(
        kernel.kernel,
        tuple(arguments[name] for name in kernel.names),
        items=weight.groups * panels,
        serial=nbytes < 1 << 17,
        nbytes=nbytes,
    )


@lru_cache(maxsize=64)
def panels_kernel(tile: Tile, source: DType) -> Contraction:
    """A kernel whose item is a panel: element q of line l becomes its row order[q] + l."""
    writer = _Writer(tile, source)
    name = f"pack_weight_{source.name}_{tile.dtype.name}"
    kernel = builder.kernel(name, list(writer.values.values()), writer.write)
    return Contraction(kernel, tuple(writer.values))


class _Writer:
    """Writes the kernel: squares of columns and terms are transposed in registers."""

    def __init__(self, tile: Tile, source: DType) -> None:
        self.tile = tile
        self.values = {"source": ir.pointer(source, "source")}
        self.values["order"] = ir.pointer(dt.int32, "order")
        self.values["target"] = ir.pointer(tile.dtype, "target")
        self.values |= {name: ir.size(name) for name in _SIZES}

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        values, width = self.values, self.tile.width

        def item(i: Value) -> None:
            group, panel = e.div(i, values["panels"]), e.rem(i, values["panels"])
            column = e.mul(panel, width)
            last = e.sub(e.min(e.sub(values["n"], column), width), 1)
            source = e.offset(values["source"], e.mul(group, values["group_step"]))
            source = e.offset(source, e.mul(column, values["column_step"]))
            target = e.offset(values["target"], e.mul(i, e.mul(values["terms"], width)))

            def line(at: Value) -> None:
                given = e.offset(source, e.mul(at, values["line_step"]))
                made = e.offset(target, e.mul(at, width))

                # A loop rather than one copy for each vector, which LLVM takes long over.
                def vector(first: Value) -> None:
                    self._vector(e, given, e.offset(made, first), first, last)

                e.loop(0, width, self.tile.lanes, vector)

            e.loop(0, values["lines"], 1, line)

        e.loop(lo, hi, 1, item)

    def _vector(self, e: Builder, source: Value, target: Value, first: Value, last: Value) -> None:
        """A vector's columns of a line; columns beyond the last one repeat it."""
        lanes, length = self.tile.lanes, self.values["length"]
        columns = [e.min(last, e.add(first, j)) for j in range(lanes)]
        starts = [e.offset(source, e.mul(c, self.values["column_step"])) for c in columns]

        def square(q: Value) -> None:
            rows = [e.cast(e.load(start, q, lanes), self.tile.dtype) for start in starts]
            for j, row in enumerate(transpose(e, rows)):
                e.store(target, self._row(e, e.add(q, j)), row)

        def single(q: Value) -> None:
            row = self._row(e, q)
            for j, start in enumerate(starts):
                e.store(target, e.add(row, j), e.cast(e.load(start, q), self.tile.dtype))

        whole = e.sub(length, e.rem(length, lanes))
        e.loop(0, whole, lanes, square)
        e.loop(whole, length, 1, single)

    def _row(self, e: Builder, q: Value) -> Value:
        order = e.cast(e.load(self.values["order"], q), ir.INDEX.dtype)
        return e.mul(order, self.tile.width)
