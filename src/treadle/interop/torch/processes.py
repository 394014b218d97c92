"""Processes of PyTorch programs: `torch.distributed.init_process_group("treadle")`.

Messages travel by MPI in a job of `mpiexec`, else over TCP, where PyTorch's store tells ranks of
one another (`torchrun`). Tensors of Treadle's devices go through the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from treadle.base.array import Array
from treadle.base.env import foreign
from treadle.distributed.group import job_size, mpi
from treadle.interop.torch.arrays import to_array, to_tensor
from treadle.runtime.comm.api import intent
from treadle.runtime.comm.board import finished
from treadle.runtime.comm.sockets import Sockets, own_host

NAME = "treadle"
SCHEME = "mpi"
"""Of the address by which ranks of an MPI job find one another."""
_KINDS = {"SUM": "sum", "AVG": "mean", "MAX": "max", "MIN": "min"}
_FOLDS: dict[str, Any] = {
    "PRODUCT": np.multiply,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
dist: Any = torch.distributed
_WORK: Any = getattr(dist, "_Work", object)
_GROUP: Any = getattr(dist, "ProcessGroup", object)
"""Builds of PyTorch without processes have neither."""
Tensors = Sequence[torch.Tensor]


class Carrier(Protocol):
    """Interface of carriers of arrays between the ranks of a group, which communicators have."""

    engine: str
    rank: int
    size: int

    def barrier(self) -> None: ...
    def all_reduce(self, x: Array, kind: str, /, by: Any = None) -> Array: ...
    def all_gather(self, x: Array, /) -> Array: ...
    def gather(self, x: Array, root: int, /) -> Array | None: ...
    def scatter(self, x: Array, root: int, /) -> Array: ...
    def broadcast(self, x: Array, root: int, /) -> Array: ...
    def reduce_scatter(self, x: Array, /) -> Array: ...
    def all_to_all(self, x: Array, /) -> Array: ...
    def send(self, x: Array, dest: int, /) -> None: ...
    def recv(self, shape: tuple[int, ...], dtype: np.dtype[Any], source: int, /) -> Array: ...
    def close(self) -> None: ...


def register() -> None:
    """Make `"treadle"` a backend of `torch.distributed`, and `mpi://` an address."""
    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _created, extended_api=True, devices=["cpu", NAME])
    dist.register_rendezvous_handler(SCHEME, _meet)


# -- tensors -----------------------------------------------------------------------------------


def _numbers(tensor: torch.Tensor) -> Array:
    """A tensor as numbers that can be added: on the host, truth values as 0 and 1."""
    plain = tensor.detach().cpu()
    return to_array(plain.to(torch.uint8) if plain.dtype is torch.bool else plain)


def _words(tensor: torch.Tensor) -> Array:
    """A tensor's memory, of whatever element type."""
    plain = tensor.detach().cpu().contiguous()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    words: Array = plain.reshape(-1).view(torch.uint8).numpy()
    return words


def _fill(tensor: torch.Tensor, found: Array) -> None:
    """Give a tensor memory as that which `_words` gives."""
    with torch.no_grad():
        made = torch.from_numpy(found.reshape(-1)).view(tensor.dtype)
        tensor.copy_(made.reshape(tensor.shape))


def _set(tensor: torch.Tensor, found: Array) -> None:
    """Give a tensor numbers as those that `_numbers` gives."""
    with torch.no_grad():
        made = to_tensor(np.ascontiguousarray(found), tensor.dtype)
        tensor.copy_(made.reshape(tensor.shape))


def _done(results: Any) -> Any:
    """Return results that are there already as PyTorch's work."""
    future: Any = torch.futures.Future()
    future.set_result(results)
    return vars(torch._C._distributed_c10d)["_create_work_from_future"](future)


class _Arriving(_WORK):  # type: ignore[misc]
    """A message that is received when it is waited for, after those that were asked for before."""

    def __init__(self, pending: deque[_Arriving], receive: Callable[[], None]) -> None:
        super().__init__()
        self._pending, self._receive = pending, receive
        self._is_here = False
        pending.append(self)

    def wait(self, timeout: Any = None) -> bool:
        while not self._is_here:
            first = self._pending.popleft()
            first._receive()
            first._is_here = True
        return True

    def is_completed(self) -> bool:
        return self._is_here

    def is_success(self) -> bool:
        return self._is_here


# -- the group ---------------------------------------------------------------------------------


class Processes(_GROUP):  # type: ignore[misc]
    """A group of processes. What is asked for has been done when the call returns; receiving is
    done when it is waited for.

    Args:
        carrier: of arrays between its ranks.
        name: by which PyTorch knows the group.
        is_lent: whether the carrier is another group's, and goes on when this one ends.
    """

    def __init__(self, carrier: Carrier, name: str, is_lent: bool = False) -> None:
        super().__init__(carrier.rank, carrier.size)
        self._carrier, self._name, self._is_lent = carrier, name, is_lent
        self._place, self._count = carrier.rank, carrier.size
        self._pending: dict[int, deque[_Arriving]] = {}
        # Over sockets every message says what it is for; MPI's do not.
        self._agree: Callable[[str], None] = getattr(carrier, "agree", _nothing)

    def size(self) -> int:
        return self._count

    def rank(self) -> int:
        return self._place

    def getBackendName(self) -> str:
        return NAME

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def shutdown(self) -> None:
        if not self._is_lent:
            self._carrier.close()
        if [self._carrier] == _WORLD and not self._is_lent:
            _WORLD.clear()

    # -- reductions --------------------------------------------------------------------------

    def _reduced(self, x: Array, op: Any, name: str) -> Array:
        """The reduction of arrays of all ranks."""
        kind = _name_of(op)
        if kind in _KINDS:
            return self._carrier.all_reduce(x, _KINDS[kind], by=f"torch {name}")
        self._agree(intent(f"torch {name} {kind}", x))
        every = self._carrier.all_gather(x)
        return np.asarray(_FOLDS[kind].reduce(every, axis=0)).astype(x.dtype, copy=False)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        for t in tensors:
            _set(t, self._reduced(_numbers(t), _op(opts), "all_reduce"))
        return _done(list(tensors))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        for t in tensors:
            made = self._reduced(_numbers(t), opts.reduceOp, "reduce")
            if self._place == opts.rootRank:
                _set(t, made)
        return _done(list(tensors))

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> Any:
        x = _numbers(given).reshape(self._count, -1)
        self._agree(intent("torch reduce_scatter", x))
        if _name_of(_op(opts)) in ("SUM", "AVG"):
            found = self._carrier.reduce_scatter(x)
            if _name_of(_op(opts)) == "AVG":
                found = finished(found, "mean", self._count, found.dtype)
        else:
            found = self._reduced(x, _op(opts), "reduce_scatter")[self._place]
        _set(output, found)
        return _done([output])

    def reduce_scatter(self, outputs: Tensors, given: Sequence[Tensors], opts: Any = None) -> Any:
        for output, parts in zip(outputs, given, strict=True):
            self.reduce_scatter_single(output, _stacked(parts), opts)
        return _done(list(outputs))

    def _reduce_scatter_base(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> Any:
        return self.reduce_scatter_single(output, given, opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, given: Tensors, opts: Any = None
    ) -> Any:
        for output, x in zip(outputs, given, strict=True):
            self.reduce_scatter_single(output, x, opts)
        return _done(list(outputs))

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # -- movement ----------------------------------------------------------------------------

    def _agreed(self, name: str, tensor: torch.Tensor) -> Array:
        """A tensor's memory, once all ranks are about to move as much in the same way."""
        words = _words(tensor)
        self._agree(intent(f"torch {name}", words))
        return words

    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        for t in tensors:
            words = self._agreed("broadcast", t)
            _fill(t, self._carrier.broadcast(words, opts.rootRank))
        return _done(list(tensors))

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        _fill(output, self._carrier.all_gather(self._agreed("all_gather", given)))
        return _done([output])

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        return self.all_gather_single(output, given, opts)

    def allgather(self, outputs: Sequence[Tensors], given: Tensors, opts: Any = None) -> Any:
        for places, x in zip(outputs, given, strict=True):
            found = self._carrier.all_gather(self._agreed("all_gather", x))
            for place, words in zip(places, found, strict=True):
                _fill(place, words)
        return _done([list(places) for places in outputs])

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], given: Tensors, opts: Any = None
    ) -> Any:
        return self.allgather(outputs, given, opts)

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, given: Tensors, opts: Any = None
    ) -> Any:
        for output, x in zip(outputs, given, strict=True):
            self.all_gather_single(output, x, opts)
        return _done(list(outputs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs: Sequence[Tensors], given: Tensors, opts: Any) -> Any:
        found = self._carrier.gather(self._agreed("gather", given[0]), opts.rootRank)
        if found is not None:
            for place, words in zip(outputs[0], found, strict=True):
                _fill(place, words)
        return _done([list(places) for places in outputs])

    def scatter(self, outputs: Tensors, given: Sequence[Tensors], opts: Any) -> Any:
        own = self._agreed("scatter", outputs[0])
        every = np.zeros((self._count, own.size), np.uint8)
        if self._place == opts.rootRank:
            every = np.stack([_words(t) for t in given[0]])
        _fill(outputs[0], self._carrier.scatter(every, opts.rootRank))
        return _done(list(outputs))

    def alltoall(self, outputs: Tensors, given: Tensors, opts: Any = None) -> Any:
        """Tensors of any sizes, each to its rank."""
        for r in range(1, self._count):
            to = (self._place + r) % self._count
            self._carrier.send(_words(given[to]), to)
        _fill(outputs[self._place], _words(given[self._place]))
        for r in range(1, self._count):
            source = (self._place - r) % self._count
            self._receive(outputs[source], source)
        return _done(list(outputs))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_sizes: Sequence[int] | None = None,
        input_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Any:
        if output_sizes or input_sizes:
            equal_out, equal_in = len(output) // self._count, len(given) // self._count
            outs = torch.split(output, list(output_sizes or [equal_out] * self._count))
            ins = torch.split(given, list(input_sizes or [equal_in] * self._count))
            self.alltoall(outs, ins)
        else:
            words = self._agreed("all_to_all", given).reshape(self._count, -1)
            _fill(output, self._carrier.all_to_all(words))
        return _done([output])

    def alltoall_base(self, *arguments: Any) -> Any:
        return self.all_to_all_single(*arguments)

    def send(self, tensors: Tensors, rank: int, tag: int = 0) -> Any:
        _check_tag(tag)
        for t in tensors:
            self._carrier.send(_words(t), rank)
        return _done(list(tensors))

    def recv(self, tensors: Tensors, rank: int, tag: int = 0) -> Any:
        _check_tag(tag)

        def receive() -> None:
            for t in tensors:
                self._receive(t, rank)

        return _Arriving(self._pending.setdefault(rank, deque()), receive)

    def _receive(self, tensor: torch.Tensor, rank: int) -> None:
        words = _words(tensor)
        _fill(tensor, self._carrier.recv(words.shape, words.dtype, rank))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        raise NotImplementedError("treadle: a message is received from a rank that is named")

    def barrier(self, opts: Any = None) -> Any:
        self._carrier.barrier()
        return _done([])


def _nothing(what: str) -> None:
    """Ranks find out on the way."""


def _op(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def _name_of(op: Any) -> str:
    """The name of a reduction.

    Raises:
        NotImplementedError: it has a factor of its own (`PREMUL_SUM`).
    """
    for name in (*_KINDS, *_FOLDS):
        if op == getattr(dist.ReduceOp, name):
            return name
    raise NotImplementedError(f"treadle: processes do not reduce by {op}")


def _check_tag(tag: int) -> None:
    if tag:
        raise NotImplementedError(f"treadle: messages have no tags, got {tag}")


def _stacked(parts: Tensors) -> torch.Tensor:
    return torch.stack([p.detach().reshape(-1) for p in parts])


# -- joining -----------------------------------------------------------------------------------

_WORLD: list[Any] = []
"""All processes of this MPI job, once they have been asked for."""


def _world() -> Any:
    if not _WORLD:
        _WORLD.append(mpi().open_world())
    return _WORLD[0]


def _created(options: Any, _: Any) -> Processes:
    """A group, as PyTorch asks for one."""
    rank, size, name = options.group_rank, options.group_size, str(options.group_id)
    ranks = list(options.global_ranks_in_group)
    if job_size() > 1:
        world = _world()
        if not ranks or ranks == list(range(world.size)):
            return Processes(world, name, is_lent=bool(ranks))
        carrier = world.group(ranks, name)
    else:
        seconds = options.timeout.total_seconds()
        host = own_host(foreign("MASTER_ADDR") or "localhost")
        carrier = Sockets(options.store, rank, size, seconds, host)
    return Processes(carrier, name)


def _meet(url: str, **arguments: Any) -> Iterator[tuple[Any, int, int]]:
    """Connect the ranks of an MPI job: the first one opens PyTorch's store."""
    world = _world()
    apart = len(set(world.machines)) > 1
    host = world.machines[0] if apart else "localhost"
    store = None
    if world.rank == 0:
        store = dist.TCPStore(host, 0, world.size, is_master=True, wait_for_workers=False)
    port = world.broadcast_value(store.port if store is not None else None, 0)
    if store is None:
        store = dist.TCPStore(host, port, world.size, is_master=False)
    yield store, world.rank, world.size
