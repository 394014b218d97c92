"""Channels-last operands of convolutions copied into zeros: their padding made real.

Item i of the kernel is line i of the target, a row of cells: all zeros, or zeros, a line of the
source, zeros. A cell holds the channels of one position, `pitch` elements apart from the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol

from treadle.backends.codegen.contraction.shared.pack import Order, order_of, pack_function
from treadle.backends.codegen.contraction.shared.problem import Matrix
from treadle.backends.codegen.contraction.shared.tile import Tile, choose_tile
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Dims, Shape, dense
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim, bounds, is_identical, maximum

AXES = 3
"""Spatial axes of the kernel; those a source lacks have extent 1."""
_LINE = 64
"""Bytes of a cache line."""
CLASH = 1024
"""Cells that are a multiple of this many bytes apart compete for a few lines of the first cache."""


@dataclass(frozen=True, slots=True)
class SpreadOperand:
    """An operand [N,C,*S] in memory: `strides` are elements from place to place of each axis."""

    matrix: Matrix
    shape: Dims
    strides: Dims

    def every(self, steps: Shape, positions: Dims) -> SpreadOperand:
        """Return the operand with `positions` places along each axis, `steps` apart."""
        spatial = tuple(s * step for s, step in zip(self.strides[2:], steps, strict=True))
        return SpreadOperand(
            self.matrix, (*self.shape[:2], *positions), (*self.strides[:2], *spatial)
        )

    @property
    def reach(self) -> Dim:
        """The largest distance of a place from the first one, in elements, or more."""
        total: Dim = 0
        for extent, stride in zip(self.shape, self.strides, strict=True):
            total = total + extent * maximum(stride, -stride)
        return total


@dataclass(frozen=True, slots=True)
class Margins:
    """Places of positions among zeros: position p at low + p * step of `extents`."""

    lows: Shape
    steps: Shape
    extents: Dims

    @staticmethod
    def none(extents: Dims) -> Margins:
        """No zeros at all."""
        return Margins((0,) * len(extents), (1,) * len(extents), extents)


class LaunchCollector(Protocol):
    """Collector of the launches and workspaces of a lowering."""

    launches: list[Launch]

    @property
    def target(self) -> Target:
        """The target of the launches."""

    @property
    def dtype(self) -> DType:
        """Type of the sums."""

    def workspace(self, nbytes: Dim, /) -> Ref:
        """A new scratch area."""


def clashes(source: SpreadOperand, dtype: DType) -> bool:
    """Return whether neighbors along the last axis compete for lines of the cache."""
    return is_identical(source.strides[-1] * dtype.itemsize % (2 * CLASH), 0)


def spread(
    launches: LaunchCollector,
    source: SpreadOperand,
    margins: Margins,
    *,
    anyway: bool = False,
    clash: int = CLASH,
    dtype: DType | None = None,
) -> SpreadOperand:
    """The source among zeros and in the type of the sums, or in `dtype`.

    Itself where it already is that, unless it is to be copied `anyway`. Copies of cells of a
    multiple of `clash` bytes are kept apart.
    """
    dtype, spatial = dtype or launches.dtype, source.shape[2:]
    same = all(map(is_identical, margins.extents, spatial))
    if not anyway and same and source.matrix.dtype is dtype:
        return source
    channels = source.shape[1]
    order = order_of(source.strides[-1], source.strides[1])
    tile = choose_tile(launches.target, dtype, 8, channels)
    if order == "transposed" and dtype.itemsize < dt.int32.itemsize:
        # A square of all lanes would not fit the registers.
        tile = replace(tile, lanes=launches.target.lanes(dt.int32))
    behind = margins.extents[-1] - margins.lows[-1] - spatial[-1]
    behind = int(bounds(behind)[0]) if margins.steps[-1] == 1 else 0
    pitch = _pitch(channels, tile, order, behind, clash)
    strides = tuple(s * pitch for s in dense(0, (source.shape[0], *margins.extents)).strides)
    count = source.shape[0] * strides[0]
    place = launches.workspace(count * dtype.itemsize + _LINE)
    launches.launches.append(_launch(source, margins, tile, order, pitch, place))
    made = replace(source.matrix, kind=place.kind, index=place.index, offset=0, dtype=tile.dtype)
    shape = (*source.shape[:2], *margins.extents)
    return SpreadOperand(made, shape, (strides[0], 1, *strides[1:]))


def _pitch(channels: int, tile: Tile, order: Order, behind: int, clash: int) -> int:
    """Elements from cell to cell, so that neighbors do not compete for lines of the cache.

    `behind`: cells of zeros behind a line.
    """
    if order == "transposed":
        # Transposed cells are written as whole vectors: the next cell, or the zeros behind the
        # last one, are written after that.
        if channels <= tile.lanes <= channels * (behind + 1):
            return channels
        return -(-channels // tile.lanes) * tile.lanes
    size = tile.dtype.itemsize
    return channels + (_LINE // size if channels * size % clash == 0 else 0)


def _launch(
    source: SpreadOperand, margins: Margins, tile: Tile, order: Order, pitch: int, place: Ref
) -> Launch:
    missing = AXES - len(margins.extents)
    depth, height, width = (1,) * missing + margins.extents
    low_d, low_h, low_w = (0,) * missing + margins.lows
    step_d, step_h, step_w = (1,) * missing + margins.steps
    extent_d, extent_h, extent_w = (1,) * missing + source.shape[2:]
    source_d, source_h, source_w = (0,) * missing + source.strides[2:]
    images, channels, line = source.shape[0], source.shape[1], width * pitch
    outer, inner = extent_w, channels
    if (
        order == "straight"
        and step_w == 1
        and is_identical(source_w, channels)
        and source_w == pitch
    ):
        outer, inner = 1, extent_w * channels
    # Zeros go before `lead` and behind `tail`; between cells that lie apart, too.
    lead, tail = low_w * pitch, (low_w + extent_w) * pitch
    if step_w != 1:
        lead, tail = line, line
    matrix = source.matrix
    given: CellsParameters[Ref, Dim] = CellsParameters(
        source=matrix.place,
        target=place,
        depth=depth,
        height=height,
        extent_d=extent_d,
        extent_h=extent_h,
        low_d=low_d,
        low_h=low_h,
        step_d=step_d,
        step_h=step_h,
        source_n=source.strides[0],
        source_d=source_d,
        source_h=source_h,
        line=line,
        lead=lead,
        tail=tail,
        first=low_w * pitch,
        outer_step=source_w,
        inner_step=source.strides[1],
        pitch=step_w * pitch,
        outer=outer,
        inner=inner,
    )
    kernel = spread_cells_kernel(tile, matrix.dtype, order)
    lines = images * depth * height
    nbytes = lines * line * tile.dtype.itemsize
    return kernel.launch(
        given,
        items=lines,
        serial=estimate(nbytes) < 1 << 16,
        nbytes=2 * nbytes,
    )


class CellsParameters(NamedTuple, Generic[P, S]):
    """Parameters of a kernel that spreads cells: see `spread_cells_kernel`.

    A line of the target has `line` elements, of which those before `lead` and from `tail` on are
    zeros; what is packed goes to the places from `first` on.
    """

    source: P
    target: P
    depth: S
    height: S
    extent_d: S
    extent_h: S
    low_d: S
    low_h: S
    step_d: S
    step_h: S
    source_n: S
    source_d: S
    source_h: S
    line: S
    lead: S
    tail: S
    first: S
    outer_step: S
    inner_step: S
    pitch: S
    outer: S
    inner: S


@lru_cache(maxsize=64)
def spread_cells_kernel(tile: Tile, source: DType, order: Order) -> RecordedKernel:
    """The kernel: source positions (d, h) go to (d * step_d + low_d, h * step_h + low_h)."""
    pack = pack_function(tile, source, order, panel=False)
    e = KernelBuilder()
    p = e.record(CellsParameters[Pointer, Value], source=source, target=tile.dtype)

    def place(at: Value, step: Value, low: Value, extent: Value) -> tuple[Value, Value]:
        """The place in the source of a line of the target, and whether there is one."""
        behind = at - low
        found = behind // step
        exists = (behind >= 0) & (found < extent)
        return found, exists & (found * step == behind)

    with e.items() as i:
        made = p.target + i * p.line
        rest = i // p.height
        h, there = place(i % p.height, p.step_h, p.low_h, p.extent_h)
        d, also = place(rest % p.depth, p.step_d, p.low_d, p.extent_d)
        n = rest // p.depth
        with e.when(there & also):
            start = n * p.source_n
            start = start + d * p.source_d
            start = start + h * p.source_h
            made.zero(p.lead)
            into = made + p.first
            steps = p.outer_step, p.inner_step
            e.call(pack, p.source + start, *steps, into, p.pitch, p.outer, p.inner)
            (made + p.tail).zero(p.line - p.tail)
        with e.otherwise():
            made.zero(p.line)
    name = f"spread_cells_{order}_{source.name}_{tile.dtype.name}"
    return RecordedKernel(e.kernel(name, [pack]), p)
