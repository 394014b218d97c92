"""A board in memory that all ranks of a group see: what each is about to do, and small operands.

Where ranks share a machine, this is the quickest way to agree: a rank posts the hash of what it is
about to do plus the number of its turn, and looks until all have posted the same number. A small
array stands beside its hash, so that a reduction is over as soon as ranks agree: every rank adds
up all operands itself, in the order of ranks, and all get the same bits.

There are two slots per rank, used in turn: who posts for turn n + 2 has seen everybody at n + 1,
and so nobody reads what was posted for n any more. That others see what was written before a
number no later than the number itself is promised by processors of the x86 family alone.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.runtime.comm.api import reduction_type

_FOLDER = Path("/dev/shm")
_ORDERED = ("x86_64", "amd64")
_MOST_RANKS = 32
"""Among more, everybody's looking at everybody takes longer than a reduction by MPI."""
_HEAD = 64
"""Bytes before the operands, so that ranks write to cache lines of their own: turn, and hash."""
_ROOM = 1 << 18
"""Bytes of operands that a rank adds up; MPI's reductions divide that work, and win with more."""
_LOOKS = range(400)
"""Number of looks for others before that is left to somebody who looks less often."""
_SUMS: dict[str, Any] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}


class Board:
    """One group's board, as one of its ranks sees it.

    Args:
        memory: shared by all ranks, zero at first; `nbytes(size)` bytes.
        rank, size: this rank, and how many there are.
        move_on: called while others are waited for: has MPI move messages on, and raises what MPI
            knows about lost ranks.
    """

    def __init__(
        self, memory: Array, rank: int, size: int, move_on: Callable[[], object] = bool
    ) -> None:
        self.rank, self.size = rank, size
        self.room = _room(size)
        """Bytes of the largest operand."""
        self.turn = 0
        stride = _HEAD + self.room
        self._slots = [
            [memory[at : at + stride] for at in range(first, first + 2 * stride * size, 2 * stride)]
            for first in (0, stride)
        ]
        # Views of memory: reading one number of an array takes three times as long.
        self._words = memory.view(np.int64).data
        words = stride // 8
        self._own = [(2 * rank + k) * words for k in (0, 1)]
        others = [r for r in range(size) if r != rank]
        self._others = [[(2 * r + k) * words for r in others] for k in (0, 1)]
        self._move_on = move_on

    def meet(self, digest: int) -> bool:
        """Post a hash, and look for those of others for a moment; whether all are there and equal.

        False says nothing but that: `test` and `is_unanimous` tell more.
        """
        words = self._words
        self.turn = turn = self.turn + 1
        k = turn & 1
        at = self._own[k]
        mark = digest + turn  # What stood there two turns ago is another number.
        words[at + 1] = mark
        words[at] = turn
        late = self._others[k]
        for _ in _LOOKS:
            for other in late:
                if words[other + 1] != mark:
                    break
            else:
                return True
        return False

    def test(self) -> bool:
        """Return whether all are there, for those who wait."""
        self._move_on()
        words, turn = self._words, self.turn
        return all([words[other] == turn for other in self._others[turn & 1]])

    def is_unanimous(self) -> bool:
        """Return whether all hashes are equal, once they are there."""
        words, k = self._words, self.turn & 1
        mark = words[self._own[k] + 1]
        return all([words[other + 1] == mark for other in self._others[k]])

    def reduction(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], kind: str, agree: Callable[[], None]
    ) -> SmallReduction | None:
        """Return the reduction of arrays of this type; None where they are too large.

        `agree` has all ranks meet here, about to reduce arrays of this type.
        """
        wide = reduction_type(dtype)
        end = _HEAD + math.prod(shape) * wide.itemsize
        if end > _HEAD + self.room:
            return None
        every = [[s[_HEAD:end].view(wide).reshape(shape) for s in slots] for slots in self._slots]
        return SmallReduction(self, every, dtype, kind, agree)


class SmallReduction:
    """Reduces arrays of one type, whose ranks post them beside the hash of what they do."""

    __slots__ = ("_add", "_agree", "_board", "_dtype", "_every", "_kind", "_mine", "_more")

    def __init__(
        self,
        board: Board,
        every: Sequence[Sequence[Array]],
        dtype: np.dtype[Any],
        kind: str,
        agree: Callable[[], None],
    ) -> None:
        self._board, self._agree, self._kind = board, agree, kind
        self._add, self._dtype = _SUMS[kind], dtype
        self._mine = [views[board.rank] for views in every]
        self._every = [(views[0], views[1], views[2:]) for views in every]
        wide = every[0][0]
        self._more = kind == "mean" or not wide.shape or wide.dtype is not dtype

    def __call__(self, x: Array) -> Array:
        """The elementwise `kind` of the operands of all ranks.

        Raises:
            CommunicationError: ranks disagree, or one does not come in time.
        """
        k = ~self._board.turn & 1  # of the next turn
        self._mine[k][...] = x
        self._agree()
        first, second, others = self._every[k]
        total: Array = self._add(first, second)
        for other in others:
            total = self._add(total, other)
        if self._more:
            # NumPy makes scalars of arrays without axes.
            total = np.asarray(finished(total, self._kind, self._board.size, self._dtype))
        return total


def finished(total: Array, kind: str, size: int, dtype: np.dtype[Any]) -> Array:
    """A sum, or the mean that it stands for, in its type; means of integers are rounded down."""
    if kind == "mean":
        total = total // size if dtype.kind in "iu" else total / total.dtype.type(size)
    return total.astype(dtype, copy=False)


def nbytes(size: int) -> int:
    """Bytes of a board for so many ranks."""
    return 2 * size * (_HEAD + _room(size))


def _room(size: int) -> int:
    return _ROOM // size // _HEAD * _HEAD


# -- memory --------------------------------------------------------------------------------------


def is_possible(machines: Sequence[str]) -> bool:
    """Return whether ranks on these machines may try to share a board; the same answer on all."""
    ordered = platform.machine().lower() in _ORDERED
    return ordered and len(set(machines)) == 1 and 1 < len(machines) <= _MOST_RANKS


def published(size: int) -> str:
    """A new file for a board, for others to map; "" where there is no room for one."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="treadle-", dir=_FOLDER)
    except OSError:
        return ""
    try:
        os.posix_fallocate(descriptor, 0, nbytes(size))  # A sparse file would fail when written to.
    except OSError:
        withdraw(path)
        return ""
    finally:
        os.close(descriptor)
    return path


def mapped(path: str, size: int) -> Array | None:
    """The memory of a board; None for ranks that do not see the file."""
    try:
        with open(path, "r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), nbytes(size)), np.uint8)
    except (OSError, ValueError):
        return None


def withdraw(path: str) -> None:
    """Remove the file, once all have mapped it; the memory stays."""
    if path:
        with contextlib.suppress(OSError):
            os.unlink(path)
