"""Collectives in compiled and traced functions."""

from __future__ import annotations

import numpy as np
import pytest
from tests.distributed.collective_checks import D, arrays, gradient, mine, part, same, weights

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
from treadle.jit import compile as compiled
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
