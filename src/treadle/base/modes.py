"""The hook through which autodiff's tape and jit's capture see every op of their thread.

A hook belongs to the thread that installed it. `ACTIVE.count` says how many threads have one, so
that the eager fast path pays one attribute read while none has.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol


class Hook(Protocol):
    """What autodiff's tape and jit's capture implement to see every op of their thread."""

    def apply(self, op: Any, inputs: tuple[Any, ...], /) -> tuple[Any, ...]:
        """Run `op` on operands in place of the plain eager path and return its results."""
        ...

    def binary(self, op: Any, launch: Any, kind: Any, x: Any, y: Any, /) -> Any:
        """The same for an arithmetic operator whose launch and result kind are known."""
        ...


class Active:
    """How many threads of the process have a hook; read without a lock, as a hint."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class _Local(threading.local):
    """One thread's installed hook."""

    hook: Hook | None = None


ACTIVE = Active()
LOCAL = _Local()
_LOCK = threading.Lock()


def install(hook: Hook | None) -> Hook | None:
    """Make `hook` (or none) see this thread's ops; returns the one it replaces."""
    before = LOCAL.hook
    LOCAL.hook = hook
    with _LOCK:  # `+=` on an attribute is not atomic.
        ACTIVE.count += (hook is not None) - (before is not None)
    return before
