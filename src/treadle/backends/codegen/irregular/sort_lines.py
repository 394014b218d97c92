"""Sorting of one line: keys in scratch, counted or moved digit by digit.

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
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, select
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

    keys: Pointer
    numbers: Pointer | None
    extent: Value
    gap: Value
    bins: Pointer
    ranks: Pointer

    @property
    def columns(self) -> list[Pointer]:
        """The columns that move together."""
        return [self.keys] if self.numbers is None else [self.keys, self.numbers]

    @property
    def kind(self) -> DType:
        """The type of keys."""
        return dt.uint32 if self.numbers is None else dt.uint64

    def number(self, place: Value) -> Value:
        """Return the number of the element that a word stands for."""
        word = (self.keys if self.numbers is None else self.numbers)[place]
        return (word & 0xFFFFFFFF).cast(dt.int64)


def line_in(e: Builder, scratch: Pointer, item: Value, extent: Value, kind: DType) -> Line:
    """A line of `extent` elements in the scratch of an item."""
    gap, wide = extent + SPARE, kind is dt.uint64
    keys = scratch + item * (gap * (4 if wide else 2))
    bins = e.stack(dt.uint32, kind.itemsize * _BINS)
    ranks = e.stack(dt.uint64, SHORT + SPARE)
    numbers = keys + gap * 2 if wide else None
    return Line(keys, numbers, extent, gap, bins, ranks)


def scratch_bytes(extent: Dim, kind: DType, items: Dim) -> Dim:
    """Bytes that `line_in` needs for all items."""
    return 8 * (4 if kind is dt.uint64 else 2) * (extent + SPARE) * items


def sort_line(e: Builder, line: Line) -> Value:
    """Sort the words; where they begin then."""
    at = [line.extent]
    with e.when(line.extent <= SHORT, changing=at):
        at[0] = _count_smaller(e, line)
    with e.otherwise():
        at[0] = _radix(e, line)
    return at[0]


def keep_least(e: Builder, line: Line, kept: Value, rank: Value, fill: Callable[[], None]) -> Line:
    """The line without most of the words that are not among the first `kept`.

    The bar is the word of that rank among a few; where it proves too low, all are kept.
    """
    bar, place = _bar(e, line, rank), [e.index(0)]
    with e.loop(0, line.extent, carrying=place) as i:
        words = [c[i] for c in line.columns]
        for column, word in zip(line.columns, words, strict=True):
            column[place[0]] = word
        place[0] = place[0] + (words[0] <= bar).cast(dt.int64)
    found, extent = place[0], place
    with e.unless(kept <= found, changing=extent):
        fill()
        extent[0] = line.extent
    return replace(line, extent=extent[0])


def _bar(e: Builder, line: Line, rank: Value) -> Value:
    """The greatest of some words, evenly taken, that at most `rank` of them are below."""
    step, lanes, least = line.extent // SAMPLES, 4, e.constant(0, dt.uint64, 4)
    few = line.ranks
    with e.loop(SAMPLES) as i:
        few.store(i, line.keys[i * step])
    best = [least]
    with e.loop(0, SAMPLES, lanes, carrying=best) as i:
        mine = few.load(i, lanes)
        smaller = [e.constant(0, dt.int64, lanes)]
        with e.loop(SAMPLES, carrying=smaller) as j:
            less = few[j].splat(lanes) < mine
            smaller[0] = smaller[0] + less.cast(dt.int64)
        low = smaller[0] <= rank.splat(lanes)
        best[0] = maximum(best[0], select(low, mine, least))
    return best[0].reduce("max")


def fill(
    e: Builder, line: Line, source: Pointer, step: Value | None, descending: bool, lanes: int
) -> None:
    """Keys and numbers of the line's elements; `step` apart, or (None) neighbors."""
    places = e.iota(dt.uint64, lanes) if lanes > 1 else e.constant(0, dt.uint64)

    # Whole vectors are stored: what lies behind the line is spare.
    for j, mask in vector_loop(e, 0, line.extent, lanes):
        value = load_value(source, j if step is None else j * step, lanes, mask)
        key = key_of(value, line.kind, descending)
        number = j.cast(dt.uint64).splat(lanes) + places
        if line.numbers is None:
            key = (key.cast(dt.uint64) << 32) | number
        else:
            line.numbers[j] = number
        line.keys[j] = key


def _count_smaller(e: Builder, line: Line) -> Value:
    """Put every word where the number of smaller ones says; where the sorted line begins."""
    lanes, keys = 4, line.keys
    places = e.iota(dt.int64, lanes)
    with e.loop(0, line.extent, lanes) as i:
        mine, here = keys.load(i, lanes), i.splat(lanes) + places
        smaller = [e.constant(0, dt.uint64, lanes)]
        with e.loop(0, line.extent, carrying=smaller) as j:
            other = keys[j].splat(lanes)
            less = other < mine
            if line.numbers is not None:
                before = j.splat(lanes) < here
                level = (other == mine) & before
                less = less | level
            smaller[0] = smaller[0] + less.cast(dt.uint64)
        line.ranks[i] = smaller[0]
    with e.loop(line.extent) as i:
        to = line.ranks[i].cast(dt.int64) + line.gap
        for column in line.columns:
            column[to] = column[i]
    return line.gap


def _radix(e: Builder, line: Line) -> Value:
    """Sort by every digit of the keys; where the sorted line begins."""
    digits, lowest = line.kind.itemsize * 8 // _DIGIT, 64 - line.kind.bits
    bins = line.bins
    bins.zero(digits * _BINS)
    with e.loop(line.extent) as i:
        key = line.keys[i]
        for d in range(digits):
            bin_ = _digit(key, lowest + d * _DIGIT) + d * _BINS
            bins[bin_] += 1
    at = [e.index(0)]
    with e.loop(digits, carrying=at) as digit:
        own = bins + digit * _BINS
        shift = (digit * _DIGIT + lowest).cast(dt.uint64)
        some = _digit(line.keys[at[0]], shift)
        same = own[some].cast(dt.int64) == line.extent
        with e.unless(same, changing=at):
            at[0] = _move_by_digit(e, line, own, shift, at[0])
    return at[0]


def _move_by_digit(e: Builder, line: Line, bins: Pointer, shift: Value, at: Value) -> Value:
    """Move the words, which begin at `at`, to the other half in the order of one digit."""
    to = line.gap - at
    before = [to.cast(dt.uint32)]
    with e.loop(_BINS, carrying=before) as i:
        own = bins[i]
        bins[i] = before[0]
        before[0] = before[0] + own
    with e.loop(at, at + line.extent) as i:
        words = [c[i] for c in line.columns]
        bin_ = _digit(words[0], shift)
        place = bins[bin_]
        for column, word in zip(line.columns, words, strict=True):
            column[place.cast(dt.int64)] = word
        bins[bin_] = place + 1
    return to


def _digit(key: Value, shift: Value | int) -> Value:
    return ((key >> shift) & (_BINS - 1)).cast(dt.int64)
