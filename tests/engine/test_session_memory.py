"""Memory of a session: it comes back when the session is closed."""

import gc
import tracemalloc

import numpy as np

from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.engine import Session, finalize, initialize
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.ops.matmul import Matmul

SIDE = 256
ONES = np.ones((SIDE, SIDE), np.float32)


def powers() -> Graph:
    """A value that is computed in two steps, and the next w."""
    builder = GraphBuilder("powers")
    w, x = (builder.input(TensorType(dt.float32, (SIDE, SIDE)), name) for name in "wx")
    square = Matmul()(w, x)
    builder.output(Matmul()(square, square), w + 1)
    return builder.build()


def peak_of_a_session() -> int:
    with Session() as session:
        session.set_variable("w", ONES)
        session.add_graph(0, powers(), updates={1: "w"})
        for _ in range(2):
            session.run_graph(0, [ONES])
        return tracemalloc.get_traced_memory()[0]


def test_memory_returns_when_a_session_is_closed() -> None:
    initialize(level=0)
    peak_of_a_session()  # What is kept for all sessions is there from now on.
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        peak = peak_of_a_session()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        finalize()
    assert peak - before >= ONES.nbytes  # its variable at least
    assert after - before < ONES.nbytes / 2
