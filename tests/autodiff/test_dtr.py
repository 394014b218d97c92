"""Eager training under a budget: the same bits, fewer bytes held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import dtr
from treadle.autodiff import Function, GradManager
from treadle.base.errors import OutOfMemory

KB = 1 << 10


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    dtr.evictee_minimum_size = KB
    dtr.reset_report()
    yield
    dtr.disable()
    dtr.eviction_threshold = 0
    dtr.evictee_minimum_size = 1 << 20
    dtr.enable_sqrt_sampling = False
    dtr.strict = False


def chain(x: Any, w: Any, depth: int = 24) -> Any:
    for i in range(depth):
        x = F.tanh(x) @ w if i % 3 else F.dropout(x, 0.1) + x
    return x


def trained(threshold: Any, steps: int = 2) -> list[np.ndarray[Any, Any]]:
    dtr.eviction_threshold = threshold
    mge.random.seed(7)
    w = mge.Parameter(np.eye(16, dtype=np.float32) * 0.9)
    x = mge.tensor(np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32))
    gm = GradManager().attach([w, x])
    found = []
    for _ in range(steps):
        with gm:
            loss = (chain(x, w) ** 2).mean()
            gm.backward(loss)
        found += [loss.numpy(), w.grad.numpy(), x.grad.numpy()]
        w -= 0.1 * w.grad
        w.grad = x.grad = None
    return found


@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize("threshold", ["8KB", "20KB", 60 * KB, "1GB"])
def test_results_are_the_same_bits(threshold: Any, sampling: bool) -> None:
    plain = trained(0)
    dtr.enable_sqrt_sampling = sampling
    dtr.enable()
    kept = trained(threshold)
    for a, b in zip(plain, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_budget_lowers_what_is_held() -> None:
    dtr.enable()
    trained("1GB")
    free = dtr.report()
    assert (free.evictions, free.recomputations) == (0, 0)
    dtr.reset_report()
    trained(40 * KB)
    kept = dtr.report()
    assert kept.evictions > 0
    assert kept.recomputations > 0
    assert kept.peak < 0.5 * free.peak


def test_without_a_threshold_memory_of_the_machine_counts() -> None:
    dtr.enable()
    assert dtr.is_enabled()
    trained(0)
    assert dtr.report().evictions == 0
    assert dtr.report().peak > 0


def test_long_chains_do_not_overflow_the_stack() -> None:
    dtr.enable()
    dtr.eviction_threshold = 800 * KB
    x = mge.tensor(np.zeros(1024, np.float32))
    gm = GradManager().attach(x)
    with gm:
        y = x
        for _ in range(1200):
            y = F.sin(y)
        gm.backward(y)
    np.testing.assert_array_equal(x.grad.numpy(), 1)


def test_values_that_variables_hold_stay() -> None:
    dtr.enable()
    dtr.eviction_threshold = 1
    x = mge.tensor(np.ones(1024, np.float32))
    gm = GradManager().attach(x)
    with gm:
        held = F.exp(x)
        y = F.sin(held) * held
        before = held.numpy().copy()
        gm.backward(y)
    np.testing.assert_array_equal(held.numpy(), before)
    dtr.strict = True
    with gm, pytest.raises(OutOfMemory, match="threshold of 1 bytes"):
        F.exp(x)


def test_higher_orders_and_user_gradients() -> None:
    class Cube(Function):
        """x^3 by hand."""

        def forward(self, x: Any) -> Any:
            self.x = x
            return x**3

        def backward(self, dy: Any) -> Any:
            return dy * 3 * self.x**2

    def second() -> np.ndarray[Any, Any]:
        x = mge.tensor(np.linspace(-1, 1, 512, dtype=np.float32))
        outer, gm = GradManager().attach(x), GradManager().attach(x)
        with outer:
            with gm:
                gm.backward(F.sin(x) * Cube()(F.exp(x)))
            first = x.grad
            x.grad = None
            outer.backward(first)
        return x.grad.numpy()

    plain = second()
    dtr.enable()
    dtr.eviction_threshold = 4 * KB
    np.testing.assert_array_equal(second(), plain)


@pytest.mark.parametrize(
    ("given", "want"), [("1.5kb", 1536), ("2 MB", 2 << 20), ("1GB", 1 << 30), (77, 77), ("5B", 5)]
)
def test_sizes(given: Any, want: int) -> None:
    dtr.eviction_threshold = given
    assert dtr.eviction_threshold == want


@pytest.mark.parametrize(
    ("given", "error"), [("1TB", ValueError), ("x", ValueError), (1.5, TypeError), (-1, ValueError)]
)
def test_wrong_sizes(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        dtr.eviction_threshold = given
