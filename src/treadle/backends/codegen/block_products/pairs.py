"""Products of many rows in bfloat16, with weights in panels.

The values of two panels, 32 columns, are written into scratch memory as words of two neighboring
terms, some 16 steps of 32 terms at a time. All rows of an item are multiplied with them there by
the micro-kernels of products of words (`contraction/pairs/tiles.py`). So weights are widened once
for hundreds of rows, and nothing is scaled behind a product: matrix registers add without a pause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from treadle.backends.codegen.block_products.widening import (
    TERMS,
    RowsAsColumns,
    RowsAsTerms,
    Widening,
)
from treadle.backends.codegen.contraction.pairs.packed import GROUP, LINES, PANEL, WIDTH, WORDS
from treadle.backends.codegen.contraction.pairs.tiles import Multiplier, unit_function
from treadle.backends.codegen.irregular.rows import resolve
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S, required
from treadle.base import dtype as dt
from treadle.base.blocks.panels import PanelLayout
from treadle.base.dtype import DType

DEPTH = 16
"""Steps of two panels in scratch memory, 32 KiB, which stay in the first cache."""
MOST = 20
"""Up to so many steps, sums are not split."""
SUMS = 1 << 17
"""Sums of an item in scratch memory, 512 KiB."""
ROUTED = 256
"""Most rows of an item that chose an expert."""
HEIGHT = 512
"""Most rows of an item: with `DEPTH` steps, 512 KiB."""
BLOCK = 2 * LINES
"""Rows that are multiplied at a time."""


@dataclass(frozen=True, slots=True)
class BlockPairSpec:
    """A kernel's constants: how weights lie, the type of results, what multiplies.

    Rows are multiplied with the matrix W in panels as x W^T, or, `transposed`, as x W.
    """

    layout: PanelLayout
    dtype: DType
    matrices: bool
    transposed: bool = False

    @property
    def unit(self) -> Multiplier:
        """The micro-kernel that multiplies words."""
        return Multiplier(dt.bfloat16, dt.bfloat16, dt.float32, self.matrices)


class WordsParameters(Record[P, S], words=dt.int32):
    """Rows x [rows, terms], their words, and the steps of each, with the terms where ragged."""

    x: P
    words: P
    steps: S
    terms: S | None


@cache
def words_kernel(dtype: DType, *, grouped: bool, ragged: bool) -> RecordedKernel:
    """A kernel over rows.

    Words lie as [row][step][word], or, `grouped`, as [group of 16 rows][step][row][word]. Where the
    terms of a row are `ragged`, no whole steps, zeros follow them.
    """
    e = KernelBuilder()
    e.flushes = True
    kind = WordsParameters[Pointer, Value]
    p = e.record(kind, x=dtype, terms="terms" if ragged else None)
    steps, terms = p.steps, p.terms
    pitch = GROUP if grouped else WORDS
    with e.items() as r:
        source = p.x + r * (steps * TERMS if terms is None else terms)
        place = r * (steps * WORDS)
        if grouped:
            group = r // LINES * (steps * GROUP)
            place = group + r % LINES * WORDS
        target = p.words + place
        with e.loop(steps) as s:
            for half in range(2):
                at = s * TERMS + half * LINES
                mask = None if terms is None else e.first_lanes(terms - at, LINES)
                given = source.load(at, LINES, mask).cast(dt.float32)
                place = s * pitch + half * LINES // 2
                target[place] = given.cast(dt.bfloat16).bitcast(dt.int32)
    name = "words_of_" + ("groups" if grouped else "rows") + "_ragged" * ragged
    return RecordedKernel(e.kernel(f"{name}_{dtype.name}"), p)


class Routes(Record[P, S]):
    """Rows in the order of their experts, those of one in their own; ends of those of each."""

    order: P
    ends: P


def declare_routes(e: KernelBuilder) -> Routes[Pointer, Value]:
    """Parameters of a kernel."""
    return e.record(Routes[Pointer, Value], order=dt.int32, ends=dt.int32)


class RoutesParameters(Record[P, S]):
    """Numbers of experts, where their routes go, how many numbers and how many experts."""

    numbers: P
    routes: Routes[P, S]
    count: S
    experts: S


@cache
def routes_kernel(dtype: DType) -> RecordedKernel:
    """A kernel of one item."""
    e = KernelBuilder()
    routes = partial(declare_routes, e)
    p = e.record(RoutesParameters[Pointer, Value], numbers=dtype, routes=routes)
    numbers, order, ends, count = p.numbers, p.routes.order, p.routes.ends, p.count
    with e.when(e.lo < e.hi):
        ends.zero(p.experts)
        with e.loop(count) as i:
            expert = resolve(numbers[i], p.experts)
            ends[expert] = ends[expert] + 1
        before = [e.constant(0, dt.int32)]
        with e.loop(p.experts, carrying=before) as expert:
            many = ends[expert]
            ends[expert] = before[0]
            before[0] += many
        with e.loop(count) as i:
            expert = resolve(numbers[i], p.experts)
            place = ends[expert].cast(dt.int64)
            order[place] = i.cast(dt.int32)
            # What was where an expert's rows begin is where they end.
            ends[expert] = ends[expert] + 1
    return RecordedKernel(e.kernel("routes"), p)


class PairParameters(Record[P, S], words=dt.int32, panels=dt.uint8):
    """Parameters of products.

    Attributes:
        words, panels, y: words of rows, panels of weights, those of all experts, and y [m, n].
        routes: of rows to experts, where there are some.
        blocks, panel_count: blocks of the format in a row, panels of a matrix.
        height, width, depth: rows and pairs of panels of an item, steps of a part of its sums.
        sharing: neighboring rows of y that share a row of words.
    """

    words: P
    panels: P
    y: P
    routes: Routes[P, S] | None
    m: S
    n: S
    blocks: S
    panel_count: S
    height: S
    width: S
    depth: S
    sharing: S | None


@cache
def routed_kernel(spec: BlockPairSpec, name: str, features: tuple[str, ...]) -> RecordedKernel:
    """A kernel over (expert, part of the columns) for the rows that chose the expert."""
    return _Pairs(spec, routed=True).routed(f"experts_{name}", features)


@cache
def pairs_kernel(spec: BlockPairSpec, name: str, features: tuple[str, ...]) -> RecordedKernel:
    """A kernel over (part of the rows, part of the columns), columns fastest."""
    return _Pairs(spec).kernel(f"blocks_{name}", features)


@dataclass(frozen=True, slots=True)
class _ItemRows:
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
    weights: Pointer
    words: Callable[[Value, Value], tuple[Pointer, Value]]
    line: Callable[[Value], Value]


class _Pairs:
    """Writes the kernel."""

    def __init__(self, spec: BlockPairSpec, *, routed: bool = False) -> None:
        self.spec, self.layout = spec, spec.layout
        sizes = (BLOCK, LINES) if spec.matrices else (spec.unit.rows,)
        self.tiles = {rows: unit_function(spec.unit, rows) for rows in sizes}
        self.e = e = KernelBuilder()
        e.flushes = True  # As its products do.
        routes, sharing = (partial(declare_routes, e), "sharing") if routed else (None, None)
        kind = PairParameters[Pointer, Value]
        self.p = e.record(kind, y=spec.dtype, routes=routes, sharing=sharing)
        self.gathered = e.stack(dt.int32, ROUTED * WORDS * MOST) if routed else None
        given = spec.layout, self.p.blocks, self.p.panel_count
        self.widening: Widening = (
            RowsAsTerms(*given, MOST) if spec.transposed else RowsAsColumns(*given)
        )
        self.words = e.stack(dt.int32, self.widening.pairs * MOST * PANEL)
        self.sums = e.stack(dt.float32, SUMS)
        if spec.matrices:
            e.begin_matrices()

    def end(self, name: str, features: tuple[str, ...]) -> RecordedKernel:
        """The kernel that has been written."""
        matrices = self.spec.matrices
        if matrices:
            self.e.end_matrices()
        name += "_transposed" * self.spec.transposed
        name += f"_bfloat16_{'matrices' if matrices else 'vectors'}"
        made = self.e.kernel(name, list(self.tiles.values()), features if matrices else ())
        return RecordedKernel(made, self.p)

    def kernel(self, name: str, features: tuple[str, ...]) -> RecordedKernel:
        """Some rows of words that lie by groups."""
        p = self.p
        with self.e.items() as i:
            parts = self._parts()
            top, left = i // parts * p.height, i % parts * p.width
            steps = self.widening.steps()
            place = top // LINES * (steps * GROUP)

            def words(first: Value, count: Value) -> tuple[Pointer, Value]:
                return p.words + (place + first * GROUP), steps * GROUP

            rows = minimum(p.height, p.m - top)
            self._rows(_ItemRows(rows, left, p.panels, words, lambda r: top + r))
        return self.end(name, features)

    def routed(self, name: str, features: tuple[str, ...]) -> RecordedKernel:
        """The rows of an expert, gathered."""
        e, p, gathered = self.e, self.p, required(self.gathered)
        order, ends = required(p.routes).order, required(p.routes).ends
        with e.items() as i:
            parts = self._parts()
            expert, left = i // parts, i % parts * p.width
            size = p.panel_count * (p.blocks * self.layout.block)
            weights = p.panels + expert * size
            end = ends[expert].cast(dt.int64)
            before = ends[maximum(expert - 1, 0)]
            begin = select(expert == 0, 0, before.cast(dt.int64))
            with e.loop(begin, end, p.height) as top:
                count = minimum(p.height, end - top)

                def line(r: Value, top: Value = top) -> Value:
                    return order[top + r].cast(dt.int64)

                def words(
                    first: Value, steps: Value, count: Value = count
                ) -> tuple[Pointer, Value]:
                    with e.loop(count) as r:
                        row = line(r) // required(p.sharing) * (self.widening.steps() * WORDS)
                        source = p.words + (row + first * WORDS)
                        group = r // LINES * (steps * GROUP)
                        into = gathered + (group + r % LINES * WORDS)
                        with e.loop(steps) as s:
                            place = s * GROUP
                            into[place] = source.load(s * WORDS, WORDS)
                    return gathered, steps * GROUP

                self._rows(_ItemRows(count, left, weights, words, line))
        return self.end(name, features)

    def _parts(self) -> Value:
        """Items of neighboring columns."""
        return (self.widening.stretches() + (self.p.width - 1)) // self.p.width

    def _rows(self, at: _ItemRows) -> None:
        """The columns of an item for some rows."""
        e, widening = self.e, self.widening
        stretches, many = widening.stretches(), widening.pairs
        room = (at.count + (BLOCK - 1)) // BLOCK * (BLOCK * WIDTH)
        steps = widening.steps()
        with e.loop(0, steps, self.p.depth) as first:
            count = minimum(self.p.depth, steps - first)
            last = first + count == steps
            words, below = at.words(first, count)
            with e.loop(minimum(self.p.width, stretches - at.left)) as p:
                number = at.left + p
                widening.write(e, at.weights, number, (first, count), self.words)
                for pair in range(many):
                    columns = self.words + pair * MOST * PANEL
                    sums = self.sums + (p * many + pair) * room
                    place = number * many + pair
                    with e.loop(0, at.count, BLOCK) as r:
                        a = words + r // LINES * below
                        c = sums + r * WIDTH
                        some = minimum(BLOCK, at.count - r)
                        self._multiply((a, below, columns, c), count, first, some)
                        with e.when(last):
                            self._store(c, r, some, place, at.line)

    def _multiply(
        self, places: tuple[Pointer, Value, Pointer, Pointer], count: Value, add: Value, rows: Value
    ) -> None:
        """Some rows times words in scratch memory: rows, from group to group, words, sums."""
        e, (a, below, columns, c) = self.e, places

        def call(size: int, first: Value) -> None:
            # Rows of a tile lie in one group, or make up whole ones.
            start = first // LINES * below + first % LINES * WORDS
            into = c + first * WIDTH
            given = a + start, WORDS, GROUP, below, columns, columns, count, into, add
            e.call(self.tiles[size], *given)

        if self.spec.matrices:
            with e.when(rows <= LINES):
                call(LINES, e.index(0))
            with e.otherwise():
                call(BLOCK, e.index(0))
        else:
            many = self.spec.unit.rows
            with e.loop(0, rows, many) as first:
                call(many, first)

    def _store(
        self,
        sums: Pointer,
        top: Value,
        rows: Value,
        pair: Value,
        line: Callable[[Value], Value],
    ) -> None:
        """Sums that are complete become results."""
        e = self.e
        with e.loop(rows) as r:
            start = line(top + r) * self.p.n
            for half in range(2):
                column = pair * WIDTH + half * LINES
                mask = e.first_lanes(self.p.n - column, LINES)
                value = sums.load(r * WIDTH + half * LINES, LINES)
                self.p.y.store(start + column, value.cast(self.spec.dtype), mask)
