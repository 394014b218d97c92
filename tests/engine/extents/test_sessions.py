"""Sessions: graphs whose extents arrays decide."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import EngineError, ShapeError
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.engine import Session, finalize, initialize
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.ops.matmul import Matmul
from treadle.ops.unary import Relu

LENGTHS = ((2, 3), (1, 4), (5, 5), (30, 7), (0, 3), (31, 8), (9, 1), (12, 11), (100, 2), (2, 2))


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    initialize(check=True)
    yield
    finalize()


def scores(low: int = 0) -> Graph:
    """relu(x w) y^T for any numbers of rows of x and y, and the next w, which is 2 w."""
    n, m = symbol("n", low), symbol("m")
    builder = GraphBuilder("scores")
    x = builder.input(TensorType(dt.float32, (n, 4)), "x")
    w = builder.input(TensorType(dt.float32, (4, 4)), "w")
    y = builder.input(TensorType(dt.float32, (m, 4)), "y")
    builder.output(Matmul(transpose_y=True)(Relu()(Matmul()(x, w)), y), w + w)
    return builder.build()


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 4), "float32")


def test_a_graph_runs_at_any_extents_and_updates_variables() -> None:
    with Session() as session:
        session.set_variable("w", np.eye(4, dtype="float32"))
        session.add_graph(0, scores(), updates={1: "w"})
        assert session.is_rebuild_needed(0)
        for turn, (n, m) in enumerate(LENGTHS):
            (found,) = session.run_graph(0, [rows(n), rows(m + 1)[:m]])
            wanted = np.maximum(rows(n) * 2.0**turn, 0) @ rows(m + 1)[:m].T
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * 2**turn)
        assert session.variable("w")[0, 0] == 2.0 ** len(LENGTHS)
        assert not session.is_rebuild_needed(0)
        assert session.counters(0).iterations == len(LENGTHS)
        assert session._graphs[0].many.made == 5, "three ranges, 0 and 1"


def test_what_does_not_fit_is_refused_in_words() -> None:
    with Session() as session:
        session.add_graph(0, scores(low=2))
        w, y = np.eye(4, dtype="float32"), rows(3)
        with pytest.raises(EngineError, match=r"float32\[3, 4, 1\] for float32\[n,4\]"):
            session.run_graph(0, [rows(3)[..., None], w, y])
        with pytest.raises(EngineError, match=r"does not fit input x"):
            session.run_graph(0, [np.ones((3, 5), "float32"), w, y])
        with pytest.raises(ShapeError, match="extent n cannot be 1"):
            session.run_graph(0, [rows(1), w, y])
        with pytest.raises(EngineError, match="extents m, n are open"):
            session.build_graph(0)
