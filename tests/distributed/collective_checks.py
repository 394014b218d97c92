"""What collectives give on every rank, against NumPy, and what their gradients are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
from treadle.base import dtype as dt
from treadle.base.errors import NoGradient, ShapeError
from treadle.base.types import TensorType
from treadle.ops import collective as co
from treadle.runtime.comm.board import Board
from treadle.tensor import Tensor

D = F.distributed


def arrays(dtype: dt.DType = dt.float32, rows: int = 6) -> list[np.ndarray[Any, Any]]:
    """Every rank's operand, [rows, 4], as all ranks know them; sums are exact in every type."""
    rng = np.random.default_rng(7)
    made = [rng.integers(0, 5, (rows, 4)) for _ in range(dist.get_world_size())]
    return [a.astype(dtype.numpy) for a in made]


def mine(dtype: dt.DType = dt.float32, rows: int = 6) -> Tensor:
    return mge.tensor(arrays(dtype, rows)[dist.get_rank()], dtype=dtype.name)


def part(x: np.ndarray[Any, Any], axis: int, rank: int | None = None) -> np.ndarray[Any, Any]:
    return np.split(x, dist.get_world_size(), axis)[dist.get_rank() if rank is None else rank]


def same(got: Tensor | None, wanted: np.ndarray[Any, Any]) -> None:
    assert got is not None and got.dtype == wanted.dtype, (got, wanted.dtype)
    np.testing.assert_array_equal(got.numpy(), wanted)


def on_first(got: Tensor | None, wanted: np.ndarray[Any, Any]) -> None:
    if dist.get_rank() == 0:
        same(got, wanted)
    else:
        assert got is None


def check_reductions_of_every_dtype() -> None:
    for dtype in dt.REALS:
        every = arrays(dtype)
        total = np.sum([a.astype(np.float64) for a in every], axis=0).astype(dtype.numpy)
        same(D.all_reduce_sum(mine(dtype)), total)
        same(D.all_reduce_max(mine(dtype)), np.max(every, axis=0))
        same(D.all_reduce_min(mine(dtype)), np.min(every, axis=0))
        on_first(D.reduce_sum(mine(dtype)), total)
        same(D.reduce_scatter_sum(mine(dtype)), part(total, 0))


def check_movements_of_every_dtype() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    for dtype in dt.ALL:
        every = arrays(dtype)
        same(D.broadcast(mine(dtype)), every[0])
        same(D.all_gather(mine(dtype)), np.concatenate(every))
        same(D.all_gather(mine(dtype), axis=-1), np.concatenate(every, 1))
        on_first(D.gather(mine(dtype), axis=1), np.concatenate(every, 1))
        same(D.scatter(mine(dtype) if r == 0 else None), part(every[0], 0))
        wanted = np.concatenate([part(a, 0) for a in every], 1)
        same(D.all_to_all(mine(dtype), split_axis=0, concat_axis=1), wanted)
        same(co.BroadcastRank("world", n, n - 1)(mine(dtype)), every[-1])


def check_rounding_happens_once() -> None:
    # In bfloat16, 256 + 1 is 256 again: adding up in the type itself would lose every one.
    n = dist.get_world_size()
    first = dist.get_rank() == 0
    x = mge.tensor(np.array([256.0 if first else 1.0]), dtype="bfloat16")
    wanted = np.array([256.0 + (n - 1)], np.float32).astype(dt.bfloat16.numpy)
    same(D.all_reduce_sum(x), wanted)


def check_odd_shapes() -> None:
    n = dist.get_world_size()
    same(D.all_reduce_sum(mge.tensor(2.0)), np.array(2.0 * n, np.float32))
    assert D.all_reduce_sum(mge.tensor(np.zeros((0, 3), np.float32))).shape == (0, 3)
    assert D.all_gather(mge.tensor(np.zeros((0, 3), np.float32))).shape == (0, 3)
    strided = mine().transpose(1, 0)
    same(D.all_reduce_sum(strided), np.sum(arrays(), axis=0).T)
    large = mge.tensor(np.full(300_001, dist.get_rank() + 1, np.float32))
    same(D.all_reduce_sum(large), np.full(300_001, n * (n + 1) / 2, np.float32))
    same(co.AllReduce("world", n, "mean")(mine()), np.mean(arrays(), axis=0, dtype=np.float32))


def check_modes_by_name() -> None:
    total = np.sum(arrays(), axis=0)
    same(D.collective_comm(mine(), "ALL_REDUCE_SUM", dist.WORLD, None), total)
    same(D.all_reduce_sum(mine(), device="cpux"), total)
    with pytest.raises(ValueError, match="mode must be one of"):
        D.collective_comm(mine(), "SHOUT", dist.WORLD, None)


def gradient(function: Any, weight: Any) -> np.ndarray[Any, Any]:
    """d(sum(function(x) * weight))/dx on this rank; a rank without result only takes part."""
    x = mine()
    gm = mge.autodiff.GradManager().attach(x)
    with gm:
        y = function(x)
        gm.backward((y * mge.tensor(weight)).sum() if y is not None else None)
    if x.grad is None:  # What other ranks than the first pass to broadcast and scatter is unused.
        return np.zeros((6, 4), np.float32)
    return np.asarray(x.grad.numpy())


def weights(shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Every rank's cotangent."""
    rng = np.random.default_rng(3)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(dist.get_world_size())]


def check_gradients() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    w = weights((6, 4))
    np.testing.assert_allclose(gradient(D.all_reduce_sum, w[r]), sum(w), rtol=1e-5)
    np.testing.assert_allclose(gradient(D.reduce_sum, w[r]), w[0])
    got = gradient(D.broadcast, w[r])
    np.testing.assert_allclose(got, sum(w) if r == 0 else np.zeros((6, 4)), rtol=1e-5)

    w = weights((6 // n, 4))
    np.testing.assert_allclose(gradient(D.reduce_scatter_sum, w[r]), np.concatenate(w))
    got = gradient(D.scatter, w[r])
    np.testing.assert_allclose(got, np.concatenate(w) if r == 0 else np.zeros((6, 4)))

    w = weights((6, 4 * n))
    wanted = sum(part(a, 1) for a in w)
    np.testing.assert_allclose(gradient(lambda x: D.all_gather(x, axis=1), w[r]), wanted, rtol=1e-5)
    np.testing.assert_allclose(gradient(lambda x: D.gather(x, axis=1), w[r]), part(w[0], 1))

    w = weights((6 // n, 4 * n))
    wanted = np.concatenate([part(a, 1) for a in w])
    got = gradient(lambda x: D.all_to_all(x, split_axis=0, concat_axis=1), w[r])
    np.testing.assert_allclose(got, wanted)
    with pytest.raises(NoGradient):
        gradient(D.all_reduce_max, np.float32(1))


def check_gradients_reach_ranks_that_passed_nothing() -> None:
    r = dist.get_rank()
    x = mine() if r == 0 else None
    gm = mge.autodiff.GradManager()
    if x is not None:
        gm.attach(x)
    with gm:
        y = D.broadcast(x)
        gm.backward(y.sum())
    if x is not None:
        np.testing.assert_array_equal(x.grad.numpy(), np.full((6, 4), dist.get_world_size()))


def check_messages_and_their_gradients() -> None:
    """Rank 0 sends x, the last rank squares it, and the gradient comes back."""
    r, last = dist.get_rank(), dist.get_world_size() - 1
    x = mge.tensor([1.0, 2.0, 3.0])
    gm = mge.autodiff.GradManager().attach(x)
    dist.group_start()
    with gm:
        if r == 0:
            D.remote_send(x * 2, last)
            gm.backward()
            np.testing.assert_array_equal(x.grad.numpy(), [8.0, 16.0, 24.0])
        elif r == last:
            y = D.remote_recv(0)
            gm.backward((y**2).sum())
            assert x.grad is None
    dist.group_end()


def check_gradients_flow_back_through_a_chain_of_ranks() -> None:
    """Every rank multiplies what it gets by 3 and sends it on; the last one sums."""
    n, r = dist.get_world_size(), dist.get_rank()
    x = mge.tensor([1.0, 2.0])
    gm = mge.autodiff.GradManager()
    if r == 0:
        gm.attach(x)
    with gm:
        y = (x if r == 0 else D.remote_recv(r - 1)) * 3
        if r < n - 1:
            D.remote_send(y, r + 1)
        gm.backward(y.sum() if r == n - 1 else None)
    if r == 0:
        np.testing.assert_array_equal(x.grad.numpy(), [3.0**n] * 2)


def check_messages_in_any_order() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    for dtype in (dt.int8, dt.bfloat16, dt.bool_):
        D.remote_send(mine(dtype), (r + 1) % n)
        D.remote_send(mine(dtype, rows=1), (r + 1) % n)
        same(D.remote_recv((r - 1) % n), arrays(dtype)[r - 1])
        same(D.remote_recv((r - 1) % n), arrays(dtype, rows=1)[r - 1])
    for wrong in (r, n):
        with pytest.raises(ValueError, match="no other rank"):
            D.remote_send(mine(), wrong)


def check_groups() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    pair = [0, n - 1]
    if r in pair:
        group = dist.new_group(pair)
        assert (group.size, group.rank, group.key) == (2, pair.index(r), f"0,{n - 1}")
        total = arrays()[0] + arrays()[-1]
        same(D.all_reduce_sum(mine(), group), total)
        same(D.broadcast(mine() if r == 0 else None, group), arrays()[0])
        dist.group_barrier(group)
        backwards = dist.new_group(pair[::-1])
        same(D.all_gather(mine(), backwards), np.concatenate([arrays()[-1], arrays()[0]]))
    else:
        with pytest.raises(AssertionError, match="is not in the group"):
            dist.new_group(pair)
    everybody = dist.new_group(list(range(n)))
    same(D.all_reduce_sum(mine(), everybody), np.sum(arrays(), axis=0))
    for wrong in ([], [r, r], [r, n]):
        with pytest.raises(ValueError, match="distinct ranks"):
            dist.new_group(wrong)


def check_disagreement_is_an_error_on_all_ranks() -> None:
    r = dist.get_rank()
    shape = mge.tensor(np.zeros(3 if r else 4, np.float32))
    with pytest.raises(dist.CommunicationError, match="run different operations") as caught:
        D.all_reduce_sum(shape)
    assert "float32[4]" in caught.value.saw and "float32[3]" in caught.value.saw
    with pytest.raises(dist.CommunicationError, match="run different operations"):
        D.all_reduce_sum(mine(dt.int32 if r else dt.float32))
    with pytest.raises(dist.CommunicationError, match="run different operations"):
        D.all_reduce_sum(mine()) if r else D.all_reduce_max(mine())
    with pytest.raises(dist.CommunicationError, match="run different operations"):
        dist.group_barrier() if r else D.all_gather(mine())
    with pytest.raises(TypeError, match="has to pass a tensor"):
        D.broadcast(None)
    with pytest.raises(ShapeError, match="does not split"):
        D.reduce_scatter_sum(mge.tensor(np.zeros(7, np.float32)))
    same(D.all_reduce_sum(mine()), np.sum(arrays(), axis=0))  # and the group goes on


def check_ranks_of_several_machines_agree_by_messages() -> None:
    """As do those that share no memory."""
    if dist.get_backend() != "mpi":
        return
    two = dist.get_world_size() == 2
    # Imported here, for it initializes MPI, which the process that starts the ranks does without.
    from treadle.runtime.comm.rendezvous import Exchange, Reduction

    rendezvous = dist.WORLD.communicator()._rendezvous
    board = rendezvous._usual
    assert isinstance(board, Board)
    rendezvous._usual = (
        Exchange(rendezvous.comm) if two else Reduction(rendezvous.comm, lasting=True)
    )
    rendezvous._known.clear()
    check_reductions_of_every_dtype()
    check_disagreement_is_an_error_on_all_ranks()
    rendezvous._usual = board
    rendezvous._known.clear()


def check_ops_know_their_group() -> None:
    from treadle.base.errors import UnsupportedOp

    x = mine()
    assert co.AllGather("world", 5).infer(TensorType(dt.float32, (2,)))[0].shape == (10,)
    with pytest.raises(UnsupportedOp, match="needs the 5 processes"):
        co.AllReduce("world", 5)(x)
    with pytest.raises(UnsupportedOp, match="group 'nobody'"):
        co.AllReduce("nobody", 2)(x)
