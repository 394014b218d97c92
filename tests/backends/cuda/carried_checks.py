"""Collectives of arrays on GPUs, carried by a fake of NCCL: run on every rank of a group."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from tests.backends.cuda.fake_nccl import FakeNccl
from tests.backends.cuda.host_backend import KIND, HostCuda
from tests.backends.cuda.host_gpu import compile_for_host
from tests.backends.plugins import Plugins, logged
from tests.distributed import collective_checks
from tests.distributed.collective_checks import arrays, mine, same

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.backends.cuda.libraries import channels
from treadle.backends.cuda.renderer import CudaRenderer
from treadle.backends.rendering import Renderer
from treadle.base import dtype as dt
from treadle.distributed import carrying
from treadle.engine.options import Options
from treadle.jit import compile as compiled
from treadle.jit.decisions import explain
from treadle.ops.collective import AllReduce
from treadle.optimizer import SGD
from treadle.runtime.comm import carriers, groups
from treadle.runtime.comm.carriers import NCCL, Offer

D = F.distributed
DEVICE = f"{KIND}0"
FAKE = FakeNccl()
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
_FOLDER = tempfile.TemporaryDirectory()


def compile_once(source: str, architecture: str = "") -> bytes:
    """What one rank has compiled the others take."""
    name = hashlib.sha256(source.encode()).hexdigest()
    path = Path(os.environ["TREADLE_CACHE_DIR"], name)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_bytes(compile_for_host(source))
        return path.read_bytes()


class CarriedCuda(HostCuda):
    """GPUs of main memory, with NCCL."""

    def libraries(self) -> tuple[str, ...]:
        return (NCCL,)

    def renderer(self) -> Renderer:
        return CudaRenderer(["sm_80"], "g++", compile_once)

    def offers(self, index: int, /) -> dict[str, Offer]:
        return {NCCL: Offer("2.32.3", f"{os.getpid()}.{index}")}


def check_ranks_meet() -> None:
    sys.path.insert(0, _FOLDER.name)
    Plugins(Path(_FOLDER.name)).offer(KIND, CarriedCuda())
    channels.library = lambda: FAKE
    assert carriers.why_not(NCCL, groups.WORLD)
    assert dist.get_backend() == "mpi" and dist.WORLD.comp_node == "cpux:0"
    meet()
    mge.set_default_device(DEVICE)
    assert dist.get_backend() == NCCL and dist.WORLD.comp_node == f"{DEVICE}:0"
    assert carrying.described("world") == "NCCL 2.32.3"
    assert not FAKE.channels


def meet() -> None:
    carrying.meet(dist.WORLD.communicator(), KIND, 0)


@contextlib.contextmanager
def carried(*wanted: str) -> Iterator[None]:
    """These calls of NCCL are made inside, and nothing goes through the host."""
    mge.fallback_report(clear=True)
    FAKE.calls.clear()
    FAKE.batches.clear()
    yield
    assert set(FAKE.calls) == set(wanted)
    assert not list(mge.fallback_report(clear=True))


def check_reductions_of_every_dtype() -> None:
    mge.fallback_report(clear=True)
    with patch.object(dt, "REALS", (dt.float32, dt.bfloat16, dt.float64, dt.uint8, dt.int16)):
        collective_checks.check_reductions_of_every_dtype()
    assert set(FAKE.calls) == {"all_reduce", "reduce", "reduce_scatter"}
    reasons = {row.reason for row in mge.fallback_report(clear=True)}
    assert reasons == {"dtype: NCCL does not reduce int16"}
    assert len(FAKE.channels) == 1
    with carried("all_reduce"):
        same(AllReduce("world", 2, "mean")(mine()), np.mean(arrays(), axis=0, dtype=np.float32))


def check_movements_of_every_dtype() -> None:
    some = patch.object(dt, "ALL", (dt.bool_, dt.complex64))
    with some, carried("broadcast", "all_gather", "messages"):
        collective_checks.check_movements_of_every_dtype()


def check_shapes_and_groups() -> None:
    collective_checks.check_odd_shapes()
    collective_checks.check_groups()
    assert len(FAKE.channels) == 2  # the group with the ranks turned round has its own
    mge.fallback_report(clear=True)


def check_messages_go_through_the_host() -> None:
    """A sender does not wait for its receiver, which NCCL's would."""
    collective_checks.check_messages_in_any_order()
    assert {row.op for row in mge.fallback_report(clear=True)} <= {"send", "recv"}


def check_gradients_of_eager_code() -> None:
    w = mge.Parameter(np.ones((6, 4), np.float32))
    gm = GradManager().attach([w], dist.make_allreduce_cb("mean"))
    with gm:
        gm.backward(w * 2, mine())
    np.testing.assert_allclose(w.grad.numpy(), np.sum(arrays(), axis=0))
    x = mine()
    gm = GradManager().attach(x)
    with carried("reduce_scatter", "all_gather"), gm:
        gm.backward(D.reduce_scatter_sum(x), mine(rows=3))
    np.testing.assert_array_equal(x.grad.numpy(), np.concatenate(arrays(rows=3)))


def check_results_of_other_ranks_are_zeros() -> None:
    rank = dist.get_rank()
    x = mge.tensor(np.full((2, 2), 3, np.float32))
    for op in (collective_checks.co.ReduceTo, collective_checks.co.GatherTo):
        made = op("world", 2, 1)(x).numpy()
        assert bool((made == 0).all()) == (rank == 0)


def check_ranks_that_pass_nothing_follow_the_first() -> None:
    for device, calls in ((DEVICE, ["broadcast"]), ("cpux", [])):
        x = mge.tensor(arrays()[0], device=device) if dist.get_rank() == 0 else None
        FAKE.calls.clear()
        same(D.broadcast(x), arrays()[0])
        assert FAKE.calls == calls


def check_disagreement_is_an_error_on_all_ranks() -> None:
    made = len(FAKE.calls)
    collective_checks.check_disagreement_is_an_error_on_all_ranks()
    assert FAKE.calls[made:] == ["all_reduce"]  # the last one, on which all agreed
    x = mge.tensor(np.ones(3, np.float32), device="cpux" if dist.get_rank() else DEVICE)
    with pytest.raises(dist.CommunicationError, match="run different operations") as caught:
        D.all_reduce_sum(x)
    assert "float32[3], by NCCL" in caught.value.saw


def network() -> M.Module:
    rng = np.random.default_rng(3)
    net = M.Sequential(M.Linear(6, 16), M.ReLU(), M.Linear(16, 4))
    for p in net.parameters():
        p._reset(mge.tensor(rng.normal(size=p.shape).astype(np.float32) * 0.3))
    return net


def losses(device: str, wrap: Callable, share: slice, *callbacks: object) -> list[float]:
    """Of some steps on a part of every batch."""
    before = mge.get_default_device()
    mge.set_default_device(device)
    net = network()
    gm = GradManager().attach(net.parameters(), callbacks)
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = (net(x) ** 2).mean()
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    data = np.random.default_rng(5).normal(size=(4, 8, 6)).astype(np.float32)
    run = wrap(step)
    found = [float(run(mge.tensor(x[share]))) for x in data]
    mge.set_default_device(before)
    return found


def check_training_follows_one_process() -> None:
    """Gradients are averaged on the device; the mean of the ranks' losses is that of all data."""
    alone = losses("cpu0", lambda f: f, slice(0, 8))
    half = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    comm = dist.WORLD.communicator()
    for how, calls in (("auto", 1), ((1, 3), 3)):
        wrap = compiled(options=Options(reductions=how))
        with carried("all_reduce"), patch.object(comm, "agree", wraps=comm.agree) as agree:
            mine = losses(DEVICE, wrap, half, dist.make_allreduce_cb("mean"))
        reductions = [call for call in FAKE.batches if call == "all_reduce"]
        assert len(reductions) == 4 * calls
        compared = [str(c.args[0]) for c in agree.call_args_list if "NCCL" in str(c.args[0])]
        assert len(compared) == 4  # once per step, however many buckets there are
        both = np.mean(comm.exchange(mine), axis=0)
        np.testing.assert_allclose(both, alone, rtol=1e-5)


def check_the_host_carries_what_somebody_wants_it_to() -> None:
    program = compiled(lambda x: D.all_gather(F.relu(D.all_reduce_sum(x * 2)), axis=1))
    wanted = np.concatenate([2 * sum(arrays())] * 2, 1)
    same(program(mine()), wanted)
    FAKE.calls.clear()
    with dist.override_backend("mpi"):
        assert dist.get_backend() == "mpi"
        same(program(mine()), wanted)
        with patch.object(dt, "REALS", (dt.float32,)), patch.object(dt, "ALL", (dt.bool_,)):
            collective_checks.check_reductions_of_every_dtype()
            collective_checks.check_movements_of_every_dtype()
    assert not FAKE.calls
    with carried("all_reduce", "all_gather"):
        same(program(mine()), wanted)


def check_a_library_that_one_rank_lacks() -> None:
    def offers(self: CarriedCuda, index: int) -> dict[str, Offer]:
        return {NCCL: Offer("2.32.3", f"gpu {index}", "it is broken" * dist.get_rank())}

    with patch.object(CarriedCuda, "offers", offers):
        meet()
    assert carrying.described("world") == "through the host: rank 1: it is broken"
    mge.fallback_report(clear=True)
    same(D.all_reduce_sum(mine()), np.sum(arrays(), axis=0))
    (row,) = mge.fallback_report(clear=True)
    assert row.op == "all_reduce" and "rank 1: it is broken" in row.reason
    assert "rank 1: it is broken" in str(explain(AllReduce("world", 2), mine()))
    with patch.object(CarriedCuda, "offers", lambda self, index: {NCCL: Offer("2.1", "same")}):
        meet()
    assert "ranks 0 and 1 have the same device" in carrying.described("world")
    meet()


def check_a_channel_that_does_not_come_about() -> None:
    def broken() -> FakeNccl:
        if dist.get_rank():
            raise ImportError("libnccl.so.2 has moved")
        return FAKE

    for fault in (patch.object(channels, "library", broken), patch.object(FAKE, "unready", "no")):
        channels._leave(together=True)
        assert FAKE.channels[-1].closed
        with fault, logged() as lines:
            same(D.all_reduce_sum(mine()), np.sum(arrays(), axis=0))
            same(D.all_gather(mine()), np.concatenate(arrays()))
        assert len(lines) == 1 and "cannot use NCCL" in lines[0]
        assert any(word in lines[0] for word in ("has moved", "rank 0 cannot use NCCL: no"))
    channels._leave(together=True)


def check_what_nccl_reports_ends_the_channel() -> None:
    x = mine()
    for fault, seconds, words in (("remote error", "10", "remote error"), ("", "0.3", "0.3 s")):
        with patch.dict(os.environ, {"TREADLE_COMM_TIMEOUT": seconds}):
            same(D.all_reduce_sum(x), np.sum(arrays(), axis=0))
            channel = FAKE.channels[-1]
            channel.stalls = True
            y = D.all_reduce_sum(x)
            channel.failure = fault
            with pytest.raises(dist.CommunicationError, match=words) as caught:
                y.numpy()
            assert channel.aborted and "all_reduce" in str(caught.value)
            with pytest.raises(dist.CommunicationError, match="has failed before"):
                D.all_reduce_sum(x)
            channels._leave(together=False)
    same(D.all_reduce_sum(x), np.sum(arrays(), axis=0))
    FAKE.channels[-1].stalls = True
    y, comm = D.all_reduce_sum(x), dist.WORLD.communicator()
    gone = patch.object(comm, "look_for_losses", side_effect=dist.RankLost("mpi", "1 is lost"))
    with gone, pytest.raises(dist.RankLost):
        y.numpy()
    assert FAKE.channels[-1].aborted
    channels._leave(together=False)
    refused = pytest.raises(dist.CommunicationError, match="NCCL reports: invalid usage")
    with patch.object(FAKE, "refuses", "invalid usage"), refused:
        D.all_reduce_sum(x)
    channels._leave(together=False)


def check_channels_close_with_their_groups() -> None:
    same(D.all_reduce_sum(mine()), np.sum(arrays(), axis=0))
    channel = FAKE.channels[-1]
    assert not channel.closed
    channels._leave(together=True)
    assert channel.closed and not channel.aborted


def check_the_benchmark_measures() -> None:
    sys.path.insert(0, str(BENCHMARKS))
    gpu_nccl = importlib.import_module("gpu_nccl")
    gpu_nccl.SIZES, gpu_nccl.BLOCK = gpu_nccl.SIZES[:1], 2
    found = gpu_nccl.measured(KIND, 0.0)
    assert found["all-reduce of 4 KiB by NCCL, 2 GPUs"][1] == "us"
    assert found["all-reduce of 4 KiB by NCCL, 2 GPUs, bandwidth"][0] > 0
