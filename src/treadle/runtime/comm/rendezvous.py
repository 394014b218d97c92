"""True if all ranks of a group are about to do the same, and who is missing.

Before a collective every rank hands in a hash of what it is about to do; a board in shared memory,
or a reduction of 16 bytes, tells everybody whether the hashes are equal. That is waited for with an
eye on the clock; the collective itself then finds all ranks present and needs none. A rank that
waits for long says so to others, so that whoever runs out of time can tell those who wait from
those who are missing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from treadle.base.array import Array
from treadle.runtime.comm.api import CommunicationError, intent
from treadle.runtime.comm.board import (
    Board,
    SmallReduction,
    is_possible,
    mapped,
    published,
    withdraw,
)

_WAITING, _WORDS, _HASH = 11, 12, 13
"""Tags of messages: "I wait in call number n to do this", "I was about to do this", and hashes."""
_SPINS = 200
_TURNS = range(_SPINS)
_LONG = 0.1
"""Seconds after which a rank says that it waits, and polls less often."""
_NAP = 0.0005
_WATCHERS = 16
"""Number of ranks that are told who waits; in a large group the others need not know."""
_MOST_KNOWN = 4096
"""Kinds of reductions that are kept ready."""
_WORDS_TIME = 2.0
"""Seconds in which ranks that disagree tell one another."""


def wait_until(test: Callable[[], bool], late: Callable[[float], None]) -> None:
    """Poll until `test()`; `late(seconds)` is called now and then once that takes long."""
    for _ in range(_SPINS):
        if test():
            return
    began = time.monotonic()
    while not test():
        waited = time.monotonic() - began
        if waited > _LONG:
            late(waited)
            time.sleep(_NAP)
        else:
            os.sched_yield()


@lru_cache(maxsize=4096)
def _digest(what: str) -> int:
    """62 bits, which leave room for a sign."""
    return int.from_bytes(hashlib.blake2b(what.encode(), digest_size=8).digest(), "little") >> 2


class Rendezvous:
    """The control traffic of one group.

    Args:
        comm: an MPI communicator for nothing else.
        name: the group's name, for messages.
        ranks: its ranks as ranks of the world.
        timeout: in seconds.
        board: where ranks tell one another quickly, if they share memory.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        name: str,
        ranks: Sequence[int],
        timeout: float,
        board: Board | None = None,
    ) -> None:
        self.comm = comm
        self.timeout = timeout
        self._name = name
        self._ranks = tuple(ranks)
        self._calls = 0
        self._known: dict[Hashable, tuple[str, SmallReduction | None]] = {}
        self._waits: dict[int, tuple[int, str]] = {}
        self._words: dict[tuple[int, int], str] = {}
        self._sent: list[MPI.Request] = []
        self._broken = ""
        two = comm.size == 2
        self._usual: Board | Exchange | Reduction = board or (
            Exchange(comm) if two else Reduction(comm, lasting=True)
        )

    def agree(self, what: str) -> None:
        """Wait until all ranks are about to do this.

        Raises:
            CommunicationError: one does not come, in time, or they are to do different things.
        """
        self._meet(what, _digest(what))

    def _meet(self, what: str, digest: int) -> None:
        # Every collective comes through here: written for the case that others come soon.
        if self._broken:
            raise self._failed(what)
        self._calls = number = self._calls + 1
        usual = self._usual
        if not usual.meet(digest):
            wait_until(usual.test, lambda seconds: self.late(what, number, seconds))
            if not usual.is_unanimous():
                raise self.disagree(what, number)

    def reduced(self, x: Array, kind: str, by: Hashable) -> Array | None:
        """The reduction of an array; None for one that is too large to be handed in with its hash.

        Then ranks have agreed that they are about to reduce it. Raises as `agree`.
        """
        key = by, kind, x.dtype, x.shape
        known = self._known.get(key)
        if known is None:
            known = self._remember(key, x, kind, intent(by, x))
        what, small = known
        if small is not None:
            return small(x)
        self.agree(what)
        return None

    def _remember(
        self, key: Hashable, x: Array, kind: str, what: str
    ) -> tuple[str, SmallReduction | None]:
        small, meet = None, partial(self._meet, what, _digest(what))
        if isinstance(self._usual, Board):
            small = self._usual.reduction(x.shape, x.dtype, kind, meet)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = what, small
        return what, small

    def start(self, what: str) -> Check:
        """Hand in what this rank is about to do, without waiting for others."""
        number = self._number(what)
        reduction = Reduction(self.comm, lasting=False)
        reduction.start(_digest(what))
        return Check(self, reduction, what, number)

    def _number(self, what: str) -> int:
        if self._broken:
            raise self._failed(what)
        self._calls += 1
        return self._calls

    def _failed(self, what: str) -> CommunicationError:
        return CommunicationError(
            what,
            f"the group {self._name!r} has failed before",
            saw=self._broken,
            hint="end the job and resume from the last checkpoint",
        )

    def late(self, what: str, number: int, waited: float) -> None:
        """Say that this rank waits, listen to who else does, and give up in the end."""
        me, size = self.comm.rank, self.comm.size
        if self._waits.get(me) != (number, what):
            self._waits[me] = number, what
            told = [r for r in range(min(size, _WATCHERS)) if r != me]
            self._sent += [self.comm.isend((number, what), r, _WAITING) for r in told]
        self._listen(_WAITING)
        if any(n == number and other != what for n, other in self._waits.values()):
            # One waits and the other does not, which are two kinds of calls for MPI.
            self._broken = "ranks were about to do different things"
            raise self.disagree(what, number)
        if waited > self.timeout:
            missing = [self._ranks[r] for r in range(size) if self._waits.get(r, (0,))[0] < number]
            error = self._missing(what, missing)
            self._broken = f"{error.where}: {error.problem}"
            raise error

    def _missing(self, what: str, missing: Sequence[int]) -> CommunicationError:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        here = self._ranks[self.comm.rank]
        come = self.comm.size - len(missing)
        who = f"rank{'s' * (len(missing) > 1)} {shown} of the group {self._name!r}"
        return CommunicationError(
            what,
            f"{who} did not come within {self.timeout:g} s",
            saw=f"rank {here} waits; {come} of {self.comm.size} ranks are there",
            hint="see what those ranks do; TREADLE_COMM_TIMEOUT sets the time",
        )

    def disagree(self, what: str, number: int) -> CommunicationError:
        """Return an error that names what every rank was about to do; ranks tell one another, point
        to point.
        """
        me, size = self.comm.rank, self.comm.size
        self._words[me, number] = what
        self._sent += [self.comm.isend((number, what), r, _WORDS) for r in range(size) if r != me]
        deadline = time.monotonic() + _WORDS_TIME
        while len(self._said(number)) < size and time.monotonic() < deadline:
            self._listen(_WORDS)
            time.sleep(_NAP)
        alike: dict[str, list[int]] = {}
        for r, words in self._said(number).items():
            alike.setdefault(words, []).append(self._ranks[r])
        saw = "; ".join(
            f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}: {words}"
            for words, ranks in alike.items()
        )
        return CommunicationError(
            what.split("{")[0].split(" ")[0],
            f"the ranks of the group {self._name!r} are about to run different operations",
            saw=saw,
            hint="call the same collectives in the same order, with equal shapes and dtypes",
        )

    def _said(self, number: int) -> dict[int, str]:
        return {r: words for (r, n), words in sorted(self._words.items()) if n == number}

    def _listen(self, tag: int) -> None:
        """Take in what others say of themselves."""
        status = MPI.Status()
        while True:
            message = self.comm.improbe(MPI.ANY_SOURCE, tag, status)
            if message is None:
                break
            number, what = message.recv()
            source = status.Get_source()
            if tag == _WORDS:
                self._words[source, number] = what
            elif number > self._waits.get(source, (0,))[0]:
                self._waits[source] = number, what
        self._sent = [r for r in self._sent if not r.Test()]


def open_board(comm: MPI.Comm, machines: Sequence[str]) -> Board | None:
    """A board for a group, in which all ranks take part; None where they do not share memory."""
    if not is_possible(machines):
        return None
    own = published(comm.size) if comm.rank == 0 else ""
    try:
        memory = mapped(comm.bcast(own), comm.size)
        seen_by_all = comm.allreduce(memory is not None, MPI.LAND)
    finally:
        withdraw(own)
    if memory is None or not seen_by_all:
        return None
    # Asking for a message, any, has MPI do its work, as ranks that wait otherwise do.
    return Board(memory, comm.rank, comm.size, lambda: comm.Iprobe(MPI.ANY_SOURCE, _WAITING))


class Reduction:
    """The largest of h and of -h over all ranks: equal up to sign only where all h are equal.

    A lasting one is set up once, which MPI 4 can do, and then takes a third of the time.
    """

    __slots__ = ("_all", "_comm", "_lasting", "_mine", "request")

    def __init__(self, comm: MPI.Comm, *, lasting: bool) -> None:
        self._comm = comm
        # Views of memory: reading one number of an array takes three times as long.
        self._mine, self._all = np.empty(2, np.int64).data, np.empty(2, np.int64).data
        self.request: Any = None
        self._lasting = lasting and MPI.Get_version() >= (4, 0)
        if self._lasting:
            self.request = cast(MPI.Intracomm, comm).Allreduce_init(self._mine, self._all, MPI.MAX)

    def start(self, digest: int) -> None:
        """Hand in a hash."""
        self._mine[0], self._mine[1] = digest, -digest
        if self._lasting:
            self.request.Start()
        else:
            self.request = self._comm.Iallreduce(self._mine, self._all, MPI.MAX)

    def meet(self, digest: int) -> bool:
        """Hand in a hash, and wait a moment; whether those of all ranks are there and equal."""
        self.start(digest)
        return _soon(self.request) and self.is_unanimous()

    def test(self) -> bool:
        """Return whether all ranks have."""
        done: bool = self.request.Test()
        return done

    def is_unanimous(self) -> bool:
        """Return whether they are equal, once it is done."""
        return bool(self._all[0] == -self._all[1])


class Exchange:
    """Two ranks tell each other their hashes, in a third of the time of the smallest reduction."""

    __slots__ = ("_mine", "_request", "_sent", "_theirs")

    def __init__(self, comm: MPI.Comm) -> None:
        self._mine, self._theirs = np.zeros(1, np.int64).data, np.empty(1, np.int64).data
        other = 1 - comm.rank
        self._sent = comm.Send_init(self._mine, other, _HASH)
        self._request = comm.Recv_init(self._theirs, other, _HASH)

    def meet(self, digest: int) -> bool:
        """Hand in a hash, and wait a moment; whether the other one is there and equal."""
        self._sent.Wait()  # It has left long ago: messages of this size do not wait for receivers.
        self._mine[0] = digest
        self._request.Start()
        self._sent.Start()
        return _soon(self._request) and self.is_unanimous()

    def test(self) -> bool:
        """Return whether the other rank has."""
        done: bool = self._request.Test()
        return done

    def is_unanimous(self) -> bool:
        """Return whether they are equal, once the other one is there."""
        return bool(self._mine[0] == self._theirs[0])


def _soon(request: MPI.Request) -> bool:
    """Return whether a request is over within a moment."""
    test = request.Test
    for _ in _TURNS:  # noqa: SIM110  (a generator takes longer than all else here)
        if test():
            return True
    return False


class Check:
    """One reduction over hashes: over when all ranks have come."""

    __slots__ = ("_number", "_reduction", "_rendezvous", "_what")

    def __init__(
        self, rendezvous: Rendezvous, reduction: Reduction, what: str, number: int
    ) -> None:
        self._rendezvous, self._reduction = rendezvous, reduction
        self._what, self._number = what, number

    def done(self) -> bool:
        """Return whether all have come.

        Raises:
            CommunicationError: they have, to do different things.
        """
        if not self._reduction.test():
            return False
        if not self._reduction.is_unanimous():
            # All ranks find out, so the group can still be used.
            raise self._rendezvous.disagree(self._what, self._number)
        return True

    def wait(self) -> None:
        """Wait until all have come.

        Raises:
            CommunicationError: one does not, in time, or they are to do different things.
        """
        wait_until(self.done, lambda s: self._rendezvous.late(self._what, self._number, s))
