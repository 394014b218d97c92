"""Layouts of CPython's and NumPy's objects, which native code reads where Python would take longer.

Inlined accessors of both read them so, which is why they stay as they are within one binary
interface. An interpreter without a global lock begins its objects with more bytes, and since Python
3.14 tuples hold their hash before their items: such sizes are asked of the interpreter.
"""

from __future__ import annotations

import ctypes

import numpy as np

HEAD: int = object.__basicsize__
"""Bytes of what each object begins with: its references and its type."""
OBJECT_TYPE, OBJECT_SIZE = HEAD - 8, HEAD
TYPE_SIZE = HEAD + 16
"""The place at which a type has the bytes of its objects without items: `__basicsize__`."""
TUPLE_ITEMS: int = tuple.__basicsize__
LIST_ITEMS = HEAD + 8
"""The place at which a list has the address of its items."""
ARRAY_DATA, ARRAY_NDIM, ARRAY_SHAPE, ARRAY_FLAGS = HEAD, HEAD + 8, HEAD + 16, HEAD + 48


def words(address: int, count: int = 1) -> list[int]:
    """Return words of 64 bits that lie at an address."""
    return list((ctypes.c_int64 * count).from_address(address))


def are_as_expected() -> bool:
    """Compare all of it with a tuple, a list and an array."""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    pair = object(), object()
    items, listed = [*map(id, pair)], [*pair]
    heads = [words(id(x) + OBJECT_TYPE, 2) for x in (pair, listed)]
    return (
        heads == [[id(tuple), 2], [id(list), 2]]
        and words(id(tuple) + TYPE_SIZE) == [TUPLE_ITEMS]
        and words(id(pair) + TUPLE_ITEMS, 2) == items
        and words(words(id(listed) + LIST_ITEMS)[0], 2) == items
        and _is_array_as_expected(np.zeros((3, 5), np.int64))
    )


def _is_array_as_expected(array: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> bool:
    data, shape = words(id(array) + ARRAY_DATA)[0], words(id(array) + ARRAY_SHAPE)[0]
    ndim, flags = (
        ctypes.c_int.from_address(id(array) + x).value for x in (ARRAY_NDIM, ARRAY_FLAGS)
    )
    if (data, ndim, flags & 1) != (array.__array_interface__["data"][0], 2, 1):
        return False
    return words(shape, 2) == [3, 5]
