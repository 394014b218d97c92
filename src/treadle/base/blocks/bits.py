"""Small integers in bytes: every format packs them in one of these orders."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.base.blocks.layout import Bytes


def unpack(packed: Bytes, bits: int, groups: int = 1) -> Bytes:
    """Integers of `bits` bits (a divisor of 8): uint8 [n, 8·bytes/bits] of uint8 [n, bytes].

    The bytes fall into groups of equal size; a group holds first the lowest bits of all of its
    bytes, then the next ones, up to the highest. One group is the order of Q4_0 (the low nibble of
    byte j is element j, the high one j + half), a group for each byte that of a bit field.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = packed.reshape(len(packed), groups, 1, -1) >> shifts
    return (parts & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def pack(values: NDArray[Any], bits: int, groups: int = 1) -> Bytes:
    """The inverse of `unpack`; values are below 2^bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = values.astype(np.uint8).reshape(len(values), groups, 8 // bits, -1) << shifts
    packed: Bytes = np.bitwise_or.reduce(parts, axis=2).reshape(len(values), -1)
    return packed
