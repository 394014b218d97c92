"""Channels-last operands of convolutions copied into zeros: their padding made real.

Item i of the kernel is line i of the target, a row of cells: all zeros, or zeros, a line of the
source, zeros. A cell holds the channels of one position, `pitch` elements apart from the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from treadle.backends.codegen.contraction.shared.items import Contraction
from treadle.backends.codegen.contraction.shared.pack import Order, order_of, pack_function
from treadle.backends.codegen.contraction.shared.problem import Matrix
from treadle.backends.codegen.contraction.shared.tile import Tile, choose_tile
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
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
_SIZES = (
    *("depth", "height", "extent_d", "extent_h", "low_d", "low_h", "step_d", "step_h"),
    *("source_n", "source_d", "source_h", "line", "lead", "tail", "first"),
    *("outer_step", "inner_step", "pitch", "outer", "inner"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """An operand [N,C,*S] in memory: `strides` are elements from place to place of each axis."""

    matrix: Matrix
    shape: Dims
    strides: Dims

    def every(self, steps: Shape, positions: Dims) -> Source:
        """So many positions along each axis, some steps apart."""
        spatial = tuple(s * step for s, step in zip(self.strides[2:], steps, strict=True))
        return Source(self.matrix, (*self.shape[:2], *positions), (*self.strides[:2], *spatial))

    @property
    def reach(self) -> Dim:
        """No place is further than this from the first one."""
        total: Dim = 0
        for extent, stride in zip(self.shape, self.strides, strict=True):
            total = total + extent * maximum(stride, -stride)
        return total


@dataclass(frozen=True, slots=True)
class Margins:
    """Where positions come to lie among zeros: position p at low + p * step of `extents`."""

    lows: Shape
    steps: Shape
    extents: Dims

    @staticmethod
    def none(extents: Dims) -> Margins:
        """No zeros at all."""
        return Margins((0,) * len(extents), (1,) * len(extents), extents)


class Places(Protocol):
    """What collects the launches and workspaces of a lowering."""

    launches: list[Launch]

    @property
    def target(self) -> Target:
        """What the launches are for."""

    @property
    def dtype(self) -> DType:
        """Type of the sums."""

    def workspace(self, nbytes: Dim, /) -> Ref:
        """A new scratch area."""


def clashes(source: Source, dtype: DType) -> bool:
    """Whether neighbors along the last axis compete for lines of the cache."""
    return is_identical(source.strides[-1] * dtype.itemsize % (2 * CLASH), 0)


def spread(
    launches: Places,
    source: Source,
    margins: Margins,
    *,
    anyway: bool = False,
    clash: int = CLASH,
    dtype: DType | None = None,
) -> Source:
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
    return Source(made, shape, (strides[0], 1, *strides[1:]))


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
    source: Source, margins: Margins, tile: Tile, order: Order, pitch: int, place: Ref
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
    sizes = {
        **{"depth": depth, "height": height, "extent_d": extent_d, "extent_h": extent_h},
        **{"low_d": low_d, "low_h": low_h, "step_d": step_d, "step_h": step_h},
        **{"source_n": source.strides[0], "source_d": source_d, "source_h": source_h},
        **{"line": line, "lead": lead, "tail": tail, "first": low_w * pitch},
        **{"outer_step": source_w, "inner_step": source.strides[1], "pitch": step_w * pitch},
        **{"outer": outer, "inner": inner},
    }
    matrix = source.matrix
    pointer = Ref(matrix.kind, matrix.index, matrix.offset * matrix.dtype.itemsize)
    arguments: dict[str, Ref | Dim] = {"source": pointer, "target": place, **sizes}
    kernel = spread_cells_kernel(tile, matrix.dtype, order)
    lines = images * depth * height
    nbytes = lines * line * tile.dtype.itemsize
    return Launch(
        kernel.kernel,
        tuple(arguments[name] for name in kernel.names),
        items=lines,
        serial=estimate(nbytes) < 1 << 16,
        nbytes=2 * nbytes,
    )


@lru_cache(maxsize=64)
def spread_cells_kernel(tile: Tile, source: DType, order: Order) -> Contraction:
    """The kernel: source positions (d, h) go to (d * step_d + low_d, h * step_h + low_h)."""
    pack = pack_function(tile, source, order, panel=False)
    values = {"source": ir.pointer(source, "source"), "target": ir.pointer(tile.dtype, "target")}
    values |= {name: ir.size(name) for name in _SIZES}

    def place(e: Builder, at: Value, axis: str) -> tuple[Value, Value]:
        """The place in the source of a line of the target, and whether there is one."""
        step = values[f"step_{axis}"]
        behind = e.sub(at, values[f"low_{axis}"])
        found = e.div(behind, step)
        exists = e.bitwise("and", e.compare("le", 0, behind), e.compare("lt", found, extent(axis)))
        return found, e.bitwise("and", exists, e.compare("eq", e.mul(found, step), behind))

    def extent(axis: str) -> Value:
        return values[f"extent_{axis}"]

    def line(e: Builder, i: Value) -> None:
        made = e.offset(values["target"], e.mul(i, values["line"]))
        rest = e.div(i, values["height"])
        h, there = place(e, e.rem(i, values["height"]), "h")
        d, also = place(e, e.rem(rest, values["depth"]), "d")
        n = e.div(rest, values["depth"])

        def copy() -> None:
            start = e.mul(n, values["source_n"])
            start = e.add(start, e.mul(d, values["source_d"]))
            start = e.add(start, e.mul(h, values["source_h"]))
            e.zero(made, values["lead"])
            steps = values["outer_step"], values["inner_step"]
            target = e.offset(made, values["first"])
            sizes = values["pitch"], values["outer"], values["inner"]
            e.call(pack, e.offset(values["source"], start), *steps, target, *sizes)
            e.zero(e.offset(made, values["tail"]), e.sub(values["line"], values["tail"]))

        e.branch(e.bitwise("and", there, also), copy, lambda: e.zero(made, values["line"]))

    def write(e: Builder, lo: Value, hi: Value) -> None:
        e.loop(lo, hi, 1, lambda i: line(e, i))

    name = f"spread_cells_{order}_{source.name}_{tile.dtype.name}"
    kernel = builder.kernel(name, list(values.values()), write, [pack])
    return Contraction(kernel, tuple(values))
