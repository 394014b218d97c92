"""A checksum at the speed of memory, for data that is read at once and is large: it tells damage.

The words of the data stand in rows, and rows in blocks. A block's rows are added up, column by
column, and the sums are mixed into a state by multiplication with an odd number. So a change within
one word is always found, and words, pages or blocks that changed places are, too. It is no
defense against people: SHA-256, at a twentieth of the speed, is one.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np
import numpy.typing as npt

Bytes = memoryview | npt.NDArray[np.uint8]
_COLUMNS = 1021
"""No divisor of what damage comes in: lines, pages, sectors."""
_ROWS = 256
"""As `_COLUMNS`, part of the format of model files."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_ASIDE = 1 << 20
"""Bytes above which a thread of its own is worth its start."""


def checksum(raw: Bytes) -> str:
    """The checksum of data, in hexadecimal."""
    data = np.frombuffer(raw, np.uint8)
    whole = data.nbytes // 8
    words = data[: whole * 8].view(np.uint64)
    state = np.zeros(_COLUMNS, np.uint64)
    full = whole // _COLUMNS
    rows = words[: full * _COLUMNS].reshape(full, _COLUMNS)
    for first in range(0, full, _ROWS):
        state *= _FACTOR
        state += np.add.reduce(rows[first : first + _ROWS], axis=0)
    rest = hashlib.blake2b(state.tobytes(), digest_size=16)
    rest.update(words[full * _COLUMNS :].tobytes())
    rest.update(data[whole * 8 :].tobytes())
    rest.update(data.nbytes.to_bytes(8, "little"))
    return rest.hexdigest()


class LaterChecksum:
    """The checksum of data, computed while other things are done."""

    def __init__(self, raw: Bytes) -> None:
        self._raw = raw
        self._found = ""
        self._thread = None
        if raw.nbytes > _ASIDE:
            self._thread = threading.Thread(target=self._run, name="checksum", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        self._found = checksum(self._raw)

    def value(self) -> str:
        """The checksum, once it is there."""
        if self._thread is None:
            self._run()
        else:
            self._thread.join()
        return self._found


__all__ = ["LaterChecksum", "checksum"]
