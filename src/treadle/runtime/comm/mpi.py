"""MPI through mpi4py, on whichever library it finds: a cluster's own, or that of a wheel.

Sums are MPI's; arrays that are only moved travel as bytes, so that MPI need not know their types.
Messages that hold Python objects are pickled by mpi4py and come from processes of the same job.
"""

from __future__ import annotations

import functools
import platform
import sys
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from mpi4py import MPI
from mpi4py.run import set_abort_status

from treadle.base.env import COMM_TIMEOUT
from treadle.runtime.comm.api import Agreement, Array, CommunicationError, reduction_type
from treadle.runtime.comm.muster import Check, Muster, wait_until

P = ParamSpec("P")
R = TypeVar("R")

_OPS = {"sum": MPI.SUM, "mean": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
_ARRAY, _VALUE, _READY = 1, 2, 3
"""Tags of messages from one rank to another."""
_GROUP_TAGS = 1 << 14
_SMALL = 1 << 14
"""Bytes for whose memory nobody has to ask."""


def _explained(method: Callable[P, R]) -> Callable[P, R]:
    """MPI's own errors as ours."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except MPI.Exception as error:
            raise CommunicationError(
                method.__name__,
                f"MPI reports: {error.Get_error_string()}",
                hint="end the job and resume from the last checkpoint",
            ) from error

    return call


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
    return MpiCommunicator(comm, "world", tuple(range(comm.size)), machines, empty)


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
    """

    engine = "mpi"

    def __init__(
        self,
        comm: MPI.Comm,
        name: str,
        ranks: tuple[int, ...],
        machines: tuple[str, ...],
        empty: Callable[[tuple[int, ...], np.dtype[Any]], Array],
    ) -> None:
        self.empty = empty
        self.name, self.ranks, self.machines = name, ranks, machines
        self.rank, self.size = int(comm.rank), int(comm.size)
        # Collectives that go on in the background are ordered among themselves alone, and so must
        # not share a communicator with others.
        self._data, self._behind = comm.Dup(), comm.Dup()
        self._muster = Muster(comm, name, ranks, float(COMM_TIMEOUT.get()))
        self._going: deque[_Going] = deque()
        self.defers = len(set(machines)) == 1
        """Whether what is to go on in the background is carried out when it is waited for. Memory
        that ranks share moves nothing while nobody calls MPI, and waiting in it takes a third of
        the time of asking."""
        self._outgoing: list[tuple[MPI.Request, Any]] = []

    # -- control -----------------------------------------------------------------------------

    def agree(self, what: str, /) -> None:
        self._muster.agree(what)

    def announce(self, what: str, /) -> Check:
        return self._muster.start(what)

    def barrier(self) -> None:
        self.agree("barrier")
        self._wait_for_outgoing()

    def exchange(self, value: Any, /) -> list[Any]:
        self.agree("exchange of values")
        return list(self._data.allgather(value))

    def broadcast_value(self, value: Any, root: int, /) -> Any:
        self.agree(f"broadcast of a value from {root}")
        return self._data.bcast(value, root)

    @_explained
    def send_value(self, value: Any, dest: int, /) -> None:
        self._track(self._data.isend(value, dest, _VALUE), value)

    @_explained
    def recv_value(self, source: int, /) -> Any:
        return self._message(source, _VALUE, "a value").recv()

    # -- arrays ------------------------------------------------------------------------------

    @_explained
    def all_reduce(self, x: Array, kind: str, /) -> Array:
        wide = _wide(x)
        small = wide.nbytes < _SMALL
        total = np.empty_like(wide) if small else self.empty(wide.shape, wide.dtype)
        self._data.Allreduce(wide, total, _OPS[kind])
        return _finished(total, kind, self.size, x.dtype)

    def start_all_reduce(
        self, x: Array, kind: str, /, announced: Agreement | None = None
    ) -> _Going:
        what = f"all_reduce {kind} {x.dtype}{list(x.shape)}, not waited for"
        going = _Going(self, announced or self._muster.start(what), x, kind)
        self._going.append(going)
        self.advance()
        return going

    def advance(self) -> None:
        """Move collectives in the background on, in the order in which they were started."""
        try:
            while not self.defers and self._going and self._going[0].begin():
                self._going.popleft()
        except CommunicationError as error:
            self._give_up(error)
            raise

    def wait_for_next(self) -> None:
        """Wait until all ranks have come to the next collective in the background; begin it.

        Where those are deferred it is carried out at once.
        """
        try:
            self._going[0].agreement.wait()
        except CommunicationError as error:
            self._give_up(error)
            raise
        if self.defers:
            self._going.popleft().carry_out()
        else:
            self.advance()

    def _give_up(self, error: CommunicationError) -> None:
        """Begin nothing that was announced together with what has failed."""
        agreement = self._going[0].agreement
        for going in self._going:
            if going.agreement is agreement:
                going.failure = error
        self._going = deque(g for g in self._going if g.failure is None)

    def begin(self, x: Array, kind: str) -> MPI.Request:
        """Begin a reduction in the background, in the memory of its operand."""
        return self._behind.Iallreduce(MPI.IN_PLACE, x, _OPS[kind])

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
        self._track(self._data.Isend(_bytes(copy, copy.nbytes), dest, _ARRAY), copy)

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

        def late(waited: float) -> None:
            if waited > self._muster.timeout:
                raise CommunicationError(
                    "recv",
                    f"rank {self.ranks[source]} sent nothing within {self._muster.timeout:g} s",
                    saw=f"rank {self.ranks[self.rank]} waits for {what}",
                    hint="see what that rank does; TREADLE_COMM_TIMEOUT sets the time",
                )

        wait_until(arrived, late)
        return found[0]

    def _track(self, request: MPI.Request, held: Any) -> None:
        """Keep what is being sent until it has left."""
        self._outgoing = [(r, h) for r, h in self._outgoing if not r.Test()]
        self._outgoing.append((request, held))

    def _wait_for_outgoing(self) -> None:
        for request, _ in self._outgoing:
            request.Wait()
        self._outgoing.clear()

    # -- groups ------------------------------------------------------------------------------

    @_explained
    def group(self, ranks: Sequence[int], name: str, /) -> MpiCommunicator:
        others = [r for r in ranks if r != self.rank]
        for r in others:
            self._track(self._data.isend(name, r, _READY), name)
        for r in others:
            self._expect(r, name)
        picked = self._data.Get_group().Incl(list(ranks))
        inside = cast(MPI.Intracomm, self._data)
        comm = inside.Create_group(picked, zlib.crc32(name.encode()) % _GROUP_TAGS)
        named = tuple(self.ranks[r] for r in ranks)
        machines = tuple(self.machines[r] for r in ranks)
        return MpiCommunicator(comm, name, named, machines, self.empty)

    def _expect(self, source: int, name: str) -> None:
        """Wait until a rank is about to make the group, too: `Create_group` has no clock."""
        theirs = self._message(source, _READY, f"the group {name!r}").recv()
        if theirs != name:
            raise CommunicationError(
                "new_group",
                "ranks make groups in different orders",
                saw=f"rank {self.rank}: {name!r}, rank {source}: {theirs!r}",
            )

    def abort(self, status: int, /) -> None:
        MPI.COMM_WORLD.Abort(status)

    def close(self) -> None:
        self.barrier()
        for comm in (self._data, self._behind, self._muster.comm):
            comm.Free()


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
        """Whether the result is there."""
        self._owner.advance()
        return self._over or (self._request is not None and bool(self._request.Test()))

    def wait(self) -> Array:
        """The result."""
        while self._request is None and not self._over:
            if self.failure is not None:
                raise self.failure
            self._owner.wait_for_next()
        if self._request is not None:
            self._request.Wait()
        return _finished(self._x, self._kind, self._owner.size, self._dtype)


def _dense(x: Array) -> Array:
    """Row-major; unlike NumPy's own function this leaves arrays without axes as they are."""
    return np.asarray(x, order="C")


def _wide(x: Array) -> Array:
    """Dense, in a type MPI can add."""
    return np.asarray(x, dtype=reduction_type(x.dtype), order="C")


def _finished(total: Array, kind: str, size: int, dtype: np.dtype[Any]) -> Array:
    if kind == "mean":
        total = total // size if dtype.kind in "iu" else total / total.dtype.type(size)
    return total.astype(dtype, copy=False)


def _bytes(x: Array, unit: int) -> Array:
    """Memory as words that divide `unit` bytes: counts of MPI's calls have 31 bits."""
    flat = _dense(x).reshape(-1)
    return flat.view(np.uint64 if unit % 8 == 0 else np.uint8)
