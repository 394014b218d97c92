"""The micro-kernel of words: see `words.py` for what they are and `tile.py` for tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from treadle.backends.codegen.contraction.shared.tile import Tile, added, choose_tile
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
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

    As a constant it needs no register, nor an instruction per row. It is no multiple of a power of
    two, so rows do not compete for the same few lines of the cache.
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
) -> Function:
    """The micro-kernel as a function of (a, b, words, first, c, c_step[, count][, add]).

    Rows of a are as far apart as `pitch_of` says; b is a panel; sums begin with the row `first`.
    With `small`, rows from `count` on repeat the last one. With `accumulate`, the sums are added to
    c where `add` is not 0. `narrow` claims of bytes what `Builder.dot` says.
    """
    rows = tile.small if small else tile.rows
    a, b, c, first = (ir.pointer(dt.int32, name) for name in ("a", "b", "c", "first"))
    words, c_step, count, add = map(ir.size, ("words", "c_step", "count", "add"))
    parameters = [a, b, words, first, c, c_step, *[count] * small, *[add] * accumulate]
    vectors = range(tile.vectors)

    def write(e: Builder) -> None:
        last = e.sub(count, 1) if small else None
        places = [e.index(r) if last is None or r == 0 else e.min(last, r) for r in range(rows)]
        starts = [e.offset(a, e.mul(place, pitch_of(tile.terms))) for place in places]

        turn = _Turn(e, tile, starts, narrow=narrow)
        initial = [e.load(first, v * tile.lanes, tile.lanes) for v in vectors] * rows
        whole = e.sub(words, e.rem(words, turn.words))
        found = e.loop(0, whole, turn.words, turn.whole, (b, *initial))
        sums = e.loop(whole, words, 1, turn.word, found)[1:]
        targets = [e.offset(c, e.mul(place, c_step)) for place in places]
        if accumulate:
            sums = added(e, tile, targets, sums, add)
        for i, value in enumerate(sums):
            e.store(targets[i // tile.vectors], i % tile.vectors * tile.lanes, value)

    size = f"{rows}x{tile.width}{'_small' if small else ''}{'_add' if accumulate else ''}"
    size += "_narrow" if narrow else ""
    return builder.function(f"tile_words{tile.terms}_{size}", parameters, write)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the loop over words does; it carries the panel behind the words so far, and the sums."""

    e: Builder
    tile: Tile
    starts: list[Value]
    narrow: bool

    @property
    def by_place(self) -> bool:
        """Whether instructions take a word of a short vector by its place (of bytes: Arm)."""
        return self.tile.terms == 4 and self.tile.lanes == 4

    @property
    def words(self) -> int:
        """Of a whole turn."""
        return self.tile.lanes if self.by_place else _TURN

    def word(self, k: Value, *carried: Value) -> tuple[Value, ...]:
        """The products of one word of every row."""
        e, lanes = self.e, self.tile.lanes
        return self._products(lambda r: e.splat(e.load(self.starts[r], k), lanes), *carried)

    def whole(self, k: Value, *carried: Value) -> tuple[Value, ...]:
        """The products of as many words as a turn has."""
        e, lanes = self.e, self.tile.lanes
        if not self.by_place:
            for i in range(_TURN):
                carried = self.word(e.add(k, i), *carried)
            return carried
        lines = [e.load(start, k, lanes) for start in self.starts]
        for i in range(lanes):
            given = [e.shuffle(x, x, (i,) * lanes) for x in lines]
            carried = self._products(given.__getitem__, *carried)
        return carried

    def _products(
        self, given: Callable[[int], Value], panel: Value, *sums: Value
    ) -> tuple[Value, ...]:
        e, tile, vectors = self.e, self.tile, range(self.tile.vectors)
        row = [_terms(e, tile, 1, e.load(panel, v * tile.lanes, tile.lanes)) for v in vectors]
        made: list[Value] = []
        for r in range(len(self.starts)):
            x = _terms(e, tile, 0, given(r))
            for v in vectors:
                made.append(e.dot(sums[r * tile.vectors + v], x, row[v], narrow=self.narrow))
        return (e.offset(panel, tile.width), *made)


def _terms(e: Builder, tile: Tile, side: int, words: Value) -> Value:
    """Words as the terms of an operand."""
    return e.bitcast(words, WORDS[tile.terms][side])
