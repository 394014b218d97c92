"""Arrays of state that a program updates: taken over where nobody else has them, else copied."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge

SIZE = 300_000  # Large enough for memory of the engine's own allocator.


def counting(p: mge.Tensor) -> Callable[[], Any]:
    @mge.jit.compile
    def step() -> Any:
        p[...] = p + 1
        return p.sum()

    return step


def address(p: mge.Tensor) -> int:
    found: int = p._data.__array_interface__["data"][0]
    return found


def made_by(kind: str) -> mge.Parameter:
    if kind == "numpy":
        return mge.Parameter(np.zeros(SIZE, "float32"))
    p = mge.Parameter(np.zeros(SIZE, "float32"))
    p[...] = mge.random.uniform(size=(SIZE,)) * 0
    return p


@pytest.mark.parametrize("kind", ["numpy", "engine"])
def test_an_array_that_only_its_handle_has_is_written_in_place(kind: str) -> None:
    p = made_by(kind)
    before = address(p)
    step = counting(p)
    for turn in (1, 2):
        step()
        assert address(p) == before
        assert p.numpy()[0] == turn


@pytest.mark.parametrize("kind", ["numpy", "engine"])
def test_an_array_that_others_have_too_stays_as_it_is(kind: str) -> None:
    p = made_by(kind)
    held, part = p.numpy(), p.numpy()[5:9]
    step = counting(p)
    step()
    assert p.numpy()[5] == 1 and held[5] == 0 and part[0] == 0
    del held
    step()
    assert p.numpy()[5] == 2 and part[0] == 0


def test_memory_of_others_is_not_written_to() -> None:
    """An array over memory that is not ours may have readers that no count shows."""
    memory = bytearray(4 * SIZE)
    p = mge.Parameter(np.zeros(SIZE, "float32"))
    p._data = np.frombuffer(memoryview(memory), "float32")
    assert p._data.flags.writeable
    counting(p)()
    assert p.numpy()[0] == 1 and not any(memory[:64])


def test_two_handles_of_one_array() -> None:
    p, q = mge.Parameter(np.zeros(SIZE, "float32")), mge.Parameter(np.zeros(SIZE, "float32"))
    q._data = p._data
    counting(p)()
    assert p.numpy()[0] == 1 and q.numpy()[0] == 0


def test_a_capture_lets_go_of_arrays() -> None:
    """What it knows may outlive it until the collector comes, and would count as other holders."""
    p, q = (mge.Parameter(np.zeros(SIZE, "float32")) for _ in range(2))
    before = [address(p), address(q)]
    gm = mge.autodiff.GradManager().attach([p, q])
    optimizer = mge.optimizer.SGD([p, q], 0.5, 0.9)

    @mge.jit.compile
    def step() -> Any:
        with gm:
            loss = ((p - q) * 2 - 1).sum()
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    gc.disable()
    try:
        step()
    finally:
        gc.enable()
    assert [address(p), address(q)] == before
    assert p.numpy()[0] == -1 and q.numpy()[0] == 1


@mge.jit.compile
def count_argument(p: mge.Tensor) -> Any:
    """As `counting`, of a handle that each call gives."""
    p[...] = p + 1
    return p.sum()


@pytest.mark.parametrize("kind", ["numpy", "engine"])
def test_arguments_that_only_their_handles_have_are_written_in_place(kind: str) -> None:
    p = made_by(kind)
    before = address(p)
    for turn in (1, 2, 3):
        count_argument(p)
        assert address(p) == before
        assert p.numpy()[0] == turn


def test_arguments_that_others_have_too_stay_as_they_are() -> None:
    p = made_by("numpy")
    held, part, q = p.numpy(), p.numpy()[5:9], mge.Tensor(p)
    count_argument(p)
    assert p.numpy()[5] == 1 and held[5] == q.numpy()[5] == part[0] == 0
    del held, q
    count_argument(p)
    assert p.numpy()[5] == 2 and part[0] == 0
    memory = bytearray(4 * SIZE)
    p._data = np.frombuffer(memoryview(memory), "float32")
    count_argument(p)
    assert p.numpy()[0] == 1 and not any(memory[:64])
