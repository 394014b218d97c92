"""Scratch memory of programs, of which one at a time has each piece."""

from __future__ import annotations

from treadle.base.observer import recording
from treadle.runtime.host import HostBuffer, address, memory

_SPARE = 8
"""An arena has this part more than was asked for, so that it serves extents that grow."""
_UNUSED = 64
"""Runs after which an arena that is twice as large as all of them needed is given back."""


class Arena:
    """Scratch memory of one run at a time."""

    __slots__ = ("address", "buffer", "most", "runs")

    def __init__(self, nbytes: int) -> None:
        self.buffer: HostBuffer = memory("activations", nbytes)
        self.address = address(self.buffer.bytes)
        self.most = self.runs = 0
        if (observer := recording()) is not None:
            observer.kept("scratch of a program", self.buffer.bytes)


class Arenas:
    """Arenas that programs share which do not run at the same time, or as many as do."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: list[Arena] = []

    def take(self, nbytes: int) -> Arena:
        """One of at least so many bytes, until `give` takes it back."""
        try:
            found = self._free.pop()
        except IndexError:
            return Arena(nbytes)
        found.most, found.runs = max(found.most, nbytes), found.runs + 1
        if found.buffer.nbytes < nbytes:
            del found  # Before there is a larger one.
            return Arena(nbytes + nbytes // _SPARE)
        if found.runs >= _UNUSED:
            if found.buffer.nbytes > 2 * found.most:
                most = found.most
                del found
                return Arena(most)
            found.most = found.runs = 0
        return found

    def give(self, arena: Arena) -> None:
        """Take back an arena that nobody uses any more."""
        self._free.append(arena)

    def clear(self) -> None:
        """Give back what nobody uses."""
        self._free.clear()
