"""Collectives in programs: ranks agree over MPI, then NCCL moves arrays on the device's stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.backends.cuda.device import CudaDevice, CudaMemory, CudaStream
from treadle.backends.cuda.libraries.channel import Channel
from treadle.backends.cuda.libraries.channels import line_of
from treadle.backends.cuda.libraries.collectives import Exchange, parsed
from treadle.backends.rendering import Argument
from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.errors import UnsupportedOp
from treadle.runtime.comm import carriers, groups
from treadle.runtime.comm.api import Communicator

_BY = ", by NCCL"
"""Ends what is compared, so that a rank whose arrays travel otherwise is noticed."""


class ExchangeLaunchable:
    """A collective in a program."""

    __slots__ = ("call",)

    recordable = False
    """Ranks are compared at every run."""

    def __init__(self, call: Exchange) -> None:
        self.call = call

    def submit(
        self, device: CudaDevice, stream: CudaStream, arguments: Sequence[Argument], /
    ) -> None:
        """Submit it; the arguments are the places of all results, then of all operands.

        Raises:
            CommunicationError: ranks disagree, one does not come in time, or NCCL fails.
            UnsupportedOp: this process is not in the group.
        """
        call = self.call
        places = [a if isinstance(a, int) else a[0].address + a[1] for a in arguments]
        comm = groups.find(call.group)
        if comm is None or comm.size != call.world:
            raise UnsupportedOp(
                call.verb,
                f"needs the {call.world} processes of the group {call.group!r}",
                hint="start them with distributed.launcher and call init_process_group",
            )
        half = len(call.counts)
        triples = list(zip(places[half:], places[:half], call.counts, strict=True))
        if carriers.held() or carriers.why_not(carriers.NCCL, call.group):
            _by_host(call, comm, device, stream, triples, "")
            return
        if call.what:
            comm.agree(call.what + _BY)
        line = line_of(comm, device)
        if line.channel is None and not line.broken:
            _by_host(call, comm, device, stream, triples, _BY)
            return
        if comm.rank != call.root and call.verb in ("reduce", "gather"):
            for _, y, count in triples:
                nbytes = count * call.result * as_dtype(call.dtype).itemsize
                device.fill(CudaMemory(y, nbytes, None), 0, nbytes, stream)
        moving = [triple for triple in triples if triple[2]]
        if moving:
            handle = stream.queue.handle
            line.submit(call.name, lambda c: _submit(c, call, comm.rank, moving, handle), stream)


def launchable(device: CudaDevice, symbol: str) -> ExchangeLaunchable:
    """Return the launchable collective of a symbol."""
    return ExchangeLaunchable(parsed(symbol))


Triple = tuple[int, int, int]
"""Addresses of an operand and its result, and how many elements a part has."""


def _submit(
    channel: Channel, call: Exchange, rank: int, triples: Sequence[Triple], stream: int
) -> None:
    """All parts of a call, as one where there are several."""
    if call.verb in ("gather", "scatter", "all_to_all"):
        _messages(channel, call, rank, triples[0], stream)
    elif len(triples) == 1:
        _collective(channel, call, triples[0], stream)
    else:
        with channel.together():
            for triple in triples:
                _collective(channel, call, triple, stream)


def _collective(channel: Channel, call: Exchange, triple: Triple, stream: int) -> None:
    x, y, count = triple
    dtype = call.dtype
    if call.verb == "all_reduce":
        channel.all_reduce(x, y, count, dtype, call.kind, stream)
    elif call.verb == "reduce":
        channel.reduce(x, y, count, dtype, call.kind, call.root, stream)
    elif call.verb == "broadcast":
        channel.broadcast(x, y, count, dtype, call.root, stream)
    elif call.verb == "all_gather":
        channel.all_gather(x, y, count, dtype, stream)
    else:
        channel.reduce_scatter(x, y, count, dtype, call.kind, stream)


def _messages(channel: Channel, call: Exchange, rank: int, triple: Triple, stream: int) -> None:
    """Exchange, by messages that travel together, what older NCCLs have no calls for."""
    x, y, count = triple
    step = count * as_dtype(call.dtype).itemsize
    sends: list[tuple[int, int]] = []
    receives: list[tuple[int, int]] = []
    if call.verb != "gather" and (call.verb == "all_to_all" or rank == call.root):
        sends = [(peer, x + peer * step) for peer in range(call.world)]
    elif call.verb == "gather":
        sends = [(call.root, x)]
    if call.verb != "scatter" and (call.verb == "all_to_all" or rank == call.root):
        receives = [(peer, y + peer * step) for peer in range(call.world)]
    elif call.verb == "scatter":
        receives = [(call.root, y)]
    with channel.together():
        for peer, place in sends:
            channel.send(place, count, call.dtype, peer, stream)
        for peer, place in receives:
            channel.recv(place, count, call.dtype, peer, stream)


# -- through the host --------------------------------------------------------------------------


def _by_host(
    call: Exchange,
    comm: Communicator,
    device: CudaDevice,
    stream: CudaStream,
    triples: Sequence[Triple],
    agreed: str,
) -> None:
    """The same by MPI, on copies; ranks are compared here unless they were already."""
    kind = as_dtype(call.dtype).numpy
    for number, (source, target, count) in enumerate(triples):
        if number or not (agreed and call.what):
            comm.agree(call.what or call.name)
        x: Array = np.empty(count * call.operand, kind)
        if x.size:
            device.copy_out(_bytes(x), CudaMemory(source, x.nbytes, None), stream)
        made = _carried(call, comm, x)
        if made is None:
            made = np.zeros(count * call.result, kind)
        if made.size:
            made = np.ascontiguousarray(made, kind)
            device.copy_in(CudaMemory(target, made.nbytes, None), _bytes(made), stream)


def _bytes(x: Array) -> memoryview:
    return memoryview(x.reshape(-1).view(np.uint8).data)


def _carried(call: Exchange, comm: Communicator, x: Array) -> Array | None:
    """Return what this rank gets, by MPI."""
    if call.verb == "all_reduce":
        return comm.all_reduce(x, call.kind)
    if call.verb == "reduce":
        return comm.reduce(x, call.root)
    if call.verb == "broadcast":
        return comm.broadcast(x, call.root)
    if call.verb == "all_gather":
        return comm.all_gather(x)
    if call.verb == "gather":
        return comm.gather(x, call.root)
    stack = x.reshape(call.world, -1) if x.size else x.reshape(call.world, 0)
    if call.verb == "reduce_scatter":
        return comm.reduce_scatter(stack)
    if call.verb == "scatter":
        return comm.scatter(stack, call.root)
    return comm.all_to_all(stack)
