"""Gradients in the weight from channels-last operands: sums over positions.

dw[o, (c, t)] = sum over k of x[terms[k] + taps[t] + c] * dy[k, o]

Rows of the tiles are (tap, channel), columns are output channels. An item has all taps of some
channels and some panels of output channels; for some positions after the other it packs dy, reads
x where it lies (or packs it, too, where cells lie far apart) and multiplies. The sums are
transposed at the end, when rows are put into the order of the weight. Where items are few,
positions are cut into a fixed number of parts, whose sums a second kernel adds in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple

from treadle.backends.codegen.contraction.shared.epilogue import (
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
from treadle.backends.codegen.contraction.shared.pack import Order, pack_function, transpose
from treadle.backends.codegen.contraction.shared.tile import Form, Tile, full_tiles, tile_function
from treadle.backends.codegen.kernel.builder import Builder, KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import (
    InstructionOperand,
    Pointer,
    Value,
    minimum,
    select,
)
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S, required
from treadle.base import dtype as dt
from treadle.base.dtype import DType


class ElementSteps(NamedTuple, Generic[S]):
    """Elements from group to group, from row to row and from column to column."""

    batch: S
    row: S
    column: S


class WeightParameters(NamedTuple, Generic[P, S]):
    """Parameters of the kernels of a gradient to a weight: see the head of this file."""

    a: P
    b: P
    partials: P | None
    term_table: P
    row_table: P
    order: P
    memory: Sides[P]
    k: S
    n: S
    channels: S
    taps: S
    chunk: S
    rows: S
    depth: S
    pitch: S
    chunks: S
    panel_items: S
    width: S
    parts: S
    part: S
    a_group: S
    b_group: S
    b_term: S
    b_column: S
    steps: Sides[ElementSteps[S]]


@dataclass(frozen=True, slots=True)
class WeightConfig:
    """Constants of the kernels.

    Attributes:
        tile: the register tile.
        b: element type of dy; x has that of the sums.
        b_order: how panels of dy are packed.
        packs: whether rows are packed, not read where they lie.
        scratch, sums: elements of scratch memory of an item: for rows, for panels, and for sums.
        parts: whether the sums are those of a part of the positions.
        epilogue: what becomes of the sums.
    """

    tile: Tile
    b: DType
    b_order: Order
    packs: bool
    scratch: tuple[int, int]
    sums: int
    parts: bool
    epilogue: Epilogue


@lru_cache(maxsize=64)
def weight_kernels(spec: WeightConfig) -> tuple[RecordedKernel, ...]:
    """The kernel that multiplies and, where there are parts, the one that adds them up."""
    name = f"weight_gradient_{spec.b.name}_{spec.b_order}"
    product = _WeightWriter(spec)
    product.multiply()
    functions = [product.pack_a, product.pack_b, product.big, product.small]
    made = RecordedKernel(product.e.kernel(name, functions), product.p)
    if not spec.parts:
        return (made,)
    sums = _WeightWriter(spec)
    sums.add()
    return made, RecordedKernel(sums.e.kernel(f"{name}_sums"), sums.p)


@lru_cache(maxsize=64)
def cells_function(tile: Tile) -> KernelRoutine:
    """A function of (source, terms, rows, target, outer, taps, length, pitch): taps side by side.

    target[k * pitch + t * length + i] = source[terms[k] + rows[t * length] + i], i < length
    """
    e, lanes = Builder(), tile.lanes
    source, terms = e.pointer(tile.dtype, "source"), e.pointer(dt.int32, "terms")
    rows, target = e.pointer(dt.int32, "rows"), e.pointer(tile.dtype, "target")
    outer, taps, length, pitch = e.sizes("outer", "taps", "length", "pitch")
    whole = length - length % lanes
    mask = e.first_lanes(length - whole, lanes)
    with e.loop(outer) as k:
        start = source + terms[k].cast(dt.int64)
        row = target + k * pitch
        with e.loop(taps) as t:
            first = t * length
            given = start + rows[first].cast(dt.int64)
            made = row + first
            with e.loop(0, whole, lanes) as i:
                made[i] = given.load(i, lanes)
            with e.when(whole < length):
                made.store(whole, given.load(whole, lanes, mask), mask)
    return e.function("pack_cells")


@lru_cache(maxsize=64)
def rows_function(tile: Tile, source: DType) -> KernelRoutine:
    """A function of (source, outer_step, target, outer, columns): all panels, row after row.

    target[p * outer * width + k * width + j] = source[k * outer_step + p * width + j]; columns of
    the last panel beyond the last one are zero.
    """
    e, lanes, width = Builder(), tile.lanes, tile.width
    given, outer_step = e.pointer(source, "source"), e.size("outer_step")
    made, outer, columns = e.pointer(tile.dtype, "target"), *e.sizes("outer", "columns")
    whole = columns - columns % width
    rest, size = columns - whole, outer * width
    masks = [e.first_lanes(rest - v * lanes, lanes) for v in range(tile.vectors)]
    last = (columns // width) * size
    with e.loop(outer) as k:
        start = given + k * outer_step
        there = made + k * width

        def panel(first: Value, to: Pointer, masks: Sequence[Value | None]) -> None:
            for v, mask in enumerate(masks):
                value = start.load(first + v * lanes, lanes, mask)
                to.store(v * lanes, value.cast(tile.dtype))

        into = [there]
        with e.loop(0, whole, width, carrying=into) as first:
            panel(first, into[0], [None] * tile.vectors)
            into[0] = into[0] + size
        with e.when(rest > 0):
            panel(whole, there + last, masks)
    return e.function(f"pack_rows_of_panels_{source.name}")


@dataclass(slots=True)
class _Item:
    """One work item: its group, channels and panels.

    The last item of a group begins early enough to have as many channels as the others; those
    before `own` are not its own.
    """

    group: Value
    channel: Value
    own: Value
    panel: Value
    panels: Value


class _WeightWriter:
    """Writes one of the kernels."""

    def __init__(self, spec: WeightConfig) -> None:
        self.spec, tile = spec, spec.tile
        self.e = e = KernelBuilder()
        self.pack_a = cells_function(tile)
        self.pack_b = (
            rows_function(tile, spec.b)
            if spec.b_order == "straight"
            else pack_function(tile, spec.b, spec.b_order, panel=True)
        )
        form: Form = "column" if spec.packs else "table"
        self.big = tile_function(tile, form, small=False, accumulate=True)
        self.small = tile_function(tile, form, small=True, accumulate=True)
        self.p = e.record(
            WeightParameters[Pointer, Value],
            a=tile.dtype,
            b=spec.b,
            partials=tile.dtype if spec.parts else None,
            term_table=dt.int32,
            row_table=dt.int32,
            order=dt.int32,
            memory=lambda: declare_pointers(e, spec.epilogue),
            steps=lambda: declare_steps(e, spec.epilogue, ElementSteps[Value]),
        )

    def _size(self) -> Value:
        """Elements of the sums of an item."""
        return self.p.rows * self.p.width * self.spec.tile.width

    def _locate(self, i: Value) -> _Item:
        """Item (group, chunk of channels, group of panels)."""
        tile, p = self.spec.tile, self.p
        panel = (i % p.panel_items) * p.width
        rest = i // p.panel_items
        own = (rest % p.chunks) * p.chunk
        last = (p.n + (tile.width - 1)) // tile.width
        return _Item(
            group=rest // p.chunks,
            channel=minimum(own, p.channels - p.chunk),
            own=own,
            panel=panel,
            panels=minimum(p.width, last - panel),
        )

    # -- products --------------------------------------------------------------------------

    def multiply(self) -> None:
        """The entry of the first kernel: items are those of `_locate`, with parts within."""
        e, p, spec = self.e, self.p, self.spec
        a, b = (e.stack(spec.tile.dtype, max(1, count)) for count in spec.scratch)
        sums = e.stack(spec.tile.dtype, spec.sums) if p.partials is None else p.partials
        square = self._square()
        with e.items() as i:
            item = self._locate(i // p.parts)
            first = (i % p.parts) * p.part
            end = minimum(first + p.part, p.k)
            made = sums + i * self._size() if spec.parts else sums
            with e.loop(first, end, p.depth) as k:
                count = minimum(p.depth, end - k)
                adds = select(k == first, 0, e.index(1))
                self._pack(item, (k, count), b)
                self._tiles(item, (k, count), (a, b, made), adds)
            if not spec.parts:
                self._finish(item, made, square)

    def _pack(self, item: _Item, step: tuple[Value, Value], b: Pointer) -> None:
        """Panels of dy, for positions [first, first + count)."""
        e, p, width, (first, count) = self.e, self.p, self.spec.tile.width, step
        steps = p.b_term, p.b_column
        begin = item.group * p.b_group + first * steps[0]
        if self.spec.b_order == "straight":
            column = item.panel * width
            columns = minimum(p.n - column, item.panels * width)
            source = p.b + (begin + column)
            e.call(self.pack_b, source, steps[0], b, count, columns)
            return
        with e.loop(item.panels) as number:
            column = (item.panel + number) * width
            source = p.b + (begin + column * steps[1])
            target = b + number * (count * width)
            columns = minimum(p.n - column, width)
            e.call(self.pack_b, source, *steps, target, width, count, columns)

    def _tiles(
        self,
        item: _Item,
        step: tuple[Value, Value],
        scratch: tuple[Pointer, Pointer, Pointer],
        adds: Value,
    ) -> None:
        """Every tile of rows times every panel."""
        e, p, tile = self.e, self.p, self.spec.tile
        (first, count), (packed, b, sums) = step, scratch
        place = item.group * p.a_group + item.channel
        a, terms = p.a + place, p.term_table + first
        if self.spec.packs:
            e.call(self.pack_a, a, terms, p.row_table, packed, count, p.taps, p.chunk, p.pitch)

        def operand(r: Value) -> tuple[InstructionOperand, ...]:
            if self.spec.packs:
                return packed + r, p.pitch
            return a, p.row_table + r, terms

        def multiply(function: KernelRoutine, r: Value, *rest: Value) -> None:
            with e.loop(item.panels) as number:
                c = (number * p.rows + r) * tile.width
                given = b + number * (count * tile.width)
                e.call(
                    function,
                    *operand(r),
                    given,
                    tile.width,
                    count,
                    sums + c,
                    tile.width,
                    *rest,
                    adds,
                )

        whole = full_tiles(tile, p.rows) * tile.rows
        with e.loop(0, whole, tile.rows) as r:
            multiply(self.big, r)
        with e.loop(whole, p.rows, tile.small) as r:
            multiply(self.small, r, p.rows - r)

    # -- results ---------------------------------------------------------------------------

    def add(self) -> None:
        """The entry of the second kernel: the sums of all parts, in order."""
        e, p, lanes = self.e, self.p, self.spec.tile.lanes
        size, square = self._size(), self._square()
        with e.items() as i:
            item = self._locate(i)
            sums = required(p.partials) + i * (size * p.parts)
            with e.loop(1, p.parts) as part:
                other = sums + part * size
                count = item.panels * p.rows * self.spec.tile.width
                with e.loop(0, count, lanes) as j:
                    sums[j] = sums.load(j, lanes) + other.load(j, lanes)
            self._finish(item, sums, square)

    def _square(self) -> Pointer:
        """Scratch for some rows of all columns of a tile, transposed."""
        tile = self.spec.tile
        return self.e.stack(tile.dtype, tile.width * tile.lanes)

    def _finish(self, item: _Item, sums: Pointer, made: Pointer) -> None:
        """Transpose the sums, a square of vectors at a time, and apply the epilogue."""
        e, p, tile, epilogue = self.e, self.p, self.spec.tile, self.spec.epilogue
        total = p.chunk * p.taps
        begins = (item.own - item.channel) * p.taps
        column = item.channel * p.taps
        places = self._places(item)
        flat = Tile(tile.dtype, tile.rows, tile.small, 1, tile.lanes)
        with e.loop(item.panels) as number:
            row = (item.panel + number) * tile.width
            begin = sums + number * p.rows * tile.width
            count = minimum(p.n - row, tile.width)
            whole = begins
            if epilogue.stores_sums(tile.dtype):
                whole = total - (total - begins) % tile.lanes
                whole = select(count == tile.width, whole, begins)
                with e.loop(begins, whole, tile.lanes) as first:
                    there = moved(places.results[0], row, column + first)
                    self._transpose(begin, first, total, (there.pointer, there.row_step))
            with e.loop(whole, total, tile.lanes) as first:
                self._transpose(begin, first, total, (made, e.index(tile.lanes)))
                block = SumsBlock(made, tile.lanes, count, total - first)
                at = column + first
                here = places.map(lambda place: moved(place, row, at))
                finish(e, flat, epilogue, block, here)

    def _transpose(
        self, sums: Pointer, first: Value, total: Value, target: tuple[Pointer, Value]
    ) -> None:
        """The sums of as many rows, in the order of the weight, as a vector has lanes.

        `target`: where to, and the step from column to column.
        """
        tile, (made, step) = self.spec.tile, target
        last = total - 1
        places = [minimum(first + j, last) for j in range(tile.lanes)]
        rows = [self.p.order[place].cast(dt.int64) for place in places]
        starts = [sums + row * tile.width for row in rows]
        for v in range(0, tile.width, tile.lanes):
            square = [start.load(v, tile.lanes) for start in starts]
            for j, value in enumerate(transpose(square)):
                made[step * (v + j)] = value

    def _places(self, item: _Item) -> Sides[OperandPlace]:
        """Return the starts of operands and results of an item's group."""

        def place(given: tuple[Access, Pointer, ElementSteps[Value]]) -> OperandPlace:
            access, memory, steps = given
            return OperandPlace(access, memory + item.group * steps.batch, steps.row, steps.column)

        return self.spec.epilogue.sides.zip(self.p.memory, self.p.steps).map(place)
