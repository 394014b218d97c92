"""Execution order: valid, and of no larger peak than the order that was given."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.base.errors import CompileError
from treadle.engine.compile.order import Task, best_order, peak_of


@st.composite
def programs(draw: st.DrawFn) -> list[Task]:
    """Tasks of one result each, which read results of earlier ones."""
    tasks: list[Task] = []
    for i in range(draw(st.integers(1, 7))):
        reads = tuple(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else ()
        tasks.append(Task(reads, ((i, draw(st.integers(1, 100))),), reads))
    return tasks


def is_valid(tasks: list[Task], order: tuple[int, ...]) -> bool:
    """Whether every task comes once, after what it depends on."""
    at = {t: i for i, t in enumerate(order)}
    return sorted(order) == list(range(len(tasks))) and all(
        at[p] < at[t] for t in at for p in tasks[t].after
    )


@settings(max_examples=150, deadline=None)
@given(programs())
def test_orders_are_valid_and_no_worse_than_given(tasks: list[Task]) -> None:
    kept: frozenset[int] = frozenset()
    order = best_order(tasks)
    assert is_valid(tasks, order)
    assert peak_of(tasks, order, kept) <= peak_of(tasks, range(len(tasks)), kept)


def test_updates_run_as_soon_as_their_gradient_is_there() -> None:
    """Four gradients of 100 bytes, four updates that were written at the end."""
    gradients = [Task((i - 1,) if i else (), ((i, 100),)) for i in range(4)]
    updates = [Task((i,), (), (i,)) for i in range(4)]
    tasks = [*gradients, *updates]
    assert peak_of(tasks, range(8), frozenset()) == 400
    assert peak_of(tasks, best_order(tasks), frozenset()) == 100


def test_the_least_peak_of_small_programs_is_often_found() -> None:
    # x -> (a, b, c) of sizes 10, 1, 1; each is reduced to 1; the sums join.
    tasks = [
        Task((), ((0, 1),)),
        *[Task((0,), ((i, 50),), (0,)) for i in (1, 2, 3)],
        *[Task((i,), ((i + 3, 1),), (i,)) for i in (1, 2, 3)],
        Task((4, 5, 6), ((7, 1),), (4, 5, 6)),
    ]
    best = min(
        peak_of(tasks, order, frozenset())
        for order in itertools.permutations(range(8))
        if is_valid(tasks, order)
    )
    assert peak_of(tasks, best_order(tasks), frozenset()) == best


def test_a_circle_is_refused() -> None:
    with pytest.raises(CompileError, match="circle"):
        best_order([Task((1,)), Task((0,))])
