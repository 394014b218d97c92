"""What kernels read of a panel: levels as bytes, and the scales and minima of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.base import dtype as dt
from treadle.base.blocks.panels import ONES, ROWS, WORD, Layout

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
