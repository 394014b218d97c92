"""Parts of a panel that kernels read: levels as bytes, and the scales and minima of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.base import dtype as dt
from treadle.base.blocks.panels import ONES, ROWS, WORD, Field, PanelLayout

Header: TypeAlias = tuple[Value, Value | None]
"""A block's `d` and, where the format has one, `m`: float32, a lane for each row."""


MIDDLE = 128
"""The level of 8 bits that stands for 0."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Reads panels of a layout, so many neighboring rows at a time.

    Words of levels are unsigned bytes or, `signed`, signed ones: levels of 8 bits less `MIDDLE`.
    """

    layout: PanelLayout
    lanes: int
    signed: bool = False

    def header(self, block: Pointer, at: Value | int) -> Header:
        """Return scale and minimum (or None) of the block at a pointer, for rows from `at` on."""
        halves = block.reinterpret(dt.float16)
        d = halves.load(at, self.lanes).cast(dt.float32)
        if not self.layout.minimum:
            return d, None
        return d, halves.load(at + ROWS, self.lanes).cast(dt.float32)

    def scales(self, piece: Pointer, group: int, at: Value | int, header: Header) -> Header:
        """Scale and minimum of a group of a piece."""
        (d, m), layout = header, self.layout

        def byte(index: int) -> Value:
            return piece.load(at + index * ROWS, self.lanes)

        def times(factor: Value, x: Value) -> Value:
            return factor * x.cast(dt.int32).cast(dt.float32)

        if layout.scales == "none":
            return d, m
        if layout.scales == "signed":
            return times(d, byte(group).bitcast(dt.int8)), None
        assert m is not None  # noqa: S101  (formats with minima of groups have them)
        if layout.scales == "nibbles":
            both = byte(group)
            factor, least = both & 15, both >> 4
        else:
            factor, least = byte(group), byte(layout.groups + group)
        return times(d, factor), -times(m, least)

    def words(self, piece: Pointer, group: int, at: Value | int) -> list[Value]:
        """The levels of a group, bytes, four of each row at a time."""
        words = self._words(piece)
        many = self.layout.group // 4
        return [self._word(words, group * many + i, at) for i in range(many)]

    @property
    def places(self) -> int:
        """Turns of a loop over a group; each gives some of its words, see `pairs`."""
        return min(self.layout.group // 4, self.layout.low_words)

    def pairs(
        self, piece: Pointer, group: int, place: Value, at: Value | int
    ) -> list[tuple[Value, Value]]:
        """Levels of a group, int16: for a turn those of every `places`-th word from `place` on.

        A word has four levels of each row: the even ones and the odd ones.
        """
        words = self._words(piece)
        many = self.layout.group // 4
        first = range(group * many, (group + 1) * many, self.places)
        return [self._pair(words, self.layout.fields(word), place, at) for word in first]

    def _words(self, piece: Pointer) -> Pointer:
        """Return the first word of a piece's levels."""
        return (piece + self.layout.scale_bytes).reinterpret(dt.int32)

    def _pair(
        self, words: Pointer, fields: tuple[Field, ...], place: Value, at: Value | int
    ) -> tuple[Value, Value]:
        """Return even and odd levels, int16, of the word `place` words behind that of `fields`."""
        if self.layout.table:
            bits = self._line(words, fields[0], place, at)
            codes = _moved(bits, fields[0].shift, fields[0].mask * 257)
            both = codes.bitcast(dt.uint8).lookup(self.layout.table).bitcast(dt.uint16)
            even, odd = both & 255, both >> 8
        else:
            even, odd = (self._half(words, fields, place, at, half) for half in (0, 8))
        return even.bitcast(dt.int16), odd.bitcast(dt.int16)

    def _half(
        self,
        words: Pointer,
        fields: tuple[Field, ...],
        place: Value,
        at: Value | int,
        half: int,
    ) -> Value:
        """Every second level, from the lower or the higher bytes of 16 bits."""
        low, *high = fields
        found = _moved(self._line(words, low, place, at), half + low.shift, low.mask)
        for field in high:
            if self.layout.high == 1:  # Single bits of all places are in one word.
                bits = self._line(words, field, 0, at)
                count = place.cast(dt.uint16) + (half + field.shift)
                found |= ((bits >> count) & field.mask) << field.up
            else:
                bits = self._line(words, field, place, at)
                found |= _moved(bits, half + field.shift - field.up, field.mask << field.up)
        return found

    def _line(self, words: Pointer, field: Field, place: Value | int, at: Value | int) -> Value:
        """16 bits at a time, the words of a field so many places further."""
        return words.load((place + field.word) * ROWS + at, self.lanes).bitcast(dt.uint16)

    def _word(self, words: Pointer, word: int, at: Value | int) -> Value:
        found: Value | None = None
        for field in self.layout.fields(word):
            bits = words.load(at + field.word * (WORD // 4), self.lanes)
            moved = field.shift - field.up
            if moved:
                bits = bits >> moved if moved > 0 else bits << -moved
            if field.mask != 0xFF:
                bits &= (field.mask << field.up) * ONES
            found = bits if found is None else found | bits
        assert found is not None  # noqa: S101  (levels have bits)
        codes, table = found.bitcast(dt.uint8), self.layout.table
        if not self.signed:
            return codes.lookup(table) if table else codes
        less = MIDDLE if is_signed(self.layout) else 0
        if table:
            return codes.lookup(tuple((n - less) & 0xFF for n in table)).bitcast(dt.int8)
        return (codes ^ less if less else codes).bitcast(dt.int8)


def is_signed(layout: PanelLayout) -> bool:
    """Return whether levels less `MIDDLE` are what a layout's values are made of."""
    return layout.offset == MIDDLE


def _moved(bits: Value, right: int, mask: int) -> Value:
    """16 bits moved to the right, or to the left, and masked."""
    if right:
        bits = bits >> right if right > 0 else bits << -right
    return bits if mask == 0xFFFF >> max(right, 0) else bits & mask
