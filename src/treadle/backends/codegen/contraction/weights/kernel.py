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
from dataclasses import dataclass, field
from functools import lru_cache

from treadle.backends.codegen.contraction.shared.epilogue import Block, Epilogue, Place, finish
from treadle.backends.codegen.contraction.shared.items import Contraction, moved
from treadle.backends.codegen.contraction.shared.pack import Order, pack_function, transpose
from treadle.backends.codegen.contraction.shared.tile import Form, Tile, full_tiles, tile_function
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
from treadle.base import dtype as dt
from treadle.base.dtype import DType

_SIZES = (
    *("k", "n", "channels", "taps", "chunk", "rows", "depth", "pitch"),
    *("chunks", "panel_items", "width", "parts", "part", "a_group", "b_group"),
    *("b_term", "b_column"),
)


@dataclass(frozen=True, slots=True)
class Spec:
    """What the kernels have as constants.

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
def weight_kernels(spec: Spec) -> tuple[Contraction, ...]:
    """The kernel that multiplies and, where there are parts, the one that adds them up."""
    writer = _Writer(spec)
    values, names = list(writer.values.values()), tuple(writer.values)
    functions = [writer.pack_a, writer.pack_b, writer.big, writer.small]
    name = f"weight_gradient_{spec.b.name}_{spec.b_order}"
    multiply = builder.kernel(name, values, writer.multiply, functions)
    if not spec.parts:
        return (Contraction(multiply, names),)
    add = builder.kernel(f"{name}_sums", values, writer.add)
    return Contraction(multiply, names), Contraction(add, names)


@lru_cache(maxsize=64)
def cells_function(tile: Tile) -> Function:
    """A function of (source, terms, rows, target, outer, taps, length, pitch): taps side by side.

    target[k * pitch + t * length + i] = source[terms[k] + rows[t * length] + i], i < length
    """
    lanes = tile.lanes
    source, target = (ir.pointer(tile.dtype, name) for name in ("source", "target"))
    terms, rows = (ir.pointer(dt.int32, name) for name in ("terms", "rows"))
    outer, taps, length, pitch = (ir.size(n) for n in ("outer", "taps", "length", "pitch"))

    def write(e: Builder) -> None:
        whole = e.sub(length, e.rem(length, lanes))
        mask = e.first_lanes(e.sub(length, whole), lanes)

        def cell(k: Value) -> None:
            start = e.offset(source, e.cast(e.load(terms, k), dt.int64))
            row = e.offset(target, e.mul(k, pitch))

            def tap(t: Value) -> None:
                first = e.mul(t, length)
                given = e.offset(start, e.cast(e.load(rows, first), dt.int64))
                made = e.offset(row, first)

                def copy(i: Value, mask: Value | None = None) -> None:
                    e.store(made, i, e.load(given, i, lanes, mask), mask)

                e.loop(0, whole, lanes, copy)
                e.branch(e.compare("lt", whole, length), lambda: copy(whole, mask))

            e.loop(0, taps, 1, tap)

        e.loop(0, outer, 1, cell)

    parameters = (source, terms, rows, target, outer, taps, length, pitch)
    return builder.function("pack_cells", parameters, write)


@lru_cache(maxsize=64)
def rows_function(tile: Tile, source: DType) -> Function:
    """A function of (source, outer_step, target, outer, columns): all panels, row after row.

    target[p * outer * width + k * width + j] = source[k * outer_step + p * width + j]; columns of
    the last panel beyond the last one are zero.
    """
    lanes, width = tile.lanes, tile.width
    given, made = ir.pointer(source, "source"), ir.pointer(tile.dtype, "target")
    outer_step, outer, columns = (ir.size(n) for n in ("outer_step", "outer", "columns"))

    def write(e: Builder) -> None:
        whole = e.sub(columns, e.rem(columns, width))
        rest, size = e.sub(columns, whole), e.mul(outer, width)
        masks = [e.first_lanes(e.sub(rest, v * lanes), lanes) for v in range(tile.vectors)]
        last = e.mul(e.div(columns, width), size)

        def row(k: Value) -> None:
            start = e.offset(given, e.mul(k, outer_step))
            there = e.offset(made, e.mul(k, width))

            def panel(first: Value, to: Value, masks: Sequence[Value | None]) -> None:
                for v, mask in enumerate(masks):
                    value = e.load(start, e.add(first, v * lanes), lanes, mask)
                    e.store(to, v * lanes, e.cast(value, tile.dtype))

            def full(first: Value, to: Value) -> Value:
                panel(first, to, [None] * tile.vectors)
                return e.offset(to, size)

            e.loop(0, whole, width, full, (there,))
            part = e.compare("lt", 0, rest)
            e.branch(part, lambda: panel(whole, e.offset(there, last), masks))

        e.loop(0, outer, 1, row)

    parameters = (given, outer_step, made, outer, columns)
    return builder.function(f"pack_rows_of_panels_{source.name}", parameters, write)


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


@dataclass(slots=True)
class _Writer:
    """Writes the kernels."""

    spec: Spec
    values: dict[str, Value] = field(default_factory=dict)
    pack_a: Function = field(init=False)
    pack_b: Function = field(init=False)
    big: Function = field(init=False)
    small: Function = field(init=False)

    def __post_init__(self) -> None:
        spec, tile = self.spec, self.spec.tile
        self.pack_a = cells_function(tile)
        self.pack_b = (
            rows_function(tile, spec.b)
            if spec.b_order == "straight"
            else pack_function(tile, spec.b, spec.b_order, panel=True)
        )
        form: Form = "column" if spec.packs else "table"
        self.big = tile_function(tile, form, small=False, accumulate=True)
        self.small = tile_function(tile, form, small=True, accumulate=True)
        pointers = {"a": tile.dtype, "b": spec.b}
        pointers |= {"partials": tile.dtype} if spec.parts else {}
        pointers |= dict.fromkeys(("term_table", "row_table", "order"), dt.int32)
        others = [(f"x{i}", x) for i, x in enumerate(spec.epilogue.extras)]
        others += [(f"c{i}", c) for i, c in enumerate(spec.epilogue.results)]
        pointers |= {name: access.dtype for name, access in others}
        self.values = {name: ir.pointer(dtype, name) for name, dtype in pointers.items()}
        sizes = [*_SIZES]
        sizes += [f"{name}_{axis}" for name, _ in others for axis in ("batch", "row", "column")]
        self.values |= {name: ir.size(name) for name in sizes}

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def _size(self, e: Builder) -> Value:
        """Elements of the sums of an item."""
        return e.mul(e.mul(self["rows"], self["width"]), self.spec.tile.width)

    def _locate(self, e: Builder, i: Value) -> _Item:
        """Item (group, chunk of channels, group of panels)."""
        tile = self.spec.tile
        panel = e.mul(e.rem(i, self["panel_items"]), self["width"])
        rest = e.div(i, self["panel_items"])
        own = e.mul(e.rem(rest, self["chunks"]), self["chunk"])
        last = e.div(e.add(self["n"], tile.width - 1), tile.width)
        return _Item(
            group=e.div(rest, self["chunks"]),
            channel=e.min(own, e.sub(self["channels"], self["chunk"])),
            own=own,
            panel=panel,
            panels=e.min(self["width"], e.sub(last, panel)),
        )

    # -- products --------------------------------------------------------------------------

    def multiply(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry of the first kernel: items are those of `_locate`, with parts within."""
        spec = self.spec
        a, b = (e.stack(spec.tile.dtype, max(1, count)) for count in spec.scratch)
        sums = self["partials"] if spec.parts else e.stack(spec.tile.dtype, spec.sums)
        square = self._square(e)

        def item(i: Value) -> None:
            found = self._locate(e, e.div(i, self["parts"]))
            first = e.mul(e.rem(i, self["parts"]), self["part"])
            end = e.min(e.add(first, self["part"]), self["k"])
            made = e.offset(sums, e.mul(i, self._size(e))) if spec.parts else sums

            def step(k: Value) -> None:
                count = e.min(self["depth"], e.sub(end, k))
                adds = e.select(e.compare("eq", k, first), 0, e.index(1))
                self._pack(e, found, (k, count), b)
                self._tiles(e, found, (k, count), (a, b, made), adds)

            e.loop(first, end, self["depth"], step)
            if not spec.parts:
                self._finish(e, found, made, square)

        e.loop(lo, hi, 1, item)

    def _pack(self, e: Builder, item: _Item, step: tuple[Value, Value], b: Value) -> None:
        """Panels of dy, for positions [first, first + count)."""
        first, count = step
        width = self.spec.tile.width
        steps = self["b_term"], self["b_column"]
        begin = e.add(e.mul(item.group, self["b_group"]), e.mul(first, steps[0]))

        if self.spec.b_order == "straight":
            column = e.mul(item.panel, width)
            columns = e.min(e.sub(self["n"], column), e.mul(item.panels, width))
            source = e.offset(self["b"], e.add(begin, column))
            e.call(self.pack_b, source, steps[0], b, count, columns)
            return

        def panel(p: Value) -> None:
            column = e.mul(e.add(item.panel, p), width)
            source = e.offset(self["b"], e.add(begin, e.mul(column, steps[1])))
            target = e.offset(b, e.mul(p, e.mul(count, width)))
            columns = e.min(e.sub(self["n"], column), width)
            e.call(self.pack_b, source, *steps, target, width, count, columns)

        e.loop(0, item.panels, 1, panel)

    def _tiles(
        self,
        e: Builder,
        item: _Item,
        step: tuple[Value, Value],
        scratch: tuple[Value, Value, Value],
        adds: Value,
    ) -> None:
        """Every tile of rows times every panel."""
        tile, rows = self.spec.tile, self["rows"]
        (first, count), (packed, b, sums) = step, scratch
        place = e.add(e.mul(item.group, self["a_group"]), item.channel)
        a, terms = e.offset(self["a"], place), e.offset(self["term_table"], first)
        if self.spec.packs:
            sizes = count, self["taps"], self["chunk"], self["pitch"]
            e.call(self.pack_a, a, terms, self["row_table"], packed, *sizes)

        def operand(r: Value) -> tuple[Value, ...]:
            if self.spec.packs:
                return e.offset(packed, r), self["pitch"]
            return a, e.offset(self["row_table"], r), terms

        def tiles(function: Function, r: Value, *rest: Value) -> None:
            def panel(p: Value) -> None:
                c = e.mul(e.add(e.mul(p, rows), r), tile.width)
                given = e.offset(b, e.mul(p, e.mul(count, tile.width)))
                arguments = (*operand(r), given, e.index(tile.width), count)
                e.call(function, *arguments, e.offset(sums, c), tile.width, *rest, adds)

            e.loop(0, item.panels, 1, panel)

        whole = e.mul(full_tiles(e, tile, rows), tile.rows)
        e.loop(0, whole, tile.rows, lambda r: tiles(self.big, r))
        e.loop(whole, rows, tile.small, lambda r: tiles(self.small, r, e.sub(rows, r)))

    # -- results ---------------------------------------------------------------------------

    def add(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry of the second kernel: the sums of all parts, in order."""
        lanes = self.spec.tile.lanes
        size, square = self._size(e), self._square(e)

        def item(i: Value) -> None:
            found = self._locate(e, i)
            sums = e.offset(self["partials"], e.mul(i, e.mul(size, self["parts"])))

            def part(p: Value) -> None:
                other = e.offset(sums, e.mul(p, size))

                def add(j: Value) -> None:
                    e.store(sums, j, e.add(e.load(sums, j, lanes), e.load(other, j, lanes)))

                count = e.mul(e.mul(found.panels, self["rows"]), self.spec.tile.width)
                e.loop(0, count, lanes, add)

            e.loop(1, self["parts"], 1, part)
            self._finish(e, found, sums, square)

        e.loop(lo, hi, 1, item)

    def _square(self, e: Builder) -> Value:
        """Scratch for some rows of all columns of a tile, transposed."""
        tile = self.spec.tile
        return e.stack(tile.dtype, tile.width * tile.lanes)

    def _finish(self, e: Builder, item: _Item, sums: Value, made: Value) -> None:
        """Transpose the sums, a square of vectors at a time, and apply the epilogue."""
        tile = self.spec.tile
        total = e.mul(self["chunk"], self["taps"])
        begins = e.mul(e.sub(item.own, item.channel), self["taps"])
        column = e.mul(item.channel, self["taps"])
        epilogue = self.spec.epilogue
        extras = [self._place(e, f"x{i}", item) for i in range(len(epilogue.extras))]
        results = [self._place(e, f"c{i}", item) for i in range(len(epilogue.results))]
        flat = Tile(tile.dtype, tile.rows, tile.small, 1, tile.lanes)

        def panel(p: Value) -> None:
            row = e.mul(e.add(item.panel, p), tile.width)
            begin = e.offset(sums, e.mul(e.mul(p, self["rows"]), tile.width))

            count = e.min(e.sub(self["n"], row), tile.width)

            def square(first: Value) -> None:
                self._transpose(e, begin, first, total, (made, e.index(tile.lanes)))
                block = Block(made, tile.lanes, count, e.sub(total, first))
                at = e.add(column, first)
                places = ([moved(e, x, row, at) for x in side] for side in (extras, results))
                finish(e, flat, epilogue, block, *places)

            def direct(first: Value) -> None:
                there = moved(e, results[0], row, e.add(column, first))
                self._transpose(e, begin, first, total, (there.pointer, there.row_step))

            whole = begins
            if epilogue.stores_sums(tile.dtype):
                whole = e.sub(total, e.rem(e.sub(total, begins), tile.lanes))
                whole = e.select(e.compare("eq", count, tile.width), whole, begins)
                e.loop(begins, whole, tile.lanes, direct)
            e.loop(whole, total, tile.lanes, square)

        e.loop(0, item.panels, 1, panel)

    def _transpose(
        self, e: Builder, sums: Value, first: Value, total: Value, target: tuple[Value, Value]
    ) -> None:
        """The sums of as many rows, in the order of the weight, as a vector has lanes.

        `target`: where to, and the step from column to column.
        """
        tile = self.spec.tile
        made, step = target
        last = e.sub(total, 1)
        places = [e.min(e.add(first, j), last) for j in range(tile.lanes)]
        rows = [e.cast(e.load(self["order"], place), dt.int64) for place in places]
        starts = [e.offset(sums, e.mul(row, tile.width)) for row in rows]
        for v in range(0, tile.width, tile.lanes):
            square = [e.load(start, v, tile.lanes) for start in starts]
            for j, value in enumerate(transpose(e, square)):
                e.store(made, e.mul(step, v + j), value)

    def _place(self, e: Builder, name: str, item: _Item) -> Place:
        epilogue = self.spec.epilogue
        accesses = epilogue.extras if name[0] == "x" else epilogue.results
        pointer = e.offset(self[name], e.mul(item.group, self[f"{name}_batch"]))
        steps = self[f"{name}_row"], self[f"{name}_column"]
        return Place(accesses[int(name[1:])], pointer, *steps)
