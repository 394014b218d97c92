"""Memory that was freed and waits for the next who wants as much.

It saves calls of the driver. More than that, it makes loops come back to the same addresses, which
recorded launches name: the lowest address of a size is handed out first, so that a loop which
makes and drops the same arrays in every turn finds them where they were a turn or two before.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from contextlib import suppress

from treadle.backends.cuda.driver import Gpu, MemoryRegion, Queue
from treadle.runtime.ahead import AHEAD, Ahead

KIND = "gpu"
SHARE = 2
"""One part in so many of a GPU's memory may wait; then sizes that were long not asked for go."""


class MemoryPool:
    """Memory of one GPU in the order of one queue.

    Attributes:
        kept: bytes that wait.
    """

    def __init__(self, gpu: Gpu, queue: Queue) -> None:
        self.kept = 0
        self._asked = self._ahead = 0
        self._gpu = gpu
        self._queue = queue
        self._most = gpu.facts.memory // SHARE
        self._waiting: OrderedDict[int, list[tuple[int, MemoryRegion]]] = OrderedDict()
        # Arrays that the garbage collector finds come back in the middle of anything.
        self._lock = threading.RLock()

    def take(self, nbytes: int) -> MemoryRegion | None:
        """Memory that waits; None if no piece of this size does."""
        with self._lock:
            waiting = self._waiting.get(nbytes)
            if not waiting:
                return None
            self._waiting.move_to_end(nbytes)
            self.kept -= nbytes
            return heapq.heappop(waiting)[1]

    def give(self, region: MemoryRegion, nbytes: int) -> None:
        """Keep freed memory for later requests; work that was submitted before may still use it."""
        with self._lock:
            heapq.heappush(self._waiting.setdefault(nbytes, []), (region.address, region))
            self.kept += nbytes

    @property
    def is_full(self) -> bool:
        """True if more waits than may."""
        return self.kept > self._most

    def trim(self) -> None:
        """Give sizes that were long not asked for back to the driver, as many as need be."""
        with self._lock:
            while self.is_full:
                self._release(next(iter(self._waiting)))

    def fresh(self, nbytes: int, queue: Queue) -> MemoryRegion:
        """Memory from the driver; all that waits is given up for it if need be.

        Raises:
            MemoryError: there is no room, not even then.
        """
        try:
            made = self._gpu.allocate(nbytes, queue)
        except MemoryError:
            if not self.kept:
                raise
            self.clear()
            return self._gpu.allocate(nbytes, queue)
        if ahead := AHEAD.get(KIND):
            self._look_ahead(ahead, nbytes, queue)
        return made

    def _look_ahead(self, ahead: Ahead, nbytes: int, queue: Queue) -> None:
        """Make the driver's own pool hold more than is wanted, for later requests."""
        if nbytes <= self._ahead:
            self._ahead -= nbytes
            return
        more = ahead.more(nbytes, self._asked)
        self._asked += nbytes + more
        with suppress(MemoryError):
            if more:
                self._gpu.release(self._gpu.allocate(more, queue), queue)
                self._ahead = more

    def clear(self) -> None:
        """Give everything that waits back to the driver."""
        with self._lock:
            while self._waiting:
                self._release(next(iter(self._waiting)))

    def _release(self, nbytes: int) -> None:
        for _, region in self._waiting.pop(nbytes):
            self.kept -= nbytes
            self._gpu.release(region, self._queue)
