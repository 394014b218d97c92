"""Scratch memory of programs, of which one at a time has each piece."""

from __future__ import annotations

import contextlib
import weakref

from treadle.base.observer import recording
from treadle.runtime.host import HostBuffer, address, give_back, memory

_SPARE = 8
"""An arena has this part more than was asked for, so that it serves extents that grow."""
_UNUSED = 64
"""Runs after which an arena that is twice as large as all of them needed is given back."""
LARGE = 1 << 20
"""Bytes from which an arena is shared among all programs of the process: a run takes much longer
than asking for one."""


class Arena:
    """Scratch memory of one run at a time."""

    __slots__ = ("address", "buffer", "most", "nbytes", "runs")

    def __init__(self, nbytes: int) -> None:
        self.buffer: HostBuffer = memory("activations", nbytes)
        self.address = address(self.buffer.bytes)
        self.nbytes = nbytes
        self.most = self.runs = 0
        if (observer := recording()) is not None:
            observer.kept("scratch of a program", self.buffer.bytes)


class Arenas:
    """Arenas that programs share which do not run at the same time, or as many as do."""

    __slots__ = ("_free", "_needs")

    def __init__(self) -> None:
        self._free: list[Arena] = []
        self._needs: list[int] = []

    def join(self, user: object, nbytes: int) -> None:
        """Keep arenas of so many bytes as long as there is this user, or others need them."""
        self._needs.append(nbytes)
        weakref.finalize(user, self._leave, nbytes).atexit = False

    def _leave(self, nbytes: int) -> None:
        """Give back arenas that no user needs any more."""
        self._needs.remove(nbytes)
        most = max(self._needs, default=0)
        for arena in [a for a in self._free if a.buffer.nbytes > most + most // _SPARE]:
            with contextlib.suppress(ValueError):  # Another thread has taken it.
                self._free.remove(arena)

    def take(self, nbytes: int) -> Arena:
        """One of at least so many bytes, until `give` takes it back."""
        try:
            found = self._free.pop()
        except IndexError:
            return Arena(nbytes)
        found.runs += 1
        if nbytes > found.most:
            found.most = nbytes
        if found.nbytes < nbytes:
            del found  # Before there is a larger one.
            return Arena(nbytes + nbytes // _SPARE)
        if found.runs >= _UNUSED:
            if found.nbytes > 2 * found.most:
                most = found.most
                del found
                return Arena(most)
            found.most = found.runs = 0
        return found

    def give(self, arena: Arena) -> None:
        """Take back an arena that nobody uses any more."""
        self._free.append(arena)

    def clear(self) -> bool:
        """Give back what nobody uses; whether that was anything."""
        there = bool(self._free)
        self._free.clear()
        return there


SHARED = Arenas()
"""Large arenas of programs whose extents are fixed: the widths of a model, training and evaluation
take turns."""


def rest() -> None:
    """Give the system the large arenas that nobody uses: no program runs for a while."""
    if SHARED.clear():
        give_back()
