"""Runs of a network in the background, one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """A thread that is started when it is first needed, and what it has been given to run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._process = 0
        self._running: list[Future[None]] = []

    def submit(self, run: Callable[[], None]) -> None:
        """Submit a function to run after all that was submitted before."""
        with self._lock:
            if self._worker is None or self._process != os.getpid():  # a fork has no threads
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="lite")
                self._process, self._running = os.getpid(), []
            # Whoever goes by callbacks alone never waits; the first failure is kept nevertheless.
            done = [run for run in self._running if run.done()]
            failed = [run for run in done if run.exception() is not None][:1]
            self._running = failed + self._running[len(done) :]
            self._running.append(self._worker.submit(run))

    def wait(self) -> None:
        """Return when all is done; raises what the first that failed raised."""
        with self._lock:
            running, self._running = self._running, []
        failures = [error for future in running if (error := future.exception()) is not None]
        if failures:
            raise failures[0]


__all__ = ["Background"]
