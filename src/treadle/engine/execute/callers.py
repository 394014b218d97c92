"""Several threads that call one program at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def call_together(call: Callable[[], object], callers: int, count: int) -> float:
    """Seconds from when all threads are there to when each has made its `count` calls.

    Raises:
        Exception: the first one that a call raised; its thread stops then, and the others do not.
    """
    failures: list[Exception] = []
    ready = threading.Barrier(callers + 1)

    def work() -> None:
        ready.wait()
        try:
            for _ in range(count):
                call()
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(callers)]
    for worker in workers:
        worker.start()
    ready.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - started
