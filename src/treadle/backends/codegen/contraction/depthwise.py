"""Depthwise convolutions whose channels are neighbors in memory, and their gradients.

Every channel has a kernel of its own, so vectors run over channels, and what is multiplied is what
one position and one tap have in common. The weight is packed, tap by tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction.body import EpilogueReader, Refused
from treadle.backends.codegen.contraction.depthwise_kernel import depthwise_kernel
from treadle.backends.codegen.contraction.depthwise_rows import STEPS, Spec
from treadle.backends.codegen.contraction.depthwise_taps import Side, Tiles, sides, tiles_of
from treadle.backends.codegen.contraction.depthwise_weight import addition_kernel, weight_kernel
from treadle.backends.codegen.contraction.epilogue import Epilogue
from treadle.backends.codegen.contraction.items import Contraction
from treadle.backends.codegen.contraction.launch import Area, packing_launch
from treadle.backends.codegen.contraction.pack import Packing, order_of
from treadle.backends.codegen.contraction.problem import Matrix
from treadle.backends.codegen.contraction.tile import Tile
from treadle.backends.codegen.irregular.rows import MOST_ITEMS, divide
from treadle.backends.codegen.scalars.code import compute_dtype
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Shape, Strided, extents, strided_input
from treadle.backends.program import Array, Launch, Lowered, Ref
from treadle.base.dtype import DType
from treadle.graph.ir import Graph, Node
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, Convolution
from treadle.ops.movement import Reshape, Transpose

_TABLE = 1 << 14
"""Most bytes of a group's taps, which stay in the first cache beside the cells."""
_WIDEST = 16
"""Most taps of a row, and largest stride of a gradient, which are written out."""
_MOST_CHUNKS = 32
"""Tables of sums of a gradient to the weight, which are added up in the end."""


def is_depthwise(op: Convolution, x: Shape, result: Shape) -> bool:
    """Whether an op on [N,C,*S] with these shapes has one channel in every group."""
    return op.groups == x[1] == result[1] and op.groups > 1


def lower_depthwise(
    body: Graph, anchor: Node, frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """A body around one depthwise convolution, or gradient of one, with channels last."""
    op = anchor.op
    shapes = [extents(v.type.shape) for v in (*anchor.inputs, anchor.output)]
    if not isinstance(op, (Conv, ConvGradInput, ConvGradWeight)):
        return no("op", f"{op.name} is no depthwise convolution")
    views = [strided_input(body, v) for v in anchor.inputs]
    first, second = views
    if first is None or second is None:
        return no("layout", "an operand of the convolution is computed in the group")
    if isinstance(op, ConvGradWeight):
        positions, kernel = shapes[1], extents(op.kernel)
    else:
        positions, kernel = shapes[2], shapes[1][2:]
    if not is_depthwise(op, shapes[0], positions):
        return no("shape", "not every channel is a group of its own")
    transposed = isinstance(op, ConvGradInput)
    axes = sides(op.window(kernel), positions[2:], shapes[0][2:], transposed=transposed)
    if max(axes[2].kernel, axes[2].period) > _WIDEST:
        return no("shape", f"a row of taps is longer than {_WIDEST}")
    given = [_planes(v) for v in ((first, second) if isinstance(op, ConvGradWeight) else (first,))]
    if any(v.strides[-1] != 1 for v in given):
        return no("layout", "channels of an operand are not neighbors")
    dtype, channels = anchor.inputs[0].type.dtype, positions[1]
    problem = _Depthwise(dtype, positions[0], channels, axes, given[0], target, frozen)
    try:
        if isinstance(op, ConvGradWeight):
            reader = EpilogueReader(body, anchor, lambda view: _flat(view, shapes[2]))
            extras, results, epilogue = reader.read()
            problem.constants = reader.constants
            return problem.to_weight(given[1], _After.of(extras, results, epilogue))
        reader = EpilogueReader(body, anchor, lambda view: _channels_last(view, positions))
        extras, results, epilogue = reader.read()
        weight = _weight(second, anchor.inputs[1].type.dtype)
    except Refused as refusal:
        return no("layout", str(refusal))
    if any(c.column != 1 for c in results):
        return no("layout", "channels of a result are not neighbors")
    problem.constants = reader.constants
    return problem.applied(weight, _After.of(extras, results, epilogue))


# -- operands ----------------------------------------------------------------------------------


def _planes(view: Strided) -> Strided:
    """A view [N,C,*S] as [N,D,H,W,C]."""
    (n, c, *cells), (batch, column, *steps) = view.shape, view.strides
    lead = 3 - len(cells)
    shape, strides = (n, *(1,) * lead, *cells, c), (batch, *(0,) * lead, *steps, column)
    return Strided(view.index, shape, view.offset, strides)


def _channels_last(view: Strided, shape: Shape) -> Strided | None:
    """A view in the shape [N,C,*P] of the result as [N,D,H,W,C]."""
    whole = view.after(Reshape((*shape[:2], *(1,) * (5 - len(shape)), *shape[2:])))
    return None if whole is None else whole.after(Transpose((0, 2, 3, 4, 1)))


def _weight(view: Strided, dtype: DType) -> Matrix:
    """A weight [C,1,*K] as a matrix [taps, C]."""
    flat = view.after(Reshape((view.shape[0], int(np.prod(view.shape[1:])))))
    if flat is None:
        raise Refused("the taps of the weight are no equal steps apart")
    channel, tap = flat.strides
    return Matrix("input", view.index, dtype, view.offset, (), tap, channel)


def _flat(view: Strided, taps: Shape) -> Strided | None:
    """A view in the shape [C,1,*K] of a gradient to the weight as [taps, C]."""
    flat = view.after(Reshape((taps[0], int(np.prod(taps[1:])))))
    return None if flat is None else flat.after(Transpose((1, 0)))


# -- launches ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _After:
    """What is applied to sums, and the further operands and results by name."""

    epilogue: Epilogue
    operands: dict[str, Matrix]

    @staticmethod
    def of(extras: Sequence[Matrix], results: Sequence[Matrix], epilogue: Epilogue) -> _After:
        """From what a reader found."""
        accesses = tuple(x.access() for x in extras), tuple(c.access() for c in results)
        named = {f"x{i}": x for i, x in enumerate(extras)}
        named |= {f"c{i}": c for i, c in enumerate(results)}
        return _After(replace(epilogue, extras=accesses[0], results=accesses[1]), named)


@dataclass(frozen=True, slots=True)
class _Cut:
    """How work is cut: into chunks of `grain` rows, and groups of `group` channels."""

    chunks: int
    grain: int
    groups: int
    group: int


@dataclass(slots=True)
class _Depthwise:
    """Rows of positions over cells x [N,D,H,W,C], and what becomes of them.

    Attributes:
        dtype: element type of the operands.
        axes: depth, height and width.
        frozen: which inputs of the body never change.
        constants: arrays that operands of the epilogue, and tables, are.
    """

    dtype: DType
    batch: int
    channels: int
    axes: tuple[Side, Side, Side]
    x: Strided
    target: Target
    frozen: tuple[bool, ...]
    constants: list[Array] = field(default_factory=list)

    @property
    def wide(self) -> DType:
        """Type of the sums."""
        return compute_dtype(self.dtype)

    @property
    def lanes(self) -> int:
        """Channels of a vector."""
        return self.target.lanes(self.wide)

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
        made = depthwise_kernel(
            self._spec(tiles, masked=self.channels < self.lanes), after.epilogue
        )
        launch = self._launch(made, tiles, {"weight": place}, after.operands, self._cut())
        constants = tuple(self.constants)
        if known:
            return Lowered((launch,), constants=constants, kept=(nbytes,), prelude=(pack,))
        return Lowered((pack, launch), workspaces=(nbytes,), constants=constants)

    def to_weight(self, dy: Strided, after: _After) -> Lowered:
        """The gradient to the weight: tables of sums, and their sum."""
        place, lanes = Ref("workspace", 0), self.lanes
        # One row of positions is in registers, and one sum for every tap of a row.
        tiles = self._tiles(self.target.registers - 2 - self.axes[2].kernel)
        made = weight_kernel(self._spec(tiles, masked=self.channels % lanes != 0))
        step = self.taps * self.pitch
        *batch, row, column = dy.strides
        given = Matrix("input", dy.index, self.dtype, dy.offset, tuple(batch), row, column)
        sizes: dict[str, Ref | int] = {"sums": place, "taps": self.taps, "table_step": step}
        cut = self._cut(_MOST_CHUNKS)
        launch = self._launch(made, tiles, sizes, {"dy": given}, cut)
        total = self._addition(after, place, cut.chunks)
        constants, nbytes = tuple(self.constants), cut.chunks * step * self.wide.itemsize
        return Lowered((launch, total), workspaces=(nbytes,), constants=constants)

    def _addition(self, after: _After, place: Ref, chunks: int) -> Launch:
        """The launch that adds up the tables."""
        add, step = addition_kernel(self.wide, self.lanes, after.epilogue), self.taps * self.pitch
        given: dict[str, Ref | int] = {
            "sums": place,
            "chunks": chunks,
            "table_step": step,
            "tap": self.pitch,
            "channels": self.channels,
        }
        for name, matrix in after.operands.items():
            given |= {
                name: _ref(matrix),
                f"{name}_row": matrix.row,
                f"{name}_column": matrix.column,
            }
        return Launch(
            add.kernel,
            tuple(given[name] for name in add.names),
            items=self.taps,
            serial=chunks * step < 1 << 15,
            nbytes=chunks * step * self.wide.itemsize,
        )

    def _tiles(self, most: int) -> Tiles:
        """Rows of positions as tiles with at most so many sums."""
        return tiles_of(self.axes[2], max(min(most, self.target.registers // 2), 4))

    def _spec(self, tiles: Tiles, *, masked: bool) -> Spec:
        column = self.x.strides[3]
        deep = any(len(reads) != 1 for reads in self.axes[0].reads())
        sizes = tiles.width, tiles.step, column, tiles.patterns
        return Spec(self.dtype, self.lanes, *sizes, deep, masked)

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
        row = self.axes[2].positions
        group = max(_TABLE // (self.taps * self.wide.itemsize), self.lanes)
        groups = -(-self.channels // group)
        group = -(-self.channels // groups // self.lanes) * self.lanes
        groups = -(-self.channels // group)
        cost = row * -(-group // self.lanes) * (2 + 0.2 * self.taps)
        chunks, grain = divide(self._rows(), cost, max(most // groups, 1))
        return _Cut(chunks, grain, groups, group)

    def _rows(self) -> int:
        return self.batch * self.axes[0].positions * self.axes[1].positions

    def _launch(
        self,
        made: Contraction,
        tiles: Tiles,
        others: dict[str, Ref | int],
        operands: dict[str, Matrix],
        cut: _Cut,
    ) -> Launch:
        """Rows of positions by groups of channels."""
        depth, height, width = self.axes
        self.constants.append(np.concatenate([depth.table(), height.table()]))
        rows = self._rows()
        given: dict[str, Ref | int] = {
            "x": Ref("input", self.x.index, self.x.offset * self.dtype.itemsize),
            "table": Ref("constant", len(self.constants) - 1),
            **self._sizes(),
            **others,
            "rows": rows,
            "grain": cut.grain,
            "chunks": cut.chunks,
            "group": cut.group,
            "ahead": self._ahead() * self.x.strides[2],
            "ahead_rows": height.advance if cut.groups == 1 else 0,
        }
        given |= {f"stop{i}": stop for i, stop in enumerate(tiles.stops)}
        nbytes = self.batch * depth.cells * height.cells * width.cells * self.channels
        nbytes *= self.dtype.itemsize
        for name, matrix in operands.items():
            steps = zip(STEPS, (*matrix.batch, matrix.row, matrix.column), strict=True)
            given |= {name: _ref(matrix)} | {f"{name}_{step}": n for step, n in steps}
            if matrix.row:
                nbytes += rows * width.positions * self.channels * matrix.dtype.itemsize
        products = rows * width.positions * self.channels * self.taps
        return Launch(
            made.kernel,
            tuple(given[name] for name in made.names),
            items=cut.chunks * cut.groups,
            serial=max(products, nbytes) < 1 << 17,
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

    def _sizes(self) -> dict[str, Ref | int]:
        """Extents, and steps of cells and taps."""
        depth, height, width = self.axes
        _, x_depth, x_height, _, _ = self.x.strides
        row, plane = width.kernel * self.pitch, height.kernel * width.kernel * self.pitch
        return {
            "channels": self.channels,
            "depths": depth.positions,
            "heights": height.positions,
            "x_batch": self.x.strides[0],
            "x_depth": x_depth,
            "x_height": x_height,
            "depth_cells": depth.cell_step * x_depth,
            "height_cells": height.cell_step * x_height,
            "tap": self.pitch,
            "height_tap": row,
            "depth_tap": plane,
            "height_taps": height.tap_step * row,
            "depth_taps": depth.tap_step * plane,
        }


def _ref(matrix: Matrix) -> Ref:
    return Ref(matrix.kind, matrix.index, matrix.offset * matrix.dtype.itemsize)
