"""Convolutions of 3x3 kernels by Winograd's algorithm, of maps that are held channels-last.

Row-major ones, those whose channels lie in blocks, and those of fewer channels than a vector has
lanes, are computed directly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from treadle.backends.api import Support, no, yes
from treadle.backends.codegen.contraction.api import Answer, LoweringRequest
from treadle.backends.codegen.contraction.shared.body import BodyRefused, EpilogueReader
from treadle.backends.codegen.contraction.shared.epilogue import NOTHING, Sides, plain
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem, Matrix
from treadle.backends.codegen.contraction.shared.tile import Tile, choose_tile
from treadle.backends.codegen.contraction.tiles.lower import multiply
from treadle.backends.codegen.contraction.winograd.kernels import (
    PAD,
    TERMS,
    MapParameters,
    MapSteps,
    Part,
    ResultSizes,
    WeightParameters,
    WinogradConfig,
    map_kernel,
    weight_kernel,
)
from treadle.backends.codegen.contraction.winograd.maps import (
    Maps,
    chunks_of,
    even_block,
    launch_of,
    pitch_of,
    stack_of,
)
from treadle.backends.codegen.views import (
    Strided,
    extents,
    sizes_of,
    split_after,
    strided_output,
)
from treadle.backends.program import Ref
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim
from treadle.graph.ir import Node
from treadle.ops.movement import Transpose
from treadle.ops.op import Op
from treadle.ops.winograd import WinogradConv

_LAST = Transpose((0, 2, 3, 1))
"""From [N,C,H,W] to channels-last."""
_PATCH = 1 << 16
"""Elements of the inputs of one tile."""
_BLOCK = 16
"""Tiles that the cache has to hold for one kernel to do all and read the weights again, and most of
a block: with more of them their sums leave the first cache, and the weights the second."""
_LEAST = 12
"""Tiles of a block, where larger ones were too few items."""
_ITEMS = 8
"""Items of that kernel that keep a handful of threads busy."""
_CHUNK = 1 << 24
"""Bytes of workspace: so many tiles at a time go through three kernels."""


def claims(request: LoweringRequest) -> Support:
    """Return whether the maps exist, in whatever order, and the weight is dense."""
    weight = request.views[1]
    if (request.views[0] is None and not _has_blocks(request)) or weight is None:
        return no("layout", "an operand of the convolution is computed in the group")
    return (
        yes() if weight.is_dense else no("layout", "weights are transformed where they are dense")
    )


def lower(request: LoweringRequest) -> Answer:
    """Tiles transformed, multiplied and transformed back; or the convolution without a trick."""
    body, anchor, target = request.body, request.anchor, request.target
    op, (x, weight) = anchor.op, request.views
    if not isinstance(op, WinogradConv) or weight is None:
        return no("op", f"{op.name} is not computed by Winograd's algorithm")
    types = [v.type for v in anchor.inputs]
    why = _against(request, op)
    if x is None or why:
        direct: Op = op.direct
        if op.transposed:
            direct = op.direct_gradient(anchor.output.type.shape[2:])
        return request.around(direct, why)
    if not is_channels_last(x):
        return no("layout", "Winograd's algorithm takes maps that are held channels-last")
    try:
        reader = EpilogueReader(body, anchor, lambda view: view.after(_LAST))
        extras, results, epilogue = reader.read()
    except BodyRefused as refusal:
        return no("layout", str(refusal))
    if any(c.column != 1 for c in results):
        return no("layout", "Winograd's algorithm makes maps that are held channels-last")
    maps = _maps_of(op, anchor)
    source = Matrix.of("input", types[0].dtype, replace(x, strides=(0, 1)))
    kernel = Matrix.of("input", types[1].dtype, replace(weight, strides=(0, 1)))
    problem = ContractionProblem((), 0, 0, 0, source, kernel, extras, results, epilogue)
    launches = Launches(problem, target, reader.constants, request.frozen)
    _ForwardPlan(launches, maps, op.transposed, types[0].dtype, launches.dtype).lower()
    return launches.lowered()


def _has_blocks(request: LoweringRequest) -> bool:
    """Return whether channels lie in blocks, on either side."""
    split = split_after(request.body, request.anchor.output)
    return request.blocked is not None or split is not None


def _against(request: LoweringRequest, op: WinogradConv) -> str:
    """Return why the convolution is computed directly, if it is."""
    kernel = request.anchor.inputs[1].type
    channels = extents(kernel.shape)[:2]
    if request.views[0] is None or _has_blocks(request):
        return "channels lie in blocks"
    if min(channels) < request.target.lanes(kernel.dtype):
        return "fewer channels than a vector has lanes"
    if (op.tile + 2) ** 2 * max(channels) > _PATCH:
        return "a tile of all channels is too large"
    return "row-major maps" if _is_row_major(request) else ""


def _is_row_major(request: LoweringRequest) -> bool:
    """True if the maps are, on both sides: mixtures would hide a copy that is better made."""
    x, body = request.views[0], request.body
    outputs = [strided_output(body, i) for i in range(len(body.outputs))]
    dense = x is not None and x.is_dense
    return dense and all(found is not None and found[1].is_dense for found in outputs)


def is_channels_last(x: Strided) -> bool:
    """Return whether maps are dense in that order."""
    view = x.after(_LAST)
    return view is not None and view.is_dense


def _maps_of(op: WinogradConv, anchor: Node) -> Maps:
    images, _, *source = sizes_of(anchor.inputs[0].type.shape)
    *_, height, width = sizes_of(anchor.output.type.shape)
    first, second = extents(anchor.inputs[1].type.shape)[:2]
    outputs, inputs = (second, first) if op.transposed else (first, second)
    (top, _), (left, _) = op.effective_padding
    return Maps(
        m=op.tile,
        images=images,
        inputs=inputs,
        outputs=outputs,
        source=(source[0], source[1]),
        result=(height, width),
        low=(top, left),
    )


class _Area(NamedTuple):
    """Tiles of a block, and the steps of values and of sums from tile to tile, point to point."""

    block: int
    pitch: int
    point: Dim
    sums_pitch: int
    sums_point: Dim


def _steps_of(matrix: Matrix) -> MapSteps[Dim]:
    image, line = matrix.batch
    return MapSteps(image, line, matrix.row, matrix.column)


@dataclass(slots=True)
class _ForwardPlan:
    """Sizes of the launches of one convolution of maps of type `source`, computed in `dtype`."""

    launches: Launches
    maps: Maps
    turned: bool
    source: DType
    dtype: DType

    @property
    def tile(self) -> Tile:
        return choose_tile(self.launches.target, self.dtype, 96, self.maps.outputs)

    def lower(self) -> None:
        """All launches."""
        maps, tile, size = self.maps, self.tile, self.dtype.itemsize
        panels = self._weights()
        pitch = pitch_of(maps.inputs)
        values = min(self.launches.target.l2 // 2, 1 << 20) // size
        sums = min(self.launches.target.l2 // 4, 1 << 20) // size
        room = (values // maps.points - PAD) // pitch, (sums // maps.points - PAD) // tile.width
        most = max(_BLOCK // tile.rows * tile.rows, 1)
        count = estimate(maps.tiles)
        share = max(_LEAST, -(-count // _ITEMS))
        block = even_block(count, min(most, share), tile.rows)
        if min(room) >= _BLOCK and count > (_ITEMS - 1) * block:
            spec = self._spec("whole", values, sums)
            area = _Area(block, pitch, block * pitch + PAD, tile.width, block * tile.width + PAD)
            self._launch(spec, area, (0, maps.tiles), panels=panels)
        else:
            self._in_three(panels, pitch)

    def _in_three(self, panels: Ref, pitch: int) -> None:
        """Inputs, products, results, of as many tiles at a time as the cache holds."""
        maps, tile, size, launches = self.maps, self.tile, self.dtype.itemsize, self.launches
        width = -(-maps.outputs // tile.width) * tile.width
        sums_pitch = pitch_of(width)
        most = max(tile.rows, _CHUNK // (maps.points * (pitch + sums_pitch) * size))
        chunks = chunks_of(maps.tiles, most, tile.rows)
        chunk = chunks[0][1]
        point, sums_point = (chunk * n + PAD for n in (pitch, sums_pitch))
        values = launches.workspace(maps.points * point * size)
        sums = launches.workspace(maps.points * sums_point * size)
        block = max(1, min(8, estimate(chunk) // 16))
        area = _Area(block, pitch, point, sums_pitch, sums_point)
        ours = launches.problem
        a = stack_of(values, self.dtype, point, pitch)
        b = stack_of(panels, self.dtype, maps.weights(tile.width), tile.width)
        c = stack_of(sums, self.dtype, sums_point, sums_pitch)
        inputs, results = self._spec("inputs", 0, 0), self._spec("results", 0, 0)
        for first, count in chunks:
            self._launch(inputs, area, (first, count), values=values)
            extents = (maps.points,), count, width, maps.inputs
            launches.problem = ContractionProblem(*extents, a, b, (), (c,), plain(self.dtype))
            multiply(launches, tile, packed=True)
            launches.problem = ours
            self._launch(results, area, (first, count), sums=sums)

    def _spec(self, part: Part, values: int, sums: int) -> WinogradConfig:
        patch = _PATCH if part != "results" else 0
        accessed = self.launches.problem.accessed().epilogue
        epilogue = NOTHING if part == "inputs" else accessed
        source = self.dtype if part == "results" else self.source
        return WinogradConfig(part, self.maps.m, source, self.tile, epilogue, values, sums, patch)

    def _weights(self) -> Ref:
        """The launch that transforms the weights, once for all runs where they are frozen."""
        maps, tile, launches = self.maps, self.tile, self.launches
        weight = launches.problem.b
        panels, blocks = -(-maps.outputs // tile.width), -(-maps.inputs // TERMS)
        point = maps.weights(tile.width)
        is_frozen = weight.index < len(launches.frozen) and launches.frozen[weight.index]
        nbytes = maps.points * point * self.dtype.itemsize
        place = launches.keep(nbytes) if is_frozen else launches.workspace(nbytes)
        steps = (9, 9 * maps.inputs)
        if self.turned:
            steps = 9 * maps.outputs, 9
        given: WeightParameters[Ref, Dim] = WeightParameters(
            weight=weight.place,
            panels=place,
            terms=maps.inputs,
            columns=maps.outputs,
            term_step=steps[0],
            column_step=steps[1],
            blocks=blocks,
            point=point,
        )
        made = weight_kernel(maps.m, self.source, tile, turned=self.turned)
        total = nbytes + 9 * maps.inputs * maps.outputs * self.source.itemsize
        launch = launch_of(made, given, panels * blocks, 0, total)
        (launches.prelude if is_frozen else launches.launches).append(launch)
        return place

    def _launch(
        self,
        spec: WinogradConfig,
        area: _Area,
        tiles: tuple[Dim, Dim],
        *,
        panels: Ref | None = None,
        values: Ref | None = None,
        sums: Ref | None = None,
    ) -> None:
        """Launch one of the kernels over blocks of `tiles`, the first one and how many."""
        maps, problem = self.maps, self.launches.problem
        sides = problem.sides if spec.makes_results else Sides[Matrix]()
        given: MapParameters[Ref, Dim] = MapParameters(
            x=problem.a.place,
            panels=panels,
            values=values,
            sums=sums,
            memory=sides.map(lambda matrix: matrix.place),
            block=maps.block_sizes(tiles, area.block, maps.outputs, area.pitch, area.point),
            source=maps.source_sizes(maps.weights(self.tile.width)),
            result=ResultSizes(*maps.result, area.sums_pitch, area.sums_point),
            steps=sides.map(_steps_of),
        )
        flops, nbytes = (n * tiles[1] // maps.tiles for n in self._work(spec.part))
        items = -(-tiles[1] // area.block)
        launch = launch_of(map_kernel(spec), given, items, flops, nbytes)
        self.launches.launches.append(launch)

    def _work(self, part: Part) -> tuple[Dim, Dim]:
        """Operations and bytes of a launch."""
        maps, size = self.maps, self.dtype.itemsize
        values, sums = (maps.points * maps.tiles * n for n in (maps.inputs, maps.outputs))
        read = maps.images * product(maps.source) * maps.inputs * self.source.itemsize
        written = maps.images * product(maps.result) * maps.outputs * self.source.itemsize
        if part == "inputs":
            return 4 * values, read + values * size
        if part == "results":
            return 3 * sums, sums * size + written
        weights = maps.points * maps.inputs * maps.outputs * size
        return 2 * sums * maps.inputs + 4 * values + 3 * sums, read + written + weights
