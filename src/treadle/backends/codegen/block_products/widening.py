"""Values of panels as words of bfloat16, in scratch memory, as micro-kernels read columns.

A matrix W [rows, k] lies in panels of 16 rows. Products with its transpose have its rows as columns
and neighboring elements of a row as words; those with W itself, which gradients are, have elements
of a row as columns and neighboring rows as words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from treadle.backends.codegen.block_products.levels import Levels
from treadle.backends.codegen.contraction.pack import transpose
from treadle.backends.codegen.contraction.pair_words import LINES, PANEL, WIDTH, WORDS
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.base import dtype as dt
from treadle.base.blocks.panels import Layout

TERMS = 2 * WORDS
"""Terms of a step."""
_TURNS = [i // 2 + LINES * (i % 2) for i in range(2 * LINES)]
"""Elements of two vectors by turns."""


class Widening(Protocol):
    """Columns of a product in scratch memory.

    Attributes:
        pairs: pairs of 16 columns that are written at a time.
    """

    pairs: int

    def stretches(self, e: Builder) -> Value:
        """How many times so many columns there are."""

    def steps(self, e: Builder) -> Value:
        """Steps of `TERMS` terms."""

    def write(
        self, e: Builder, matrix: Value, number: Value, some: tuple[Value, Value], target: Value
    ) -> None:
        """Some steps (the first, how many) of a stretch's columns: words by pair and step."""


def values(
    e: Builder, levels: Levels, piece: Value, given: tuple[Value, Value | None]
) -> Iterator[tuple[int, list[Value]]]:
    """Four neighboring elements of 16 rows at a time, float32, and the place of the first.

    `piece` points to a piece of a block, `given` is the block's header.
    """
    layout = levels.layout
    for group in range(layout.groups):
        scale, least = levels.scales(e, piece, group, 0, given)
        if layout.offset:
            least = e.mul(scale, -float(layout.offset))
        for i, level in enumerate(levels.words(e, piece, group, 0)):
            four = e.bitcast(level, dt.int32)
            made = []
            for byte in range(4):
                number = e.bitwise("and", e.bitwise("shr", four, 8 * byte), 255)
                value = e.cast(number, dt.float32)
                made.append(e.mul(value, scale) if least is None else e.fma(value, scale, least))
            yield group * layout.group + 4 * i, made


class RowsAsColumns:
    """For x W^T: a stretch is two panels."""

    pairs = 1

    def __init__(self, layout: Layout, blocks: Value, panels: Value) -> None:
        self.levels, self.layout = Levels(layout, LINES), layout
        self.blocks, self.panels = blocks, panels

    def stretches(self, e: Builder) -> Value:
        """Pairs of panels."""
        return e.div(e.add(self.panels, 1), 2)

    def steps(self, e: Builder) -> Value:
        """Those of a row."""
        return e.mul(self.blocks, self.layout.elements // TERMS)

    def write(
        self, e: Builder, matrix: Value, number: Value, some: tuple[Value, Value], target: Value
    ) -> None:
        """Panel by panel; behind the last one come the values of the last once more."""
        e.loop(0, 2, 1, lambda half: self._panel(e, matrix, half, (number, *some), target))

    def _panel(
        self, e: Builder, matrix: Value, half: Value, at: tuple[Value, ...], words: Value
    ) -> None:
        layout = self.layout
        pair, first, count = at
        panel = e.min(e.add(e.mul(pair, 2), half), e.sub(self.panels, 1))
        begin = e.div(e.mul(first, TERMS), layout.elements)
        place = e.mul(e.add(e.mul(panel, self.blocks), begin), layout.block)
        weights = e.offset(matrix, place)
        target = e.offset(words, e.mul(half, LINES))

        def block(i: Value) -> None:
            here = e.offset(weights, e.mul(i, layout.block))
            header = self.levels.header(e, here, 0)

            def piece(p: Value) -> None:
                given = e.offset(here, e.add(e.mul(p, layout.piece), layout.header))
                term = e.add(e.mul(i, layout.elements), e.mul(p, layout.span))
                into = e.offset(target, e.mul(term, WIDTH // 2))
                for place, four in values(e, self.levels, given, header):
                    narrow = [e.cast(value, dt.bfloat16) for value in four]
                    for j in range(2):
                        both = e.shuffle(narrow[2 * j], narrow[2 * j + 1], _TURNS)
                        e.store(into, (place // 2 + j) * WIDTH, e.bitcast(both, dt.int32))

            e.loop(0, layout.pieces, 1, piece)

        e.loop(0, e.div(e.mul(count, TERMS), layout.elements), 1, block)


class RowsAsTerms:
    """For x W: a stretch is a piece of a block of all rows, a step two panels.

    Args:
        layout: of the panels.
        blocks: of a row.
        panels: how many there are.
        room: steps that scratch memory has for a pair of columns.
    """

    def __init__(self, layout: Layout, blocks: Value, panels: Value, room: int) -> None:
        self.levels, self.layout = Levels(layout, LINES), layout
        self.blocks, self.panels, self.room = blocks, panels, room
        self.pairs = layout.span // WIDTH

    def stretches(self, e: Builder) -> Value:
        """Pieces of a row."""
        return e.mul(self.blocks, self.layout.pieces)

    def steps(self, e: Builder) -> Value:
        """Pairs of panels."""
        return e.div(e.add(self.panels, 1), 2)

    def write(
        self, e: Builder, matrix: Value, number: Value, some: tuple[Value, Value], target: Value
    ) -> None:
        """Squares of words, transposed; behind the last panel come its values once more."""
        layout, (first, count) = self.layout, some
        block, piece = e.div(number, layout.pieces), e.rem(number, layout.pieces)
        inside = e.add(e.mul(piece, layout.piece), layout.header)

        def panel(number: Value) -> Iterator[tuple[int, list[Value]]]:
            place = e.min(number, e.sub(self.panels, 1))
            place = e.mul(e.add(e.mul(place, self.blocks), block), layout.block)
            here = e.offset(matrix, place)
            header = self.levels.header(e, here, 0)
            return values(e, self.levels, e.offset(here, inside), header)

        def step(s: Value) -> None:
            upper = e.mul(e.add(first, s), 2)
            into = e.offset(target, e.mul(s, PANEL))
            square: list[Value] = []
            for (place, these), (_, those) in zip(
                panel(upper), panel(e.add(upper, 1)), strict=True
            ):
                for one, other in zip(these, those, strict=True):
                    halves = e.cast(one, dt.bfloat16), e.cast(other, dt.bfloat16)
                    square.append(e.bitcast(e.shuffle(*halves, range(2 * LINES)), dt.int32))
                if len(square) == LINES:
                    pair, half = divmod(place // LINES, 2)
                    start = pair * self.room * PANEL + half * LINES
                    for w, line in enumerate(transpose(e, square)):
                        e.store(into, start + w * WIDTH, line)
                    square = []

        e.loop(0, count, 1, step)
