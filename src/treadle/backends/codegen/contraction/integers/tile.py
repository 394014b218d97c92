"""The micro-kernel of words: see `words.py` for what they are and `tile.py` for tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from treadle.backends.codegen.contraction.shared.tile import Tile, add_what_is_there, choose_tile
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, dot, minimum, shuffle
from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt

WORDS = {2: (dt.int16, dt.int16), 4: (dt.uint8, dt.int8)}
"""Element types of a and b inside words of 32 bits, by how many terms those hold."""
DEPTH = 1024
"""Terms per step of long sums: rows of a block and a panel of so many stay near."""
_SPARE = 5, 4
"""Up to so many times as many, long sums are not split."""
_LINE = 16
"""Words of a cache line."""
_TURN = 2
"""Words that a turn of the loop multiplies: with its own instructions it would take longer than
the products."""


def deepest(terms: int) -> int:
    """Most words per step."""
    return DEPTH // terms * _SPARE[0] // _SPARE[1]


def pitch_of(terms: int) -> int:
    """Words from row to row of a.

    As a constant it needs no register, nor an instruction per row. It is not a multiple of a power
    of two, so rows do not compete for the same few lines of the cache.
    """
    return deepest(terms) + 4 // terms * _LINE


def choose_word_tile(target: Target, rows: int, columns: int, terms: int) -> Tile:
    """The tile for a result of this shape.

    Bytes need two registers more than other types do, for ones and for products in between.
    """
    tile = replace(choose_tile(target, dt.int32, rows, columns), terms=terms)
    if terms == 4 and tile.rows == 6 and tile.vectors == 2 and not target.dot_int8:
        return replace(tile, rows=5)
    return tile


@lru_cache(maxsize=64)
def word_tile_function(
    tile: Tile, *, small: bool, accumulate: bool, narrow: bool = False
) -> KernelRoutine:
    """The micro-kernel as a function of (a, b, words, first, c, c_step[, count][, add]).

    Rows of a are as far apart as `pitch_of` says; b is a panel; sums begin with the row `first`.
    With `small`, rows from `count` on repeat the last one. With `accumulate`, the sums are added to
    c where `add` is not 0. `narrow` claims of bytes what `Builder.dot` says.
    """
    e, rows = Builder(), tile.small if small else tile.rows
    a, b = e.pointer(dt.int32, "a"), e.pointer(dt.int32, "b")
    words, first = e.size("words"), e.pointer(dt.int32, "first")
    c, c_step = e.pointer(dt.int32, "c"), e.size("c_step")
    last = e.size("count") - 1 if small else None
    lines = [e.index(r) if last is None or r == 0 else minimum(last, r) for r in range(rows)]
    starts = [a + line * pitch_of(tile.terms) for line in lines]
    begin = [first.load(v * tile.lanes, tile.lanes) for v in range(tile.vectors)]
    turn = _Turn(tile, starts, [b], [[*begin] for _ in range(rows)], narrow)
    whole = words - words % turn.words
    with e.loop(0, whole, turn.words, carrying=turn.state) as k:
        turn.whole(k)
    with e.loop(whole, words, carrying=turn.state) as k:
        turn.word(k)
    targets = [c + line * c_step for line in lines]
    if accumulate:
        add_what_is_there(tile, targets, turn.sums, e.size("add"))
    for target, line in zip(targets, turn.sums, strict=True):
        for v, value in enumerate(line):
            target[v * tile.lanes] = value
    size = f"{rows}x{tile.width}{'_small' if small else ''}{'_add' if accumulate else ''}"
    size += "_narrow" if narrow else ""
    return e.function(f"tile_words{tile.terms}_{size}")


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of the loop over words: it carries the panel behind the words so far, and the sums."""

    tile: Tile
    starts: list[Pointer]
    panel: list[Pointer]
    sums: list[list[Value]]
    narrow: bool

    @property
    def state(self) -> tuple[list[Any], ...]:
        """The values that turns carry."""
        return (self.panel, *self.sums)

    @property
    def by_place(self) -> bool:
        """True where instructions take a word of a short vector by its place (of bytes: Arm)."""
        return self.tile.terms == 4 and self.tile.lanes == 4

    @property
    def words(self) -> int:
        """The number of words that a whole turn covers."""
        return self.tile.lanes if self.by_place else _TURN

    def word(self, k: Value) -> None:
        """The products of one word of every row."""
        self._add_products(lambda r: self.starts[r][k].splat(self.tile.lanes))

    def whole(self, k: Value) -> None:
        """The products of as many words as a turn has."""
        lanes = self.tile.lanes
        if not self.by_place:
            for i in range(_TURN):
                self.word(k + i)
            return
        lines = [start.load(k, lanes) for start in self.starts]
        for i in range(lanes):
            given = [shuffle(x, x, (i,) * lanes) for x in lines]
            self._add_products(given.__getitem__)

    def _add_products(self, given: Callable[[int], Value]) -> None:
        tile, (panel,) = self.tile, self.panel
        row = [_terms(tile, 1, panel.load(v * tile.lanes, tile.lanes)) for v in range(tile.vectors)]
        for r, line in enumerate(self.sums):
            x = _terms(tile, 0, given(r))
            line[:] = [dot(s, x, y, narrow=self.narrow) for s, y in zip(line, row, strict=True)]
        self.panel[0] = panel + tile.width


def _terms(tile: Tile, side: int, words: Value) -> Value:
    """Words as the terms of an operand."""
    return words.bitcast(WORDS[tile.terms][side])
