"""Gradients in the weight of 3x3 convolutions by Winograd's algorithm, of channels-last operands.

Tiles of x and of dy are transformed, multiplied point by point and summed over all tiles: one
product of matrices per point, whose terms are the tiles. Then the sums are transformed, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from treadle.backends.api import Support, no, yes
from treadle.backends.codegen.contraction.api import Answer, LoweringRequest
from treadle.backends.codegen.contraction.shared.body import BodyRefused, EpilogueReader
from treadle.backends.codegen.contraction.shared.epilogue import (
    NOTHING,
    Access,
    Epilogue,
    EpilogueOp,
    RowSteps,
    Sides,
    Term,
    plain,
)
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem, Matrix
from treadle.backends.codegen.contraction.shared.tile import Tile, choose_tile
from treadle.backends.codegen.contraction.tiles.lower import multiply
from treadle.backends.codegen.contraction.winograd.forward import is_channels_last
from treadle.backends.codegen.contraction.winograd.kernels import (
    PAD,
    MapParameters,
    Part,
    map_kernel,
)
from treadle.backends.codegen.contraction.winograd.kernels import WinogradConfig as MapConfig
from treadle.backends.codegen.contraction.winograd.maps import (
    Maps,
    chunks_of,
    even_block,
    launch_of,
    pitch_of,
    stack_of,
)
from treadle.backends.codegen.contraction.winograd.taps import (
    TAPS,
    TapsParameters,
    TapsSpec,
    taps_kernel,
)
from treadle.backends.codegen.views import extents, sizes_of
from treadle.backends.program import Ref
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim
from treadle.graph.ir import Node
from treadle.ops.elementwise import Add
from treadle.ops.movement import Reshape
from treadle.ops.winograd import WinogradConvGradWeight

_PATCH = 1 << 16
"""Elements of the inputs of one tile."""
_VALUES = 1 << 22, 1 << 24
"""Fewest and most bytes of the transformed tiles that one product takes: chunk after chunk goes
through it. More of them where there are many sums, to which every chunk is added."""
_SUMS = 1 << 22
"""Bytes of the sums of one product, where a product has all tiles."""


def claims(request: LoweringRequest) -> Support:
    """Return whether both operands exist."""
    if None in request.views:
        return no("layout", "an operand of the gradient is computed in the group")
    return yes()


def lower(request: LoweringRequest) -> Answer:
    """Chunks of tiles transformed, multiplied and summed; or the gradient without a trick."""
    body, anchor, target = request.body, request.anchor, request.target
    op, (x, dy) = anchor.op, request.views
    if not isinstance(op, WinogradConvGradWeight) or x is None or dy is None:
        return no("op", f"{op.name} is not a gradient in a weight by Winograd's algorithm")
    maps, dtype = _maps_of(op, anchor), anchor.inputs[0].type.dtype
    channels = maps.inputs, maps.outputs
    if min(channels) < target.lanes(dtype):
        return request.around(op.direct, "fewer channels than a vector has lanes")
    if maps.points * max(channels) > _PATCH:
        return request.around(op.direct, "a tile of all channels is too large")
    if x.is_dense and dy.is_dense:
        return request.around(op.direct, "row-major maps")
    if not (is_channels_last(x) and is_channels_last(dy)):
        return no("layout", "Winograd's algorithm takes maps that are held channels-last")
    shape = maps.outputs, TAPS * maps.inputs
    try:
        reader = EpilogueReader(body, anchor, lambda view: view.after(Reshape(shape)))
        extras, results, epilogue = reader.read()
    except BodyRefused as refusal:
        return no("layout", str(refusal))
    a, b = (Matrix.of("input", dtype, replace(v, strides=(0, 1))) for v in (dy, x))
    problem = ContractionProblem((), *shape, 0, a, b, extras, results, epilogue)
    launches = Launches(problem, target, reader.constants, request.frozen)
    _GradientPlan(launches, maps, dtype, launches.dtype).lower()
    return launches.lowered()


def _maps_of(op: WinogradConvGradWeight, anchor: Node) -> Maps:
    images, _, *source = sizes_of(anchor.inputs[0].type.shape)
    *_, height, width = sizes_of(anchor.inputs[1].type.shape)
    outputs, inputs = extents(anchor.output.type.shape)[:2]
    low = op.padding[0][0], op.padding[1][0]
    sides = (source[0], source[1]), (height, width)
    return Maps(op.tile, images, inputs, outputs, *sides, low)


@dataclass(slots=True)
class _GradientPlan:
    """The launches of one gradient of operands of type `source`, computed in `dtype`."""

    launches: Launches
    maps: Maps
    source: DType
    dtype: DType

    @property
    def tile(self) -> Tile:
        return choose_tile(self.launches.target, self.dtype, self.maps.outputs, self.maps.inputs)

    @property
    def columns(self) -> int:
        """Input channels, as whole panels: those beyond the last are numbers nobody reads."""
        return -(-self.maps.inputs // self.tile.width) * self.tile.width

    def lower(self) -> None:
        """Chunk after chunk: both transforms and the products; then the sums' transform."""
        maps, size = self.maps, self.dtype.itemsize
        pitches = pitch_of(self.columns), pitch_of(maps.outputs)
        wanted = 2 * maps.points * maps.outputs * pitches[0] * size
        most = sorted((*_VALUES, wanted))[1] // (maps.points * sum(pitches) * size)
        chunks = chunks_of(maps.tiles, max(most, 8), 8)
        inputs, gradients = (self._area(chunks[0][1], pitch) for pitch in pitches)
        sums = self._area(self._rows(len(chunks)), pitches[0])
        dy = replace(maps, inputs=maps.outputs, source=maps.result, low=(0, 0))
        for number, (first, count) in enumerate(chunks, 1):
            ours = self.launches.problem
            self._transform("inputs", maps, ours.b, inputs, (first, count))
            self._transform("gradients", dy, ours.a, gradients, (first, count))
            for row, rows in self._blocks(len(chunks)):
                a = replace(gradients.transposed(), offset=row)
                self._multiply(a, inputs, sums, (rows, count), adds=number > 1)
                if number == len(chunks):
                    self._finish(sums, row, rows)

    def _rows(self, chunks: int) -> int:
        """Output channels of a product: all of them where sums have to wait for another chunk."""
        maps = self.maps
        if chunks > 1:
            return maps.outputs
        nbytes = maps.points * pitch_of(self.columns) * self.dtype.itemsize
        return even_block(maps.outputs, max(_SUMS // nbytes, self.tile.rows), self.tile.rows)

    def _blocks(self, chunks: int) -> Iterator[tuple[int, int]]:
        """First output channel of every product, and how many it has."""
        rows = self._rows(chunks)
        for row in range(0, self.maps.outputs, rows):
            yield row, min(rows, self.maps.outputs - row)

    def _area(self, rows: Dim, pitch: int) -> Matrix:
        """Workspace for so many rows per point."""
        point = rows * pitch + PAD
        place = self.launches.workspace(self.maps.points * point * self.dtype.itemsize)
        return stack_of(place, self.dtype, point, pitch)

    def _transform(
        self, part: Part, maps: Maps, source: Matrix, made: Matrix, tiles: tuple[Dim, Dim]
    ) -> None:
        """The tiles of an operand from the first on, so many."""
        count = tiles[1]
        spec = MapConfig(part, maps.m, self.source, self.tile, NOTHING, 0, 0, _PATCH)
        block = max(1, min(8, estimate(count) // 16))
        given: MapParameters[Ref, Dim] = MapParameters(
            x=source.place,
            panels=None,
            values=made.place,
            sums=None,
            memory=Sides(),
            block=maps.block_sizes(tiles, block, 0, made.row, made.batch[0]),
            source=maps.source_sizes(),
            result=None,
            steps=Sides(),
        )
        numbers = maps.points * count * maps.inputs
        nbytes = 2 * numbers * self.dtype.itemsize
        launch = launch_of(map_kernel(spec), given, -(-count // block), 4 * numbers, nbytes)
        self.launches.launches.append(launch)

    def _multiply(
        self, a: Matrix, b: Matrix, sums: Matrix, sizes: tuple[int, Dim], *, adds: bool
    ) -> None:
        """The products of all points, added to those of earlier tiles."""
        launches, (rows, terms) = self.launches, sizes
        extras: tuple[Matrix, ...] = ()
        epilogue = plain(self.dtype)
        if adds:
            old, step = Access(self.dtype, "next"), Term("step", 0)
            add = EpilogueOp(Add(), (Term("extra", 0), Term("sum")), self.dtype)
            epilogue = Epilogue((old,), (add,), (step,), (old,))
            extras = (sums,)
        ours = launches.problem
        extents = (self.maps.points,), rows, self.columns, terms
        launches.problem = ContractionProblem(*extents, a, b, extras, (sums,), epilogue)
        multiply(launches, self.tile)
        launches.problem = ours

    def _finish(self, sums: Matrix, first: int, rows: int) -> None:
        """The taps of some output channels, stored."""
        maps, problem = self.maps, self.launches.problem
        given: TapsParameters[Ref, Dim] = TapsParameters(
            sums=sums.place,
            memory=problem.sides.map(lambda matrix: matrix.place),
            first=first,
            channels=maps.inputs,
            sums_pitch=sums.row,
            sums_point=sums.batch[0],
            steps=problem.sides.map(lambda matrix: RowSteps(matrix.row, matrix.column)),
        )
        numbers = rows * maps.inputs
        nbytes = (maps.points + TAPS) * numbers * self.dtype.itemsize
        made = taps_kernel(TapsSpec(maps.m, self.tile, problem.accessed().epilogue))
        launch = launch_of(made, given, rows, 3 * maps.points * numbers, nbytes)
        self.launches.launches.append(launch)
