"""Handles that native code looks at before it runs a program, so that Python need not.

A program reads parameters, buffers and optimizer state by itself. Before each run somebody has to
see that none of the handles was rebound, and that nobody else holds an array that will be written
in place. For a hundred handles that takes Python longer than most kernels; native code reads the
handles' slots and the arrays' reference counts where the interpreter keeps them.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

_HOLDERS = 3
"""References to an array that is written in place and that only its handle holds: the handle,
`SlotWatch.seen` and the list of arrays that the program was given."""


class SlotWatch:
    """Contents of objects' slots when somebody looked last; never changed.

    Args:
        holders: the objects.
        slot: the name of the slot.
        arrays: what the program reads of each.
        own: positions of those that are written in place.

    Attributes:
        seen: what the slots held.
        arrays: as given.
        words: all of it for native code (`backends/native_code.py`, `Executable.call`): the slot's
            offset, how many objects there are, a tuple of them, a tuple of what was seen, how many
            positions, where these are, and the most references.
    """

    __slots__ = ("_keep", "arrays", "seen", "words")

    def __init__(
        self,
        holders: tuple[Any, ...],
        slot: str,
        seen: Sequence[Any],
        arrays: list[Any],
        own: Sequence[int],
    ) -> None:
        self.seen, self.arrays = tuple(seen), arrays
        places = np.array(own, np.int64)
        kind: Any = type(holders[0]) if holders else None
        offset = slot_offset(kind, slot) if holders else 0
        known = 0 if offset is None else offset
        at = places.__array_interface__["data"][0]
        words = [known, len(holders), id(holders), id(self.seen), len(own), at, _HOLDERS]
        self.words = None if offset is None else np.array(words, np.int64)
        self._keep = holders, places


@functools.cache
def slot_offset(cls: type, slot: str) -> int | None:
    """Bytes from an object to its slot; None where objects or their counts are not as expected.

    It is found by looking for a known object among the words of a new one, and reference counts
    are compared with what `sys.getrefcount` says: interpreters without a global lock, or other
    than CPython, keep both elsewhere.
    """
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    made: Any = object.__new__(cls)
    mark = object()
    setattr(made, slot, mark)
    words = (ctypes.c_int64 * (cls.__basicsize__ // 8)).from_address(id(made))
    found = [i for i, word in enumerate(words) if word == id(mark)]
    kept = [mark] * 5
    counted = ctypes.c_int32.from_address(id(mark)).value
    return found[0] * 8 if len(found) == 1 and counted == 2 + len(kept) else None


__all__ = ["SlotWatch", "slot_offset"]
