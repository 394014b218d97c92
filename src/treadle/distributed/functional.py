"""Collectives, under MegEngine's names: `F.distributed`.

Every rank of the group calls the same function with tensors of one shape and dtype. Where ranks
differ, all of them raise `CommunicationError`; one that does not come is named after a time-out.
All but the extremes are differentiable: a rank that gets no result takes part in the backward pass
with `gm.backward()`. `device` moves the result.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from treadle.autodiff.tape import involve, need_tape, owe
from treadle.base.dtype import as_dtype
from treadle.distributed.group import WORLD, Group, get_rank, get_world_size, require_processes
from treadle.engine.devices.names import default_device
from treadle.ops import collective as co
from treadle.runtime.comm import groups
from treadle.tensor import Tensor

__all__ = [
    "all_gather",
    "all_reduce_max",
    "all_reduce_min",
    "all_reduce_sum",
    "all_to_all",
    "broadcast",
    "collective_comm",
    "gather",
    "reduce_scatter_sum",
    "reduce_sum",
    "remote_recv",
    "remote_send",
    "scatter",
]


def _placed(x: Tensor, device: Any) -> Tensor:
    return x if device is None else x.to(device)


_all_reduce = lru_cache(maxsize=1024)(co.AllReduce)
"""Ops that are found again: making one takes as long as running it."""


def collective_comm(inp: Tensor, mode: Any, group: Group, device: Any = None) -> Any:
    """A collective by its mode, a name such as "ALL_REDUCE_SUM" or an enum member of that name.

    Raises:
        AssertionError: outside of a group.
        ValueError: there is no such mode.
    """
    require_processes()
    name = str(getattr(mode, "name", mode)).lower()
    if name not in _MODES:
        raise ValueError(f"mode must be one of {', '.join(m.upper() for m in _MODES)}, got {mode}")
    return _MODES[name](inp, group, device)


def all_reduce_sum(
    inp: Tensor, group: Group = WORLD, device: Any = None, bucket: str = ""
) -> Tensor:
    """The sum on every rank.

    Args:
        inp: any shape, integers or floats; floats of 16 bits are summed in float32.
        group: the ranks that take part.
        device: where the result goes.
        bucket: in compiled programs, sums of one name travel together, and no others with them.

    Raises:
        AssertionError: this process is in no group, or not in this one.
        CommunicationError: ranks disagree, or do not answer.
    """
    return _placed(_all_reduce(*group.joined(), "sum", bucket)(inp), device)


def all_reduce_max(inp: Tensor, group: Group = WORLD, device: Any = None) -> Tensor:
    """The largest elements on every rank; has no gradient. Raises as `all_reduce_sum`."""
    return _placed(_all_reduce(*group.joined(), "max")(inp), device)


def all_reduce_min(inp: Tensor, group: Group = WORLD, device: Any = None) -> Tensor:
    """The smallest elements on every rank; has no gradient. Raises as `all_reduce_sum`."""
    return _placed(_all_reduce(*group.joined(), "min")(inp), device)


def reduce_sum(inp: Tensor, group: Group = WORLD, device: Any = None) -> Tensor | None:
    """The sum on the group's first rank, None on the others. Raises as `all_reduce_sum`."""
    need_tape()
    total = co.ReduceTo(*group.joined())(inp)
    return _for_first(total, group, device)


def _for_first(result: Tensor, group: Group, device: Any) -> Tensor | None:
    """A result that belongs to the first rank; the others go through it in the backward pass."""
    if group.rank == 0:
        return _placed(result, device)
    owe(result)
    return None


def broadcast(inp: Tensor | None, group: Group = WORLD, device: Any = None) -> Tensor:
    """The first rank's tensor on every rank; the others may pass None.

    Raises as `all_reduce_sum`.
    """
    name, size = group.joined()
    return _placed(co.BroadcastRank(name, size)(_like_first(inp, group)), device)


def all_gather(inp: Tensor, group: Group = WORLD, device: Any = None, axis: int = 0) -> Tensor:
    """Tensors of all ranks, joined along an axis in rank order. Raises as `all_reduce_sum`."""
    return _placed(co.AllGather(*group.joined(), _axis(axis, inp))(inp), device)


def reduce_scatter_sum(
    inp: Tensor, group: Group = WORLD, device: Any = None, axis: int = 0
) -> Tensor:
    """Return this rank's part of the sum, which is cut along an axis into one part per rank.

    Raises `ShapeError` where the axis does not divide evenly, else as `all_reduce_sum`.
    """
    return _placed(co.ReduceScatter(*group.joined(), _axis(axis, inp))(inp), device)


def gather(inp: Tensor, group: Group = WORLD, device: Any = None, axis: int = 0) -> Tensor | None:
    """Tensors of all ranks, joined along an axis on the first rank; None on the others.

    Raises as `all_reduce_sum`.
    """
    need_tape()
    joined = co.GatherTo(*group.joined(), 0, _axis(axis, inp))(inp)
    return _for_first(joined, group, device)


def scatter(inp: Tensor | None, group: Group = WORLD, device: Any = None, axis: int = 0) -> Tensor:
    """Return this rank's part of the first rank's tensor, cut along an axis; others may pass None.

    Raises `ShapeError` where the axis does not divide evenly, else as `all_reduce_sum`.
    """
    name, size = group.joined()
    whole = _like_first(inp, group)
    return _placed(co.ScatterFrom(name, size, 0, _axis(axis, whole))(whole), device)


def all_to_all(
    inp: Tensor,
    group: Group = WORLD,
    device: Any = None,
    split_axis: int = 0,
    concat_axis: int = 0,
) -> Tensor:
    """Part r along `split_axis` goes to rank r; what comes is joined along `concat_axis`.

    Raises `ShapeError` where the axis does not divide evenly, else as `all_reduce_sum`.
    """
    split, joined = _axis(split_axis, inp), _axis(concat_axis, inp)
    return _placed(co.AllToAll(*group.joined(), split, joined)(inp), device)


def _axis(axis: int, x: Tensor) -> int:
    return axis + x.ndim if axis < 0 else axis


# -- one to another ----------------------------------------------------------------------------


def remote_send(inp: Tensor, dest_rank: int) -> None:
    """Send a tensor to another rank, which calls `remote_recv`; does not wait for it.

    In the backward pass, `gm.backward()`, its gradient comes back from there.

    Raises:
        AssertionError: outside of a group.
        ValueError: there is no such rank, or it is this one.
    """
    need_tape()
    world = _other(dest_rank)
    world.send_value(_described(inp), dest_rank)
    owe(co.Send(groups.WORLD, world.size, dest_rank)(inp))


def remote_recv(src_rank: int, device: Any = None, inp: Tensor | None = None) -> Tensor:
    """The next tensor that another rank sends; `inp` is there for MegEngine's signature.

    Raises:
        AssertionError: outside of a group.
        ValueError: there is no such rank, or it is this one.
        CommunicationError: nothing comes in time.
    """
    need_tape()
    world = _other(src_rank)
    shape, dtype, traced, _ = world.recv_value(src_rank)
    token = _stand_in((0,), dtype, traced)
    received = co.Recv(groups.WORLD, world.size, src_rank, tuple(shape), as_dtype(dtype))(token)
    return _placed(received, device)


def _other(rank: int) -> Any:
    world = require_processes()
    if not 0 <= rank < get_world_size() or rank == get_rank():
        raise ValueError(f"there is no other rank {rank} among {get_world_size()} processes")
    return world


# -- ranks that have nothing to give -------------------------------------------------------------


def _described(x: Tensor) -> tuple[tuple[int, ...], str, bool, bool]:
    """Shape, element type, whether its gradient is wanted, and whether it is on the host."""
    return x.shape, x._kind.dtype.name, x._trace is not None, x._kind.device.on_host


def _like_first(inp: Tensor | None, group: Group) -> Tensor:
    """The first rank's tensor there, and one of its type elsewhere.

    As with all collectives in which ranks differ, the tape has to know: a graph that is
    differentiated from outside would lose what a rank owes to others.

    Raises:
        TypeError: on all ranks, if the first one has none.
    """
    need_tape()
    comm = group.communicator()
    told = comm.broadcast_value(_described(inp) if comm.rank == 0 and inp is not None else None, 0)
    if told is None:
        raise TypeError(f"the first rank of {group.proc_ranks} has to pass a tensor, got None")
    if comm.rank == 0 and inp is not None:
        return inp
    shape, dtype, traced, on_host = told
    # What is on the host on one rank and on a device on others travels by no library.
    near = "cpux" if on_host and not default_device().on_host else None
    return _stand_in(shape, dtype, traced, near if inp is None else str(inp.device))


def _stand_in(
    shape: tuple[int, ...], dtype: str, traced: bool, device: str | None = None
) -> Tensor:
    """Zeros whose op takes part in the backward pass where the real values do."""
    made = Tensor(np.zeros(shape, as_dtype(dtype).numpy), dtype=dtype, device=device)
    if traced:
        involve(made)
    return made


_MODES: dict[str, Any] = {
    "reduce_sum": reduce_sum,
    "broadcast": broadcast,
    "all_gather": all_gather,
    "reduce_scatter_sum": reduce_scatter_sum,
    "all_reduce_sum": all_reduce_sum,
    "all_reduce_max": all_reduce_max,
    "all_reduce_min": all_reduce_min,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
}
