"""NCCL by way of nccl4py: the only file that calls it.

Communicators are those of `nccl.core`. Arrays are addresses here, which only the bindings below it
take; their functions are those of NCCL's C interface, argument by argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

import nccl.core
from nccl.bindings import nccl as bindings

from treadle.backends.cuda.libraries.channel import ChannelError
from treadle.runtime.comm.api import Communicator

P = ParamSpec("P")
_KINDS = {"sum": "SUM", "mean": "AVG", "max": "MAX", "min": "MIN"}


def version() -> str:
    """The version of the library that nccl4py has found; empty where it finds none."""
    found = nccl.core.get_version().libnccl
    return "" if found is None else str(found.version)


def _explained(call: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
    """Return the result of a call, and raise its errors as ours."""
    try:
        return call(*args, **kwargs)
    except (nccl.core.NcclInvalid, bindings.NCCLError) as error:
        raise ChannelError(str(error)) from error


def _type(dtype: str) -> int:
    return int(nccl.core.NcclDataType[dtype.upper()])


def _reduction(kind: str) -> int:
    return int(nccl.core.NcclRedOp[_KINDS[kind]])


class NcclChannel:
    """See `channels.Channel`. It does not block: `state` tells when a call has been taken."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self._comm = bindings.Comm(communicator.ptr)

    def state(self) -> str | None:
        result = int(_explained(self._communicator.get_async_error))
        if result == int(bindings.Result.InProgress):
            return None
        if result == int(bindings.Result.Success):
            return ""
        return str(nccl.core.get_error_string(result))

    def all_reduce(self, x: int, y: int, count: int, dtype: str, kind: str, stream: int) -> None:
        given = (x, y, count, _type(dtype), _reduction(kind), self._comm, stream)
        _explained(bindings.all_reduce, *given)

    def reduce(
        self, x: int, y: int, count: int, dtype: str, kind: str, root: int, stream: int
    ) -> None:
        given = (x, y, count, _type(dtype), _reduction(kind), root, self._comm, stream)
        _explained(bindings.reduce, *given)

    def broadcast(self, x: int, y: int, count: int, dtype: str, root: int, stream: int) -> None:
        _explained(bindings.broadcast, x, y, count, _type(dtype), root, self._comm, stream)

    def all_gather(self, x: int, y: int, count: int, dtype: str, stream: int) -> None:
        _explained(bindings.all_gather, x, y, count, _type(dtype), self._comm, stream)

    def reduce_scatter(
        self, x: int, y: int, count: int, dtype: str, kind: str, stream: int
    ) -> None:
        given = (x, y, count, _type(dtype), _reduction(kind), self._comm, stream)
        _explained(bindings.reduce_scatter, *given)

    def send(self, x: int, count: int, dtype: str, peer: int, stream: int) -> None:
        _explained(bindings.send, x, count, _type(dtype), peer, self._comm, stream)

    def recv(self, y: int, count: int, dtype: str, peer: int, stream: int) -> None:
        _explained(bindings.recv, y, count, _type(dtype), peer, self._comm, stream)

    @contextmanager
    def together(self) -> Iterator[None]:
        _explained(nccl.core.group_start)
        try:
            yield
        finally:
            _explained(nccl.core.group_end)

    def close(self) -> None:
        _explained(self._communicator.destroy)

    def abort(self) -> None:
        _explained(self._communicator.abort)


class Nccl:
    """See `channels.ChannelLibrary`."""

    def new_key(self) -> bytes:
        """Return the address where the first rank listens, as 128 bytes."""
        return bytes(_explained(nccl.core.get_unique_id))

    def join(self, comm: Communicator, key: bytes) -> NcclChannel:
        """A communicator whose state says when all ranks are there."""
        found = nccl.core.UniqueId.from_bytes(key)
        config = nccl.core.NCCLConfig(blocking=False, comm_name=comm.name)
        made = _explained(nccl.core.Communicator.init, comm.size, comm.rank, found, config)
        return NcclChannel(made)
