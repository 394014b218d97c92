"""Ranks are killed one after the other, and those that are left go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tests.distributed.test_faults import all_ended, needs_mpi, note_process

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.data import DataLoader, RandomSampler, SequentialSampler
from treadle.data.dataset import ArrayDataset
from treadle.distributed import shrinking
from treadle.jit import Options
from treadle.jit import compile as compiled
from treadle.module.parallel import ColumnParallelLinear
from treadle.module.pipeline import Pipeline
from treadle.optimizer import SGD, Adam, MultiStepLR, Optimizer, ShardedOptimizer
from treadle.runtime.comm import groups
from treadle.runtime.comm.loopback import Loopback
from treadle.trainer import Elastic

STEPS, FAULT = 6, 3
Step = Callable[[Any, Any], Any]


def batch_of(step: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The job's batch, which divides by all numbers of ranks there are."""
    rng = np.random.default_rng(step)
    x = rng.normal(size=(24, 8)).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int32)


def trained(optimize: Callable[[Any], Optimizer], whole: bool) -> tuple[M.Module, Optimizer, Step]:
    """A network, its optimizer, and a step: one program with two buckets, or op by op."""
    mge.random.seed(1)
    net = M.Linear(8, 4)
    callbacks = []
    if dist.is_distributed():
        dist.bcast_list_(list(net.parameters()))
        callbacks = [dist.make_allreduce_cb("mean")]
    optimizer = optimize(net.parameters())
    manager = GradManager().attach(net.parameters(), callbacks)

    def step(x: Any, y: Any) -> Any:
        with manager:
            loss = F.loss.cross_entropy(net(x), y)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return net, optimizer, compiled(options=Options(reductions=(1,)))(step) if whole else step


def die(*_: object) -> None:
    """As if memory had run out."""
    os.kill(os.getpid(), signal.SIGKILL)


def losses_of(fault: Callable[[], None] = lambda: None) -> list[float]:
    """Of compiled steps, before one of which something happens. The batch is that of the job."""
    net, optimizer, step = trained(lambda p: Adam(p, lr=1e-2), True)
    elastic = Elastic(net, optimizer, keep="global")

    def one(number: int) -> float:
        if number == FAULT and elastic.lost == 0:
            fault()
        n, r = dist.get_world_size(), dist.get_rank()
        loss = step(*(mge.tensor(np.split(a, n)[r]) for a in batch_of(number)))
        if not dist.is_distributed():
            return float(loss.item())
        return float(F.distributed.all_reduce_sum(loss).item() / n)

    found = [elastic.step(one, number) for number in range(STEPS)]
    assert elastic.steps == STEPS
    return found


TABLE = batch_of(99)
"""Samples of the epochs below."""


def of_epochs(fault: Callable[[], None]) -> tuple[list[list[int]], list[Any], Any]:
    """Which samples this rank saw in two epochs of a loader, the weights, and learning rates."""
    data = ArrayDataset(np.arange(24), *TABLE)
    net, optimizer, step = trained(lambda p: SGD(p, lr=0.3, momentum=0.9), False)
    scheduler = MultiStepLR(optimizer, milestones=[5])
    elastic = Elastic(net, optimizer, [scheduler])
    loader = DataLoader(data, RandomSampler(data, batch_size=2, seed=7))
    seen: list[list[int]] = []

    def one(x: Any, y: Any) -> None:
        if len(seen) == 2 and elastic.lost == 0:
            fault()
        step(mge.tensor(x), mge.tensor(y))

    for _ in range(2):
        for numbers, x, y in elastic.batches(loader):
            elastic.step(one, x, y)
            seen.append(numbers.tolist())
        scheduler.step()
    rates = float(optimizer.param_groups[0]["lr"]), float(scheduler.base_lrs[0])
    return seen, [p.numpy() for p in net.parameters()], rates


def of_batches(batches: list[tuple[list[int], float]]) -> list[Any]:
    """The weights that one process has after batches of some samples, at some learning rates."""
    net, optimizer, step = trained(lambda p: SGD(p, lr=0.3, momentum=0.9), False)
    for numbers, rate in batches:
        optimizer.param_groups[0]["lr"] = rate
        step(*(mge.tensor(a[numbers]) for a in TABLE))
    return [p.numpy() for p in net.parameters()]


def kills(me: int, whom: int, how: str) -> Callable[[], None]:
    """What a rank does to itself in a step: in its reduction, or in that of the second bucket."""

    def fault() -> None:
        if me != whom:
            return
        comm: Any = dist.WORLD.communicator()
        if how == "inside":
            comm.carry_out = die
        else:  # in the second of two buckets: others may have what they need of the first
            steps = [comm.begin, die]
            comm.begin = lambda *args: steps.pop(0)(*args)

    return fault


def by_hand(me: int) -> dict[str, Any]:
    """The last of four ranks is killed; one waits for another one that is alive, two reduce."""
    pair = dist.new_group([0, 1]) if me < 2 else dist.WORLD
    pair.communicator()
    net = M.Linear(4, 8)
    column, pipeline = ColumnParallelLinear(4, 20), Pipeline(net, 2)
    sharded = ShardedOptimizer(net.parameters(), lambda p: SGD(p, lr=0.1))
    if me == 3:
        die()
    with pytest.raises(dist.RankLost) as caught:
        if me == 0:
            F.distributed.remote_recv(1)
        while True:
            F.distributed.all_reduce_sum(mge.tensor([1.0]))
    lost = dist.shrink()
    assert lost == caught.value.ranks == (3,)
    assert caught.value.problem == "rank 3 of 4 is lost"
    if me < 2:
        with pytest.raises(dist.CommunicationError, match="was made before ranks were lost"):
            F.distributed.all_reduce_sum(mge.tensor([1.0]), pair)
    x = mge.tensor(np.ones((2, 4), np.float32))
    uses: list[Callable[[], Any]] = [
        lambda: column(x),
        lambda: pipeline.step(x, None),
        sharded.step,
    ]
    for use in uses:
        with pytest.raises(dist.CommunicationError, match="ranks that are lost are gone") as gone:
            use()
        assert "last checkpoint" in gone.value.hint
    both = dist.new_group([1, 2]) if me else dist.new_group([0])
    total = F.distributed.all_reduce_sum(mge.tensor([float(me)]), both).item()
    dist.get_client().user_set(str(me), me)
    told = [dist.get_client().user_get(str(r)) for r in range(3)]
    dist.group_barrier()
    return {"total": total, "told": told, "name": both.name}


def job(folder: Path) -> dict[str, Any]:
    """Three faults in one job: each leaves one rank less."""
    me = dist.get_rank()
    note_process(folder)
    found = by_hand(me)
    dist.WORLD.communicator().defers = False  # type: ignore[attr-defined]  # as over a network
    found["losses"] = losses_of(kills(me, 0, "bucket"))
    found["epochs"] = of_epochs(kills(me, 1, "inside"))
    return {**found, "me": me, "now": (dist.get_rank(), dist.get_world_size())}


@needs_mpi
def test_ranks_are_killed_one_by_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with patch.dict(os.environ, {"TREADLE_COMM_TIMEOUT": "20"}):
        (found,) = dist.launcher(job, n_gpus=4, on_failure="shrink")(tmp_path)
    assert all_ended(tmp_path)
    assert (found["me"], found["now"]) == (2, (0, 1))
    assert (found["total"], found["told"], found["name"]) == (3.0, [0, 1, 2], "1,2@1")
    # What any number of ranks do with a batch is what one process does with all of it.
    np.testing.assert_allclose(found["losses"], losses_of(), rtol=1e-4)
    seen, weights, rates = found["epochs"]
    rng = np.random.RandomState(7)
    first, second = (rng.permutation(24).tolist() for _ in range(2))
    # The samples of the lost rank's part of a batch are left out.
    assert [*chain(*seen)] == [*first[1:12:2], *first[12:], *second]
    assert rates == (0.15, 0.15)
    batches = [(first[:4], 0.3), (first[4:8], 0.3), *((numbers, 0.15) for numbers in seen[2:])]
    for got, wanted in zip(weights, of_batches(batches), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert "lost 1 of 4 ranks (3), going on with 3" in capfd.readouterr().err


# -- in this process ---------------------------------------------------------------------------


def test_jobs_that_cannot_shrink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="on_failure must be"):
        dist.launcher(losses_of, n_gpus=2, on_failure="ignore")
    for says in ("HYDRA build details:\n Version: 4.3", "mpiexec (OpenRTE) 4.1.4"):
        starter = tmp_path / "mpiexec"
        starter.write_text(f"#!/bin/sh\necho '{says}'\n")
        starter.chmod(0o700)
        monkeypatch.setenv("TREADLE_MPIEXEC", str(starter))
        with pytest.raises(dist.CommunicationError, match="cannot continue when") as caught:
            dist.launcher(losses_of, n_gpus=2, on_failure="shrink")()
        assert caught.value.saw == says.partition("\n")[0]
        assert "Open MPI 5" in caught.value.hint


class World(Loopback):
    """What a rank knows of several."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size


@pytest.fixture
def three() -> Any:
    """This process is the last of three ranks."""
    groups.join(World(2, 3))
    yield
    groups.leave()


def test_without_ulfm(three: None) -> None:
    assert not dist.can_shrink()
    with pytest.raises(dist.CommunicationError, match="cannot continue when") as caught:
        dist.shrink()
    assert "--with-ft ulfm" in caught.value.hint and "launcher" in caught.value.hint
    shrinking.require_all_ranks("a part", 0)
    net = M.Linear(2, 2)
    with pytest.raises(ValueError, match="keep should be one of"):
        Elastic(net, SGD(net.parameters(), lr=1.0), keep="both")


def test_state_in_parts_cannot_go_on() -> None:
    dist.init_process_group()
    try:
        net = M.Linear(2, 2)
        sharded: Any = ShardedOptimizer(net.parameters(), lambda p: SGD(p, lr=0.1))
        with pytest.raises(TypeError, match="again from its last checkpoint"):
            Elastic(net, sharded)
    finally:
        groups.leave()


def test_samplers_follow(three: None) -> None:
    follows = SequentialSampler(range(12), 2)
    fixed = SequentialSampler(range(12), 2, world_size=3, rank=2)
    assert list(follows) == list(fixed) == [[2, 5], [8, 11]]
    groups.shrink_to(World(1, 2))
    assert list(follows) == [[1, 3], [5, 7], [9, 11]] and len(follows) == 3
    assert list(fixed) == [[2, 5], [8, 11]]
    follows.leave_out(7)
    assert list(follows) == [[8, 10], [7]]  # 7 samples of 12 are done; the first is there twice
    assert list(follows) == [[1, 3], [5, 7], [9, 11]]


def test_programs_are_captured_anew(three: None) -> None:
    @compiled
    def share(x: Any) -> Any:
        return x / dist.get_world_size()

    assert [share(mge.tensor(6.0)).item() for _ in range(2)] == [2.0, 2.0]
    groups.shrink_to(World(1, 2))
    assert share(mge.tensor(6.0)).item() == 3.0
    assert len(share.variants) == 2


def test_a_world_that_has_shrunk_is_forgotten_when_it_is_left(three: None) -> None:
    groups.shrink_to(World(1, 2))
    dist.WORLD.reset(range(2))
    groups.leave()
    assert (dist.WORLD.size, dist.get_rank()) == (1, 0)
