"""Minimum cuts, against all cuts of small networks."""

import itertools

import numpy as np
import pytest

from treadle.base.errors import GraphError
from treadle.graph.flow import FOREVER, Cut


def test_known_network() -> None:
    cut = Cut()
    for a, b, c in (("s", 1, 3), ("s", 2, 2), (1, 2, 5), (1, "t", 2), (2, "t", 3)):
        cut.edge(a, b, c)
    cost, first = cut.solve("s", "t")
    assert cost == 5
    assert "s" in first and "t" not in first


def test_the_larger_of_equal_sides_is_taken() -> None:
    cut = Cut()
    for a, b in (("s", 1), (1, 2), (2, "t")):
        cut.edge(a, b, 1)
    assert cut.solve("s", "t") == (1, {"s", 1, 2})


def test_an_edge_that_is_never_cut() -> None:
    cut = Cut()
    cut.edge("s", 1, FOREVER)
    cut.edge(1, "t", FOREVER)
    with pytest.raises(GraphError, match="joins the two sides"):
        cut.solve("s", "t")


@pytest.mark.parametrize("seed", range(30))
def test_against_all_cuts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = ["s", *range(5), "t"]
    pairs = [p for p in itertools.permutations(nodes, 2) if rng.random() < 0.4]
    edges = [(a, b, int(rng.integers(1, 9))) for a, b in [*pairs, ("s", 0), (4, "t")]]
    cut = Cut()
    for a, b, c in edges:
        cut.edge(a, b, c)
    cost, first = cut.solve("s", "t")

    def price(side: set[object]) -> int:
        return sum(c for a, b, c in edges if a in side and b not in side)

    sides = ({"s", *chosen} for k in range(6) for chosen in itertools.combinations(range(5), k))
    assert cost == min(price(side) for side in sides) == price(first)
