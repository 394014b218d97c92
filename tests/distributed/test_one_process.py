"""One process: MegEngine's answers outside of a group, and names that say what is missing."""

from __future__ import annotations

import numpy as np
import pytest

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
from treadle.base.errors import UnsupportedOp
from treadle.distributed import helper


def test_one_process_is_rank_0_of_1() -> None:
    assert (dist.get_rank(), dist.get_world_size(), dist.get_local_device_id()) == (0, 1, 0)
    assert not dist.is_distributed()
    assert dist.WORLD.size == 1 and dist.WORLD.rank == 0 and dist.WORLD.is_single_machine
    assert dist.group_barrier() is None
    assert dist.synchronized(lambda x: x + 1)(2) == 3


COLLECTIVES = [
    "reduce_sum",
    "broadcast",
    "all_gather",
    "reduce_scatter_sum",
    "all_reduce_sum",
    "all_reduce_max",
    "all_reduce_min",
    "gather",
    "scatter",
    "all_to_all",
]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_want_a_group(name: str) -> None:
    with pytest.raises(AssertionError, match="please call init_process_group first"):
        getattr(F.distributed, name)(mge.tensor([1.0]))


def test_everything_else_that_wants_a_group() -> None:
    x = mge.tensor([1.0])
    calls = [
        lambda: F.distributed.collective_comm(x, "ALL_REDUCE_SUM", dist.WORLD, None),
        lambda: F.distributed.remote_send(x, 1),
        lambda: F.distributed.remote_recv(1),
        lambda: dist.new_group([0, 1]),
        dist.get_backend,
        dist.get_py_server_addr,
        dist.get_mm_server_addr,
        dist.get_client,
        dist.group_start,
        dist.group_end,
        lambda: dist.bcast_list_([x]),
        lambda: dist.make_allreduce_cb("mean"),
        lambda: dist.Group([0, 1]).check([0, 1]),
        lambda: dist.WORLD.comp_node,
        lambda: helper.pack_allreduce_split([x], [(1,)], dist.WORLD, "sum"),
    ]
    for call in calls:
        with pytest.raises(AssertionError, match="please call init_process_group first"):
            call()


def test_joining_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be joined on CPUs"):
        dist.init_process_group("localhost", 0, 2, 0, 0, device_type="cpu")
    with pytest.raises(ValueError, match="there must be several"):
        dist.init_process_group("localhost", 0, 1, 0, 0)
    with pytest.raises(ValueError, match="backend must be one of"):
        dist.init_process_group("localhost", 0, 2, 0, 0, backend="smoke")
    for call in (
        lambda: dist.init_process_group("localhost", 0, 2, 0, 0),
        lambda: dist.Server(),
        lambda: dist.Client("localhost", 1),
        lambda: dist.launcher(lambda: 1, n_gpus=2)(),
    ):
        with pytest.raises(UnsupportedOp, match="several processes are not supported yet"):
            call()
    with pytest.raises(AssertionError, match="'sum' or 'mean'"):
        dist.make_allreduce_cb("max")


def test_launcher_calls_in_this_process_for_one_device() -> None:
    @dist.launcher(n_gpus=1)
    def worker(x: int, y: int = 0) -> int:
        return x + y

    assert worker(1, y=2) == [3]
    assert dist.launcher(lambda: dist.get_rank())() == [0]


def test_backends_are_checked_names() -> None:
    assert dist.backend == "auto"
    with dist.override_backend("nccl"):
        pass
    with pytest.raises(ValueError, match="backend must be"), dist.override_backend("smoke"):
        pass


def test_gradients_are_packed_and_split() -> None:
    shapes = [(2, 3), (), (4,)]
    arrays = [np.arange(np.prod(s, dtype=int), dtype=np.float32).reshape(s) for s in shapes]
    offsets = helper.get_offsets(shapes)
    assert offsets == [0, 6, 6, 7, 7, 11]
    packed = helper.param_pack_concat([mge.tensor(a) for a in arrays], None, offsets)
    assert packed.shape == (11,)
    for part, wanted in zip(helper.param_pack_split(packed, offsets, shapes), arrays, strict=True):
        np.testing.assert_array_equal(part.numpy(), wanted)
    (alone,) = helper.param_pack_split(packed, [0, 11], [(11,)])
    assert alone.shape == (11,)
    with pytest.raises(ValueError, match="3 shapes need 6 offsets"):
        helper.param_pack_split(packed, [0, 11], shapes)


def test_a_future_holds_a_tensor() -> None:
    future = helper.TensorFuture()
    with pytest.raises(RuntimeError, match="not there yet"):
        future.get()
    future.set(mge.tensor([1.0]))
    assert future.get().tolist() == [1.0] and future.numpy().tolist() == [1.0]
