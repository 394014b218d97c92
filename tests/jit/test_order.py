"""Before the first run, programs are compared with those of other processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import treadle as mge
from treadle.jit import compile as compiled
from treadle.ops import collective as co
from treadle.runtime.comm import groups
from treadle.runtime.comm.loopback import Loopback
from treadle.tensor import Tensor


class Noting(Loopback):
    """Keeps what its process was about to do."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def agree(self, what: str, /) -> None:
        self.said.append(what)


@pytest.fixture
def world() -> Iterator[Noting]:
    made = Noting()
    groups.join(made)
    yield made
    groups.leave()


def test_collectives_are_named_in_order_once_per_function(world: Noting) -> None:
    @compiled
    def step(x: Tensor) -> Tensor:
        token = co.Send()(x)
        return co.AllReduce(kind="max")(co.AllGather()(x)) + token.sum()

    for size in (2, 2, 3):
        assert step(mge.tensor([1.0] * size)).shape == (size,)
    (said,) = world.said
    assert said.startswith("program of 2 collectives: all_gather{")
    assert "float32[2]; all_reduce{" in said and "send" not in said


def test_looking_at_a_program_asks_nobody(world: Noting) -> None:
    step = compiled(lambda x: co.AllReduce()(x))
    x = mge.tensor([1.0])
    step.graph(x)
    assert world.said == []
    step(x)
    assert len(world.said) == 1


def test_programs_without_collectives_ask_nobody(world: Noting) -> None:
    compiled(lambda x: x + 1)(mge.tensor([1.0]))
    assert world.said == []
