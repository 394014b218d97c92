"""Memory planning: plans hold what they promise, and the checker notices when they do not."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.base.errors import CompileError
from treadle.engine.compile import memory
from treadle.engine.compile.memory import Buffer, check_memory, lower_bound, plan_memory
from treadle.engine.plan import ALIGNMENT, MemoryPlan, aligned

BUFFERS = st.lists(
    st.builds(
        lambda size, start, length: Buffer(size, start, start + length),
        st.integers(0, 5000),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(BUFFERS)
def test_plans_are_valid_and_between_the_bounds(buffers: list[Buffer]) -> None:
    plan = plan_memory(buffers)
    check_memory(buffers, plan)
    assert plan.bound <= plan.peak <= plan.naive
    assert plan.bound == max(
        (sum(aligned(b.size) for b in buffers if b.start <= step <= b.end) for step in range(30)),
        default=0,
    )


def best_fit(buffers: list[Buffer], order: list[int]) -> list[int]:
    """Every buffer in order at the bottom of the smallest gap that it fits, the lowest of them."""
    offsets = dict[int, int]()
    for i in order:
        b, size = buffers[i], aligned(buffers[i].size)
        low, gaps = 0, []
        for j in sorted((j for j in offsets if buffers[j].overlaps(b)), key=lambda j: offsets[j]):
            if offsets[j] - low >= size:
                gaps.append((offsets[j] - low, low))
            low = max(low, offsets[j] + aligned(buffers[j].size))
        offsets[i] = min(gaps)[1] if gaps else low
    return [offsets[i] for i in range(len(buffers))]


@settings(max_examples=150, deadline=None)
@given(BUFFERS, st.randoms(use_true_random=False))
def test_buffers_go_into_the_smallest_gap(buffers: list[Buffer], rng: random.Random) -> None:
    order = list(range(len(buffers)))
    rng.shuffle(order)
    assert memory._place(buffers, order) == best_fit(buffers, order)


def test_a_chain_needs_two_buffers() -> None:
    buffers = [Buffer(1000, i, i + 1) for i in range(10)]
    plan = plan_memory(buffers)
    assert plan.peak == plan.bound == 2 * aligned(1000)
    assert plan.naive == 10 * aligned(1000)


def test_without_reuse_everybody_has_bytes_of_his_own() -> None:
    buffers = [Buffer(100, i, i) for i in range(4)]
    plan = plan_memory(buffers, reuse=False)
    assert plan.peak == plan.naive == 4 * aligned(100)
    check_memory(buffers, plan)


def best_peak(buffers: list[Buffer]) -> int:
    """The smallest peak over all orders of first-fit placement: an optimum for few buffers."""
    best = sum(aligned(b.size) for b in buffers)
    for order in itertools.permutations(range(len(buffers))):
        tops: dict[int, tuple[int, int]] = {}
        for i in order:
            low = 0
            for start, end in sorted(tops[j] for j in tops if buffers[j].overlaps(buffers[i])):
                if low + aligned(buffers[i].size) <= start:
                    break
                low = max(low, end)
            tops[i] = (low, low + aligned(buffers[i].size))
        best = min(best, max(end for _, end in tops.values()))
    return best


def test_few_buffers_are_placed_nearly_as_well_as_by_trying_all_orders() -> None:
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(40):
        buffers = []
        for _ in range(6):
            start = int(rng.integers(0, 6))
            buffers.append(Buffer(int(rng.integers(1, 2000)), start, start + int(rng.integers(4))))
        ratios.append(plan_memory(buffers).peak / best_peak(buffers))
    assert max(ratios) <= 1.25
    assert np.mean(ratios) <= 1.02


PLAN = plan_memory([Buffer(100, 0, 2), Buffer(200, 1, 3), Buffer(64, 3, 4)])
BROKEN = {
    "overlap": (0, 64, PLAN.offsets[2]),
    "misaligned": (1, *PLAN.offsets[1:]),
    "outside": (PLAN.peak, *PLAN.offsets[1:]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_checker_finds_a_broken_plan(name: str) -> None:
    buffers = [Buffer(100, 0, 2), Buffer(200, 1, 3), Buffer(64, 3, 4)]
    check_memory(buffers, PLAN)
    broken: MemoryPlan = dataclasses.replace(PLAN, offsets=BROKEN[name])
    with pytest.raises(CompileError, match="memory plan"):
        check_memory(buffers, broken)


def test_lines_are_whole() -> None:
    assert aligned(0) == 0
    assert aligned(1) == aligned(ALIGNMENT) == ALIGNMENT
    assert lower_bound([]) == 0
