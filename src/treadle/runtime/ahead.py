"""Memory that a device asks its driver for before anybody wants it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ahead:
    """Sizes of what is asked for, as MegEngine's `set_prealloc_config` has them.

    Attributes:
        alignment: of sizes, in bytes; a power of two.
        least: bytes of the smallest request.
        over: bytes beyond what is wanted, at most; 0 asks for nothing ahead.
        growth: of a request to what has been asked for so far.
    """

    alignment: int = 1
    least: int = 32 << 20
    over: int = 0
    growth: float = 2.0

    def more(self, nbytes: int, held: int) -> int:
        """Bytes to ask for besides `nbytes`, where `held` bytes have been asked for so far."""
        request = min(max(nbytes, self.least, int(held * self.growth)), nbytes + self.over)
        return -(-request // self.alignment) * self.alignment - nbytes


AHEAD: dict[str, Ahead] = {}
"""By kind of device."""
