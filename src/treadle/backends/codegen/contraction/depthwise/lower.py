"""Depthwise convolutions whose channels are neighbors in memory, and their gradients.

Every channel has a kernel of its own, so vectors run over channels, and what is multiplied is what
one position and one tap have in common. The weight is packed, tap by tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from treadle.backends.api import Support, no, yes
from treadle.backends.codegen.contraction.api import Answer, LoweringRequest
from treadle.backends.codegen.contraction.depthwise.kernel import depthwise_kernel
from treadle.backends.codegen.contraction.depthwise.rows import (
    DepthwiseParameters,
    PositionSteps,
    RowsConfig,
    RowSizes,
    SumTables,
    sums_type,
)
from treadle.backends.codegen.contraction.depthwise.taps import (
    Side,
    Tiles,
    open_tiles,
    sides,
    tiles_of,
)
from treadle.backends.codegen.contraction.depthwise.weight import (
    AdditionParameters,
    addition_kernel,
    weight_kernel,
)
from treadle.backends.codegen.contraction.shared.body import BodyRefused, EpilogueReader
from treadle.backends.codegen.contraction.shared.epilogue import Epilogue, RowSteps, Sides
from treadle.backends.codegen.contraction.shared.launch import Area, packing_launch
from treadle.backends.codegen.contraction.shared.pack import Packing, order_of
from treadle.backends.codegen.contraction.shared.problem import Matrix
from treadle.backends.codegen.contraction.shared.spread import Margins, SpreadOperand, spread
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.irregular.pool_formulas import BYTES, Formula, Progressions
from treadle.backends.codegen.irregular.rows import MOST_ITEMS, divide
from treadle.backends.codegen.kernel.records import RecordedKernel
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import (
    Dims,
    Shape,
    Strided,
    blocked_input,
    extents,
    sizes_of,
    split_after,
    strided_input,
)
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim, Expr, is_identical
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.conv import ConvGradInput, ConvGradWeight, Convolution
from treadle.ops.movement import Reshape, Transpose
from treadle.ops.winograd import Winograd

_TABLE = 1 << 14
"""Most bytes of a group's taps, which stay in the first cache beside the cells."""
_WIDEST = 16
"""Most taps of a row, and largest stride of a gradient, which are written out."""
_MOST_CHUNKS = 32
"""Tables of sums of a gradient to the weight, which are added up in the end."""


def claims(request: LoweringRequest) -> Support:
    """Return whether channels are groups of their own, and neighbors."""
    if request.gathers:
        return no("layout", "row-major maps are gathered")
    if not request.is_depthwise:
        return no("shape", "not every channel is a group of its own")
    return yes()


def lower(request: LoweringRequest) -> Answer:
    """Rows of positions, in vectors of channels."""
    body, anchor, target = request.body, request.anchor, request.target
    op, frozen = anchor.op, request.frozen
    shapes = [sizes_of(v.type.shape) for v in (*anchor.inputs, anchor.output)]
    if not isinstance(op, Convolution) or isinstance(op, Winograd):
        return no("op", f"{op.name} is not a depthwise convolution")
    maps = 2 if isinstance(op, ConvGradWeight) else 1
    given = [_cells_of(body, v) for v in anchor.inputs[:maps]]
    found = [cells for cells in given if cells is not None]
    if len(found) < maps:
        return no("layout", "an operand of the convolution is computed in the group")
    if isinstance(op, ConvGradWeight):
        positions, kernel = shapes[1], extents(op.kernel)
    else:
        positions, kernel = shapes[2], extents(shapes[1][2:])
    transposed = isinstance(op, ConvGradInput)
    axes = sides(op.window(kernel), positions[2:], shapes[0][2:], transposed=transposed)
    dtype, repeats = anchor.inputs[0].type.dtype, positions[1] // op.groups
    problem = _Depthwise(
        dtype, positions[0], positions[1], axes, found[0], target, frozen, repeats=repeats
    )
    refused = problem.refused(found)
    if refused is not None:
        return refused
    is_open = any(isinstance(n, Expr) for n in (*positions[2:], *shapes[0][2:]))
    if is_open and (transposed or isinstance(op, ConvGradWeight) or found[0].block):
        return no("dynamic-shape", "gradients over symbolic planes are products of groups")
    try:
        if isinstance(op, ConvGradWeight):
            reader = EpilogueReader(body, anchor, lambda view: _flat(view, shapes[2]))
            return problem.to_weight(found[1], problem.after(reader))
        reader = _reader(body, anchor, blocked=found[0].block > 0)
        weight = _weight(strided_input(body, anchor.inputs[1]), anchor.inputs[1].type.dtype)
        if is_open:
            return _lower_open(problem, op, weight, problem.after(reader))
        return problem.applied(weight, problem.after(reader))
    except BodyRefused as refusal:
        return no("layout", str(refusal))


def _reader(body: Graph, anchor: Node, *, blocked: bool) -> EpilogueReader:
    """A reader of results whose channels are last, or are in blocks, which are."""
    split = split_after(body, anchor.output) if blocked else None
    if split is None:
        shape = sizes_of(anchor.output.type.shape)
        return EpilogueReader(body, anchor, partial(_channels_last, shape=shape))
    shape = sizes_of(split.output.type.shape)
    return EpilogueReader(body, split, partial(_blocks_last, shape=shape))


# -- operands ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cells:
    """An operand [N,D,H,W,C]; with a `block`, C are its channels, and blocks are `apart`."""

    view: Strided
    block: int = 0
    apart: int = 0

    @property
    def jump(self) -> int:
        """Elements by which groups, which are blocks, are further apart than their channels."""
        return self.apart - self.block * self.view.strides[-1] if self.block else 0


def _cells_of(body: Graph, value: Value) -> _Cells | None:
    """An operand [N,C,*S] as cells."""
    view = strided_input(body, value)
    if view is not None:
        return _Cells(_planes(view))
    found = blocked_input(body, value)
    if found is None or found.channels != int(found.whole.shape[1]) * found.block:
        return None
    (n, _, block, *cells), (batch, apart, *steps) = found.whole.shape, found.whole.strides
    one = Strided(found.index, (n, block, *cells), found.whole.offset, (batch, *steps))
    return _Cells(_planes(one), block, apart)


def _planes(view: Strided) -> Strided:
    """A view [N,C,*S] as [N,D,H,W,C]."""
    (n, c, *cells), (batch, column, *steps) = view.shape, view.strides
    lead = 3 - len(cells)
    shape, strides = (n, *(1,) * lead, *cells, c), (batch, *(0,) * lead, *steps, column)
    return Strided(view.index, shape, view.offset, strides)


def _channels_last(view: Strided, shape: Dims) -> Strided | None:
    """A view in the shape [N,C,*P] of the result as [1,N,D,H,W,C]."""
    whole = view.after(Reshape((1, *shape[:2], *(1,) * (5 - len(shape)), *shape[2:])))
    return None if whole is None else whole.after(Transpose((0, 1, 3, 4, 5, 2)))


def _blocks_last(view: Strided, shape: Dims) -> Strided | None:
    """A view in the shape [N,C/c,c,*P] of the split result as [C/c,N,D,H,W,c]."""
    whole = view.after(Reshape((*shape[:3], *(1,) * (6 - len(shape)), *shape[3:])))
    return None if whole is None else whole.after(Transpose((1, 0, 3, 4, 5, 2)))


def _weight(view: Strided | None, dtype: DType) -> Matrix:
    """A weight [C,1,*K], or one whose first axes are channels of the result, as [taps, C]."""
    flat = None
    if view is not None:
        channels = view.shape[0] * view.shape[1]
        flat = view.after(Reshape((channels, int(np.prod(view.shape[2:])))))
    if flat is None:
        raise BodyRefused("the taps of the weight are not equal steps apart")
    channel, tap = flat.strides
    return Matrix("input", flat.index, dtype, flat.offset, (), tap, channel)


def _flat(view: Strided, taps: Shape) -> Strided | None:
    """A view in the shape [C,1,*K] of a gradient to the weight as [taps, C]."""
    flat = view.after(Reshape((taps[0], int(np.prod(taps[1:])))))
    return None if flat is None else flat.after(Transpose((1, 0)))


# -- launches ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _After:
    """An epilogue, and its further operands and results."""

    epilogue: Epilogue
    sides: Sides[Matrix]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A division of the work into chunks of `grain` rows, and groups of `group` channels."""

    chunks: Dim
    grain: Dim
    groups: int
    group: int


@dataclass(slots=True)
class _Depthwise:
    """Rows of positions over cells x [N,D,H,W,C], and what becomes of them.

    Attributes:
        dtype: element type of the operands.
        axes: depth, height and width.
        frozen: which inputs of the body never change.
        repeats: channels of the result per channel of x.
        constants: arrays that operands of the epilogue, and tables, are.
        source, table: where the cells, and the table of rows, are; None: an operand, a constant.
    """

    dtype: DType
    batch: Dim
    channels: int
    axes: tuple[Side, Side, Side]
    cells: _Cells
    target: Target
    frozen: tuple[bool, ...]
    repeats: int = 1
    constants: list[Array] = field(default_factory=list)
    source: Ref | None = None
    table: Ref | None = None

    def after(self, reader: EpilogueReader) -> _After:
        """Return a reader's finding; raise `BodyRefused` unless channels of results are next."""
        extras, results, epilogue = reader.read()
        if any(len(c.batch) == 4 and not is_identical(c.column, 1) for c in results):
            raise BodyRefused("channels of a result are not neighbors")
        self.constants = reader.constants
        sides = Sides(extras, results)
        accesses = sides.map(Matrix.access)
        epilogue = replace(epilogue, extras=accesses.extras, results=accesses.results)
        return _After(epilogue, sides)

    @property
    def x(self) -> Strided:
        """The cells; of the first block."""
        return self.cells.view

    def refused(self, given: Sequence[_Cells]) -> Support | None:
        """Return why the kernels do not take these operands, if they do not."""
        if not all(is_identical(cells.view.strides[-1], 1) for cells in given):
            return no("layout", "channels of an operand are not neighbors")
        if any(cells.block != self.cells.block for cells in given):
            return no("layout", "one operand has its channels in blocks, the other has not")
        if self.cells.block % self.lanes or (self.cells.block and self.repeats > 1):
            return no("shape", f"blocks are not of vectors of {self.lanes} channels")
        if max(self.axes[2].kernel, self.axes[2].period) > _WIDEST:
            return no("shape", f"a row of taps is longer than {_WIDEST}")
        return None

    @property
    def wide(self) -> DType:
        """Type of the sums."""
        return sums_type(self.dtype)

    @property
    def lanes(self) -> int:
        """Channels of a vector; blocks that are narrower than the target's are vectors."""
        full, block = self.target.lanes(self.wide), self.cells.block
        return block if block and not full % block else full

    @property
    def pitch(self) -> int:
        """Channels of the tables of taps."""
        return -(-self.channels // self.lanes) * self.lanes

    @property
    def taps(self) -> int:
        """Taps of a channel."""
        return self.axes[0].kernel * self.axes[1].kernel * self.axes[2].kernel

    def applied(self, weight: Matrix, after: _After) -> Lowered:
        """A convolution or its gradient to the input, with an epilogue."""
        known = weight.index < len(self.frozen) and self.frozen[weight.index]
        place, nbytes = Ref("kept" if known else "workspace", 0), self._bytes()
        pack = self._packing(weight, place)
        # Sums, a row of taps and a cell are in registers.
        tiles = self._tiles(self.target.registers - 2 - self.axes[2].kernel)
        masked = self.channels < self.lanes
        made = depthwise_kernel(self._spec(tiles, masked=masked), after.epilogue)
        launch = self._launch(made, tiles, place, after.sides, self._cut())
        constants = tuple(self.constants)
        if known:
            return Lowered((launch,), constants=constants, kept=(nbytes,), prelude=(pack,))
        return Lowered((pack, launch), workspaces=(nbytes,), constants=constants)

    def to_weight(self, dy: _Cells, after: _After) -> Lowered:
        """The gradient to the weight: tables of sums, and their sum."""
        place, lanes = Ref("workspace", 0), self.lanes
        # One row of positions is in registers, and one sum for every tap of a row.
        tiles = self._tiles(self.target.registers - 2 - self.axes[2].kernel)
        made = weight_kernel(self._spec(tiles, masked=self.channels % lanes != 0))
        step = self.taps * self.pitch
        *batch, row, column = dy.apart, *dy.view.strides
        view = dy.view
        given = Matrix("input", view.index, self.dtype, view.offset, tuple(batch), row, column)
        cut, tables = self._cut(_MOST_CHUNKS), SumTables[Dim](self.taps, step)
        launch = self._launch(made, tiles, place, Sides((given,)), cut, tables)
        total = self._addition(after, place, cut.chunks)
        constants, nbytes = tuple(self.constants), cut.chunks * step * self.wide.itemsize
        return Lowered((launch, total), workspaces=(nbytes,), constants=constants)

    def _addition(self, after: _After, place: Ref, chunks: Dim) -> Launch:
        """The launch that adds up the tables."""
        add, step = addition_kernel(self.wide, self.lanes, after.epilogue), self.taps * self.pitch
        given: AdditionParameters[Ref, Dim] = AdditionParameters(
            sums=place,
            memory=after.sides.map(lambda matrix: matrix.place),
            chunks=chunks,
            table_step=step,
            tap=self.pitch,
            channels=self.channels,
            steps=after.sides.map(lambda matrix: RowSteps(matrix.row, matrix.column)),
        )
        return add.launch(
            given,
            items=self.taps,
            serial=estimate(chunks * step) < 1 << 15,
            nbytes=chunks * step * self.wide.itemsize,
        )

    def _tiles(self, most: int) -> Tiles:
        """Rows of positions as tiles with at most so many sums."""
        return tiles_of(self.axes[2], max(min(most, self.target.registers // 2), 4))

    def _spec(self, tiles: Tiles, *, masked: bool) -> RowsConfig:
        column, depth = self.x.strides[3], self.axes[0]
        deep = depth.kernel > 1
        if self.table is None:
            deep = any(len(reads) != 1 for reads in depth.reads())
        sizes = tiles.width, tiles.step, column, tiles.patterns
        return RowsConfig(self.dtype, self.lanes, *sizes, deep, masked, self.repeats)

    def _bytes(self) -> int:
        # Packing writes up to a vector beyond the last row.
        return (self.taps * self.pitch + self.lanes) * self.wide.itemsize

    def _packing(self, weight: Matrix, place: Ref) -> Launch:
        """The launch that makes the weight a table [taps, pitch]."""
        tile = Tile(self.wide, self.lanes, self.lanes, 1, self.lanes)
        packing = Packing(tile, weight.dtype, order_of(weight.row, weight.column), False, 0)
        area = Area(self.taps, self.channels, weight.row, weight.column, self.pitch)
        return packing_launch(packing, weight, place, area)

    def _cut(self, most: int = MOST_ITEMS) -> _Cut:
        """Items of the rows and channels, about as many as `most` at most."""
        row = estimate(self.axes[2].positions)
        group = max(_TABLE // (self.taps * self.wide.itemsize), self.lanes)
        groups = -(-self.channels // group)
        group = self.cells.block or -(-self.channels // groups // self.lanes) * self.lanes
        groups = -(-self.channels // group)
        cost = row * -(-group // self.lanes) * (2 + 0.2 * self.taps)
        chunks, grain = divide(self._rows(), cost, max(most // groups, 1))
        return _Cut(chunks, grain, groups, group)

    def _rows(self) -> Dim:
        return self.batch * self.axes[0].positions * self.axes[1].positions

    def _launch(
        self,
        made: RecordedKernel,
        tiles: Tiles,
        taps: Ref,
        operands: Sides[Matrix],
        cut: _Cut,
        tables: SumTables[Dim] | None = None,
    ) -> Launch:
        """Rows of positions by groups of channels; `taps` is the weight, or tables of sums."""
        depth, height, width = self.axes
        table, source = self.table, self.source or Ref("input", self.x.index)
        if table is None:
            self.constants.append(np.concatenate([depth.table(), height.table()]))
            table = Ref("constant", len(self.constants) - 1)
        rows, origins = self._rows(), None
        if self.repeats > 1:
            self.constants.append(np.arange(self.pitch, dtype=np.int64) // self.repeats)
            origins = Ref("constant", len(self.constants) - 1)
        given: DepthwiseParameters[Ref, Dim] = DepthwiseParameters(
            x=replace(source, offset=self.x.offset * self.dtype.itemsize),
            taps=taps,
            table=table,
            memory=operands.map(lambda matrix: matrix.place),
            origins=origins,
            sizes=self._sizes(cut),
            tables=tables,
            stops=tiles.stops,
            steps=operands.map(self._steps),
        )
        nbytes: Dim = self.batch * depth.cells * height.cells * width.cells * self.channels
        nbytes *= self.dtype.itemsize
        for matrix in (*operands.extras, *operands.results):
            if not is_identical(matrix.row, 0):
                nbytes += rows * width.positions * self.channels * matrix.dtype.itemsize
        products = rows * width.positions * self.channels * self.taps
        return made.launch(
            given,
            items=cut.chunks * cut.groups,
            serial=max(estimate(products), estimate(nbytes)) < 1 << 17,
            flops=2 * products,
            nbytes=nbytes,
        )

    def _ahead(self) -> int:
        """Rows from the first cell of a row of positions to the first one that is new in the next.

        Gradients begin with the last cell.
        """
        height = self.axes[1]
        if height.transposed:
            return 1
        return (height.kernel - 1) * height.dilation + 1

    def _steps(self, matrix: Matrix) -> PositionSteps[Dim]:
        """Steps of what lies like the positions."""
        apart, batch, depth, height = matrix.batch
        jump = apart - self.cells.block * matrix.column if self.cells.block else 0
        return PositionSteps(batch, depth, height, matrix.row, matrix.column, jump)

    def _sizes(self, cut: _Cut) -> RowSizes[Dim]:
        """Extents, and steps of cells and taps."""
        depth, height, width = self.axes
        x_batch, x_depth, x_height, _, _ = self.x.strides
        row, plane = width.kernel * self.pitch, height.kernel * width.kernel * self.pitch
        return RowSizes(
            rows=self._rows(),
            grain=cut.grain,
            chunks=cut.chunks,
            channels=self.channels,
            group=cut.group,
            depths=depth.positions,
            heights=height.positions,
            x_batch=x_batch,
            x_depth=x_depth,
            x_height=x_height,
            x_jump=self.cells.jump,
            depth_cells=depth.cell_step * x_depth,
            height_cells=height.cell_step * x_height,
            tap=self.pitch,
            height_tap=row,
            depth_tap=plane,
            height_taps=height.tap_step * row,
            depth_taps=depth.tap_step * plane,
            ahead=self._ahead() * x_height,
            ahead_rows=height.advance if cut.groups == 1 else 0,
        )


def _lower_open(problem: _Depthwise, op: Convolution, weight: Matrix, after: _After) -> Lowered:
    """A convolution over planes whose extents are expressions.

    Cells of the padding are made real, so that all positions read the same taps; tiles of several
    positions are one launch, the positions behind them another one.
    """
    target, view = problem.target, problem.x
    known = weight.index < len(problem.frozen) and problem.frozen[weight.index]
    made = _Collected(target, problem.dtype)
    nbytes = problem._bytes()
    place = Ref("kept", 0) if known else made.workspace(nbytes)
    pack = problem._packing(weight, place)
    spatial, (batch, *steps) = view.shape[1:-1], view.strides[:-1]
    lows = tuple(side.padding for side in problem.axes)
    highs = (0,) * (3 - len(op.padding)) + tuple(high for _, high in op.padding)
    padded = tuple(n + low + high for n, low, high in zip(spatial, lows, highs, strict=True))
    source = SpreadOperand(
        Matrix("input", view.index, problem.dtype, view.offset, (), 1, 1),
        (view.shape[0], view.shape[-1], *spatial),
        (batch, view.strides[-1], *steps),
    )
    source = spread(made, source, Margins(lows, (1, 1, 1), padded), dtype=problem.dtype)
    matrix, (batch, column, *steps) = source.matrix, source.strides
    cells = Strided(
        matrix.index,
        (view.shape[0], *padded, view.shape[-1]),
        matrix.offset,
        (batch, *steps, column),
    )
    depth, height, width = (replace(side, padding=0) for side in problem.axes)
    table = made.workspace(BYTES * (depth.positions + height.positions))
    for side, at in ((depth, 0), (height, BYTES * depth.positions)):
        rows = Formula(side.positions, Progressions(side.kernel, 0, 0, 0, 0, side.stride))
        made.launches.append(rows.launch(replace(table, offset=at)))
    opened = replace(
        problem,
        axes=(depth, height, width),
        cells=_Cells(cells),
        source=Ref(matrix.kind, matrix.index),
        table=table,
    )
    most = max(min(target.registers - 2 - width.kernel, target.registers // 2), 4)
    several, single = open_tiles(width, max(1, min(most, estimate(width.positions))))
    masked, skipped = problem.channels < problem.lanes, several.stops[0] * several.width
    for tiles, behind in ((several, 0), (single, skipped)):
        opened.axes = depth, height, replace(width, positions=tiles.stops[0] * tiles.width)
        offset = cells.offset + behind * width.stride * cells.strides[3]
        opened.cells = _Cells(replace(cells, offset=offset))
        kernel = depthwise_kernel(opened._spec(tiles, masked=masked), after.epilogue)
        sides = after.sides.map(partial(_moved_by, rows=behind))
        made.launches.append(opened._launch(kernel, tiles, place, sides, opened._cut()))
    return Lowered(
        tuple(made.launches) if known else (pack, *made.launches),
        workspaces=tuple(made.workspaces),
        constants=tuple(opened.constants),
        kept=(nbytes,) if known else (),
        prelude=(pack,) if known else (),
    )


@dataclass(slots=True)
class _Collected:
    """Launches and workspaces of a lowering."""

    target: Target
    dtype: DType
    launches: list[Launch] = field(default_factory=list)
    workspaces: list[Dim] = field(default_factory=list)

    def workspace(self, nbytes: Dim) -> Ref:
        """A new scratch area."""
        self.workspaces.append(nbytes)
        return Ref("workspace", len(self.workspaces) - 1)


def _moved_by(matrix: Matrix, rows: Dim) -> Matrix:
    return replace(matrix, offset=matrix.offset + rows * matrix.row)
