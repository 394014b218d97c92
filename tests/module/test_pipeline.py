"""Pipelines of one rank, which is the first and the last; tests/distributed has longer ones."""

from collections.abc import Iterator

import numpy as np
import pytest

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
import treadle.module as M
from treadle.base.errors import ShapeError
from treadle.distributed import group
from treadle.module.pipeline import Pipeline
from treadle.tensor import Tensor


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    dist.init_process_group()
    yield
    group.leave()


def mean(y: Tensor, number: int) -> Tensor:
    return F.mean(y * y)


def batch() -> Tensor:
    return mge.tensor(np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32))


def test_a_group_of_one_trains_as_without_a_pipeline() -> None:
    stage, x = M.Linear(3, 2), batch()
    gm = mge.autodiff.GradManager().attach(stage.parameters())
    with gm:
        gm.backward(loss := mean(stage(x), 0))
    wanted = [p.grad.numpy() for p in stage.parameters()]
    for p in stage.parameters():
        p.grad = None
    found = Pipeline(stage, 3).step(x, mean)
    assert found is not None
    np.testing.assert_allclose(found.item(), loss.item(), rtol=1e-5)
    for p, grad in zip(stage.parameters(), wanted, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), grad, rtol=1e-5, atol=1e-6)


def test_a_loss_is_one_number() -> None:
    with pytest.raises(ShapeError, match="one number"):
        Pipeline(M.Linear(3, 2), 2).step(batch(), lambda y, number: F.mean(y * y, axis=1))


def test_what_a_step_cannot_begin_without() -> None:
    pipeline = Pipeline(M.Linear(3, 2), 6)
    with pytest.raises(ShapeError, match="5 rows cannot be cut into 6 parts"):
        pipeline.step(batch(), mean)
    with pytest.raises(TypeError, match="has to pass a batch"):
        pipeline.step(None, mean)
    with pytest.raises(TypeError, match="has to pass a loss"):
        Pipeline(M.Linear(3, 2), 2).step(batch(), None)
