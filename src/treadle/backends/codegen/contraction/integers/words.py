"""Words: products of small integers, several terms at a time.

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
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType

BLOCK = 96
"""Most rows that are words at one time; there is room for one more, of which some is written."""
TOP = -(1 << 31) | 0x00808080
"""The highest bit of every byte of a word."""


@dataclass(frozen=True, slots=True)
class Words:
    """How a kernel makes rows of a words.

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
        """Whether bytes of a may be made unsigned."""
        return self.source is dt.int8


def terms_per_word(target: Target, a: DType, b: DType) -> int:
    """How many terms of these types go into a word."""
    bytes_multiply = target.dot_int8 or (target.vector_bytes >= 32 and not target.triple)
    fits = a in (dt.int8, dt.uint8) and b is dt.int8
    return 4 if bytes_multiply and fits else 2


@lru_cache(maxsize=128)
def words_function(tile: Tile, words: Words) -> Function:
    """A function of (source, row_table or row_step, run_table, target, found, rows, runs, run,
    run_words): run q of row r goes to target[r * pitch + q * run_words].

    The bits of all words together go to `found`.
    """
    writer = _Rows(tile, words)
    name = f"words_{words.source.name}_{tile.terms}"
    return builder.function(name, writer.parameters, writer.write)


class _Rows:
    """Writes the function that makes rows words."""

    def __init__(self, tile: Tile, words: Words) -> None:
        self.tile, self.words = tile, words
        self.source, self.target = ir.pointer(words.source, "source"), ir.pointer(dt.int32)
        self.row = ir.pointer(dt.int32, "row_table") if words.tabled else ir.size("row_step")
        self.table, self.found = ir.pointer(dt.int32, "run_table"), ir.pointer(dt.int32, "found")
        names = ("rows", "runs", "run", "run_words")
        self.rows, self.runs, self.run, self.run_words = map(ir.size, names)
        self.lanes = tile.lanes * tile.terms

    @property
    def parameters(self) -> list[Value]:
        """In order."""
        pointers = [self.source, self.row, self.table, self.target, self.found]
        return [*pointers, self.rows, self.runs, self.run, self.run_words]

    def write(self, e: Builder) -> None:
        """The body: rows, their runs, vectors of them; the bits seen are carried along."""

        words, pitch = self.words, pitch_of(self.tile.terms)

        def row(r: Value, seen: Value) -> Value:
            start = e.cast(e.load(self.row, r), dt.int64) if words.tabled else e.mul(r, self.row)
            start, into = e.offset(self.source, start), e.offset(self.target, e.mul(r, pitch))

            def run(q: Value, seen: Value) -> Value:
                given = e.offset(start, e.cast(e.load(self.table, q), dt.int64))
                return self._run(e, given, e.offset(into, e.mul(q, self.run_words)), seen)

            return e.loop(0, self.runs, 1, run, (seen,))[0]

        none = e.constant(0, dt.int32, self.tile.lanes)
        e.store(self.found, 0, e.loop(0, self.rows, 1, row, (none,))[0])

    def _run(self, e: Builder, given: Value, made: Value, seen: Value) -> Value:
        lanes, terms = self.lanes, self.tile.terms
        kind = WORDS[terms][0]
        keeps = kind.itemsize == self.words.source.itemsize

        def copy(i: Value, seen: Value) -> Value:
            value = e.load(given, i, lanes)
            bits = e.bitcast(value if keeps else e.cast(value, kind), dt.int32)
            e.store(made, e.div(i, terms), bits)
            return e.bitwise("or", seen, bits)

        def word(i: Value, seen: Value) -> Value:
            total: Value = e.constant(0, dt.int32)
            for j in range(terms):
                place = e.add(i, j)
                loaded = e.cast(e.load(given, e.min(place, e.sub(self.run, 1))), dt.int32)
                inside = e.select(e.compare("lt", place, self.run), loaded, 0)
                total = e.bitwise("or", total, _placed(e, inside, j, kind))
            e.store(made, e.div(i, terms), total)
            return e.bitwise("or", seen, e.splat(total, self.tile.lanes))

        if self.words.loose:
            return e.loop(0, self.run, lanes, copy, (seen,))[0]
        whole = e.sub(self.run, e.rem(self.run, lanes))
        seen = e.loop(0, whole, lanes, copy, (seen,))[0]
        # What is left of a run of whole words is copied with some of what lies before it.
        ends = e.compare("eq", e.rem(self.run, terms), 0)
        ends = e.bitwise("and", ends, e.compare("le", lanes, self.run))
        return e.branch(
            e.bitwise("and", ends, e.compare("lt", whole, self.run)),
            lambda: (copy(e.sub(self.run, lanes), seen),),
            lambda: e.loop(whole, self.run, terms, word, (seen,)),
            (seen,),
        )[0]


def _placed(e: Builder, x: Value, at: int, kind: DType) -> Value:
    """The low bits of an int32, moved to term `at` of a word."""
    bits = 8 * kind.itemsize
    low = e.bitwise("and", x, (1 << bits) - 1)
    return e.bitwise("shl", low, at * bits) if at else low


def has_high_bits(e: Builder, found: Value, lanes: int) -> Value:
    """Whether one of the bytes of the words in `found` is 128 or more."""
    high = e.bitwise("and", e.load(found, 0, lanes), TOP)
    return e.compare("ne", e.reduce("or", high), 0)


def shift_rows(e: Builder, rows: Value, count: Value, words: Value, lanes: int) -> None:
    """Add 128 to every byte of some rows of words."""

    def row(r: Value) -> None:
        start = e.offset(rows, e.mul(r, pitch_of(4)))

        def shift(i: Value) -> None:
            e.store(start, i, e.bitwise("xor", e.load(start, i, lanes), TOP))

        # Up to a vector more than there is: nothing that counts lies between rows.
        e.loop(0, words, lanes, shift)

    e.loop(0, count, 1, row)


def widen_rows(
    e: Builder, bytes_: tuple[Value, DType], pairs: Value, count: Value, words: Value, lanes: int
) -> None:
    """Some rows of words of bytes, of a type, as rows of twice as many words of two terms."""
    rows, kind = bytes_

    def row(r: Value) -> None:
        start = e.offset(rows, e.mul(r, pitch_of(4)))
        made = e.offset(pairs, e.mul(r, pitch_of(2)))

        def widen(i: Value) -> None:
            terms = e.cast(e.bitcast(e.load(start, i, lanes), kind), dt.int16)
            found = e.bitcast(terms, dt.int32)
            for half in range(2):
                order = tuple(range(half * lanes, (half + 1) * lanes))
                part = e.shuffle(found, found, order)
                e.store(made, e.add(e.mul(i, 2), half * lanes), part)

        e.loop(0, words, lanes, widen)

    e.loop(0, count, 1, row)
