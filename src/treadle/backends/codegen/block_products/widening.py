"""Values of panels as words of bfloat16, in scratch memory, as micro-kernels read columns.

A matrix W [rows, k] lies in panels of 16 rows. Products with its transpose have its rows as columns
and neighboring elements of a row as words; those with W itself, which gradients are, have elements
of a row as columns and neighboring rows as words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from treadle.backends.codegen.block_products.levels import Header, Levels
from treadle.backends.codegen.contraction.pairs.packed import LINES, PANEL, WIDTH, WORDS
from treadle.backends.codegen.contraction.shared.pack import transpose
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import Pointer, Value, fma, minimum, shuffle
from treadle.base import dtype as dt
from treadle.base.blocks.panels import PanelLayout

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

    def stretches(self) -> Value:
        """Return the number of stretches of so many columns."""

    def steps(self) -> Value:
        """Steps of `TERMS` terms."""

    def write(
        self, e: Builder, matrix: Pointer, number: Value, some: tuple[Value, Value], target: Pointer
    ) -> None:
        """Some steps (the first, how many) of a stretch's columns: words by pair and step."""


def values(levels: Levels, piece: Pointer, given: Header) -> Iterator[tuple[int, list[Value]]]:
    """Four neighboring elements of 16 rows at a time, float32, and the place of the first.

    `piece` points to a piece of a block, `given` is the block's header.
    """
    layout = levels.layout
    for group in range(layout.groups):
        scale, least = levels.scales(piece, group, 0, given)
        if layout.offset:
            least = scale * -float(layout.offset)
        for i, level in enumerate(levels.words(piece, group, 0)):
            four = level.bitcast(dt.int32)
            made = []
            for byte in range(4):
                value = ((four >> 8 * byte) & 255).cast(dt.float32)
                made.append(value * scale if least is None else fma(value, scale, least))
            yield group * layout.group + 4 * i, made


class RowsAsColumns:
    """For x W^T: a stretch is two panels."""

    pairs = 1

    def __init__(self, layout: PanelLayout, blocks: Value, panels: Value) -> None:
        self.levels, self.layout = Levels(layout, LINES), layout
        self.blocks, self.panels = blocks, panels

    def stretches(self) -> Value:
        """Pairs of panels."""
        return (self.panels + 1) // 2

    def steps(self) -> Value:
        """Return the number of steps of a row."""
        return self.blocks * (self.layout.elements // TERMS)

    def write(
        self, e: Builder, matrix: Pointer, number: Value, some: tuple[Value, Value], target: Pointer
    ) -> None:
        """Panel by panel; behind the last one come the values of the last once more."""
        layout, (first, count) = self.layout, some
        with e.loop(2) as half:
            panel = minimum(number * 2 + half, self.panels - 1)
            begin = first * TERMS // layout.elements
            weights = matrix + (panel * self.blocks + begin) * layout.block
            words = target + half * LINES
            with e.loop(count * TERMS // layout.elements) as i:
                here = weights + i * layout.block
                header = self.levels.header(here, 0)
                with e.loop(layout.pieces) as p:
                    given = here + (p * layout.piece + layout.header)
                    term = i * layout.elements + p * layout.span
                    self._piece(given, header, words + term * (WIDTH // 2))

    def _piece(self, piece: Pointer, header: Header, target: Pointer) -> None:
        """Words of the values of a piece."""
        for place, four in values(self.levels, piece, header):
            narrow = [value.cast(dt.bfloat16) for value in four]
            for j in range(2):
                both = shuffle(narrow[2 * j], narrow[2 * j + 1], _TURNS)
                target[(place // 2 + j) * WIDTH] = both.bitcast(dt.int32)


class RowsAsTerms:
    """For x W: a stretch is a piece of a block of all rows, a step two panels.

    Args:
        layout: of the panels.
        blocks: of a row.
        panels: how many there are.
        room: steps that scratch memory has for a pair of columns.
    """

    def __init__(self, layout: PanelLayout, blocks: Value, panels: Value, room: int) -> None:
        self.levels, self.layout = Levels(layout, LINES), layout
        self.blocks, self.panels, self.room = blocks, panels, room
        self.pairs = layout.span // WIDTH

    def stretches(self) -> Value:
        """Pieces of a row."""
        return self.blocks * self.layout.pieces

    def steps(self) -> Value:
        """Pairs of panels."""
        return (self.panels + 1) // 2

    def write(
        self, e: Builder, matrix: Pointer, number: Value, some: tuple[Value, Value], target: Pointer
    ) -> None:
        """Squares of words, transposed; behind the last panel come its values once more."""
        layout, (first, count) = self.layout, some
        block, piece = number // layout.pieces, number % layout.pieces
        inside = piece * layout.piece + layout.header

        def panel(number: Value) -> Iterator[tuple[int, list[Value]]]:
            place = minimum(number, self.panels - 1)
            here = matrix + (place * self.blocks + block) * layout.block
            header = self.levels.header(here, 0)
            return values(self.levels, here + inside, header)

        with e.loop(count) as s:
            upper = (first + s) * 2
            into = target + s * PANEL
            square: list[Value] = []
            for (place, these), (_, those) in zip(panel(upper), panel(upper + 1), strict=True):
                for one, other in zip(these, those, strict=True):
                    halves = one.cast(dt.bfloat16), other.cast(dt.bfloat16)
                    square.append(shuffle(*halves, range(2 * LINES)).bitcast(dt.int32))
                if len(square) == LINES:
                    pair, half = divmod(place // LINES, 2)
                    start = pair * self.room * PANEL + half * LINES
                    for w, line in enumerate(transpose(square)):
                        into[start + w * WIDTH] = line
                    square = []
