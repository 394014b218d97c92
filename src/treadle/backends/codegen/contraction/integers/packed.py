"""Packed integers: words of several small terms, whose products one instruction adds up.

A word of 32 bits holds two terms as 16-bit integers, or four as bytes. Instructions multiply all
terms of a word and add the products up, as int32. Tiles, panels and sums are then as for any other
type, and a term is a word.

A block of rows of a is made words in scratch memory, shortly before tiles read it: terms lie in
runs, contiguous in memory, of which every row has the same, found by tables as patches are.
Whatever completes the last word of a run meets a zero in the panel.

Bytes of a are unsigned. Negative ones become so by an addition of 128, which the sums begin with
taken back. Where nothing multiplies four bytes at once, their products are added in pairs of 16
bits first: that is exact if a has no byte from 128 on, or if no two neighbors in a panel have
magnitudes of more than 128 together. The first is looked up for every block of rows, the second
once for every panel; where neither holds, words of two terms are multiplied. So no result depends
on what was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from treadle.backends.codegen.contraction.integers.tile import WORDS, pitch_of
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum, select, shuffle
from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType

BLOCK = 96
"""Most rows that are words at one time; there is room for one more, of which some is written."""
TOP = -(1 << 31) | 0x00808080
"""The highest bit of every byte of a word."""


@dataclass(frozen=True, slots=True)
class Words:
    """Writer of the code that makes words of rows of a.

    Attributes:
        source: element type of a.
        tabled: whether a table says where rows begin; else they are `a_row` elements apart.
        loose: whether there is something to be read behind every run.
        checked: whether products of bytes are exact for some values only.
    """

    source: DType
    tabled: bool
    loose: bool
    checked: bool

    @property
    def shifted(self) -> bool:
        """True where bytes of a may be made unsigned."""
        return self.source is dt.int8


def terms_per_word(target: Target, a: DType, b: DType) -> int:
    """Return the number of terms of these types in a word."""
    bytes_multiply = target.dot_int8 or (target.vector_bytes >= 32 and not target.triple)
    fits = a in (dt.int8, dt.uint8) and b is dt.int8
    return 4 if bytes_multiply and fits else 2


@lru_cache(maxsize=128)
def words_function(tile: Tile, words: Words) -> KernelRoutine:
    """A function of (source, row_table or row_step, run_table, target, found, rows, runs, run,
    run_words): run q of row r goes to target[r * pitch + q * run_words].

    The bits of all words together go to `found`.
    """
    writer = _RowPacker(Builder(), tile, words)
    writer.write()
    return writer.e.function(f"words_{words.source.name}_{tile.terms}")


class _RowPacker:
    """Writes the function that makes rows words."""

    def __init__(self, e: Builder, tile: Tile, words: Words) -> None:
        self.e, self.tile, self.words = e, tile, words
        self.source = e.pointer(words.source, "source")
        if words.tabled:
            self.row_table = e.pointer(dt.int32, "row_table")
        else:
            self.row_step = e.size("row_step")
        self.table, self.target = e.pointer(dt.int32, "run_table"), e.pointer(dt.int32)
        self.found = e.pointer(dt.int32, "found")
        self.rows, self.runs, self.run, self.run_words = e.sizes("rows", "runs", "run", "run_words")
        self.lanes = tile.lanes * tile.terms

    def write(self) -> None:
        """Rows, their runs, vectors of them; the bits seen are carried along."""
        e, pitch = self.e, pitch_of(self.tile.terms)
        seen = [e.constant(0, dt.int32, self.tile.lanes)]
        with e.loop(self.rows, carrying=seen) as r:
            at = self.row_table[r].cast(dt.int64) if self.words.tabled else r * self.row_step
            start, into = self.source + at, self.target + r * pitch
            with e.loop(self.runs, carrying=seen) as q:
                given = start + self.table[q].cast(dt.int64)
                self._run(given, into + q * self.run_words, seen)
        self.found[0] = seen[0]

    def _run(self, given: Pointer, made: Pointer, seen: list[Value]) -> None:
        e, lanes, terms = self.e, self.lanes, self.tile.terms
        kind = WORDS[terms][0]
        keeps = kind.itemsize == self.words.source.itemsize

        def copy(i: Value) -> None:
            value = given.load(i, lanes)
            bits = (value if keeps else value.cast(kind)).bitcast(dt.int32)
            made[i // terms] = bits
            seen[0] = seen[0] | bits

        if self.words.loose:
            with e.loop(0, self.run, lanes, carrying=seen) as i:
                copy(i)
            return
        whole = self.run - self.run % lanes
        with e.loop(0, whole, lanes, carrying=seen) as i:
            copy(i)
        # What is left of a run of whole words is copied with some of what lies before it.
        ends = self.run % terms == 0
        ends = ends & (lanes <= self.run)
        with e.when(ends & (whole < self.run), changing=seen):
            copy(self.run - lanes)
        with e.otherwise(), e.loop(whole, self.run, terms, carrying=seen) as i:
            total = e.constant(0, dt.int32)
            for j in range(terms):
                place = i + j
                loaded = given[minimum(place, self.run - 1)].cast(dt.int32)
                inside = select(place < self.run, loaded, 0)
                total = total | _placed(inside, j, kind)
            made[i // terms] = total
            seen[0] = seen[0] | total.splat(self.tile.lanes)


def _placed(x: Value, at: int, kind: DType) -> Value:
    """The low bits of an int32, moved to term `at` of a word."""
    bits = 8 * kind.itemsize
    low = x & ((1 << bits) - 1)
    return low << (at * bits) if at else low


def has_high_bits(found: Pointer, lanes: int) -> Value:
    """Return whether one of the bytes of the words in `found` is 128 or more."""
    high = found.load(0, lanes) & TOP
    return high.reduce("or") != 0


def shift_rows(e: Builder, rows: Pointer, count: Value, words: Value, lanes: int) -> None:
    """Add 128 to every byte of some rows of words."""
    with e.loop(count) as r:
        start = rows + r * pitch_of(4)
        # Up to a vector more than there is: nothing that counts lies between rows.
        with e.loop(0, words, lanes) as i:
            start[i] = start.load(i, lanes) ^ TOP


def widen_rows(
    e: Builder,
    bytes_: tuple[Pointer, DType],
    pairs: Pointer,
    count: Value,
    words: Value,
    lanes: int,
) -> None:
    """Some rows of words of bytes, of a type, as rows of twice as many words of two terms."""
    rows, kind = bytes_
    with e.loop(count) as r:
        start, made = rows + r * pitch_of(4), pairs + r * pitch_of(2)
        with e.loop(0, words, lanes) as i:
            terms = start.load(i, lanes).bitcast(kind).cast(dt.int16)
            found = terms.bitcast(dt.int32)
            for half in range(2):
                order = tuple(range(half * lanes, (half + 1) * lanes))
                part = shuffle(found, found, order)
                made[i * 2 + half * lanes] = part
