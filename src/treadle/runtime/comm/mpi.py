"""MPI through mpi4py, on whichever library it finds: a cluster's own, or that of a wheel.

Sums are MPI's; arrays that are only moved travel as bytes, so that MPI need not know their types.
Messages that hold Python objects are pickled by mpi4py and come from processes of the same job.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
from mpi4py import MPI
from mpi4py.run import set_abort_status

from treadle.base.array import Array
from treadle.base.env import COMM_TIMEOUT
from treadle.base.log import get_logger
from treadle.runtime.comm.api import Agreement, CommunicationError, reduction_type
from treadle.runtime.comm.board import finished
from treadle.runtime.comm.rendezvous import Check, Rendezvous, open_board, wait_until
from treadle.runtime.comm.survivors import (
    ENDING,
    ends_alone,
    has_lost,
    is_loss,
    is_resilient,
    loss,
    rest_of,
    unanimous,
)

P = ParamSpec("P")
R = TypeVar("R")

_OPS = {"sum": MPI.SUM, "mean": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
_ARRAY, _VALUE, _READY = 1, 2, 3
"""Tags of messages from one rank to another."""
_GROUP_TAGS = 1 << 14
_SMALL = 1 << 14
"""Bytes for whose memory nobody has to ask."""

_SETTLED = 5.0
"""Seconds that reductions of a group that has lost ranks have to end."""


def _explained(
    method: Callable[Concatenate[MpiCommunicator, P], R],
) -> Callable[Concatenate[MpiCommunicator, P], R]:
    """MPI's own errors as ours."""

    @functools.wraps(method)
    def call(self: MpiCommunicator, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except MPI.Exception as error:
            raise _as_ours(self, method.__name__, error) from error

    return call


def _as_ours(comm: MpiCommunicator, where: str, error: MPI.Exception) -> CommunicationError:
    """An error of MPI's; where ranks are lost, the calls of all others end, too."""
    if not is_loss(error):
        return CommunicationError(
            where,
            f"MPI reports: {error.Get_error_string()}",
            hint="end the job and resume from the last checkpoint",
        )
    _revoke_all()
    return loss(where, comm.world.comms[0], comm.world.ranks)


def _revoke_all() -> None:
    """End the calls of all ranks in all groups, with an error."""
    for group in list(_OPEN):
        for comm in group.comms:
            comm.Revoke()


def _settle(begun: deque[MPI.Request]) -> None:
    """Wait until nothing writes to memory any more, once its group has been revoked."""
    deadline = time.monotonic() + _SETTLED
    for request in begun:
        with contextlib.suppress(MPI.Exception):
            while not request.Test() and time.monotonic() < deadline:
                os.sched_yield()


def open_world(
    rank: int | None = None, empty: Callable[[tuple[int, ...], np.dtype[Any]], Array] = np.empty
) -> MpiCommunicator:
    """All processes of this MPI job, in their order or with this one at `rank`."""
    key = MPI.COMM_WORLD.rank if rank is None else rank
    comm = MPI.COMM_WORLD.Split(0, key)
    if rank is not None and comm.rank != rank:
        raise CommunicationError(
            "init_process_group",
            f"the ranks that processes were given are not 0 to {comm.size - 1}, each once",
            saw=f"rank {rank} came out as {comm.rank}",
        )
    machines = tuple(comm.allgather(platform.node()))
    if comm.rank == 0 and is_resilient() and not ends_alone():
        get_logger().warning("a job that has lost ranks may hang at its end: %s", ENDING)
    return MpiCommunicator(comm, "world", tuple(range(comm.size)), machines, empty)


def is_whole(world: MpiCommunicator, fine: bool) -> bool:
    """Return whether no rank is lost and all are fine, the same answer on all that are left.

    Raises:
        CommunicationError: a rank is there, but does not come.
    """
    return unanimous(world.comms[0], fine, world.timeout)


def shrunk(world: MpiCommunicator, met: bool) -> tuple[MpiCommunicator, tuple[int, ...]]:
    """The ranks of a world that are left, in their order, and those that are not.

    Args:
        world: all of whose ranks call this that are left.
        met: whether they have just come together in `is_whole`.
    """
    _revoke_all()
    for comm in _OPEN:
        _settle(comm.begun)
    _LEFT.extend(_OPEN)
    _OPEN.clear()
    origin = world.comms[0].Get_group()

    def made(comm: MPI.Intracomm) -> tuple[MpiCommunicator, tuple[int, ...]]:
        places = comm.Get_group().Translate_ranks(None, origin)
        machines = tuple(world.machines[p] for p in places)
        lost = tuple(sorted(set(range(world.size)).difference(places)))
        ranks = tuple(range(comm.size))
        return MpiCommunicator(comm, world.name, ranks, machines, world.empty), lost

    return rest_of(world.comms[0], made, world.timeout, met)


def abort_on_exceptions() -> None:
    """End the whole job when this process ends with an exception, as `python -m mpi4py` does."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        before(kind, error, trace)
        set_abort_status(1)

    sys.excepthook = hook


class MpiCommunicator:
    """A group of processes of an MPI job.

    Args:
        comm: the group as MPI knows it; it is duplicated and freed.
        name: of the group.
        ranks: in the world.
        machines: that they are on.
        empty: makes memory for results; better than NumPy is what keeps large blocks for reuse,
            as every page of new memory costs about as much as its message.
        world: that it is part of; None if it is one.
    """

    engine = "mpi"

    def __init__(
        self,
        comm: MPI.Comm,
        name: str,
        ranks: tuple[int, ...],
        machines: tuple[str, ...],
        empty: Callable[[tuple[int, ...], np.dtype[Any]], Array],
        world: MpiCommunicator | None = None,
    ) -> None:
        self.empty = empty
        self.world = self if world is None else world
        self.name, self.ranks, self.machines = name, ranks, machines
        self.rank, self.size = int(comm.rank), int(comm.size)
        # Collectives that go on in the background are ordered among themselves alone, and so must
        # not share a communicator with others.
        self._data, self._behind = comm.Dup(), comm.Dup()
        self.comms = self._data, self._behind, comm
        self.timeout = float(COMM_TIMEOUT.get())
        self._rendezvous = Rendezvous(comm, name, ranks, self.timeout, open_board(comm, machines))
        self._going: deque[_Going] = deque()
        self.begun: deque[MPI.Request] = deque()
        self.defers = len(set(machines)) == 1
        """True if what is to go on in the background is carried out when it is waited for. Memory
        that ranks share moves nothing while nobody calls MPI, and waiting in it takes a third of
        the time of asking."""
        self._outgoing = _Outgoing()
        _OPEN.add(self)

    # -- control -----------------------------------------------------------------------------

    def agree(self, what: str, /) -> None:
        try:  # No decorator: every collective comes through here.
            self._rendezvous.agree(what)
        except MPI.Exception as error:
            raise _as_ours(self, what, error) from error

    @_explained
    def announce(self, what: str, /) -> Check:
        return self._rendezvous.start(what)

    @_explained
    def barrier(self) -> None:
        self.agree("barrier")
        self._outgoing.wait()

    @_explained
    def exchange(self, value: Any, /) -> list[Any]:
        self.agree("exchange of values")
        return list(self._data.allgather(value))

    @_explained
    def broadcast_value(self, value: Any, root: int, /) -> Any:
        self.agree(f"broadcast of a value from {root}")
        return self._data.bcast(value, root)

    @_explained
    def send_value(self, value: Any, dest: int, /) -> None:
        self._outgoing.add(self._data.isend(value, dest, _VALUE), value)

    @_explained
    def recv_value(self, source: int, /) -> Any:
        return self._message(source, _VALUE, "a value").recv()

    # -- arrays ------------------------------------------------------------------------------

    def all_reduce(self, x: Array, kind: str, /, by: Hashable | None = None) -> Array:
        if by is not None:
            try:  # No decorator, for the sake of small arrays.
                made = self._rendezvous.reduced(x, kind, by)
            except MPI.Exception as error:
                raise _as_ours(self, "all_reduce", error) from error
            if made is not None:
                return made
        return self._all_reduce(x, kind)

    @_explained
    def _all_reduce(self, x: Array, kind: str) -> Array:
        wide = _wide(x)
        small = wide.nbytes < _SMALL
        total = np.empty_like(wide) if small else self.empty(wide.shape, wide.dtype)
        self._data.Allreduce(wide, total, _OPS[kind])
        return finished(total, kind, self.size, x.dtype)

    def start_all_reduce(
        self, x: Array, kind: str, /, announced: Agreement | None = None
    ) -> _Going:
        what = f"all_reduce {kind} {x.dtype}{list(x.shape)}, not waited for"
        going = _Going(self, announced or self.announce(what), x, kind)
        self._going.append(going)
        self.advance()
        return going

    def advance(self) -> None:
        """Move collectives in the background on, in the order in which they were started."""
        try:
            while not self.defers and self._going and self._going[0].begin():
                self._going.popleft()
        except (CommunicationError, MPI.Exception) as error:
            raise self._given_up(error) from None

    def wait_for_next(self) -> None:
        """Wait until all ranks have come to the next collective in the background; begin it.

        Where those are deferred it is carried out at once.
        """
        try:
            self._going[0].agreement.wait()
        except (CommunicationError, MPI.Exception) as error:
            raise self._given_up(error) from None
        if self.defers:
            self._going.popleft().carry_out()
        else:
            self.advance()

    def _given_up(self, error: CommunicationError | MPI.Exception) -> CommunicationError:
        """Begin nothing that was announced together with what has failed."""
        if isinstance(error, MPI.Exception):
            error = _as_ours(self, "all_reduce", error)
        agreement = self._going[0].agreement
        for going in self._going:
            if going.agreement is agreement:
                going.failure = error
        self._going = deque(g for g in self._going if g.failure is None)
        return error

    def begin(self, x: Array, kind: str) -> MPI.Request:
        """Begin a reduction in the background, in the memory of its operand."""
        while self.begun and self.begun[0].Test():
            self.begun.popleft()
        self.begun.append(self._behind.Iallreduce(MPI.IN_PLACE, x, _OPS[kind]))
        return self.begun[-1]

    @_explained
    def carry_out(self, x: Array, kind: str) -> None:
        """The same, waited for."""
        self._behind.Allreduce(MPI.IN_PLACE, x, _OPS[kind])

    @_explained
    def reduce(self, x: Array, root: int, /) -> Array | None:
        wide = _wide(x)
        total = self.empty(wide.shape, wide.dtype) if self.rank == root else None
        self._data.Reduce(wide, total, MPI.SUM, root)
        return None if total is None else total.astype(x.dtype, copy=False)

    @_explained
    def reduce_scatter(self, x: Array, /) -> Array:
        wide = _wide(x)
        part = self.empty(x.shape[1:], wide.dtype)
        self._data.Reduce_scatter_block(wide, part, MPI.SUM)
        return part.astype(x.dtype, copy=False)

    @_explained
    def all_gather(self, x: Array, /) -> Array:
        every = self.empty((self.size, *x.shape), x.dtype)
        self._data.Allgather(_bytes(x, x.nbytes), _bytes(every, x.nbytes))
        return every

    @_explained
    def gather(self, x: Array, root: int, /) -> Array | None:
        every = self.empty((self.size, *x.shape), x.dtype) if self.rank == root else None
        into = None if every is None else _bytes(every, x.nbytes)
        self._data.Gather(_bytes(x, x.nbytes), into, root)
        return every

    @_explained
    def scatter(self, x: Array, root: int, /) -> Array:
        part = self.empty(x.shape[1:], x.dtype)
        source = _bytes(x, part.nbytes) if self.rank == root else None
        self._data.Scatter(source, _bytes(part, part.nbytes), root)
        return part

    @_explained
    def broadcast(self, x: Array, root: int, /) -> Array:
        copy = _dense(x).copy() if self.rank == root else self.empty(x.shape, x.dtype)
        self._data.Bcast(_bytes(copy, copy.nbytes), root)
        return copy

    @_explained
    def all_to_all(self, x: Array, /) -> Array:
        made = self.empty(x.shape, x.dtype)
        part = x.nbytes // self.size
        self._data.Alltoall(_bytes(x, part), _bytes(made, part))
        return made

    @_explained
    def send(self, x: Array, dest: int, /) -> None:
        copy = _dense(x).copy()
        self._outgoing.add(self._data.Isend(_bytes(copy, copy.nbytes), dest, _ARRAY), copy)

    @_explained
    def recv(self, shape: tuple[int, ...], dtype: np.dtype[Any], source: int, /) -> Array:
        what = f"{dtype}{list(shape)}"
        status = MPI.Status()
        message = self._message(source, _ARRAY, what, status)
        made = self.empty(shape, dtype)
        sent = status.Get_count(MPI.BYTE)
        if sent != made.nbytes:
            raise CommunicationError(
                "recv",
                f"rank {self.ranks[source]} sent {sent} bytes where {made.nbytes} are expected",
                saw=what,
                hint="send and receive the same shapes and dtypes in the same order",
            )
        message.Recv(_bytes(made, made.nbytes))
        return made

    def _message(
        self, source: int, tag: int, what: str, status: MPI.Status | None = None
    ) -> MPI.Message:
        """The next message of a rank, not yet received."""
        found: list[MPI.Message] = []
        probe = self._data.Improbe if tag == _ARRAY else self._data.improbe

        def arrived() -> bool:
            message = probe(source, tag, status)
            if message is not None:
                found.append(message)
            return bool(found)

        wait_until(arrived, lambda waited: _late(self, source, what, waited))
        return found[0]

    # -- groups ------------------------------------------------------------------------------

    @_explained
    def group(self, ranks: Sequence[int], name: str, /) -> MpiCommunicator:
        others = [r for r in ranks if r != self.rank]
        for r in others:
            self._outgoing.add(self._data.isend(name, r, _READY), name)
        for r in others:
            _expect(self, r, name)
        picked = self._data.Get_group().Incl(list(ranks))
        inside = cast(MPI.Intracomm, self._data)
        comm = inside.Create_group(picked, zlib.crc32(name.encode()) % _GROUP_TAGS)
        named = tuple(self.ranks[r] for r in ranks)
        machines = tuple(self.machines[r] for r in ranks)
        return MpiCommunicator(comm, name, named, machines, self.empty, self.world)

    def look_for_losses(self, where: str, /) -> None:
        if is_resilient() and has_lost(self.world.comms[0]):
            _revoke_all()
            raise loss(where, self.world.comms[0], self.world.ranks)

    def abort(self, status: int, /) -> None:
        MPI.COMM_WORLD.Abort(status)

    @_explained
    def close(self) -> None:
        self.barrier()
        _OPEN.discard(self)
        for comm in self.comms:
            with contextlib.suppress(MPI.Exception):  # Others may have ended meanwhile.
                comm.Free()


def _expect(comm: MpiCommunicator, source: int, name: str) -> None:
    """Wait until a rank is about to make the group, too: `Create_group` has no clock."""
    theirs = comm._message(source, _READY, f"the group {name!r}").recv()
    if theirs != name:
        raise CommunicationError(
            "new_group",
            "ranks make groups in different orders",
            saw=f"rank {comm.rank}: {name!r}, rank {source}: {theirs!r}",
        )


def _late(comm: MpiCommunicator, source: int, what: str, waited: float) -> None:
    """Give up waiting for a message, if it is time."""
    if waited > comm.timeout:
        raise CommunicationError(
            "recv",
            f"rank {comm.ranks[source]} sent nothing within {comm.timeout:g} s",
            saw=f"rank {comm.ranks[comm.rank]} waits for {what}",
            hint="see what that rank does; TREADLE_COMM_TIMEOUT sets the time",
        )


class _Outgoing:
    """Message that is being sent, kept until it has left."""

    def __init__(self) -> None:
        self._held: list[tuple[MPI.Request, Any]] = []

    def add(self, request: MPI.Request, held: Any) -> None:
        """Keep something."""
        self._held = [(r, h) for r, h in self._held if not r.Test()]
        self._held.append((request, held))

    def wait(self) -> None:
        """Wait until all of the message has left."""
        for request, _ in self._held:
            request.Wait()
        self._held.clear()


class _Going:
    """A reduction in the background: first the ranks agree, then it begins, then it is over."""

    def __init__(self, owner: MpiCommunicator, agreement: Agreement, x: Array, kind: str) -> None:
        self.agreement = agreement
        self.failure: CommunicationError | None = None
        self._owner, self._kind = owner, kind
        self._x, self._dtype = _wide(x), x.dtype
        self._request: MPI.Request | None = None
        self._over = False

    def carry_out(self) -> None:
        """Begin, and wait for the end."""
        self._owner.carry_out(self._x, self._kind)
        self._over = True

    def begin(self) -> bool:
        """Begin if all ranks have come; whether it has begun."""
        if self._request is None and self.agreement.done():
            self._request = self._owner.begin(self._x, self._kind)
        return self._request is not None

    def done(self) -> bool:
        """Return whether the result is there."""
        self._owner.advance()
        try:
            return self._over or (self._request is not None and bool(self._request.Test()))
        except MPI.Exception as error:
            raise _as_ours(self._owner, "all_reduce", error) from error

    def wait(self) -> Array:
        """The result."""
        while self._request is None and not self._over:
            if self.failure is not None:
                raise self.failure
            self._owner.wait_for_next()
        try:
            if self._request is not None:
                self._request.Wait()
        except MPI.Exception as error:
            raise _as_ours(self._owner, "all_reduce", error) from error
        return finished(self._x, self._kind, self._owner.size, self._dtype)


_OPEN: weakref.WeakSet[MpiCommunicator] = weakref.WeakSet()
"""The groups of this process."""
_LEFT: list[MpiCommunicator] = []
"""Those that have lost ranks. They are kept: messages to their memory may still be under way."""


def _dense(x: Array) -> Array:
    """Row-major; unlike NumPy's own function this leaves arrays without axes as they are."""
    return np.asarray(x, order="C")


def _wide(x: Array) -> Array:
    """Dense, in a type MPI can add."""
    return np.asarray(x, dtype=reduction_type(x.dtype), order="C")


def _bytes(x: Array, unit: int) -> Array:
    """Memory as words that divide `unit` bytes: counts of MPI's calls have 31 bits."""
    flat = _dense(x).reshape(-1)
    return flat.view(np.uint64 if unit % 8 == 0 else np.uint8)
