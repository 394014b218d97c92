"""The solver of layout problems against every assignment of small ones."""

from __future__ import annotations

import itertools
import random

import pytest

from treadle.base.errors import GraphError
from treadle.graph.pbqp import NEVER, AssignmentProblem


def brute_force(problem: AssignmentProblem, sizes: list[int]) -> float:
    return min(problem.cost(states) for states in itertools.product(*map(range, sizes)))


def make(
    rng: random.Random, edges: list[tuple[int, int]], count: int
) -> tuple[AssignmentProblem, list[int]]:
    """Whole-number costs, so that sums are exact, with a few pairs that must not be."""
    problem, sizes = AssignmentProblem(), [rng.randint(1, 3) for _ in range(count)]
    for size in sizes:
        problem.variable([rng.randint(0, 9) for _ in range(size)])
    for a, b in edges:
        problem.edge(
            a,
            b,
            [
                [NEVER if i + j and rng.random() < 0.1 else rng.randint(0, 9) for j in range(n)]
                for i, n in enumerate([sizes[b]] * sizes[a])
            ],
        )
    return problem, sizes


def tree(rng: random.Random, count: int) -> list[tuple[int, int]]:
    return [(rng.randrange(i), i) for i in range(1, count)]


def series_parallel(rng: random.Random, count: int) -> list[tuple[int, int]]:
    """A cycle or chain, grown by putting variables on and beside edges."""
    edges = [(0, 1)]
    for i in range(2, count):
        a, b = rng.choice(edges)
        edges += [(a, i), (i, b)]
        if rng.random() < 0.5 and len(edges) > 3:
            edges.remove((a, b))
    return edges


@pytest.mark.parametrize("shape", [tree, series_parallel])
def test_exact_where_it_says_so(shape) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(1)
    for _ in range(150):
        count = rng.randint(2, 7)
        problem, sizes = make(rng, shape(rng, count), count)
        found = problem.solve()
        assert found.proven
        assert found.cost == problem.cost(found.states) == brute_force(problem, sizes)


def test_close_to_the_best_on_any_graph() -> None:
    rng = random.Random(2)
    hits = total = best = 0.0
    for _ in range(200):
        count = rng.randint(5, 7)
        edges = [e for e in itertools.combinations(range(count), 2) if rng.random() < 0.8]
        problem, sizes = make(rng, edges, count)
        found, least = problem.solve(), brute_force(problem, sizes)
        assert found.cost == problem.cost(found.states) >= least
        assert found.cost == least or not found.proven
        hits += found.cost == least
        if found.cost < NEVER:
            total, best = total + found.cost, best + least
    assert hits > 150
    assert total < 1.03 * best


def test_what_must_not_be_is_avoided() -> None:
    problem = AssignmentProblem()
    a, b = problem.variable([0, 5]), problem.variable([0, 5])
    problem.edge(a, b, [[NEVER, 0], [0, NEVER]])
    problem.charge(a, [1, 0])
    assert problem.solve().states == (1, 0)
    problem.charge(a, [NEVER, NEVER])
    assert problem.solve().cost == NEVER


def test_edges_of_a_pair_add_up_in_either_order() -> None:
    problem = AssignmentProblem()
    a, b = problem.variable([0, 0]), problem.variable([0, 0, 0])
    problem.edge(a, b, [[1, 2, 3], [4, 5, 0]])
    problem.edge(b, a, [[0, 0], [0, 0], [9, 1]])
    assert problem.solve().cost == 1
    assert problem.cost((1, 2)) == 1
    assert problem.cost((0, 2)) == 12


def test_long_chains_are_quick_and_exact() -> None:
    problem = AssignmentProblem()
    chain = [problem.variable([i % 3, 1]) for i in range(3000)]
    for a, b in itertools.pairwise(chain):
        problem.edge(a, b, [[0, 2], [2, 0]])
    found = problem.solve()
    assert found.proven and found.cost <= 3000


def test_mistakes() -> None:
    problem = AssignmentProblem()
    with pytest.raises(GraphError, match="no state"):
        problem.variable([])
    v = problem.variable([0])
    with pytest.raises(GraphError, match="edge to itself"):
        problem.edge(v, v, [[0]])
