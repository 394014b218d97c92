"""How one line is sorted: keys in scratch, counted or moved digit by digit.

Keys of 32 bits carry the element's number in the low half of a 64-bit word, so words differ and
any sort of them is stable; keys of 64 bits have the numbers beside them. Short lines are sorted by
counting smaller words, which needs no branches; longer ones by radix from the lowest digit on
(Knuth, The Art of Computer Programming 3, 5.2.5), where digits that all elements share are passed
over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from treadle.backends.codegen.irregular.ordering import key_of
from treadle.backends.codegen.irregular.rows import vector_loop
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.backends.codegen.scalars.code import load_value
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.symbol import Dim

_DIGIT = 8
_BINS = 1 << _DIGIT
SHORT = 64
"""Longest line that is sorted by counting."""
SPARE = 16
"""Words behind a line that vectors may touch."""
SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Line:
    """`extent` words in two halves of scratch, `gap` apart.

    `keys` also hold the elements' numbers, or else `numbers` do. `bins` and `ranks` are memory
    that sorting needs.
    """

    keys: Value
    numbers: Value | None
    extent: Value
    gap: Value
    bins: Value
    ranks: Value

    @property
    def columns(self) -> list[Value]:
        """What moves together."""
        return [self.keys] if self.numbers is None else [self.keys, self.numbers]

    @property
    def kind(self) -> DType:
        """The type of keys."""
        return dt.uint32 if self.numbers is None else dt.uint64

    def number(self, b: Builder, place: Value) -> Value:
        """Which element of the line a word stands for."""
        word = b.load(self.keys if self.numbers is None else self.numbers, place)
        return b.cast(b.bitwise("and", word, 0xFFFFFFFF), dt.int64)


def line_in(b: Builder, scratch: Value, item: Value, extent: Value, kind: DType) -> Line:
    """A line of `extent` elements in the scratch of an item."""
    gap, wide = b.add(extent, SPARE), kind is dt.uint64
    keys = b.offset(scratch, b.mul(item, b.mul(gap, 4 if wide else 2)))
    bins = b.stack(dt.uint32, kind.itemsize * _BINS)
    ranks = b.stack(dt.uint64, SHORT + SPARE)
    numbers = b.offset(keys, b.mul(gap, 2)) if wide else None
    return Line(keys, numbers, extent, gap, bins, ranks)


def scratch_bytes(extent: Dim, kind: DType, items: Dim) -> Dim:
    """Bytes that `line_in` needs for all items."""
    return 8 * (4 if kind is dt.uint64 else 2) * (extent + SPARE) * items


def sort_line(b: Builder, line: Line) -> Value:
    """Sort the words; where they begin then."""
    short = b.compare("le", line.extent, SHORT)
    (at,) = b.branch(
        short, lambda: _count_smaller(b, line), lambda: _radix(b, line), like=(line.extent,)
    )
    return at


def keep_least(b: Builder, line: Line, kept: Value, rank: Value, fill: Callable[[], None]) -> Line:
    """The line without most of the words that are not among the first `kept`.

    The bar is the word of that rank among a few; where it proves too low, all are kept.
    """
    bar = _bar(b, line, rank)

    def one(i: Value, place: Value) -> Value:
        words = [b.load(c, i) for c in line.columns]
        for column, word in zip(line.columns, words, strict=True):
            b.store(column, place, word)
        return b.add(place, b.cast(b.compare("le", words[0], bar), dt.int64))

    (found,) = b.loop(0, line.extent, 1, one, (b.index(0),))

    def all_of_them() -> Value:
        fill()
        return line.extent

    enough = b.compare("le", kept, found)
    (extent,) = b.branch(enough, lambda: found, all_of_them, like=(found,))
    return replace(line, extent=extent)


def _bar(b: Builder, line: Line, rank: Value) -> Value:
    """The greatest of some words, evenly taken, that at most `rank` of them are below."""
    step, lanes, least = b.div(line.extent, SAMPLES), 4, b.constant(0, dt.uint64, 4)
    few = line.ranks
    b.loop(0, SAMPLES, 1, lambda i: b.store(few, i, b.load(line.keys, b.mul(i, step))))

    def four(i: Value, best: Value) -> Value:
        mine = b.load(few, i, lanes)

        def against(j: Value, smaller: Value) -> Value:
            less = b.compare("lt", b.splat(b.load(few, j), lanes), mine)
            return b.add(smaller, b.cast(less, dt.int64))

        (smaller,) = b.loop(0, SAMPLES, 1, against, (b.constant(0, dt.int64, lanes),))
        low = b.compare("le", smaller, b.splat(rank, lanes))
        return b.max(best, b.select(low, mine, least))

    (best,) = b.loop(0, SAMPLES, lanes, four, (least,))
    return b.reduce("max", best)


def fill(
    b: Builder, line: Line, source: Value, step: Value | None, descending: bool, lanes: int
) -> None:
    """Keys and numbers of the line's elements; `step` apart, or (None) neighbors."""
    places = b.iota(dt.uint64, lanes) if lanes > 1 else b.constant(0, dt.uint64)

    def turn(j: Value, mask: Value | None) -> None:
        value = load_value(source, j if step is None else b.mul(j, step), lanes, mask)
        key = key_of(b, value, line.kind, descending)
        number = b.add(b.splat(b.cast(j, dt.uint64), lanes), places)
        if line.numbers is None:
            key = b.bitwise("or", b.bitwise("shl", b.cast(key, dt.uint64), 32), number)
        else:
            b.store(line.numbers, j, number)
        b.store(line.keys, j, key)

    # Whole vectors are stored: what lies behind the line is spare.
    vector_loop(b, 0, line.extent, lanes, turn)


def _count_smaller(b: Builder, line: Line) -> Value:
    """Put every word where the number of smaller ones says; where the sorted line begins."""
    lanes, keys = 4, line.keys
    places = b.iota(dt.int64, lanes)

    def four(i: Value) -> None:
        mine, here = b.load(keys, i, lanes), b.add(b.splat(i, lanes), places)

        def against(j: Value, smaller: Value) -> Value:
            other = b.splat(b.load(keys, j), lanes)
            less = b.compare("lt", other, mine)
            if line.numbers is not None:
                before = b.compare("lt", b.splat(j, lanes), here)
                level = b.bitwise("and", b.compare("eq", other, mine), before)
                less = b.bitwise("or", less, level)
            return b.add(smaller, b.cast(less, dt.uint64))

        (smaller,) = b.loop(0, line.extent, 1, against, (b.constant(0, dt.uint64, lanes),))
        b.store(line.ranks, i, smaller)

    b.loop(0, line.extent, lanes, four)

    def put(i: Value) -> None:
        to = b.add(b.cast(b.load(line.ranks, i), dt.int64), line.gap)
        for column in line.columns:
            b.store(column, to, b.load(column, i))

    b.loop(0, line.extent, 1, put)
    return line.gap


def _radix(b: Builder, line: Line) -> Value:
    """Sort by every digit of the keys; where the sorted line begins."""
    digits, lowest = line.kind.itemsize * 8 // _DIGIT, 64 - line.kind.bits
    bins = line.bins
    b.zero(bins, digits * _BINS)

    def count(i: Value) -> None:
        key = b.load(line.keys, i)
        for d in range(digits):
            bin_ = b.add(_digit(b, key, b.constant(lowest + d * _DIGIT, dt.uint64)), d * _BINS)
            b.store(bins, bin_, b.add(b.load(bins, bin_), 1))

    b.loop(0, line.extent, 1, count)

    def sort(d: Value, at: Value) -> Value:
        own = b.offset(bins, b.mul(d, _BINS))
        shift = b.cast(b.add(b.mul(d, _DIGIT), lowest), dt.uint64)
        some = _digit(b, b.load(line.keys, at), shift)
        same = b.compare("eq", b.cast(b.load(own, some), dt.int64), line.extent)
        (after,) = b.branch(
            same, lambda: at, lambda: _by_digit(b, line, own, shift, at), like=(at,)
        )
        return after

    (at,) = b.loop(0, digits, 1, sort, (b.index(0),))
    return at


def _by_digit(b: Builder, line: Line, bins: Value, shift: Value, at: Value) -> Value:
    """Move the words, which begin at `at`, to the other half in the order of one digit."""
    to = b.sub(line.gap, at)

    def place(i: Value, before: Value) -> Value:
        own = b.load(bins, i)
        b.store(bins, i, before)
        return b.add(before, own)

    b.loop(0, _BINS, 1, place, (b.cast(to, dt.uint32),))

    def move(i: Value) -> None:
        words = [b.load(c, i) for c in line.columns]
        bin_ = _digit(b, words[0], shift)
        next_ = b.load(bins, bin_)
        for column, word in zip(line.columns, words, strict=True):
            b.store(column, b.cast(next_, dt.int64), word)
        b.store(bins, bin_, b.add(next_, 1))

    b.loop(at, b.add(at, line.extent), 1, move)
    return to


def _digit(b: Builder, key: Value, shift: Value) -> Value:
    return b.cast(b.bitwise("and", b.bitwise("shr", key, shift), _BINS - 1), dt.int64)
