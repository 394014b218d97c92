"""Variables that graphs of a session share, where kernels have them packed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.symbol import Dim, symbol
from treadle.base.types import TensorType
from treadle.engine import Session, finalize, initialize
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.ops.matmul import Matmul


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    initialize(level=1)
    yield
    finalize()


def product(n: Dim, *, doubles: bool = False) -> Graph:
    """x w, and 2 w."""
    builder = GraphBuilder("product")
    w = builder.input(TensorType(dt.float32, (4, 4)), "w")
    builder.output(Matmul()(builder.input(TensorType(dt.float32, (n, 4)), "x"), w))
    if doubles:
        builder.output(w * 2)
    return builder.build()


@pytest.mark.parametrize("n", [3, symbol("n", 0)], ids=["static", "open"])
def test_graphs_see_what_another_one_has_written(n: Dim) -> None:
    w, x = np.arange(16, dtype="float32").reshape(4, 4), np.ones((3, 4), "float32")
    with Session() as session:
        session.set_variable("w", w)
        session.add_graph(1, product(n))
        session.add_graph(2, product(n, doubles=True), updates={1: "w"})
        for factor in (1, 2, 4):
            np.testing.assert_allclose(session.run_graph(1, [x])[0], factor * (x @ w))
            session.run_graph(2, [x])
        session.set_variable("w", w)
        np.testing.assert_allclose(session.run_graph(1, [x])[0], x @ w)


def test_runs_of_programs_that_gave_way_are_counted() -> None:
    builder = GraphBuilder("twice")
    builder.output(builder.input(TensorType(dt.float32, (symbol("n", 0),)), "x") * 2)
    with Session(memory_budget=1 << 30) as session:  # With a budget, extents have own programs.
        session.add_graph(1, builder.build())
        for n in range(1, 81):
            session.run_graph(1, [np.ones(n, "float32")])
            assert session.counters(1).iterations == n
