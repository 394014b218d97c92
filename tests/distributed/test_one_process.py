"""One process: MegEngine's answers outside of a group, and a group of one."""

from __future__ import annotations

import threading
import xmlrpc.client
from collections.abc import Iterator

import numpy as np
import pytest

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
from treadle.distributed import group, helper


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


def test_joining_processes_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="there must be several"):
        dist.init_process_group("localhost", 0, 1, 0, 0)
    with pytest.raises(ValueError, match="there must be several"):
        dist.init_process_group("localhost", 0, 2, 2, 0)
    with pytest.raises(ValueError, match="backend must be one of"):
        dist.init_process_group("localhost", 0, 2, 0, 0, backend="smoke")
    with pytest.raises(ValueError, match="backend must be one of"):
        dist.launcher(lambda: 1, backend="smoke")
    with pytest.raises(dist.CommunicationError, match="no 2 processes to join") as caught:
        dist.init_process_group("localhost", 0, 2, 0, 0, device_type="cpu")
    assert "mpiexec -n 2" in caught.value.hint
    with pytest.raises(AssertionError, match="'sum' or 'mean'"):
        dist.make_allreduce_cb("max")


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group()
    yield
    group.leave()


@pytest.mark.usefixtures("group_of_one")
def test_a_process_that_is_alone_is_a_group_of_one() -> None:
    """Programs for several processes run unchanged in one."""
    x = mge.tensor([[1.0, 2.0]])
    assert dist.is_distributed() and dist.get_backend() == "loopback"
    for name in COLLECTIVES:
        assert getattr(F.distributed, name)(x).tolist() == [[1.0, 2.0]]
    gm = mge.autodiff.GradManager().attach(x, dist.make_allreduce_cb("mean"))
    with gm:
        gm.backward((x * x).sum())
    assert x.grad.tolist() == [[2.0, 4.0]]
    dist.bcast_list_([x])
    dist.group_barrier()
    assert dist.new_group([0]).size == 1
    with pytest.raises(ValueError, match="no other rank"):
        F.distributed.remote_send(x, 0)
    client = dist.get_client()
    client.user_set("key", 3)
    assert client.user_get("key") == 3 and dist.get_py_server_addr()[1] == client.port


def test_servers_of_ones_own() -> None:
    server = dist.Server()
    client = dist.Client("localhost", server.py_server_port)
    assert server.mm_server_port == client.get_mm_server_port()
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(client.user_get("late")))
    waiting.start()
    client.user_set("late", (1, "two"))
    waiting.join(300)
    assert found == [[1, "two"]]
    stranger = xmlrpc.client.ServerProxy(f"http://localhost:{server.py_server_port}/other")
    with stranger, pytest.raises(xmlrpc.client.ProtocolError):
        stranger.connect()
    client.close()
    server.close()
    with pytest.raises(dist.CommunicationError, match="does not answer"):
        dist.Client("localhost", server.py_server_port)


def test_launcher_calls_in_this_process_for_one_device() -> None:
    @dist.launcher(n_gpus=1)
    def worker(x: int, y: int = 0) -> int:
        return x + y

    assert worker(1, y=2) == [3]
    assert dist.launcher(lambda: dist.get_rank())() == [0]


def test_backends_are_checked_names() -> None:
    assert dist.backend == "auto"
    with dist.override_backend("nccl"):
        assert dist.backend == "nccl"
    assert dist.backend == "auto"
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


def test_devices_are_counted_under_the_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="get_device_count"):
        assert helper.get_device_count_by_fork("cpu") == mge.device.get_device_count("cpu")
