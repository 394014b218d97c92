"""Matrices packed for kernels, on all cores while the rest of a model is built."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from treadle.base.array import Array
from treadle.base.blocks.panels import ROWS, fill_panels
from treadle.device import get_device_properties

_JOB = 1 << 20
"""Bytes of a file that a thread packs at a time."""
_AHEAD = 16
"""Jobs that wait: what they read stays in memory until they are done."""


class Packer:
    """Fills panels behind the back of who asks for them; all are full at the end of its block."""

    def __enter__(self) -> Packer:
        threads = max(1, get_device_properties("cpu0").threads)
        self._pool = ThreadPoolExecutor(threads, "treadle-pack")
        self._room = threading.Semaphore(threads + _AHEAD)
        self._jobs: list[Future[None]] = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for all that was asked for, and raise what a job raised."""
        self._pool.shutdown(cancel_futures=error is not None)
        if error is None:
            self.wait()

    def wait(self) -> None:
        """Wait for all that was asked for until now.

        Raises:
            MemoryError, OSError: what a job raised.
        """
        for job in self._jobs:
            job.result()
        self._jobs.clear()

    def pack(self, name: str, data: Array, target: Array, release: Callable[[slice], None]) -> None:
        """Fill panels with rows of blocks; see `to_panels`.

        Args:
            name: of the format.
            data: uint8 [rows, bytes of a row].
            target: uint8 [panels, bytes of a panel].
            release: called with the rows that are not looked at any more.
        """

        def fill(first: int, end: int) -> None:
            try:
                fill_panels(name, data, target, first, end)
                release(slice(first * ROWS, min(end * ROWS, len(data))))
            finally:
                self._room.release()

        step = max(1, _JOB // max(1, ROWS * data.shape[1]))
        for first in range(0, len(target), step):
            self._room.acquire()
            self._jobs.append(self._pool.submit(fill, first, first + step))
