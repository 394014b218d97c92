"""Requests to end, kept until the running step is done."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

_TERMINATED = 128 + signal.SIGTERM


class Interrupts:
    """Holds SIGINT and SIGTERM back inside a `with` block of the main thread.

    Attributes:
        wanted: whether one has come.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._which: int = signal.SIGINT
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        # Python delivers signals to the main thread alone.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def leave(self) -> None:
        """End as the signal would have.

        Raises:
            KeyboardInterrupt: for SIGINT.
            SystemExit: for SIGTERM.
        """
        if self._which == signal.SIGTERM:
            sys.exit(_TERMINATED)
        raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted, self._which = True, number
