"""Kernels of Winograd's convolutions of channels-last maps; vectors run over channels.

Either one kernel does all, whose item is a block of tiles: their transformed inputs stay in the
second cache while every panel of the weights is multiplied with them. Or there are three: inputs
to a workspace, one product per point (which is the contraction's own kernel), results from a
workspace; then the weights are read once, however many there are.

Tiles are numbered line by line, image by image. What the last ones of a line have beyond the map
is computed and not stored. The last vector of a row of channels overlaps the one before, so there
is no narrower code for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Literal, NamedTuple

from treadle.backends.codegen.contraction.shared.epilogue import (
    NOTHING,
    Access,
    Epilogue,
    OperandPlace,
    Sides,
    SumsBlock,
    declare_pointers,
    declare_steps,
    finish,
)
from treadle.backends.codegen.contraction.shared.items import moved
from treadle.backends.codegen.contraction.shared.pack import pack_function
from treadle.backends.codegen.contraction.shared.tile import Tile, tile_function
from treadle.backends.codegen.contraction.winograd.transforms import (
    of_gradient,
    of_input,
    of_products,
    of_weight,
    twice,
)
from treadle.backends.codegen.kernel.builder import Builder, KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S, required
from treadle.base import dtype as dt
from treadle.base.dtype import DType

Part = Literal["whole", "inputs", "gradients", "results"]
"""The part that a kernel does: everything, or what comes before or after the products.

"gradients" are what "inputs" are, of tiles of dy that do not overlap.
"""

TERMS = 16
"""Input channels of an item of the weights' transformation."""
PAD = 16
"""Elements after every row and every point, so that none of them compete for lines of the cache."""


@dataclass(frozen=True, slots=True)
class WinogradConfig:
    """A kernel's constants: m, its register tile, its epilogue, and elements of scratch.

    `source` is the type of maps that are read; transformed tiles have that of the register tile.
    """

    part: Part
    m: int
    source: DType
    tile: Tile
    epilogue: Epilogue
    values: int
    sums: int
    patch: int

    @property
    def points(self) -> int:
        """Products per tile and pair of channels."""
        return (self.m + 2) ** 2

    @property
    def reads_maps(self) -> bool:
        """True where it begins with what is read from maps."""
        return self.part != "results"

    @property
    def makes_results(self) -> bool:
        """True where it goes as far as the results."""
        return self.part in ("whole", "results")

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the pointers that the part has."""
        parts = {"whole": ("x", "panels"), "results": ("sums",)}
        return parts.get(self.part, ("x", "values"))

    @property
    def reads(self) -> int:
        """Cells per axis that a tile reads."""
        return self.m if self.part == "gradients" else self.m + 2

    def input_function(self) -> KernelRoutine:
        """Return the function that transforms a tile that was read."""
        return input_function(self.m, self.reads, self.source, self.tile)

    def tile_functions(self) -> tuple[KernelRoutine, KernelRoutine]:
        """Return the functions that multiply: for full tiles, and for the last rows."""
        big, small = (
            tile_function(self.tile, "row", small=s, accumulate=False) for s in (False, True)
        )
        return big, small

    def functions(self) -> list[KernelRoutine]:
        """Return the functions that the entry calls."""
        found = [self.input_function()] if self.reads_maps else []
        found += self.tile_functions() if self.part == "whole" else ()
        return found + ([result_function(self.m, self.tile)] if self.makes_results else [])


@lru_cache(maxsize=64)
def input_function(m: int, reads: int, dtype: DType, tile: Tile) -> KernelRoutine:
    """A function of (source, line, pixel, target, point, channels): one tile, transformed.

    `line` and `pixel` are the steps of the source, whose type is `dtype`, `point` is that of the
    target. Tiles of inputs read m + 2 cells per axis, those of dy m.
    """
    e, size, lanes = Builder(), range(reads), tile.lanes
    source, (line, pixel) = e.pointer(dtype, "source"), e.sizes("line", "pixel")
    target, (point, channels) = e.pointer(tile.dtype, "target"), e.sizes("point", "channels")
    transform = of_gradient(m) if reads == m else of_input(m)
    places = [[line * y + pixel * x for x in size] for y in size]
    with e.loop(0, channels, lanes) as k:
        start = minimum(k, channels - lanes)
        here, there = source + start, target + start
        square = [[here.load(place, lanes).cast(tile.dtype) for place in row] for row in places]
        for y, row in enumerate(twice(transform, square)):
            for x, value in enumerate(row):
                there[point * (y * (m + 2) + x)] = value
    kind = "gradient" if reads == m else "input"
    return e.function(f"winograd_{kind}_{m}{_named(dtype)}")


def _named(source: DType) -> str:
    """Return what the name of a kernel says of what it reads."""
    return "" if source is dt.float32 else f"_{source.name}"


@lru_cache(maxsize=64)
def result_function(m: int, tile: Tile) -> KernelRoutine:
    """A function of (sums, point, target): one tile of one panel, m * m rows of its width."""
    e, size = Builder(), range(m + 2)
    sums, point, target = e.pointer(tile.dtype), e.size("point"), e.pointer(tile.dtype)
    with e.loop(0, tile.width, tile.lanes) as v:
        here, there = sums + v, target + v
        square = [[here.load(point * (y * len(size) + x), tile.lanes) for x in size] for y in size]
        for y, row in enumerate(twice(of_products(m), square)):
            for x, value in enumerate(row):
                there[(y * m + x) * tile.width] = value
    return e.function(f"winograd_result_{m}")


# -- weights -----------------------------------------------------------------------------------


class WeightParameters(NamedTuple, Generic[P, S]):
    """Parameters of a kernel that transforms weights: see `weight_kernel`."""

    weight: P
    panels: P
    terms: S
    columns: S
    term_step: S
    column_step: S
    blocks: S
    point: S


@lru_cache(maxsize=64)
def weight_kernel(m: int, source: DType, tile: Tile, *, turned: bool) -> RecordedKernel:
    """A kernel from weights to panels [point][panel][term][width]; an item is some terms of one.

    A term is an input channel and a column an output channel of the convolution. The nine taps of
    each pair are neighbors; `turned` says that they are read backwards, and that the columns of a
    term follow one another, where else the terms of a column do.
    """
    width, taps = tile.width, 9
    order = [*range(taps)][:: -1 if turned else 1]
    pack = pack_function(tile, source, "transposed", panel=True)
    e = KernelBuilder()
    p = e.record(WeightParameters[Pointer, Value], weight=source, panels=tile.dtype)
    # Columns that do not exist stay what they are: numbers that count for nothing.
    scratch = e.stack(tile.dtype, TERMS * taps * width)
    scratch.zero(TERMS * taps * width)
    points = [p.point * i for i in range((m + 2) ** 2)]
    with e.items() as i:
        panel, first = i // p.blocks, (i % p.blocks) * TERMS
        count = minimum(p.terms - first, TERMS)
        column = panel * width
        weight = p.weight + (first * p.term_step + column * p.column_step)
        columns = minimum(p.columns - column, width)
        if turned:
            with e.loop(count) as c:
                into = scratch + c * (taps * width)
                given = weight + c * p.term_step
                e.call(pack, given, 1, p.column_step, into, width, taps, columns)
        else:
            e.call(pack, weight, 1, p.column_step, scratch, width, count * taps, columns)
        target = p.panels + (panel * p.terms + first) * width
        with e.loop(count) as c:
            term = c * width
            here = scratch + term * taps
            with e.loop(0, width, tile.lanes) as v:
                start, there = here + v, target + (term + v)
                loaded = [start.load(tap * width, tile.lanes) for tap in order]
                square = [loaded[3 * y : 3 * y + 3] for y in range(3)]
                made = [value for row in twice(of_weight(m), square) for value in row]
                for place, value in zip(points, made, strict=True):
                    there[place] = value
    return RecordedKernel(e.kernel(f"winograd_weight_{m}{_named(source)}", [pack]), p)


# -- maps --------------------------------------------------------------------------------------


class MapSteps(NamedTuple, Generic[S]):
    """Elements from image to image, line to line, cell to cell and channel to channel."""

    image: S
    line: S
    row: S
    column: S


class BlockSizes(NamedTuple, Generic[S]):
    """Tiles [first, first + tiles), in blocks; and the steps from tile to tile, point to point.

    `across` and `down` are tiles per line and per column of a map; `columns`, channels of results.
    """

    first: S
    tiles: S
    across: S
    down: S
    block: S
    columns: S
    pitch: S
    point: S


class SourceSizes(NamedTuple, Generic[S]):
    """The maps that are read, and the step of the weights from point to point."""

    channels: S
    height: S
    width: S
    top: S
    left: S
    x_image: S
    x_line: S
    panels_point: S


class ResultSizes(NamedTuple, Generic[S]):
    """The maps that are made, and the steps of sums from tile to tile and from point to point."""

    result_height: S
    result_width: S
    sums_pitch: S
    sums_point: S


class MapParameters(NamedTuple, Generic[P, S]):
    """Parameters of a kernel over maps: those that its part needs."""

    x: P | None
    panels: P | None
    values: P | None
    sums: P | None
    memory: Sides[P]
    block: BlockSizes[S]
    source: SourceSizes[S] | None
    result: ResultSizes[S] | None
    steps: Sides[MapSteps[S]]


@lru_cache(maxsize=256)
def map_kernel(spec: WinogradConfig) -> RecordedKernel:
    """The kernel of a specification; its items are blocks of tiles."""
    e, tile = KernelBuilder(), spec.tile
    p = _parameters(e, spec)
    patch = e.stack(spec.source, spec.patch) if spec.reads_maps else None
    made = e.stack(tile.dtype, spec.m**2 * tile.width) if spec.makes_results else None
    whole = spec.part == "whole"
    values = e.stack(tile.dtype, spec.values) if whole else None
    sums = e.stack(tile.dtype, spec.sums) if whole else None
    writer = _WinogradWriter(e, spec, p)
    with e.items() as i:
        start = i * p.block.block
        count = minimum(p.block.block, p.block.tiles - start)
        first = p.block.first + start
        if patch is not None:
            target = required(p.values) + start * p.block.pitch if values is None else values
            writer.transform_inputs(patch, target, first, count)
        if made is not None:
            with e.loop(0, p.block.columns, tile.width) as column:
                if values is not None and sums is not None:
                    here = sums
                    writer.multiply(values, sums, column, count)
                else:
                    here = required(p.sums) + start * required(p.result).sums_pitch + column
                writer.write_results(made, here, first, count, column)
    read = _named(spec.source) if spec.reads_maps else ""
    name = f"winograd_{spec.part}_{spec.m}{read}{spec.epilogue.label}"
    return RecordedKernel(e.kernel(name, spec.functions()), p)


def _parameters(e: Builder, spec: WinogradConfig) -> MapParameters[Pointer, Value]:
    types = {"x": spec.source} | dict.fromkeys(("panels", "values", "sums"), spec.tile.dtype)
    epilogue = spec.epilogue if spec.makes_results else NOTHING
    return e.record(
        MapParameters[Pointer, Value],
        **{name: types[name] if name in spec.memory else None for name in types},
        memory=lambda: declare_pointers(e, epilogue),
        block=BlockSizes,
        source=SourceSizes if spec.reads_maps else None,
        result=ResultSizes if spec.makes_results else None,
        steps=lambda: declare_steps(e, epilogue, MapSteps[Value]),
    )


@dataclass(frozen=True, slots=True)
class _WinogradWriter:
    """Writes the parts of one kernel."""

    e: Builder
    spec: WinogradConfig
    p: MapParameters[Pointer, Value]

    @contextmanager
    def _tiles(self, first: Value, count: Value) -> Iterator[tuple[Value, Value, Value, Value]]:
        """A loop over t with tile first + t: its image, and its line and place there, in tiles."""
        across, down = self.p.block.across, self.p.block.down
        line = first // across
        at = [line // down, line % down, first % across]
        with self.e.loop(count, carrying=at) as t:
            image, y, x = at
            yield t, image, y, x
            after = x + 1
            ends = after == across
            below = select(ends, y + 1, y)
            over = below == down
            at[:] = select(over, image + 1, image), select(over, 0, below), select(ends, 0, after)

    # -- inputs ----------------------------------------------------------------------------

    def transform_inputs(self, patch: Pointer, target: Pointer, first: Value, count: Value) -> None:
        """Transform the inputs of some tiles; those at the border are copied to `patch` before."""
        e, spec, point, p = self.e, self.spec, self.p.block.point, required(self.p.source)
        transform, size = spec.input_function(), spec.reads
        rows, cells = p.height - size, p.width - size
        with self._tiles(first, count) as (t, image, ty, tx):
            y, x = ty * spec.m - p.top, tx * spec.m - p.left
            source = required(self.p.x) + image * p.x_image
            inside = maximum(-y, y - rows) <= 0
            within = maximum(-x, x - cells) <= 0
            tile: list[Any] = [patch, p.channels]
            with e.when(inside & within, changing=tile):
                tile[:] = source + (y * p.x_line + x * p.channels), p.x_line
            with e.otherwise():
                self._copy(source, patch, y, x)
                tile[1] = p.channels * size
            row = target + t * self.p.block.pitch
            e.call(transform, *tile, p.channels, row, point, p.channels)

    def _copy(self, source: Pointer, patch: Pointer, top: Value, left: Value) -> None:
        """Inputs of a tile at the border, among zeros."""
        e, size, p = self.e, self.spec.reads, required(self.p.source)
        low = minimum(maximum(-left, 0), size)
        high = maximum(minimum(p.width - left, size), low)
        before, inside, after = [n * p.channels for n in (low, high - low, size - high)]
        with e.loop(size) as r:
            y = top + r
            target = patch + r * (p.channels * size)
            outside = maximum(-y, y - p.height + 1)
            exists = (outside <= 0) & (low < high)
            with e.when(exists):
                target.zero(before)
                start = y * p.x_line + (left + low) * p.channels
                (target + before).copy_from(source + start, inside)
                (target + (before + inside)).zero(after)
            with e.otherwise():
                target.zero(p.channels * size)

    # -- products --------------------------------------------------------------------------

    def multiply(self, values: Pointer, sums: Pointer, column: Value, count: Value) -> None:
        """Multiply a block of tiles with one panel, point by point."""
        e, spec, tile, p = self.e, self.spec, self.spec.tile, self.p
        source, (pitch, point) = required(p.source), (p.block.pitch, p.block.point)
        big, small = spec.tile_functions()
        whole = count - count % tile.rows
        with e.loop(spec.points) as i:
            a = values + i * point
            b = required(p.panels) + i * source.panels_point + source.channels * column
            c = sums + i * required(p.result).sums_point

            def multiply(function: KernelRoutine, r: Value, *last: Value) -> None:
                start, target = r * pitch, r * tile.width
                given = a + start, pitch, b, tile.width, source.channels
                e.call(function, *given, c + target, tile.width, *last)

            with e.loop(0, whole, tile.rows) as r:
                multiply(big, r)
            with e.loop(whole, count, tile.small) as r:
                multiply(small, r, count - r)

    # -- results ---------------------------------------------------------------------------

    def write_results(
        self, made: Pointer, sums: Pointer, first: Value, count: Value, column: Value
    ) -> None:
        """Transform the sums of some tiles and one panel, apply the epilogue, and store."""
        e, spec, tile, m = self.e, self.spec, self.spec.tile, self.spec.m
        transform, p = result_function(m, tile), required(self.p.result)
        columns = self.p.block.columns - column
        with self._tiles(first, count) as (t, image, ty, tx):
            e.call(transform, sums + t * p.sums_pitch, p.sums_point, made)
            y, x = ty * m, tx * m
            rows = minimum(p.result_height - y, m)
            cells = minimum(p.result_width - x, m)
            with e.loop(rows) as r:
                places = self._places(image, y + r, x, column)
                block = SumsBlock(made + r * (m * tile.width), tile.width, cells, columns)
                finish(e, tile, spec.epilogue, block, places)

    def _places(self, image: Value, line: Value, cell: Value, column: Value) -> Sides[OperandPlace]:
        """Operands and results at a cell and a channel."""

        def place(given: tuple[Access, Pointer, MapSteps[Value]]) -> OperandPlace:
            access, memory, steps = given
            start = image * steps.image + line * steps.line
            return moved(
                OperandPlace(access, memory + start, steps.row, steps.column), cell, column
            )

        return self.spec.epilogue.sides.zip(self.p.memory, self.p.steps).map(place)
