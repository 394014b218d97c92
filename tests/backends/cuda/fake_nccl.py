"""NCCL over GPUs of main memory: what it moves travels by MPI, when a call is submitted."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from tests.backends.cuda.host_gpu import QUEUES

from treadle.backends.cuda.libraries.channel import ChannelError
from treadle.backends.cuda.libraries.collectives import BYTES, SUMMED
from treadle.base.dtype import as_dtype
from treadle.runtime.comm.api import Communicator

_NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
_TAG = 77


def memory(address: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """An array where it lies."""
    kind = as_dtype(dtype).numpy
    raw = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, np.uint8).view(kind)


class FakeChannel:
    """See `channels.Channel`. A call is busy for a moment; a stalled one never ends."""

    def __init__(self, library: FakeNccl, comm: MPI.Intracomm) -> None:
        self.library, self.comm = library, comm
        self.busy = 2
        self.failure = ""
        self.stalls = self.closed = self.aborted = False
        self._messages: list[tuple[str, Any, int]] | None = None
        self._batched = False

    def state(self) -> str | None:
        if self.busy:
            self.busy -= 1
            return None
        return self.failure

    def _submit(self, call: str, stream: int, work: Callable[[], None]) -> None:
        assert not self.closed and not self.aborted and (self._batched or not self.busy)
        if self.library.refuses:
            raise ChannelError(self.library.refuses)
        self.library.calls.append(call)
        if not self._batched:
            self.library.batches.append(call)
            self.busy = 1
        queue = QUEUES[stream]
        if self.stalls:
            queue.submit(lambda: None)  # nothing looks at it before somebody waits for the queue
            return
        queue.synchronize()
        work()

    def _every(self, x: int, count: int, dtype: str) -> list[np.ndarray[Any, Any]]:
        return self.comm.allgather(memory(x, count, dtype).copy())

    def _reduced(self, x: int, count: int, dtype: str, kind: str) -> np.ndarray[Any, Any]:
        assert as_dtype(dtype) in SUMMED
        own = as_dtype(dtype).numpy
        every = np.stack(self._every(x, count, dtype))
        wide = np.float64 if own.kind not in "iu" else own
        return _NUMPY[kind](every.astype(wide), axis=0).astype(own)

    def all_reduce(self, x: int, y: int, count: int, dtype: str, kind: str, stream: int) -> None:
        def work() -> None:
            memory(y, count, dtype)[:] = self._reduced(x, count, dtype, kind)

        self._submit("all_reduce", stream, work)

    def reduce(
        self, x: int, y: int, count: int, dtype: str, kind: str, root: int, stream: int
    ) -> None:
        def work() -> None:
            total = self._reduced(x, count, dtype, kind)
            if self.comm.rank == root:
                memory(y, count, dtype)[:] = total

        self._submit("reduce", stream, work)

    def broadcast(self, x: int, y: int, count: int, dtype: str, root: int, stream: int) -> None:
        def work() -> None:
            memory(y, count, dtype)[:] = self._every(x, count, dtype)[root]

        assert dtype == BYTES
        self._submit("broadcast", stream, work)

    def all_gather(self, x: int, y: int, count: int, dtype: str, stream: int) -> None:
        def work() -> None:
            every = self._every(x, count, dtype)
            memory(y, count * self.comm.size, dtype)[:] = np.concatenate(every)

        assert dtype == BYTES
        self._submit("all_gather", stream, work)

    def reduce_scatter(
        self, x: int, y: int, count: int, dtype: str, kind: str, stream: int
    ) -> None:
        def work() -> None:
            total = self._reduced(x, count * self.comm.size, dtype, kind)
            memory(y, count, dtype)[:] = np.split(total, self.comm.size)[self.comm.rank]

        self._submit("reduce_scatter", stream, work)

    def send(self, x: int, count: int, dtype: str, peer: int, stream: int) -> None:
        assert self._messages is not None and dtype == BYTES
        self._messages.append(("send", (x, count, stream), peer))

    def recv(self, y: int, count: int, dtype: str, peer: int, stream: int) -> None:
        assert self._messages is not None and dtype == BYTES
        self._messages.append(("recv", (y, count, stream), peer))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        assert not self.busy
        self._messages, self._batched = [], True
        try:
            yield
        finally:
            messages, self._messages, self._batched = self._messages, None, False
        self.busy = 1
        if not messages:
            self.library.batches.append("all_reduce")
        else:
            self.busy = 0
            self._submit("messages", messages[0][1][2], lambda: self._exchange(messages))

    def _exchange(self, messages: list[tuple[str, Any, int]]) -> None:
        requests = [
            self.comm.Isend(memory(x, count, BYTES).copy(), peer, _TAG)
            for verb, (x, count, _), peer in messages
            if verb == "send"
        ]
        for verb, (y, count, _), peer in messages:
            if verb == "recv":
                self.comm.Recv(memory(y, count, BYTES), peer, _TAG)
        MPI.Request.Waitall(requests)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class FakeNccl:
    """See `channels.ChannelLibrary`."""

    def __init__(self) -> None:
        self.channels: list[FakeChannel] = []
        self.calls: list[str] = []
        self.batches: list[str] = []
        """The same, those together that were submitted as one."""
        self.refuses = ""
        """What every call is refused with."""
        self.unready = ""
        """What new channels report in place of being ready."""

    def new_key(self) -> bytes:
        return b"rank 0 listens here"

    def join(self, comm: Communicator, key: bytes) -> FakeChannel:
        assert key == b"rank 0 listens here"
        members = MPI.COMM_WORLD.Get_group().Incl(list(comm.ranks))
        made = FakeChannel(self, MPI.COMM_WORLD.Create_group(members, _TAG))
        made.failure = self.unready
        self.channels.append(made)
        return made
