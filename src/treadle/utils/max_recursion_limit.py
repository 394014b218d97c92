"""`max_recursion_limit`: deep Python recursion for a while."""

from __future__ import annotations

import sys
import threading

_LIMIT = 1 << 30
_LOCK = threading.Lock()
_STATE = {"inside": 0, "before": 0}


class max_recursion_limit:
    """Raises Python's own limit of recursion as high as it goes inside the block.

    The limit belongs to the process; blocks may be nested and entered by several threads. What
    remains is the stack of the thread: give threads that recurse deeply one that is large enough
    with `threading.stack_size`.
    """

    def __enter__(self) -> None:
        with _LOCK:
            if not _STATE["inside"]:
                _STATE["before"] = sys.getrecursionlimit()
                sys.setrecursionlimit(_LIMIT)
            _STATE["inside"] += 1

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            _STATE["inside"] -= 1
            if not _STATE["inside"]:
                sys.setrecursionlimit(_STATE["before"])


__all__ = ["max_recursion_limit"]
