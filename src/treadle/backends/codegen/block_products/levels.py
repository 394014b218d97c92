"""What kernels read of a panel: levels as bytes, and the scales and minima of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.base import dtype as dt
from treadle.base.blocks.panels import ONES, ROWS, WORD, Field, Layout

Header: TypeAlias = tuple[Value, Value | None]
"""A block's `d` and, where the format has one, `m`: float32, a lane for each row."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Reads panels of a layout, so many neighboring rows at a time."""

    layout: Layout
    lanes: int

    def header(self, e: Builder, block: Value, at: Value | int) -> Header:
        """That of the block at a pointer to bytes, for the rows from `at` on."""
        halves = e.reinterpret(block, dt.float16)
        d = e.cast(e.load(halves, at, self.lanes), dt.float32)
        if not self.layout.minimum:
            return d, None
        return d, e.cast(e.load(halves, e.add(e.index(at), ROWS), self.lanes), dt.float32)

    def scales(
        self, e: Builder, piece: Value, group: int, at: Value | int, header: Header
    ) -> Header:
        """Scale and minimum of a group of a piece."""
        (d, m), layout = header, self.layout

        def byte(index: int) -> Value:
            return e.load(piece, e.add(e.index(at), index * ROWS), self.lanes)

        def times(factor: Value, x: Value) -> Value:
            return e.mul(factor, e.cast(e.cast(x, dt.int32), dt.float32))

        if layout.scales == "none":
            return d, m
        if layout.scales == "signed":
            return times(d, e.bitcast(byte(group), dt.int8)), None
        assert m is not None  # noqa: S101  (formats with minima of groups have them)
        if layout.scales == "nibbles":
            both = byte(group)
            factor, least = e.bitwise("and", both, 15), e.bitwise("shr", both, 4)
        else:
            factor, least = byte(group), byte(layout.groups + group)
        return times(d, factor), e.neg(times(m, least))

    def words(self, e: Builder, piece: Value, group: int, at: Value | int) -> list[Value]:
        """The levels of a group, uint8, four of each row at a time."""
        words = e.reinterpret(e.offset(piece, self.layout.scale_bytes), dt.int32)
        many = self.layout.group // 4
        return [self._word(e, words, group * many + i, at) for i in range(many)]

    @property
    def places(self) -> int:
        """Turns of a loop over a group; each gives some of its words, see `pairs`."""
        return min(self.layout.group // 4, self.layout.low_words)

    def pairs(
        self, e: Builder, piece: Value, group: int, place: Value, at: Value | int
    ) -> list[tuple[Value, Value]]:
        """Levels of a group, int16: for a turn those of every `places`-th word from `place` on.

        A word has four levels of each row: the even ones and the odd ones.
        """
        words = e.reinterpret(e.offset(piece, self.layout.scale_bytes), dt.int32)
        many = self.layout.group // 4
        first = range(group * many, (group + 1) * many, self.places)
        return [self._pair(e, words, self.layout.fields(word), place, at) for word in first]

    def _pair(
        self, e: Builder, words: Value, fields: tuple[Field, ...], place: Value, at: Value | int
    ) -> tuple[Value, Value]:
        """Of the word so many places behind the one that has these fields."""
        if self.layout.table:
            bits = self._line(e, words, fields[0], place, at)
            codes = _moved(e, bits, fields[0].shift, fields[0].mask * 257)
            found = e.lookup(e.bitcast(codes, dt.uint8), self.layout.table)
            both = e.bitcast(found, dt.uint16)
            even, odd = e.bitwise("and", both, 255), e.bitwise("shr", both, 8)
        else:
            even, odd = (self._half(e, words, fields, place, at, half) for half in (0, 8))
        return e.bitcast(even, dt.int16), e.bitcast(odd, dt.int16)

    def _half(
        self,
        e: Builder,
        words: Value,
        fields: tuple[Field, ...],
        place: Value,
        at: Value | int,
        half: int,
    ) -> Value:
        """Every second level, from the lower or the higher bytes of 16 bits."""
        low, *high = fields
        bits = self._line(e, words, low, place, at)
        found = _moved(e, bits, half + low.shift, low.mask)
        for field in high:
            if self.layout.high == 1:  # Single bits of all places are in one word.
                bits = self._line(e, words, field, e.index(0), at)
                count = e.add(e.cast(place, dt.uint16), half + field.shift)
                bit = e.bitwise("and", e.bitwise("shr", bits, count), field.mask)
                more = e.bitwise("shl", bit, field.up)
            else:
                bits = self._line(e, words, field, place, at)
                more = _moved(e, bits, half + field.shift - field.up, field.mask << field.up)
            found = e.bitwise("or", found, more)
        return found

    def _line(self, e: Builder, words: Value, field: Field, place: Value, at: Value | int) -> Value:
        """16 bits at a time, the words of a field so many places further."""
        start = e.add(e.mul(e.add(place, field.word), ROWS), at)
        return e.bitcast(e.load(words, start, self.lanes), dt.uint16)

    def _word(self, e: Builder, words: Value, word: int, at: Value | int) -> Value:
        found: Value | None = None
        for field in self.layout.fields(word):
            place = e.add(e.index(at), field.word * (WORD // 4))
            bits = e.load(words, place, self.lanes)
            moved = field.shift - field.up
            if moved:
                bits = e.bitwise("shr" if moved > 0 else "shl", bits, abs(moved))
            if field.mask != 0xFF:
                bits = e.bitwise("and", bits, (field.mask << field.up) * ONES)
            found = bits if found is None else e.bitwise("or", found, bits)
        assert found is not None  # noqa: S101  (levels have bits)
        codes = e.bitcast(found, dt.uint8)
        return e.lookup(codes, self.layout.table) if self.layout.table else codes


def _moved(e: Builder, bits: Value, right: int, mask: int) -> Value:
    """16 bits moved to the right, or to the left, and masked."""
    if right:
        bits = e.bitwise("shr" if right > 0 else "shl", bits, abs(right))
    return bits if mask == 0xFFFF >> max(right, 0) else e.bitwise("and", bits, mask)
