"""Synchronous mode: whether everything waits for the device, so that errors point at the op."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from treadle.base.env import SYNC


class _Switch:
    """On or off for the process; read at every launch."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = SYNC.get() == "1"


SYNCHRONOUS = _Switch()


@contextmanager
def synchronous() -> Iterator[None]:
    """Wait for the device after every op inside the block, on all threads; slow.

    What a device reports late is then raised at the op at fault, with the user's line.
    TREADLE_SYNC=1 does so from the start of the program.
    """
    before, SYNCHRONOUS.on = SYNCHRONOUS.on, True
    try:
        yield
    finally:
        SYNCHRONOUS.on = before
