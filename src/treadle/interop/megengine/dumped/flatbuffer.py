"""Reading FlatBuffers: tables of fields by number, where everything is an offset that is checked.

Numbers are little-endian. A table begins with the distance to its list of fields, which gives for
each field its distance from the table, or 0 for the default; vectors and texts begin with their
length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Damaged(ValueError):
    """The bytes are not a FlatBuffer, or one that was cut."""


class FlatTable:
    """A table inside of a buffer.

    Args:
        data: the buffer.
        place: where the table begins.
    """

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._place = place
        self._fields = place - int(read(data, "i", place))
        self._size = int(read(data, "H", self._fields))

    def _at(self, field: int) -> int:
        """Return the position of the field's value; 0 if it has the default."""
        slot = 4 + 2 * field
        if slot + 2 > self._size:
            return 0
        distance = int(read(self._data, "H", self._fields + slot))
        return self._place + distance if distance else 0

    def number(self, field: int, form: str, default: float = 0) -> float:
        """A number of a format of `struct`."""
        place = self._at(field)
        return read(self._data, form, place) if place else default

    def whole(self, field: int, form: str = "I", default: int = 0) -> int:
        """A whole number of a format of `struct`."""
        return int(self.number(field, form, default))

    def table(self, field: int) -> FlatTable | None:
        """A table; None if it is not there."""
        place = self._at(field)
        return FlatTable(self._data, follow(self._data, place)) if place else None

    def text(self, field: int) -> str:
        """A text; empty if it is not there."""
        return bytes(self.raw(field)).decode("utf-8", "replace")

    def raw(self, field: int) -> memoryview:
        """The bytes of a text or of a vector of bytes."""
        place = self._at(field)
        if not place:
            return self._data[:0]
        start = follow(self._data, place)
        length = int(read(self._data, "I", start))
        if start + 4 + length > len(self._data):
            raise Damaged("a vector reaches beyond the end")
        return self._data[start + 4 : start + 4 + length]

    def vector(self, field: int, form: str) -> list[tuple[float, ...]]:
        """Structs of a format of `struct`, as tuples."""
        size = struct.calcsize("<" + form)
        return self._items(field, size, lambda p: struct.unpack_from("<" + form, self._data, p))

    def numbers(self, field: int, form: str = "I") -> list[int]:
        """Whole numbers."""
        return [int(n) for (n,) in self.vector(field, form)]

    def tables(self, field: int) -> list[FlatTable]:
        """Return the tables of a field that is a vector of tables."""
        return self._items(field, 4, lambda p: FlatTable(self._data, follow(self._data, p)))

    def texts(self, field: int) -> list[str]:
        """Return the texts of a field that is a vector of texts."""

        def text(place: int) -> str:
            start = follow(self._data, place)
            length = int(read(self._data, "I", start))
            if start + 4 + length > len(self._data):
                raise Damaged("a text reaches beyond the end")
            return bytes(self._data[start + 4 : start + 4 + length]).decode("utf-8", "replace")

        return self._items(field, 4, text)

    def _items(self, field: int, size: int, item: Callable[[int], T]) -> list[T]:
        place = self._at(field)
        if not place:
            return []
        start = follow(self._data, place)
        count = int(read(self._data, "I", start))
        if start + 4 + count * size > len(self._data):
            raise Damaged("a vector reaches beyond the end")
        return [item(start + 4 + i * size) for i in range(count)]


def read(data: memoryview, form: str, place: int) -> float:
    """A number at a place."""
    if not 0 <= place <= len(data) - struct.calcsize("<" + form):
        raise Damaged("an offset leads outside")
    found: float = struct.unpack_from("<" + form, data, place)[0]
    return found


def follow(data: memoryview, place: int) -> int:
    """Return the position that an offset leads to."""
    return place + int(read(data, "I", place))
