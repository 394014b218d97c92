"""Products of many rows in bfloat16, with weights in panels.

The values of two panels, 32 columns, are written into scratch memory as words of two neighboring
terms, some 16 steps of 32 terms at a time. All rows of an item are multiplied with them there by
the micro-kernels of products of words (`contraction/pair_tiles.py`). So weights are widened once
for hundreds of rows, and nothing is scaled behind a product: matrix registers add without a pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.block_products.levels import Header, Levels
from treadle.backends.codegen.contraction.pair_tiles import Unit, unit_function
from treadle.backends.codegen.contraction.pair_words import GROUP, LINES, PANEL, WIDTH, WORDS
from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.base import dtype as dt
from treadle.base.blocks.panels import Layout
from treadle.base.dtype import DType

TERMS = 2 * WORDS
"""Terms of a step."""
DEPTH = 16
"""Steps of two panels in scratch memory, 32 KiB, which stay in the first cache."""
MOST = 20
"""Up to so many steps, sums are not split."""
SUMS = 1 << 17
"""Sums of an item in scratch memory, 512 KiB."""
HEIGHT = 512
"""Most rows of an item: with `DEPTH` steps, 512 KiB."""
_TURNS = [i // 2 + LINES * (i % 2) for i in range(2 * LINES)]
"""Elements of two vectors by turns."""
BLOCK = 2 * LINES
"""Rows that are multiplied at a time."""


@dataclass(frozen=True, slots=True)
class PairSpec:
    """A kernel's constants: how weights lie, the type of results, what multiplies."""

    layout: Layout
    dtype: DType
    matrices: bool

    @property
    def unit(self) -> Unit:
        """What multiplies words."""
        return Unit(dt.bfloat16, dt.bfloat16, dt.float32, self.matrices)


@cache
def words_kernel(dtype: DType) -> Kernel:
    """A kernel over rows: (x, words, steps of a row), x [rows, terms].

    Words lie as [group of 16 rows][step][row][word].
    """
    x, made, steps = pointer(dtype, "x"), pointer(dt.int32, "words"), size("steps")

    def write(e: Builder, lo: Value, hi: Value) -> None:
        e.flushes = True

        def row(r: Value) -> None:
            source = e.offset(x, e.mul(r, e.mul(steps, TERMS)))
            group = e.mul(e.div(r, LINES), e.mul(steps, GROUP))
            target = e.offset(made, e.add(group, e.mul(e.rem(r, LINES), WORDS)))

            def step(s: Value) -> None:
                for half in range(2):
                    at = e.add(e.mul(s, TERMS), half * LINES)
                    value = e.cast(e.cast(e.load(source, at, LINES), dt.float32), dt.bfloat16)
                    place = e.add(e.mul(s, GROUP), half * LINES // 2)
                    e.store(target, place, e.bitcast(value, dt.int32))

            e.loop(0, steps, 1, step)

        e.loop(lo, hi, 1, row)

    return builder.kernel(f"words_of_rows_{dtype.name}", [x, made, steps], write)


@cache
def pairs_kernel(spec: PairSpec, name: str, features: tuple[str, ...]) -> Kernel:
    """A kernel over (part of the rows, part of the columns), columns fastest.

    Its parameters: words, panels, y [m, n], m, n, blocks of the format in a row, the number of
    panels, the rows and pairs of panels of an item, and the steps of a part of its sums.
    """
    writer = _Pairs(spec)
    kind = "matrices" if spec.matrices else "vectors"
    return builder.kernel(
        f"blocks_{name}_bfloat16_{kind}",
        writer.parameters,
        writer.write,
        list(writer.tiles.values()),
        features=features if spec.matrices else (),
    )


class _Pairs:
    """Writes the kernel."""

    def __init__(self, spec: PairSpec) -> None:
        self.spec, self.layout = spec, spec.layout
        self.levels = Levels(spec.layout, LINES)
        sizes = (BLOCK, LINES) if spec.matrices else (spec.unit.rows,)
        self.tiles = {rows: unit_function(spec.unit, rows) for rows in sizes}
        self.rows, self.weights = pointer(dt.int32, "words"), pointer(dt.uint8, "panels")
        self.y = pointer(spec.dtype, "y")
        names = ("m", "n", "blocks", "panel_count", "height", "width", "depth")
        self.sizes = [size(name) for name in names]
        self.m, self.n, self.blocks, self.panels, self.height, self.width, self.depth = self.sizes

    @property
    def parameters(self) -> list[Value]:
        """In order."""
        return [self.rows, self.weights, self.y, *self.sizes]

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        e.flushes = True  # As its products do.
        self.words = e.stack(dt.int32, MOST * PANEL)
        self.sums = e.stack(dt.float32, SUMS)
        if self.spec.matrices:
            e.begin_matrices()
        e.loop(lo, hi, 1, lambda i: self._item(e, i))
        if self.spec.matrices:
            e.end_matrices()

    def _item(self, e: Builder, i: Value) -> None:
        pairs = e.div(e.add(self.panels, 1), 2)
        parts = e.div(e.add(pairs, e.sub(self.width, 1)), self.width)
        top, left = e.mul(e.div(i, parts), self.height), e.mul(e.rem(i, parts), self.width)
        rows = e.min(self.height, e.sub(self.m, top))
        room = e.mul(e.div(e.add(rows, BLOCK - 1), BLOCK), BLOCK * WIDTH)
        steps = e.mul(self.blocks, self.layout.elements // TERMS)

        def part(first: Value) -> None:
            count = e.min(self.depth, e.sub(steps, first))
            last = e.compare("eq", e.add(first, count), steps)

            def pair(p: Value) -> None:
                number = e.add(left, p)
                e.loop(0, 2, 1, lambda half: self._widen(e, number, half, first, count))
                sums = e.offset(self.sums, e.mul(p, room))

                def block(r: Value) -> None:
                    group = e.mul(e.div(e.add(top, r), LINES), e.mul(steps, GROUP))
                    a = e.offset(self.rows, e.add(group, e.mul(first, GROUP)))
                    c = e.offset(sums, e.mul(r, WIDTH))
                    some = e.min(BLOCK, e.sub(rows, r))
                    self._multiply(e, a, e.mul(steps, GROUP), count, c, first, some)
                    e.branch(last, lambda: self._store(e, c, e.add(top, r), some, number))

                e.loop(0, rows, BLOCK, block)

            e.loop(0, e.min(self.width, e.sub(pairs, left)), 1, pair)

        e.loop(0, steps, self.depth, part)

    def _multiply(
        self, e: Builder, a: Value, below: Value, count: Value, c: Value, add: Value, rows: Value
    ) -> None:
        """Some rows times the words in scratch memory."""

        def call(size: int, first: Value | int) -> None:
            first = e.index(first)
            # Rows of a tile lie in one group, or make up whole ones.
            start = e.add(e.mul(e.div(first, LINES), below), e.mul(e.rem(first, LINES), WORDS))
            into = e.offset(c, e.mul(first, WIDTH))
            steps = e.index(WORDS), e.index(GROUP), below
            tile, ahead = self.tiles[size], self.words
            e.call(tile, e.offset(a, start), *steps, self.words, ahead, count, into, add)

        if self.spec.matrices:
            one = e.compare("le", rows, LINES)
            e.branch(one, lambda: call(LINES, 0), lambda: call(BLOCK, 0))
        else:
            many = self.spec.unit.rows
            e.loop(0, rows, many, lambda first: call(many, first))

    def _store(self, e: Builder, sums: Value, top: Value, rows: Value, pair: Value) -> None:
        """Sums that are complete become results."""
        for half in range(2):
            column = e.add(e.mul(pair, WIDTH), half * LINES)
            mask = e.first_lanes(e.sub(self.n, column), LINES)

            def row(r: Value, half: int = half, column: Value = column, mask: Value = mask) -> None:
                value = e.load(sums, e.add(e.mul(r, WIDTH), half * LINES), LINES)
                at = e.add(e.mul(e.add(top, r), self.n), column)
                e.store(self.y, at, e.cast(value, self.spec.dtype), mask)

            e.loop(0, rows, 1, row)

    def _widen(self, e: Builder, pair: Value, half: Value, first: Value, count: Value) -> None:
        """A panel's values as words; behind the last panel those of the last once more."""
        layout = self.layout
        panel = e.min(e.add(e.mul(pair, 2), half), e.sub(self.panels, 1))
        begin = e.div(e.mul(first, TERMS), layout.elements)
        place = e.mul(e.add(e.mul(panel, self.blocks), begin), layout.block)
        weights = e.offset(self.weights, place)
        target = e.offset(self.words, e.mul(half, LINES))

        def block(i: Value) -> None:
            here = e.offset(weights, e.mul(i, layout.block))
            header = self.levels.header(e, here, 0)

            def piece(p: Value) -> None:
                given = e.offset(here, e.add(e.mul(p, layout.piece), layout.header))
                term = e.add(e.mul(i, layout.elements), e.mul(p, layout.span))
                self._piece(e, given, header, e.offset(target, e.mul(term, WIDTH // 2)))

            e.loop(0, layout.pieces, 1, piece)

        e.loop(0, e.div(e.mul(count, TERMS), layout.elements), 1, block)

    def _piece(self, e: Builder, piece: Value, header: Header, target: Value) -> None:
        layout = self.layout
        for group in range(layout.groups):
            scale, least = self.levels.scales(e, piece, group, 0, header)
            if layout.offset:
                least = e.mul(scale, -float(layout.offset))
            for i, level in enumerate(self.levels.words(e, piece, group, 0)):
                four = e.bitcast(level, dt.int32)
                values = []
                for byte in range(4):
                    number = e.bitwise("and", e.bitwise("shr", four, 8 * byte), 255)
                    made = e.cast(number, dt.float32)
                    value = e.mul(made, scale) if least is None else e.fma(made, scale, least)
                    values.append(e.cast(value, dt.bfloat16))
                for j in range(2):
                    both = e.shuffle(values[2 * j], values[2 * j + 1], _TURNS)
                    word = e.bitcast(both, dt.int32)
                    e.store(target, ((group * layout.group + 4 * i) // 2 + j) * WIDTH, word)
