"""Planned buckets against all ways to cut a list, and links as they are measured."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from treadle.runtime.comm.buckets import ReductionCost, ends, finish, measured, plan
from treadle.runtime.comm.loopback import Loopback


def cuts(count: int) -> list[tuple[int, ...]]:
    """All ways to write a number as a sum of positive ones."""
    found = []
    for marks in itertools.product((False, True), repeat=count - 1):
        sizes = [1]
        for cut in marks:
            if cut:
                sizes.append(1)
            else:
                sizes[-1] += 1
        found.append(tuple(sizes))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_plans_are_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ready = np.cumsum(rng.exponential(size=8)).tolist()
    nbytes = rng.integers(1, 1000, size=8).tolist()
    link = ReductionCost(float(rng.exponential()), float(rng.exponential() / 500))
    found = plan(ready, nbytes, [0] * 8, link)
    best = min(finish(sizes, ready, nbytes, link) for sizes in cuts(8))
    assert finish(found, ready, nbytes, link) == pytest.approx(best)


def test_extremes() -> None:
    ready, nbytes = [1.0, 2.0, 3.0], [10, 10, 10]
    assert plan(ready, nbytes, [0] * 3, ReductionCost(100.0, 0.0)) == (3,)
    # Equal ends: rather fewer buckets.
    assert plan(ready, nbytes, [0] * 3, ReductionCost(0.0, 0.01)) == (2, 1)
    assert plan(ready, nbytes, ["a", "a", "b"], ReductionCost(100.0, 0.0)) == (2, 1)
    assert plan([], [], [], ReductionCost(1.0, 1.0)) == ()
    assert plan([5.0], [10], ["a"], ReductionCost(1.0, 1.0)) == (1,)


def test_starting_many_costs_time_of_the_backward_pass() -> None:
    ready = [0.01 * i for i in range(100)]  # each could be reduced before the next one is there
    sizes = plan(ready, [1] * 100, [0] * 100, ReductionCost(0.009, 0.0))
    assert len(sizes) <= 3 and sum(sizes) == 100


def test_thousands_of_gradients_are_planned_in_runs() -> None:
    ready = np.arange(5000) * 1e-4
    kinds = [i // 2500 for i in range(5000)]
    sizes = plan(ready.tolist(), [4000] * 5000, kinds, ReductionCost(1e-3, 1e-9))
    assert sum(sizes) == 5000 and 2500 in np.cumsum(sizes) and len(sizes) <= 32


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("auto", (3,)),
        ("off", (1, 2, 3)),
        (25, (2, 3)),
        (1, (1, 2, 3)),
        ((1, 9), (1,)),
        ((1.0,), (3,)),
        ((0.5, 0.5), (2, 3)),
        ((0.2, 0.2, 0.6), (1, 2, 3)),
        ((0.01, 0.99), (1, 3)),
    ],
)
def test_ways_to_cut(how: Any, found: tuple[int, ...]) -> None:
    assert ends(how, [1.0, 1.5, 2.0], [10, 10, 20], ["a"] * 3, ReductionCost(100.0, 0.0)) == found


def test_a_link_of_one_process_is_measured() -> None:
    link = measured(Loopback())
    assert link.alpha >= 0 and link.beta >= 0
    assert link.seconds(1 << 20) >= link.seconds(0)
