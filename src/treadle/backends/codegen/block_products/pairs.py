"""Products of many rows in bfloat16, with weights in panels.

The values of two panels, 32 columns, are written into scratch memory as words of two neighboring
terms, some 16 steps of 32 terms at a time. All rows of an item are multiplied with them there by
the micro-kernels of products of words (`contraction/pair_tiles.py`). So weights are widened once
for hundreds of rows, and nothing is scaled behind a product: matrix registers add without a pause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.block_products.widening import (
    TERMS,
    RowsAsColumns,
    RowsAsTerms,
    Widening,
)
from treadle.backends.codegen.contraction.pair_tiles import Unit, unit_function
from treadle.backends.codegen.contraction.pair_words import GROUP, LINES, PANEL, WIDTH, WORDS
from treadle.backends.codegen.irregular.rows import resolve
from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.base import dtype as dt
from treadle.base.blocks.panels import Layout
from treadle.base.dtype import DType

DEPTH = 16
"""Steps of two panels in scratch memory, 32 KiB, which stay in the first cache."""
MOST = 20
"""Up to so many steps, sums are not split."""
SUMS = 1 << 17
"""Sums of an item in scratch memory, 512 KiB."""
ROUTED = 256
"""Most rows of an item that chose an expert."""
ROUTES = "order", "ends"
HEIGHT = 512
"""Most rows of an item: with `DEPTH` steps, 512 KiB."""
BLOCK = 2 * LINES
"""Rows that are multiplied at a time."""


@dataclass(frozen=True, slots=True)
class PairSpec:
    """A kernel's constants: how weights lie, the type of results, what multiplies.

    Rows are multiplied with the matrix W in panels as x W^T, or, `transposed`, as x W.
    """

    layout: Layout
    dtype: DType
    matrices: bool
    transposed: bool = False

    @property
    def unit(self) -> Unit:
        """What multiplies words."""
        return Unit(dt.bfloat16, dt.bfloat16, dt.float32, self.matrices)


@cache
def words_kernel(dtype: DType, *, grouped: bool, ragged: bool) -> Kernel:
    """A kernel over rows: (x, words, steps of a row), x [rows, terms].

    Words lie as [row][step][word], or, `grouped`, as [group of 16 rows][step][row][word]. The terms
    of a row are a further parameter where they are `ragged`, no whole steps; zeros follow them.
    """
    x, made, steps = pointer(dtype, "x"), pointer(dt.int32, "words"), size("steps")
    terms = size("terms")
    pitch = GROUP if grouped else WORDS

    def write(e: Builder, lo: Value, hi: Value) -> None:
        e.flushes = True

        def row(r: Value) -> None:
            source = e.offset(x, e.mul(r, terms if ragged else e.mul(steps, TERMS)))
            place = e.mul(r, e.mul(steps, WORDS))
            if grouped:
                group = e.mul(e.div(r, LINES), e.mul(steps, GROUP))
                place = e.add(group, e.mul(e.rem(r, LINES), WORDS))
            target = e.offset(made, place)

            def step(s: Value) -> None:
                for half in range(2):
                    at = e.add(e.mul(s, TERMS), half * LINES)
                    mask = e.first_lanes(e.sub(terms, at), LINES) if ragged else None
                    given = e.cast(e.load(source, at, LINES, mask), dt.float32)
                    at = e.add(e.mul(s, pitch), half * LINES // 2)
                    e.store(target, at, e.bitcast(e.cast(given, dt.bfloat16), dt.int32))

            e.loop(0, steps, 1, step)

        e.loop(lo, hi, 1, row)

    kind = ("groups" if grouped else "rows") + "_ragged" * ragged
    parameters = [x, made, steps, *[terms] * ragged]
    return builder.kernel(f"words_of_{kind}_{dtype.name}", parameters, write)


@cache
def routes_kernel(dtype: DType) -> Kernel:
    """A kernel of one item: (numbers, order, ends, how many numbers, how many experts).

    Rows of the result in the order of their experts, those of one in their own order; `ends` of
    the rows of each expert.
    """
    numbers, order, ends = pointer(dtype, "numbers"), *(pointer(dt.int32, n) for n in ROUTES)
    count, experts = size("count"), size("experts")

    def write(e: Builder, lo: Value, hi: Value) -> None:
        def each(visit: Callable[[Value, Value], None]) -> None:
            e.loop(0, count, 1, lambda i: visit(i, resolve(e.load(numbers, i), experts)))

        def add(at: Value, number: Value | int) -> None:
            e.store(ends, at, e.add(e.load(ends, at), number))

        def begin(expert: Value, before: Value) -> tuple[Value, ...]:
            many = e.load(ends, expert)
            e.store(ends, expert, before)
            return (e.add(before, many),)

        def place(i: Value, expert: Value) -> None:
            e.store(order, e.cast(e.load(ends, expert), dt.int64), e.cast(i, dt.int32))
            add(expert, 1)

        def work() -> None:
            e.zero(ends, experts)
            each(lambda _, expert: add(expert, 1))
            e.loop(0, experts, 1, begin, (e.constant(0, dt.int32),))
            each(place)  # What was where an expert's rows begin is where they end.

        e.branch(e.compare("lt", lo, hi), work)

    return builder.kernel("routes", [numbers, order, ends, count, experts], write)


@cache
def routed_kernel(spec: PairSpec, name: str, features: tuple[str, ...]) -> Kernel:
    """A kernel over (expert, part of the columns) for the rows that chose the expert.

    Its parameters: words by rows, panels of all experts, y, order and ends of `routes_kernel`, the
    sizes of `pairs_kernel`, and how many neighboring rows of y share a row of words.
    """
    return _made(_Routed(spec), f"experts_{name}", features)


@cache
def pairs_kernel(spec: PairSpec, name: str, features: tuple[str, ...]) -> Kernel:
    """A kernel over (part of the rows, part of the columns), columns fastest.

    Its parameters: words, panels, y [m, n], m, n, blocks of the format in a row, the number of
    panels, the rows and pairs of panels of an item, and the steps of a part of its sums.
    """
    return _made(_Pairs(spec), f"blocks_{name}", features)


def _made(writer: _Pairs, name: str, features: tuple[str, ...]) -> Kernel:
    matrices = writer.spec.matrices
    name += "_transposed" * writer.spec.transposed
    return builder.kernel(
        f"{name}_bfloat16_{'matrices' if matrices else 'vectors'}",
        writer.parameters,
        writer.write,
        list(writer.tiles.values()),
        features=features if matrices else (),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of an item.

    Attributes:
        count: how many.
        left: the first pair of panels.
        weights: the panels of the matrix.
        words: where some steps of the rows lie, and the words from group to group.
        line: of the result, by row.
    """

    count: Value
    left: Value
    weights: Value
    words: Callable[[Value, Value], tuple[Value, Value]]
    line: Callable[[Value], Value]


class _Pairs:
    """Writes the kernel."""

    def __init__(self, spec: PairSpec) -> None:
        self.spec, self.layout = spec, spec.layout
        sizes = (BLOCK, LINES) if spec.matrices else (spec.unit.rows,)
        self.tiles = {rows: unit_function(spec.unit, rows) for rows in sizes}
        self.rows, self.weights = pointer(dt.int32, "words"), pointer(dt.uint8, "panels")
        self.y = pointer(spec.dtype, "y")
        names = ("m", "n", "blocks", "panel_count", "height", "width", "depth")
        self.sizes = [size(name) for name in names]
        self.m, self.n, self.blocks, self.panels, self.height, self.width, self.depth = self.sizes
        given = spec.layout, self.blocks, self.panels
        self.widening: Widening = (
            RowsAsTerms(*given, MOST) if spec.transposed else RowsAsColumns(*given)
        )

    @property
    def parameters(self) -> list[Value]:
        """In order."""
        return [self.rows, self.weights, self.y, *self.sizes]

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        e.flushes = True  # As its products do.
        self.words = e.stack(dt.int32, self.widening.pairs * MOST * PANEL)
        self.sums = e.stack(dt.float32, SUMS)
        if self.spec.matrices:
            e.begin_matrices()
        e.loop(lo, hi, 1, lambda i: self._item(e, i))
        if self.spec.matrices:
            e.end_matrices()

    def _item(self, e: Builder, i: Value) -> None:
        parts = self._parts(e)
        top, left = e.mul(e.div(i, parts), self.height), e.mul(e.rem(i, parts), self.width)
        steps = self.widening.steps(e)
        place = e.mul(e.div(top, LINES), e.mul(steps, GROUP))

        def words(first: Value, count: Value) -> tuple[Value, Value]:
            return e.offset(self.rows, e.add(place, e.mul(first, GROUP))), e.mul(steps, GROUP)

        rows = e.min(self.height, e.sub(self.m, top))
        self._rows(e, _Rows(rows, left, self.weights, words, lambda r: e.add(top, r)))

    def _parts(self, e: Builder) -> Value:
        """Items of neighboring columns."""
        stretches = self.widening.stretches(e)
        return e.div(e.add(stretches, e.sub(self.width, 1)), self.width)

    def _rows(self, e: Builder, at: _Rows) -> None:
        """The columns of an item for some rows."""
        widening = self.widening
        stretches = widening.stretches(e)
        room = e.mul(e.div(e.add(at.count, BLOCK - 1), BLOCK), BLOCK * WIDTH)
        steps = widening.steps(e)

        def part(first: Value) -> None:
            count = e.min(self.depth, e.sub(steps, first))
            last = e.compare("eq", e.add(first, count), steps)
            words, below = at.words(first, count)

            def stretch(p: Value) -> None:
                number = e.add(at.left, p)
                widening.write(e, at.weights, number, (first, count), self.words)
                for pair in range(widening.pairs):
                    columns = e.offset(self.words, pair * MOST * PANEL)
                    many = widening.pairs
                    sums = e.offset(self.sums, e.mul(e.add(e.mul(p, many), pair), room))
                    place = e.add(e.mul(number, many), pair)

                    def block(
                        r: Value, columns: Value = columns, sums: Value = sums, place: Value = place
                    ) -> None:
                        a = e.offset(words, e.mul(e.div(r, LINES), below))
                        c = e.offset(sums, e.mul(r, WIDTH))
                        some = e.min(BLOCK, e.sub(at.count, r))
                        self._multiply(e, (a, below, columns, c), count, first, some)
                        e.branch(last, lambda: self._store(e, c, r, some, place, at.line))

                    e.loop(0, at.count, BLOCK, block)

            e.loop(0, e.min(self.width, e.sub(stretches, at.left)), 1, stretch)

        e.loop(0, steps, self.depth, part)

    def _multiply(
        self, e: Builder, places: tuple[Value, ...], count: Value, add: Value, rows: Value
    ) -> None:
        """Some rows times words in scratch memory: rows, from group to group, words, sums."""
        a, below, columns, c = places

        def call(size: int, first: Value | int) -> None:
            first = e.index(first)
            # Rows of a tile lie in one group, or make up whole ones.
            start = e.add(e.mul(e.div(first, LINES), below), e.mul(e.rem(first, LINES), WORDS))
            into = e.offset(c, e.mul(first, WIDTH))
            steps = e.index(WORDS), e.index(GROUP), below
            tile = self.tiles[size]
            e.call(tile, e.offset(a, start), *steps, columns, columns, count, into, add)

        if self.spec.matrices:
            one = e.compare("le", rows, LINES)
            e.branch(one, lambda: call(LINES, 0), lambda: call(BLOCK, 0))
        else:
            many = self.spec.unit.rows
            e.loop(0, rows, many, lambda first: call(many, first))

    def _store(
        self,
        e: Builder,
        sums: Value,
        top: Value,
        rows: Value,
        pair: Value,
        line: Callable[[Value], Value],
    ) -> None:
        """Sums that are complete become results."""

        def row(r: Value) -> None:
            start = e.mul(line(e.add(top, r)), self.n)
            for half in range(2):
                column = e.add(e.mul(pair, WIDTH), half * LINES)
                mask = e.first_lanes(e.sub(self.n, column), LINES)
                value = e.load(sums, e.add(e.mul(r, WIDTH), half * LINES), LINES)
                e.store(self.y, e.add(start, column), e.cast(value, self.spec.dtype), mask)

        e.loop(0, rows, 1, row)


class _Routed(_Pairs):
    """Writes the kernel for experts."""

    def __init__(self, spec: PairSpec) -> None:
        super().__init__(spec)
        self.order, self.ends = (pointer(dt.int32, name) for name in ROUTES)
        self.sharing = size("sharing")

    @property
    def parameters(self) -> list[Value]:
        routes = self.order, self.ends
        return [self.rows, self.weights, self.y, *routes, *self.sizes, self.sharing]

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        self.gathered = e.stack(dt.int32, ROUTED * WORDS * MOST)
        super().write(e, lo, hi)

    def _item(self, e: Builder, i: Value) -> None:
        parts = self._parts(e)
        expert, left = e.div(i, parts), e.mul(e.rem(i, parts), self.width)
        size = e.mul(self.panels, e.mul(self.blocks, self.layout.block))
        weights = e.offset(self.weights, e.mul(expert, size))
        end = e.cast(e.load(self.ends, expert), dt.int64)
        before = e.load(self.ends, e.max(e.sub(expert, 1), 0))
        none = e.compare("eq", expert, 0)
        begin = e.select(none, e.index(0), e.cast(before, dt.int64))

        def some(top: Value) -> None:
            def line(r: Value) -> Value:
                return e.cast(e.load(self.order, e.add(top, r)), dt.int64)

            count = e.min(self.height, e.sub(end, top))

            def words(first: Value, steps: Value) -> tuple[Value, Value]:
                e.loop(0, count, 1, lambda r: self._gather(e, r, line(r), first, steps))
                return self.gathered, e.mul(steps, GROUP)

            self._rows(e, _Rows(count, left, weights, words, line))

        e.loop(begin, end, self.height, some)

    def _gather(self, e: Builder, r: Value, line: Value, first: Value, steps: Value) -> None:
        """Some steps of a row, into its place in a group."""
        row = e.mul(e.div(line, self.sharing), e.mul(self.widening.steps(e), WORDS))
        source = e.offset(self.rows, e.add(row, e.mul(first, WORDS)))
        group = e.mul(e.div(r, LINES), e.mul(steps, GROUP))
        into = e.offset(self.gathered, e.add(group, e.mul(e.rem(r, LINES), WORDS)))

        def step(s: Value) -> None:
            e.store(into, e.mul(s, GROUP), e.load(source, e.mul(s, WORDS), WORDS))

        e.loop(0, steps, 1, step)
