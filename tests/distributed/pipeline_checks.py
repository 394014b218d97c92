"""What pipelines do on every rank of a group, beside training as one process would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
import treadle.module as M
from treadle.amp import autocast
from treadle.autodiff import recompute
from treadle.base.errors import ShapeError
from treadle.module import Module
from treadle.module.pipeline import Pipeline
from treadle.runtime.comm.api import CommunicationError
from treadle.tensor import Tensor

ROWS, WIDTH = 5, 4


class Compiled(Module):
    """A layer that runs as a compiled program."""

    def __init__(self, inner: Module) -> None:
        super().__init__()
        self.inner = inner
        self._run = mge.jit.compile(inner.forward)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self._run(x)
        return y


def place() -> tuple[bool, bool]:
    """Whether this rank is the first, and whether it is the last."""
    return dist.get_rank() == 0, dist.get_rank() == dist.get_world_size() - 1


def layers() -> list[Module]:
    """One per rank, the same on all ranks."""
    mge.random.seed(3)
    return [M.Linear(WIDTH, WIDTH) for _ in range(dist.get_world_size())]


def batch(rows: int = ROWS) -> Tensor:
    return mge.tensor(np.random.default_rng(2).normal(size=(rows, WIDTH)).astype(np.float32))


def mean(y: Tensor, number: int) -> Tensor:
    return F.mean(y * y)


def step(stage: Module, *, parts: int = 2, loss: Callable[[Tensor, int], Tensor] = mean) -> None:
    first, last = place()
    Pipeline(stage, parts).step(batch() if first else None, loss if last else None)


def gradients_alone(net: list[Module]) -> list[Tensor]:
    """Of this rank's layer, when one process goes through all of them with the whole batch."""
    own = list(net[dist.get_rank()].parameters())
    gm = mge.autodiff.GradManager().attach(own)
    with gm:
        y = batch()
        for layer in net:
            y = layer(y)
        gm.backward(mean(y, 0))
    found = [p.grad for p in own]
    for p in own:
        p.grad = None
    return found


def compare(stage: Module, wanted: list[Tensor], times: int = 1, atol: float = 1e-6) -> None:
    for p, grad in zip(stage.parameters(), wanted, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), times * grad.numpy(), rtol=1e-4, atol=atol)


def check_steps_add_up_gradients_whatever_the_parts() -> None:
    """Five parts of a row, one of all, and parts of unequal size, computed again and not."""
    net = layers()
    stage, wanted = net[dist.get_rank()], gradients_alone(net)
    for parts in (5, 1, 3):
        step(stage, parts=parts)
        if parts == 1:
            vars(stage)["forward"] = recompute(stage.forward)
    compare(stage, wanted, times=3)


def check_stages_may_be_compiled_or_in_half_precision() -> None:
    net = layers()
    stage, wanted = net[dist.get_rank()], gradients_alone(net)
    step(Compiled(stage))
    compare(stage, wanted)
    for p in stage.parameters():
        p.grad = None
    with autocast():
        step(stage)
    assert all(p.grad.dtype == np.float32 for p in stage.parameters())
    compare(stage, wanted, atol=1e-2)


class Constant(Module):
    """What it computes depends on nothing."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.ones_like(x.detach())
        return y


def check_infinities_do_not_come_back_from_a_part_that_reads_nothing() -> None:
    net = layers()
    bias, weight = net[0].parameters()
    weight._reset(mge.tensor(np.full(weight.shape, np.inf, np.float32)))
    step(net[0] if place()[0] else Constant())
    if place()[0]:
        np.testing.assert_array_equal(bias.grad.numpy(), 0)


def check_every_rank_learns_that_one_cannot_begin() -> None:
    """A batch that is too small, no batch, no loss: the group can be used afterwards."""
    net = layers()
    stage, wanted = net[dist.get_rank()], gradients_alone(net)
    first, last = place()
    cases = (batch(1), mean, first), (None, mean, first), (batch(), None, last)
    for x, loss, own in cases:
        with pytest.raises((ShapeError, TypeError) if own else CommunicationError):
            Pipeline(stage, 2).step(x if first else None, loss if last else None)
    step(stage)
    compare(stage, wanted)


def check_what_a_failed_step_has_sent_is_passed_over() -> None:
    net = layers()
    stage, wanted = net[dist.get_rank()], gradients_alone(net)
    comm = dist.WORLD.communicator()
    for other in {comm.rank - 1, comm.rank + 1} & set(range(comm.size)):
        comm.send_value((-1, (1, WIDTH), "float32"), other)
        comm.send(np.ones((1, WIDTH), np.float32), other)
    step(stage)
    compare(stage, wanted)
