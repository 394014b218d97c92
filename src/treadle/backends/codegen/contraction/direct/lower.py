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

from treadle.backends.api import Support, no, yes
from treadle.backends.codegen.contraction.api import Answer, LoweringRequest
from treadle.backends.codegen.contraction.direct.integers import Window, lower_pixel_words
from treadle.backends.codegen.contraction.direct.pairs import Pixels, lower_pixel_pairs
from treadle.backends.codegen.contraction.direct.panels import Weight, panels_of
from treadle.backends.codegen.contraction.dots import lower as dots
from treadle.backends.codegen.contraction.pairs.lower import unit_of
from treadle.backends.codegen.contraction.shared.body import BodyRefused, EpilogueReader, Reading
from treadle.backends.codegen.contraction.shared.form import ResultForm
from treadle.backends.codegen.contraction.shared.items import ItemTables
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.offsets import (
    Sums,
    Table,
    along,
    count_of,
    grid,
    joined,
    scaled,
    steps_of,
)
from treadle.backends.codegen.contraction.shared.positions import (
    RowPart,
    forward_part,
    gradient_parts,
)
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem, Matrix
from treadle.backends.codegen.contraction.shared.spread import (
    Margins,
    SpreadOperand,
    clashes,
    spread,
)
from treadle.backends.codegen.contraction.shared.tile import Tile, choose_tile
from treadle.backends.codegen.contraction.tiles.lower import multiply
from treadle.backends.codegen.contraction.tiles.schedule import measures
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Blocked, Shape, Strided, extents, sizes_of, split_after
from treadle.backends.program import Lowered, Ref
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical
from treadle.graph.ir import Graph, Node
from treadle.ops.conv import ConvGradInput, Convolution, IntConv
from treadle.ops.movement import Reshape

_LARGE = 1 << 20
"""Rows from which the tables are those of one image."""
_ROWS = 8
"""Rows that ask for the usual tile."""
_LAUNCH = 500_000
"""Arithmetic operations whose time a launch takes."""
_PANEL = 16
"""Rows that take as long as reading a panel from memory."""
_WORTH = 0.95
"""The share of the whole's time that parts may take to be worth their tables."""
_MOST = 1 << 31
"""Offsets are numbers of 32 bits."""


def claims(request: LoweringRequest) -> Support:
    """Return whether the operands lie where tiles can read them, and are not row-major."""
    if request.gathers:
        return no("layout", "row-major maps are gathered")
    if request.views[1] is None:
        return no("layout", "an operand of the convolution is computed in the group")
    if request.blocked is not None and request.is_depthwise:
        return no("shape", "blocks of channels that are groups of their own")
    return yes()


def lower(request: LoweringRequest) -> Answer:
    """A product whose rows are positions, in the first form that results allow."""
    body, anchor = request.body, request.anchor
    op, maps, kernel = anchor.op, request.views[0] or request.blocked, request.views[1]
    if not isinstance(op, Convolution) or maps is None or kernel is None:
        return no("op", f"{op.name} is not a convolution of operands that exist")
    views = maps, kernel
    weight = extents(anchor.inputs[1].type.shape)
    refusal: BodyRefused | None = None
    for form, last in _forms(body, anchor, op.groups):
        try:
            reader = EpilogueReader(body, last, form.pull, measures=True)
            extras, results, epilogue = reader.read()
        except BodyRefused as error:
            refusal = error
            continue
        lie = Strided(views[0].index, (*form.batch, 1, 1), 0, (*(0,) * len(form.batch), 1, 1))
        x = Matrix.of("input", anchor.inputs[0].type.dtype, lie)
        problem = ContractionProblem(
            form.batch, form.m, form.columns, 0, x, x, extras, results, epilogue
        )
        problem = replace(problem, moments=reader.moments)
        writer = _DirectLowering(
            op, weight, form, anchor, views, Reading(problem, reader.constants)
        )
        return writer.lowered(request.frozen, request.target)
    return no("layout", str(refusal))


def _forms(body: Graph, anchor: Node, groups: int) -> list[tuple[ResultForm, Node]]:
    """The forms to try, and the node whose result has the axes which they speak of."""
    images, channels, *positions = sizes_of(anchor.output.type.shape)
    form = ResultForm(images, groups, channels // groups, (*positions,), True)
    large = estimate(form.m) > _LARGE and not is_identical(images, 1)
    found = [(replace(form, flat=flat), anchor) for flat in ((False,) if large else (True, False))]
    split = split_after(body, anchor.output)
    if split is not None:
        block = sizes_of(split.output.type.shape)[2]
        if form.channels % block == 0:
            found += [(replace(f, block=block), split) for f, _ in found]
    return found


@dataclass(slots=True)
class _DirectLowering:
    """Makes the launches of one convolution."""

    op: Convolution
    weight: Shape
    form: ResultForm
    anchor: Node
    views: tuple[Strided | Blocked, Strided]
    reading: Reading

    @property
    def kernel(self) -> Shape:
        """Extents of the window."""
        return self.weight[2:]

    @property
    def taps(self) -> int:
        """The number of cells of the window."""
        return math.prod(self.kernel)

    @property
    def turned(self) -> bool:
        """True where the sums run over output channels."""
        return isinstance(self.op, ConvGradInput)

    def dtype_of(self, index: int) -> DType:
        return self.anchor.inputs[index].type.dtype

    def lowered(self, frozen: tuple[bool, ...], target: Target) -> Answer:
        """The launches, the product that it is, or why there are none."""
        if not self._measures(target):
            return no("layout", "statistics are taken of whole rows, in tiles of floats")
        product = self._pointwise()
        if product is not None:
            return product
        made = self._words(frozen, target)
        if made is not None:
            return made
        source, view = self._cells(), self.views[0]
        if source is None:
            return no("layout", "blocks of channels do not follow one another")
        margins, parts = self._parts()
        problem = replace(self.reading.problem, a=source.matrix, tables=True)
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
        rows = _ROWS if several else estimate(launches.problem.m)
        rows = max(rows, _ROWS + 1) if self.form.block else rows  # No wider than a block.
        tile = choose_tile(target, launches.dtype, rows, self.form.columns)
        if self.form.block % tile.width:
            return no("shape", f"tiles have {tile.width} columns, blocks {self.form.block}")
        launches.problem = _with_panels(launches.problem, self.form, tile)
        b = self._panels(panels_of(launches, weight, tile), len(launches.problem.batch), tile)
        launches.problem = replace(
            launches.problem,
            a=self._source(source, len(b.batch)),
            b=b,
            k=weight.terms,
            positions=several,
        ).simplified()
        return self._multiplied(launches, source, parts, tile)

    def _words(self, frozen: tuple[bool, ...], target: Target) -> Lowered | Support | None:
        """The launches of a product of words; None where it is not made of those."""
        x = self.views[0]
        made = self._pairs(frozen, target)
        if made is not None or not isinstance(self.op, IntConv):
            return made
        if isinstance(x, Blocked) or self.form.block:
            return no("layout", "products of integers take no blocks of channels")
        window = Window(self.op, x, self.views[1], self.form.flat)
        return lower_pixel_words(window, self.dtype_of(0), self.reading, frozen, target)

    def _pairs(self, frozen: tuple[bool, ...], target: Target) -> Lowered | Support | None:
        """The same, where one instruction adds the products of several terms."""
        source, weight = self._cells(), self._weight()
        apart = isinstance(self.views[0], Blocked) or self.form.block
        if source is None or weight is None or apart:
            return None
        problem = self.reading.problem
        problem = replace(problem, a=source.matrix, b=weight.matrix, k=self._terms)
        unit = unit_of(problem, target)
        # Zeros between cells of dy cost less than a product for every phase; with vectors, which do
        # twice the products of float32, only where half of them are zeros.
        margins, parts = self._parts(phased=False)
        if unit is None or parts[0].places is not None:
            return None
        if not unit.matrices and self.op.side == "input" and math.prod(self.op.strides) > 2:
            return None
        line = self.kernel[-1] if self.op.dilation[-1] == 1 else 1
        pixels = Pixels(source, margins, parts[0], weight, line, self.form.flat)
        return lower_pixel_pairs(pixels, self.reading, frozen, target, unit)

    def _measures(self, target: Target) -> bool:
        """Return whether some kernel takes the statistics, if there are any to take."""
        if self.reading.problem.moments is None:
            return True
        if isinstance(self.op, IntConv) or self.form.block or self.form.batch != (1,):
            return False
        product = self._pointwise()
        return product is None or _is_measured(product.problem.simplified(), target)

    def _parts(self, *, phased: bool = True) -> tuple[Margins, list[RowPart]]:
        shape = self.views[0].shape
        if isinstance(self.op, ConvGradInput):
            # Phases of a symbolic axis would have places that are known at calls only.
            phased = phased and all(isinstance(n, int) for n in self.op.spatial)
            return gradient_parts(self.op, shape, self.kernel, phased=phased)
        margins, part = forward_part(self.op, shape, self.kernel)
        return margins, [part]

    # -- operands ----------------------------------------------------------------------------

    def _cells(self) -> SpreadOperand | None:
        """The source as it lies; blocks of channels are images of their own."""
        found = self.views[0]
        view: Strided | None
        if isinstance(found, Blocked):
            apart = self.op.groups > 1 and found.channels // self.op.groups % found.block
            view = None if apart else found.as_images()
        else:
            view = found
        if view is None:
            return None
        return SpreadOperand(Matrix.of("input", self.dtype_of(0), view), view.shape, view.strides)

    @property
    def _blocks(self) -> int:
        """Images of the source that make up one of the operand."""
        view = self.views[0]
        return int(view.whole.shape[1]) if isinstance(view, Blocked) else 1

    def _channels(self, source: SpreadOperand) -> tuple[Table, Dim]:
        """Offsets of the channels of a group in an image, and of the next group."""
        groups, count = self.op.groups, self.views[0].shape[1]
        if self._blocks == 1:
            step = source.strides[1]
            return along(count // groups, step), count // groups * step
        blocks, apart = steps_of(self._blocks, 1), steps_of(source.shape[1], source.strides[1])
        every = joined(scaled(blocks, source.strides[0]), apart)
        if isinstance(every, Sums):
            raise NotImplementedError("blocks of channels that are a symbolic distance apart")
        return every[: count // groups], int(every[count // groups]) if groups > 1 else 0

    def _panels(self, b: Matrix, axes: int, tile: Tile) -> Matrix:
        """The batch axes of panels: images share them, blocks have their own."""
        batch = b.batch if self.form.flat else (0, *b.batch)
        if axes > len(batch):
            batch = (*batch, self.form.block // tile.width * tile.width * self._terms)
        return replace(b, batch=batch)

    @property
    def _terms(self) -> int:
        """Terms of a sum."""
        outputs, inputs = self.weight[0] // self.op.groups, self.weight[1]
        return self.taps * (outputs if self.turned else inputs)

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
        x, weight = self.views[0], self._matrix_of_weight()
        if not self.op.window(self.kernel).is_pointwise or self.form.block:
            return None
        if isinstance(x, Blocked):
            return None
        split = replace(self.form, channels=x.shape[1] // self.op.groups)
        rows = split.pull(x)
        if rows is None or weight is None:
            return None
        a = Matrix.of("input", self.dtype_of(0), rows)
        problem = replace(self.reading.problem, k=rows.shape[-1], a=a, b=weight)
        return Reading(problem, self.reading.constants)

    def _source(self, source: SpreadOperand, axes: int) -> Matrix:
        """a: its batch axes."""
        group = self._channels(source)[1] if self.op.groups > 1 else 0
        batch = (group,) if self.form.flat else (source.strides[0] * self._blocks, group)
        batch = (*batch, *[0] * (axes - len(batch)))
        return replace(source.matrix, batch=batch, row=1, column=1)

    def _saves(self, exact: list[RowPart], parts: list[RowPart], margins: Margins) -> bool:
        """Return whether leaving out products with cells of the margins is worth more launches."""
        if not exact:
            return False
        images = estimate(self.views[0].shape[0]) if self.form.flat else 1
        flops = 2 * int(self.views[0].shape[1]) * self.form.channels

        def cost(part: RowPart) -> int:
            # Tiles have an even number of rows.
            rows = max(4, -(-images * estimate(part.count) // 2) * 2)
            return (rows + _PANEL) * len(part.taps) * flops + _LAUNCH

        whole, apart = (sum(map(cost, side)) for side in (parts, exact))
        return all(step == 1 for step in margins.steps) and apart < _WORTH * whole

    def _weight(self) -> Weight | None:
        """The weight as it lies; None where channels and taps are not equal steps apart."""
        groups, (outputs, inputs) = self.op.groups, self.weight[:2]
        found = self.views[1].after(Reshape((groups, outputs // groups, inputs * self.taps)))
        if found is None or found.strides[-1] != 1:
            return None
        matrix = Matrix.of("input", self.dtype_of(1), found)
        return Weight(matrix, groups, outputs // groups, inputs, self.taps, self.turned)

    # -- products ----------------------------------------------------------------------------

    def _multiplied(
        self, launches: Launches, source: SpreadOperand, parts: list[RowPart], tile: Tile
    ) -> Lowered | Support:
        """The products, once their operands are there."""
        problem = launches.problem
        if problem.moments is not None and (
            problem.positions or not _is_measured(problem, launches.target)
        ):
            return no("layout", "statistics are taken of positions in order")
        if problem.positions:
            self._multiply_parts(launches, source, parts, tile)
        else:
            launches.tables = self._tables(launches, source, parts[0])
            multiply(launches, tile, packed=True)
        return launches.lowered()

    def _multiply_parts(
        self, launches: Launches, source: SpreadOperand, parts: list[RowPart], tile: Tile
    ) -> None:
        """The products of several parts, which share the panels of the weight."""
        whole = launches.problem
        inputs = int(whole.k) // self.taps
        images = along(self.form.images, product(self.form.positions))
        for part in parts:
            tables = self._tables(launches, source, part)
            places = along(part.count, 1) if part.places is None else part.places
            places = joined(images, places) if self.form.flat else places
            picked = grid(part.taps * inputs, steps_of(inputs, 1))
            launches.tables = tables._replace(
                positions=launches.offsets(places), b_table=launches.offsets(picked * tile.width)
            )
            m = count_of(self._rows(source, part))
            launches.problem = replace(whole, m=m, k=len(picked), panel_terms=int(whole.k))
            multiply(launches, tile, packed=True)

    def _rows(self, source: SpreadOperand, part: RowPart) -> Table:
        """Offsets of a part's rows."""
        rows, images = part.rows(source.strides[2:]), self.form.images
        if not self.form.flat:
            return rows
        return joined(along(images, source.strides[0] * self._blocks), rows)

    def _tables(self, launches: Launches, source: SpreadOperand, part: RowPart) -> ItemTables[Ref]:
        """Tables of a part's rows and terms."""
        terms = joined(part.reads(source.strides[2:]), self._channels(source)[0])
        rows = launches.offsets(self._rows(source, part))
        return ItemTables(row_table=rows, term_table=launches.offsets(terms))


def _is_measured(problem: ContractionProblem, target: Target) -> bool:
    """Return whether tiles are asked for the product, and take its statistics."""
    return measures(problem) and not dots.claims(problem, target)


def _with_panels(problem: ContractionProblem, form: ResultForm, tile: Tile) -> ContractionProblem:
    """Blocks as panels of one result, where that is what they are and every array allows it."""
    arrays = (*problem.extras, *problem.results)
    fits = form.block == tile.width and all(_has_panels(x, tile) for x in arrays)
    if not fits:
        return problem
    made = [
        replace(x, batch=x.batch[:-1], column=x.batch[-1] // tile.width, panels=x.column == 1)
        for x in arrays
    ]
    count = len(problem.extras)
    extras, results = (*made[:count],), (*made[count:],)
    batch = problem.batch[:-1]
    return replace(problem, batch=batch, n=form.channels, extras=extras, results=results)


def _has_panels(matrix: Matrix, tile: Tile) -> bool:
    """Return whether blocks, the last batch axis, are whole steps of a panel's columns apart."""
    if matrix.column == 0:
        return matrix.batch[-1] == 0
    return matrix.column == 1 and matrix.batch[-1] % tile.width == 0
