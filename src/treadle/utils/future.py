"""`Future`: a value that somebody gives later, once."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Future(Generic[T]):
    """A value that is there later: `set` gives it, `get` waits for it.

    Args:
        ack: after `set`, wait until somebody has taken the value, by `get`.
    """

    def __init__(self, ack: bool = True) -> None:
        self.ready = threading.Event()
        self._taken = threading.Event() if ack else None
        self._value: T | None = None

    def set(self, value: T) -> None:
        """Give the value.

        Raises:
            RuntimeError: it has been given before.
        """
        if self.ready.is_set():
            raise RuntimeError("Future: the value has been set before")
        self._value = value
        self.ready.set()
        if self._taken is not None:
            self._taken.wait()

    def get(self) -> T | None:
        """The value, when it is there."""
        self.ready.wait()
        if self._taken is not None:
            self._taken.set()
        return self._value


__all__ = ["Future"]
