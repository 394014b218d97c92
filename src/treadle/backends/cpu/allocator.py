"""Memory for results and arenas: freed blocks are kept, so that pages are not faulted in again.

A result is a NumPy array over a lease of a block; when the last array over it goes, the lease's
finalizer gives the block back. Small requests are NumPy's own, whose cache is faster.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
from bisect import bisect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treadle.backends.cpu.host import memory_bytes
from treadle.base.array import Array
from treadle.base.errors import OutOfMemory
from treadle.runtime.host import TOO_MANY_BYTES, OwnMemory

SMALL = 128 << 10
"""Bytes below which the C library does not return memory to the system, either."""
_HUGE = 2 << 20
_ADVISED = 4 << 20
"""Bytes from which blocks start at a huge page and ask for such."""
_MOST_CACHED = 2 << 30
_MOST_REQUESTS = 4096
_LARGER, _LARGER_OF_MUCH = 2, 1.25
"""Most times the size asked for of an unused block that is taken before another is mapped: up to
`_MUCH` bytes, where mapping costs more than the memory is worth, and beyond."""
_MUCH = 2 << 20


class AllocatorStatistics(NamedTuple):
    """Bytes of blocks in use and kept for reuse, and how many blocks were ever mapped."""

    live: int
    cached: int
    mapped: int


class MappedBlock(mmap.mmap):
    """Anonymous memory, private so that a forked process has its own copy."""

    address: int

    @classmethod
    def of(cls, room: int) -> MappedBlock:
        """`room` bytes from `address` on, which is a multiple of the page size."""
        slack = _HUGE if room >= _ADVISED else 0
        block = cls(-1, room + slack, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = np.ndarray((1,), np.uint8, block).ctypes.data
        block.address = start + (-start % _HUGE if slack else 0)
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        if slack and advice is not None:
            block.madvise(advice)
        return block


class _Rooms:
    """Blocks of one size: those not in use, and the type of the leases that hold the others.

    A lease is a ctypes array because that is the cheapest object that exports memory and may have
    a finalizer; it knows its block as an attribute.
    """

    __slots__ = ("free", "lease", "room")

    def __init__(self, room: int, give_back: Callable[[_Rooms, MappedBlock], None]) -> None:
        self.room = room
        self.free: list[MappedBlock] = []

        def finalize(lease: Any, rooms: _Rooms = self) -> None:
            give_back(rooms, lease.block)

        bases = ctypes.c_char * room, OwnMemory
        self.lease: Any = type("Lease", bases, {"__slots__": ("block",), "__del__": finalize})


class Allocator:
    """Blocks by size. Any thread may call; blocks come back on whichever thread drops an array.

    The paths of reuse take no lock: lists and dicts are safe by themselves, and the count of cached
    bytes, which two threads might spoil, is taken anew whenever memory is mapped.

    Args:
        limit: most bytes of unused blocks that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Reentrant: the collector may drop arrays while this thread is inside.
        self.lock = threading.RLock()
        self._rooms: dict[int, _Rooms] = {}
        self._by_request: dict[int, _Rooms] = {}
        self._sizes: list[int] = []
        self._cached = self._held = self._mapped = 0

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array with arbitrary content; from `SMALL` bytes on it is aligned to a page.

        Raises:
            OutOfMemory: the system has no memory left, even after the cache was emptied.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < SMALL:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._take(nbytes))

    def arena(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Bytes aligned to a page, however few.

        Raises:
            OutOfMemory: as `empty`.
        """
        return np.ndarray((nbytes,), np.uint8, self._take(max(nbytes, 1)))

    def empty_cache(self) -> int:
        """Return unused blocks to the system; how many bytes they had."""
        with self.lock:
            freed = self._recount()
            for rooms in self._rooms.values():
                self._held -= rooms.room * len(rooms.free)
                rooms.free.clear()
            self._cached = 0
            return freed

    def statistics(self) -> AllocatorStatistics:
        """Figures of this moment."""
        with self.lock:
            cached = self._recount()
            return AllocatorStatistics(self._held - cached, cached, self._mapped)

    def _take(self, nbytes: int) -> Any:
        """A lease of a block with room for so many bytes."""
        rooms = self._by_request.get(nbytes)
        if rooms is None:
            rooms = self._find_rooms(nbytes)
        try:
            block = rooms.free.pop()
        except IndexError:
            rooms, block = self._other(rooms)
        self._cached -= rooms.room
        lease = rooms.lease.from_address(block.address)
        lease.block = block
        return lease

    def _other(self, rooms: _Rooms) -> tuple[_Rooms, MappedBlock]:
        """An unused block that is larger, whose pages are there; a new one where there is none."""
        sizes = self._sizes
        most = rooms.room * (_LARGER if rooms.room <= _MUCH else _LARGER_OF_MUCH)
        for size in sizes[bisect(sizes, rooms.room) : bisect(sizes, most)]:
            larger = self._rooms[size]
            if larger.free:
                with suppress(IndexError):  # Another thread was quicker.
                    return larger, larger.free.pop()
        block = self._map(rooms.room)
        self._cached += rooms.room  # The caller counts it as one of those that were unused.
        return rooms, block

    def _find_rooms(self, nbytes: int) -> _Rooms:
        # Rooms are multiples of an eighth to a sixteenth of themselves: few sizes, little waste.
        step = max(12, nbytes.bit_length() - 4)
        room = -(-nbytes >> step) << step
        if room >= TOO_MANY_BYTES:
            raise self._exhausted(room)
        with self.lock:
            rooms = self._rooms.get(room)
            if rooms is None:
                rooms = self._rooms[room] = _Rooms(room, self._give_back)
                self._sizes = sorted(self._rooms)  # A new list: others may walk along this one.
            if len(self._by_request) >= _MOST_REQUESTS:
                self._by_request.clear()
            self._by_request[nbytes] = rooms
            return rooms

    def _map(self, room: int) -> MappedBlock:
        with self.lock:
            self._cached = self._recount()
            try:
                block = MappedBlock.of(room)
                self._held += room
                self._mapped += 1
                return block
            except (OSError, MemoryError, OverflowError):
                if self.empty_cache():
                    return self._map(room)
        raise self._exhausted(room)

    def _exhausted(self, room: int) -> OutOfMemory:
        live = self._held - self._cached
        return OutOfMemory(
            "cpu",
            f"cannot allocate {room} bytes",
            saw=f"{live} bytes are in use by results of operations",
            hint="use smaller batches or shapes, or drop tensors that are no longer needed",
        )

    def _give_back(self, rooms: _Rooms, block: MappedBlock) -> None:
        rooms.free.append(block)
        self._cached += rooms.room
        if self._cached > self._limit:
            self._trim()

    def _trim(self) -> None:
        """Return unused blocks, the largest first, until those left are half of the limit."""
        with self.lock:
            self._cached = self._recount()
            for room in sorted(self._rooms, reverse=True):
                free = self._rooms[room].free
                while free and self._cached > self._limit // 2:
                    free.pop()
                    self._cached -= room
                    self._held -= room

    def _recount(self) -> int:
        return sum(rooms.room * len(rooms.free) for rooms in self._rooms.values())


HOST = Allocator(min(_MOST_CACHED, memory_bytes() // 8))
"""The allocator of eager results and arenas on the host."""

# A child of a fork must not find the lock held by a thread that did not come along.
os.register_at_fork(
    before=HOST.lock.acquire,
    after_in_parent=HOST.lock.release,
    after_in_child=HOST.lock.release,
)
