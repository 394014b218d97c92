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

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from treadle.backends.codegen.contraction.shared.epilogue import (
    Access,
    Block,
    Epilogue,
    Place,
    finish,
)
from treadle.backends.codegen.contraction.shared.items import Contraction, moved
from treadle.backends.codegen.contraction.shared.pack import pack_function
from treadle.backends.codegen.contraction.shared.tile import Tile, tile_function
from treadle.backends.codegen.contraction.winograd.transforms import (
    of_gradient,
    of_input,
    of_products,
    of_weight,
    twice,
)
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
from treadle.base.dtype import DType

Part = Literal["whole", "inputs", "gradients", "results"]
"""What a kernel does: everything, or what comes before or after the products.

"gradients" are what "inputs" are, of tiles of dy that do not overlap.
"""

TERMS = 16
"""Input channels of an item of the weights' transformation."""
PAD = 16
"""Elements after every row and every point, so that none of them compete for lines of the cache."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A kernel's constants: m, its register tile, its epilogue, and elements of scratch."""

    part: Part
    m: int
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
    def makes_results(self) -> bool:
        """Whether it goes as far as the results."""
        return self.part in ("whole", "results")

    @property
    def reads(self) -> int:
        """Cells per axis that a tile reads."""
        return self.m if self.part == "gradients" else self.m + 2

    def input_function(self) -> Function:
        """What transforms a tile that was read."""
        return input_function(self.m, self.reads, self.tile.dtype, self.tile.lanes)


@lru_cache(maxsize=64)
def input_function(m: int, reads: int, dtype: DType, lanes: int) -> Function:
    """A function of (source, line, pixel, target, point, channels): one tile, transformed.

    `line` and `pixel` are the steps of the source, `point` is that of the target. Tiles of inputs
    read m + 2 cells per axis, those of dy m.
    """
    source, target = ir.pointer(dtype, "source"), ir.pointer(dtype, "target")
    line, pixel, point, channels = (ir.size(n) for n in ("line", "pixel", "point", "channels"))
    size, transform = range(reads), of_gradient(m) if reads == m else of_input(m)

    def write(e: Builder) -> None:
        places = [[e.add(e.mul(line, y), e.mul(pixel, x)) for x in size] for y in size]

        def vector(k: Value) -> None:
            start = e.min(k, e.sub(channels, lanes))
            here, there = e.offset(source, start), e.offset(target, start)
            square = [[e.load(here, place, lanes) for place in row] for row in places]
            for y, row in enumerate(twice(e, transform, square)):
                for x, value in enumerate(row):
                    e.store(there, e.mul(point, y * (m + 2) + x), value)

        e.loop(0, channels, lanes, vector)

    parameters = (source, line, pixel, target, point, channels)
    kind = "gradient" if reads == m else "input"
    return builder.function(f"winograd_{kind}_{m}", parameters, write)


@lru_cache(maxsize=64)
def result_function(m: int, tile: Tile) -> Function:
    """A function of (sums, point, target): one tile of one panel, m * m rows of its width."""
    sums, target, point = ir.pointer(tile.dtype), ir.pointer(tile.dtype), ir.size("point")
    size = range(m + 2)

    def write(e: Builder) -> None:
        def vector(v: Value) -> None:
            here, there = e.offset(sums, v), e.offset(target, v)
            square = [
                [e.load(here, e.mul(point, y * len(size) + x), tile.lanes) for x in size]
                for y in size
            ]
            for y, row in enumerate(twice(e, of_products(m), square)):
                for x, value in enumerate(row):
                    e.store(there, (y * m + x) * tile.width, value)

        e.loop(0, tile.width, tile.lanes, vector)

    return builder.function(f"winograd_result_{m}", (sums, point, target), write)


# -- weights -----------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def weight_kernel(m: int, tile: Tile, *, turned: bool) -> Contraction:
    """A kernel from weights to panels [point][panel][term][width]; an item is some terms of one.

    A term is an input channel and a column an output channel of the convolution. The nine taps of
    each pair are neighbors; `turned` says that they are read backwards, and that the columns of a
    term follow one another, where else the terms of a column do.
    """
    width, taps = tile.width, 9
    values = {"weight": ir.pointer(tile.dtype), "panels": ir.pointer(tile.dtype)}
    names = ("terms", "columns", "term_step", "column_step", "blocks", "point")
    values |= {name: ir.size(name) for name in names}
    weight, panels, terms, columns, term_step, column_step, blocks, point = values.values()
    pack = pack_function(tile, tile.dtype, "transposed", panel=True)

    def write(e: Builder, lo: Value, hi: Value) -> None:
        # Columns that do not exist stay what they are: numbers that count for nothing.
        scratch = e.stack(tile.dtype, TERMS * taps * width)
        e.zero(scratch, TERMS * taps * width)
        points = [e.mul(point, p) for p in range((m + 2) ** 2)]

        def item(i: Value) -> None:
            panel, first = e.div(i, blocks), e.mul(e.rem(i, blocks), TERMS)
            count = e.min(e.sub(terms, first), TERMS)
            column = e.mul(panel, width)
            source = e.offset(weight, e.add(e.mul(first, term_step), e.mul(column, column_step)))
            inner = e.min(e.sub(columns, column), width)

            def run(start: Value, target: Value, length: Value | int) -> None:
                e.call(pack, start, 1, column_step, target, width, length, inner)

            def single(c: Value) -> None:
                target = e.offset(scratch, e.mul(c, taps * width))
                run(e.offset(source, e.mul(c, term_step)), target, taps)

            if turned:
                e.loop(0, count, 1, single)
            else:
                run(source, scratch, e.mul(count, taps))
            place = e.mul(e.add(e.mul(panel, terms), first), width)
            target = e.offset(panels, place)
            e.loop(0, count, 1, lambda c: term(e.mul(c, width), target))

        def term(c: Value, target: Value) -> None:
            here = e.offset(scratch, e.mul(c, taps))

            def vector(v: Value) -> None:
                start, there = e.offset(here, v), e.offset(target, e.add(c, v))
                given = [
                    e.load(start, tap * width, tile.lanes)
                    for tap in (reversed(range(taps)) if turned else range(taps))
                ]
                square = [given[3 * y : 3 * y + 3] for y in range(3)]
                made = [value for row in twice(e, of_weight(m), square) for value in row]
                for place, value in zip(points, made, strict=True):
                    e.store(there, place, value)

            e.loop(0, width, tile.lanes, vector)

        e.loop(lo, hi, 1, item)

    kernel = builder.kernel(f"winograd_weight_{m}", list(values.values()), write, [pack])
    return Contraction(kernel, tuple(values))


# -- maps --------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def map_kernel(spec: Spec) -> Contraction:
    """The kernel of a specification; its items are blocks of tiles."""
    writer = _Writer(spec)
    steps = "".join(f"_{s.op.name}" for s in spec.epilogue.steps[:3])
    name = f"winograd_{spec.part}_{spec.m}{steps}"
    kernel = builder.kernel(
        name, list(writer.parameters.values()), writer.write, writer.functions()
    )
    return Contraction(kernel, tuple(writer.parameters))


_SIZES = ("first", "tiles", "across", "down", "block", "columns", "pitch", "point")
_SOURCE = ("channels", "height", "width", "top", "left", "x_image", "x_line", "panels_point")
_RESULT = ("result_height", "result_width", "sums_pitch", "sums_point")


@dataclass(slots=True)
class _Writer:
    """Writes one kernel."""

    spec: Spec
    parameters: dict[str, Value] = field(default_factory=dict)
    patch: Value = field(init=False)
    made: Value = field(init=False)

    def __post_init__(self) -> None:
        spec, dtype = self.spec, self.spec.tile.dtype
        pointers = {
            "whole": ("x", "panels"),
            "inputs": ("x", "values"),
            "gradients": ("x", "values"),
            "results": ("sums",),
        }[spec.part]
        self.parameters |= {name: ir.pointer(dtype, name) for name in pointers}
        accesses = self._accesses() if spec.makes_results else {}
        self.parameters |= {name: ir.pointer(a.dtype, name) for name, a in accesses.items()}
        sizes = [*_SIZES, *(_SOURCE if spec.part != "results" else ())]
        sizes += _RESULT if spec.makes_results else ()
        sizes += [f"{n}_{step}" for n in accesses for step in ("image", "line", "row", "column")]
        self.parameters |= {name: ir.size(name) for name in sizes}

    def _accesses(self) -> dict[str, Access]:
        epilogue = self.spec.epilogue
        found = {f"x{i}": x for i, x in enumerate(epilogue.extras)}
        return found | {f"c{i}": c for i, c in enumerate(epilogue.results)}

    def functions(self) -> list[Function]:
        """What the entry calls."""
        spec, tile = self.spec, self.spec.tile
        found: list[Function] = []
        if spec.part != "results":
            found.append(spec.input_function())
        if spec.part == "whole":
            found += [tile_function(tile, "row", small=s, accumulate=False) for s in (False, True)]
        if spec.makes_results:
            found.append(result_function(spec.m, tile))
        return found

    def __getitem__(self, name: str) -> Value:
        return self.parameters[name]

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        spec, dtype, width = self.spec, self.spec.tile.dtype, self.spec.tile.width
        if spec.part != "results":
            self.patch = e.stack(dtype, spec.patch)
        if spec.makes_results:
            self.made = e.stack(dtype, spec.m**2 * width)
        values = e.stack(dtype, spec.values) if spec.part == "whole" else None
        sums = e.stack(dtype, spec.sums) if spec.part == "whole" else None

        def item(i: Value) -> None:
            start = e.mul(i, self["block"])
            count = e.min(self["block"], e.sub(self["tiles"], start))
            first = e.add(self["first"], start)
            if values is not None:
                self._inputs(e, values, first, count)
            elif spec.part != "results":
                self._inputs(e, self._row(e, "values", "pitch", start), first, count)

            def panel(column: Value) -> None:
                here = sums
                if values is not None and sums is not None:
                    self._products(e, values, sums, column, count)
                else:
                    here = e.offset(self._row(e, "sums", "sums_pitch", start), column)
                if here is not None:
                    self._results(e, here, first, count, column)

            if spec.makes_results:
                e.loop(0, self["columns"], width, panel)

        e.loop(lo, hi, 1, item)

    def _row(self, e: Builder, name: str, pitch: str, tile: Value) -> Value:
        return e.offset(self[name], e.mul(tile, self[pitch]))

    def _each(
        self,
        e: Builder,
        first: Value,
        count: Value,
        body: Callable[[Value, Value, Value, Value], None],
    ) -> None:
        """`body(t, image, y, x)` for tiles first + t; y and x count tiles."""
        across, down = self["across"], self["down"]
        line = e.div(first, across)

        def turn(t: Value, image: Value, y: Value, x: Value) -> tuple[Value, Value, Value]:
            body(t, image, y, x)
            after = e.add(x, 1)
            ends = e.compare("eq", after, across)
            below = e.select(ends, e.add(y, 1), y)
            over = e.compare("eq", below, down)
            following = e.select(over, e.add(image, 1), image)
            return following, e.select(over, 0, below), e.select(ends, 0, after)

        start = e.div(line, down), e.rem(line, down), e.rem(first, across)
        e.loop(0, count, 1, turn, start)

    # -- inputs ----------------------------------------------------------------------------

    def _inputs(self, e: Builder, target: Value, first: Value, count: Value) -> None:
        """Transform the inputs of some tiles."""
        spec, transform = self.spec, self.spec.input_function()
        size, channels = spec.reads, self["channels"]
        rows, cells = e.sub(self["height"], size), e.sub(self["width"], size)

        def single(t: Value, image: Value, ty: Value, tx: Value) -> None:
            y, x = e.sub(e.mul(ty, spec.m), self["top"]), e.sub(e.mul(tx, spec.m), self["left"])
            source = e.offset(self["x"], e.mul(image, self["x_image"]))
            inside = e.compare("le", e.max(e.neg(y), e.sub(y, rows)), 0)
            within = e.compare("le", e.max(e.neg(x), e.sub(x, cells)), 0)

            def there() -> tuple[Value, Value]:
                place = e.add(e.mul(y, self["x_line"]), e.mul(x, channels))
                return e.offset(source, place), self["x_line"]

            def copied() -> tuple[Value, Value]:
                self._copy(e, source, y, x)
                return self.patch, e.mul(channels, size)

            begin, line = e.branch(
                e.bitwise("and", inside, within), there, copied, (self.patch, channels)
            )
            row = e.offset(target, e.mul(t, self["pitch"]))
            e.call(transform, begin, line, channels, row, self["point"], channels)

        self._each(e, first, count, single)

    def _copy(self, e: Builder, source: Value, top: Value, left: Value) -> None:
        """Inputs of a tile at the border, among zeros."""
        size, channels = self.spec.reads, self["channels"]
        low = e.min(e.max(e.neg(left), 0), size)
        high = e.max(e.min(e.sub(self["width"], left), size), low)
        cells = [e.mul(n, channels) for n in (low, e.sub(high, low), e.sub(e.index(size), high))]

        def line(r: Value) -> None:
            y = e.add(top, r)
            target = e.offset(self.patch, e.mul(r, e.mul(channels, size)))
            outside = e.max(e.neg(y), e.add(e.sub(y, self["height"]), 1))
            exists = e.bitwise("and", e.compare("le", outside, 0), e.compare("lt", low, high))

            def copy() -> None:
                e.zero(target, cells[0])
                start = e.add(e.mul(y, self["x_line"]), e.mul(e.add(left, low), channels))
                e.copy(e.offset(target, cells[0]), e.offset(source, start), cells[1])
                e.zero(e.offset(target, e.add(cells[0], cells[1])), cells[2])

            e.branch(exists, copy, lambda: e.zero(target, e.mul(channels, size)))

        e.loop(0, size, 1, line)

    # -- products --------------------------------------------------------------------------

    def _products(
        self, e: Builder, values: Value, sums: Value, column: Value, count: Value
    ) -> None:
        """Multiply a block of tiles with one panel, point by point."""
        spec, tile, terms = self.spec, self.spec.tile, self["channels"]
        big, small = (tile_function(tile, "row", small=s, accumulate=False) for s in (False, True))
        whole = e.sub(count, e.rem(count, tile.rows))

        def point(p: Value) -> None:
            a = e.offset(values, e.mul(p, self["point"]))
            b = e.offset(self["panels"], e.mul(p, self["panels_point"]))
            b = e.offset(b, e.mul(terms, column))
            c = e.offset(sums, e.mul(p, self["sums_point"]))

            def multiply(function: Function, r: Value, *last: Value) -> None:
                start, target = e.mul(r, self["pitch"]), e.mul(r, tile.width)
                rows = e.offset(a, start), self["pitch"], b, e.index(tile.width), terms
                e.call(function, *rows, e.offset(c, target), e.index(tile.width), *last)

            e.loop(0, whole, tile.rows, lambda r: multiply(big, r))
            e.loop(whole, count, tile.small, lambda r: multiply(small, r, e.sub(count, r)))

        e.loop(0, spec.points, 1, point)

    # -- results ---------------------------------------------------------------------------

    def _results(self, e: Builder, sums: Value, first: Value, count: Value, column: Value) -> None:
        """Transform the sums of some tiles and one panel, apply the epilogue, and store."""
        spec, tile = self.spec, self.spec.tile
        transform, m = result_function(spec.m, tile), spec.m
        columns = e.sub(self["columns"], column)

        def single(t: Value, image: Value, ty: Value, tx: Value) -> None:
            e.call(
                transform,
                e.offset(sums, e.mul(t, self["sums_pitch"])),
                self["sums_point"],
                self.made,
            )
            y, x = e.mul(ty, m), e.mul(tx, m)
            rows = e.min(e.sub(self["result_height"], y), m)
            cells = e.min(e.sub(self["result_width"], x), m)

            def line(r: Value) -> None:
                places = {
                    name: self._place(e, name, access, (image, e.add(y, r), x, column))
                    for name, access in self._accesses().items()
                }
                extras = [place for name, place in places.items() if name.startswith("x")]
                results = [place for name, place in places.items() if name.startswith("c")]
                start = e.offset(self.made, e.mul(r, m * tile.width))
                block = Block(start, tile.width, cells, columns)
                finish(e, tile, spec.epilogue, block, extras, results)

            e.loop(0, rows, 1, line)

        self._each(e, first, count, single)

    def _place(
        self, e: Builder, name: str, access: Access, where: tuple[Value, Value, Value, Value]
    ) -> Place:
        """An operand or result at an image, a line, a cell and a channel."""
        image, line, cell, column = where
        start = e.mul(image, self[f"{name}_image"])
        start = e.add(start, e.mul(line, self[f"{name}_line"]))
        place = Place(access, self[name], self[f"{name}_row"], self[f"{name}_column"])
        return moved(e, replace(place, pointer=e.offset(self[name], start)), cell, column)
