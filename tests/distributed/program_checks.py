"""Collectives in compiled and traced functions."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tests.distributed.collective_checks import D, arrays, gradient, mine, part, same, weights

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
import treadle.module as M
from treadle.engine import cache
from treadle.engine.options import Options
from treadle.jit import compile as compiled
from treadle.optimizer import SGD
from treadle.runtime.comm import buckets
from treadle.tensor import Tensor


def check_programs() -> None:
    """Captured collectives run at every call, in order, and gradients with them."""
    n, r = dist.get_world_size(), dist.get_rank()

    @compiled
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        total = D.all_reduce_sum(x * 2)
        return D.all_gather(F.relu(total) + 1, axis=1), D.reduce_scatter_sum(x)

    for k in (1.0, 2.0, 3.0):
        x = mine() * k
        total = 2 * k * np.sum(arrays(), axis=0)
        gathered, scattered = step(x)
        np.testing.assert_allclose(gathered.numpy(), np.concatenate([total + 1] * n, 1))
        np.testing.assert_allclose(scattered.numpy(), part(k * np.sum(arrays(), axis=0), 0))

    traced = mge.jit.trace(lambda x: D.all_reduce_sum(x) + 1, symbolic=True)
    for _ in range(3):
        same(traced(mine()), np.sum(arrays(), axis=0) + 1)

    w = mge.Parameter(np.ones((6, 4), np.float32))
    gm = mge.autodiff.GradManager().attach([w])

    @compiled
    def backward(x: Tensor) -> Tensor:
        with gm:
            y = (D.all_reduce_sum(w * x) ** 2).sum()
            gm.backward(y)
        return y

    for _ in range(2):
        w.grad = None
        backward(mine())
        wanted = 2 * n * np.sum(arrays(), axis=0) * arrays()[r]
        np.testing.assert_allclose(w.grad.numpy(), wanted, rtol=1e-5)


def check_ranks_without_results_take_part_in_gradients_of_programs() -> None:
    r, w = dist.get_rank(), weights((6, 4))
    got = gradient(compiled(D.reduce_sum), w[r])
    np.testing.assert_allclose(got, w[0])


def check_gradients_of_programs_travel_in_buckets() -> None:
    """However they are cut, losses are those of single reductions; other programs are noticed."""
    r = dist.get_rank()
    steps, curves = [], []
    comm = dist.WORLD.communicator()
    # On one machine; over a network they begin at once.
    assert dist.get_backend() != "mpi" or comm.defers
    for how in ("off", "auto", (1, 3), (2, 4)):
        comm.defers = how != (2, 4)
        rng = np.random.default_rng(3)
        net = M.Sequential(M.Linear(6, 16), M.ReLU(), M.Linear(16, 16), M.ReLU(), M.Linear(16, 4))
        for p in net.parameters():
            p._reset(mge.tensor(rng.normal(size=p.shape).astype(np.float32) * 0.3))
        gm = mge.autodiff.GradManager().attach(net.parameters(), dist.make_allreduce_cb("mean"))
        optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x: Tensor, net=net, gm=gm, optimizer=optimizer) -> Tensor:
            with gm:
                loss = (net(x) ** 2).mean()
                gm.backward(loss)
            optimizer.step().clear_grad()
            return D.all_reduce_sum(loss)

        steps.append(compiled(options=Options(reductions=how, check=True))(step))
        data = rng.normal(size=(5, 2, 8, 6)).astype(np.float32)
        curves.append([float(steps[-1](mge.tensor(x[r]))) for x in data])
    np.testing.assert_allclose(curves[1:], curves[:1] * 3, rtol=1e-5)
    x = mge.tensor(data[0, r])
    with pytest.raises(dist.CommunicationError, match="about to run different") as caught:
        steps[1 + r](x)
    assert "all_reduce_bucket 3 buckets" in caught.value.saw
    assert float(steps[2](x)) < curves[2][0]
    comm.defers = True


def check_programs_that_differ_are_an_error_on_all_ranks() -> None:
    r = dist.get_rank()

    @compiled
    def step(x: Tensor) -> Tensor:
        if r:
            return D.all_gather(D.all_reduce_sum(x))
        return D.all_reduce_sum(D.all_gather(x))

    with pytest.raises(dist.CommunicationError, match="different") as caught:
        step(mine())
    assert "program of 2 collectives: all_gather" in caught.value.saw


def check_programs_come_from_the_cache() -> None:
    """Also where one rank alone has found nothing, or another cut than the others."""
    r = dist.get_rank()
    x = mge.tensor(np.full((4, 7), r + 1.0, np.float32))
    real = cache.fetch

    def ran(how: Any, fetch: Any = real) -> tuple[bool, Any]:
        """Whether the stages ran in what is a new program to this process, and its results."""
        buckets._KNOWN.pop(dist.WORLD.communicator(), None)

        def step(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            a, b = F.exp(x), F.sin(x) * 3
            return D.all_reduce_sum(a) + 1, D.all_reduce_sum(b) * 2, D.all_gather(x)

        with patch.object(cache, "fetch", fetch):
            stages = (again := compiled(options=Options(reductions=how))(step)).compile(x)
            found = [y.numpy() for y in again(x)]
        made = "compile" in stages.report.seconds
        if r == 0:  # Looking at a program that has run needs nobody else.
            assert "2 buckets" in stages.explained()
        return made, found

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def another(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        return found and dataclasses.replace(found, cuts=((found.cuts[0][0], ((1, 0),)),))

    made, wanted = ran((1,))
    for fetch, makes in ((real, False), (nothing, True), (another, True), (real, False)):
        made, found = ran((1,), fetch if r else real)
        assert made == makes
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(wanted[0], np.exp(1) + np.exp(2) + 1, rtol=1e-6)


def check_a_rank_alone_makes_programs_of_smaller_batches() -> None:
    """What all have agreed on before is not asked again: the others run what they have."""
    r = dist.get_rank()
    w = mge.Parameter(np.ones((3,), np.float32))
    gm = mge.autodiff.GradManager().attach([w], dist.make_allreduce_cb("sum"))

    @compiled
    def step(x: Tensor) -> Tensor:
        with gm:
            gm.backward((w * x).sum())
        grad, w.grad = w.grad, None
        return grad

    for rows, wanted in ((4, 8), (4, 8), (2, 6), (4, 8)):
        x = mge.tensor(np.ones((rows if r else 4, 3), np.float32))
        assert step(x).tolist() == [wanted] * 3


def check_ranks_of_different_lengths_share_programs() -> None:
    """Ranks need no program for each length, whichever of them meets a new range of lengths."""
    r = dist.get_rank()
    w = mge.Parameter(np.ones((3,), np.float32))
    gm = mge.autodiff.GradManager().attach([w], dist.make_allreduce_cb("sum"))

    @compiled(dynamic={0: {0: "rows"}})
    def step(x: Tensor) -> Tensor:
        with gm:
            gm.backward((w * x).sum())
        grad, w.grad = w.grad, None
        return grad

    lengths = ((4, 8), (5, 5), (20, 6), (7, 200), (300, 2), (1, 31), (90, 1))
    for pair in lengths:
        x = mge.tensor(np.ones((pair[r % 2], 3), np.float32))
        n = dist.get_world_size()
        assert step(x).tolist() == [sum(pair[k % 2] for k in range(n))] * 3
    found = [f for fs in step._captures.families.values() for f in fs if f.regimes]
    assert [f.alone for f in found] == [""] and len(found[0].regimes) == 3

    @compiled(dynamic={0: {0: "rows"}})
    def gather(x: Tensor) -> Tensor:
        return D.reduce_scatter_sum(D.all_gather(x, axis=0) * 2, axis=0).sum(0)

    for rows in (2, 5, 9, 40):
        x = mge.tensor(np.ones((rows, 3), np.float32))
        assert gather(x).tolist() == [2.0 * rows * dist.get_world_size()] * 3
    assert not any(f.alone for fs in gather._captures.families.values() for f in fs)
