"""Convolutions and gradients in x with channels-last results, as products.

Rows are positions, columns are channels, and nothing is gathered: tiles find the elements of x (or
dy) through two tables of offsets where they lie. Cells of the padding are real: where there is
padding, x is copied into zeros first, unless it is cheaper to treat positions apart by the taps
that meet cells of x; a gradient of strides is treated so anyway. A pointwise convolution is a plain
product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction.body import EpilogueReader, Reading, Refused
from treadle.backends.codegen.contraction.convolution_maps import Offsets, grid, steps_of
from treadle.backends.codegen.contraction.launch import Launches, lower_problem
from treadle.backends.codegen.contraction.pixel_maps import Part, forward_part, gradient_parts
from treadle.backends.codegen.contraction.problem import Matrix, Problem
from treadle.backends.codegen.contraction.spread import Margins, Source, clashes, spread
from treadle.backends.codegen.contraction.tile import Tile, choose_tile
from treadle.backends.codegen.contraction.weight_panels import Weight, panels_of
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Shape, Strided, extents
from treadle.backends.program import Lowered, Ref
from treadle.base.dtype import DType
from treadle.graph.ir import Graph, Node
from treadle.ops.conv import ConvGradInput, Convolution
from treadle.ops.movement import Reshape, Transpose

_LARGE = 1 << 20
"""Rows from which the tables are those of one image."""
_ROWS = 8
"""Rows that ask for the usual tile."""
_LAUNCH = 500_000
"""Arithmetic operations whose time a launch takes."""
_PANEL = 16
"""Rows that take as long as reading a panel from memory."""
_WORTH = 0.95
"""What parts may take of the time of the whole to be worth their tables."""
_MOST = 1 << 31
"""Offsets are numbers of 32 bits."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the axes [N,C,*S] of a result become (*batch, row, column).

    `flat`: the images follow one another in the rows; else they are a batch axis.
    """

    images: int
    groups: int
    channels: int
    positions: Shape
    flat: bool

    @property
    def batch(self) -> Shape:
        """Extents of the batch axes."""
        return (self.groups,) if self.flat else (self.images, self.groups)

    @property
    def m(self) -> int:
        """Rows."""
        return math.prod(self.positions) * (self.images if self.flat else 1)

    def pull(self, view: Strided) -> Strided | None:
        """A view in the shape [N,C,*S], made one of rows and columns."""
        split = (self.images, self.groups, self.channels, *self.positions)
        last = tuple(range(3, len(split)))
        order = (1, 0, *last, 2) if self.flat else (0, 1, *last, 2)
        found = view.after(Reshape(split))
        found = None if found is None else found.after(Transpose(order))
        return None if found is None else found.after(Reshape((*self.batch, self.m, self.channels)))


def lower_pixels(
    body: Graph, anchor: Node, views: list[Strided], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """A body around a convolution or a gradient in x, whose operands are these views."""
    op = anchor.op
    if not isinstance(op, Convolution):
        return no("op", f"{op.name} is no convolution")
    weight = extents(anchor.inputs[1].type.shape)
    images, channels, *positions = extents(anchor.output.type.shape)
    form = Form(images, op.groups, channels // op.groups, (*positions,), True)
    large = form.m > _LARGE and images > 1
    refusal: Refused | None = None
    for flat in (False,) if large else (True, False):
        form = replace(form, flat=flat)
        try:
            reader = EpilogueReader(body, anchor, form.pull)
            extras, results, epilogue = reader.read()
        except Refused as error:
            refusal = error
            continue
        x = Matrix.of("input", anchor.inputs[0].type.dtype, views[0])
        empty = replace(x, batch=(0,) * len(form.batch), row=1, column=1)
        problem = Problem(
            form.batch, form.m, form.channels, 0, empty, empty, extras, results, epilogue
        )
        writer = _Writer(op, weight, form, anchor, views, Reading(problem, reader.constants))
        return writer.lowered(frozen, target)
    return no("layout", str(refusal))


@dataclass(slots=True)
class _Writer:
    """Makes the launches of one convolution."""

    op: Convolution
    weight: Shape
    form: Form
    anchor: Node
    views: list[Strided]
    reading: Reading

    @property
    def kernel(self) -> Shape:
        """Extents of the window."""
        return self.weight[2:]

    @property
    def taps(self) -> int:
        """How many cells the window has."""
        return math.prod(self.kernel)

    @property
    def turned(self) -> bool:
        """Whether the sums run over output channels."""
        return isinstance(self.op, ConvGradInput)

    def dtype_of(self, index: int) -> DType:
        return self.anchor.inputs[index].type.dtype

    def lowered(self, frozen: tuple[bool, ...], target: Target) -> Lowered | Support:
        """The launches, or why there are none."""
        product = self._pointwise()
        if product is not None:
            return lower_problem(product, frozen, target)
        view = self.views[0]
        matrix = Matrix.of("input", self.dtype_of(0), view)
        source = Source(matrix, view.shape, view.strides)
        margins, parts = self._parts()
        problem = replace(self.reading.problem, a=matrix, tables=True)
        launches = Launches(problem, target, self.reading.constants, frozen)
        exact = [inner for part in parts for inner in part.inside(margins.lows, view.shape[2:])]
        clash = False
        if self._saves(exact, parts, margins):
            margins = Margins.none(view.shape[2:])
            parts, clash = exact, clashes(source, launches.dtype)
        source = spread(launches, source, margins, anyway=clash)
        if source.reach >= _MOST:
            return no("size-limit", "offsets into the operand do not fit in 31 bits")
        weight = self._weight()
        if weight is None:
            return no("layout", "convolutions take dense weights")
        several = len(parts) > 1 or parts[0].places is not None
        rows = _ROWS if several else launches.problem.m
        tile = choose_tile(target, launches.dtype, rows, weight.columns)
        b = panels_of(launches, weight, tile)
        b = b if self.form.flat else replace(b, batch=(0, *b.batch))
        launches.problem = replace(
            launches.problem, a=self._source(source), b=b, k=weight.terms, positions=several
        ).simplified()
        if several:
            self._multiply_parts(launches, source, parts, tile)
        else:
            launches.tables = _tables(launches, self._offsets(source, parts[0]))
            launches.multiply(tile, packed=True)
        return launches.lowered()

    def _parts(self) -> tuple[Margins, list[Part]]:
        shape = self.views[0].shape
        if isinstance(self.op, ConvGradInput):
            return gradient_parts(self.op, shape, self.kernel, phased=True)
        margins, part = forward_part(self.op, shape, self.kernel)
        return margins, [part]

    # -- operands ----------------------------------------------------------------------------

    def _matrix_of_weight(self) -> Matrix | None:
        """The weight as a matrix of terms by columns, which may be one for all taps."""
        groups, outputs = self.op.groups, self.weight[0] // self.op.groups
        found = self.views[1].after(Reshape((groups, outputs, self.weight[1] * self.taps)))
        if found is None:
            return None
        matrix = Matrix.of("input", self.dtype_of(1), found)
        matrix = matrix if self.turned else matrix.transposed()
        return matrix if self.form.flat else replace(matrix, batch=(0, *matrix.batch))

    def _pointwise(self) -> Reading | None:
        """A convolution that looks at one cell only, as a product; None for any other one."""
        if not self.op.window(self.kernel).is_pointwise:
            return None
        x, weight = self.views[0], self._matrix_of_weight()
        split = replace(self.form, channels=x.shape[1] // self.op.groups)
        rows = split.pull(x)
        if rows is None or weight is None:
            return None
        a = Matrix.of("input", self.dtype_of(0), rows)
        problem = replace(self.reading.problem, k=rows.shape[-1], a=a, b=weight)
        return Reading(problem, self.reading.constants)

    def _source(self, source: Source) -> Matrix:
        """a: its batch axes."""
        group = source.shape[1] // self.op.groups * source.strides[1]
        batch = (group,) if self.form.flat else (source.strides[0], group)
        return replace(source.matrix, batch=batch, row=1, column=1)

    def _saves(self, exact: list[Part], parts: list[Part], margins: Margins) -> bool:
        """Whether leaving out products with cells of the margins is worth more launches."""
        images = self.views[0].shape[0] if self.form.flat else 1
        flops = 2 * self.views[0].shape[1] * self.form.channels

        def cost(part: Part) -> int:
            # Tiles have an even number of rows.
            rows = max(4, -(-images * part.count // 2) * 2)
            return (rows + _PANEL) * len(part.taps) * flops + _LAUNCH

        whole, apart = (sum(map(cost, side)) for side in (parts, exact))
        return all(step == 1 for step in margins.steps) and apart < _WORTH * whole

    def _weight(self) -> Weight | None:
        """The weight as it lies; None where channels and taps are no equal steps apart."""
        groups, (outputs, inputs) = self.op.groups, self.weight[:2]
        found = self.views[1].after(Reshape((groups, outputs // groups, inputs * self.taps)))
        if found is None or found.strides[-1] != 1:
            return None
        matrix = Matrix.of("input", self.dtype_of(1), found)
        return Weight(matrix, groups, outputs // groups, inputs, self.taps, self.turned)

    # -- products ----------------------------------------------------------------------------

    def _multiply_parts(
        self, launches: Launches, source: Source, parts: list[Part], tile: Tile
    ) -> None:
        """The products of several parts, which share the panels of the weight."""
        whole = launches.problem
        inputs = whole.k // self.taps
        images = steps_of(source.shape[0], math.prod(self.form.positions))
        for part in parts:
            tables = self._offsets(source, part)
            places = steps_of(part.count, 1) if part.places is None else part.places
            tables["positions"] = grid(images, places) if self.form.flat else places
            picked = grid(part.taps * inputs, steps_of(inputs, 1))
            tables["b_table"] = picked * tile.width
            launches.tables = _tables(launches, tables)
            sizes = len(tables["row_table"]), len(picked)
            launches.problem = replace(whole, m=sizes[0], k=sizes[1], panel_terms=whole.k)
            launches.multiply(tile, packed=True)

    def _offsets(self, source: Source, part: Part) -> dict[str, Offsets]:
        """Offsets of a part's rows and terms."""
        spatial = source.strides[2:]
        rows = part.rows(spatial)
        if self.form.flat:
            rows = grid(steps_of(source.shape[0], source.strides[0]), rows)
        channels = steps_of(source.shape[1] // self.op.groups, source.strides[1])
        return {"row_table": rows, "term_table": grid(part.reads(spatial), channels)}


def _tables(launches: Launches, tables: dict[str, Offsets]) -> dict[str, Ref | int]:
    """Tables as constants; none is without elements."""
    found: dict[str, Ref | int] = {}
    for name, offsets in tables.items():
        table = offsets if len(offsets) else np.zeros(1, np.int64)
        found[name] = launches.constant(table.astype(np.int32))
    return found
