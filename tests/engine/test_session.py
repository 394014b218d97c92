"""Sessions: graphs by number, options by level, variables shared by the graphs of a session."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.engine.python_compiler import PythonCompiler

from treadle.base import dtype as dt
from treadle.base.errors import EngineError, GraphError
from treadle.base.types import TensorType
from treadle.engine import Session, finalize, initialize
from treadle.engine.targets import compiled
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    compiler = PythonCompiler()
    monkeypatch.setattr(compiled, "find_compiler", lambda options, kind: compiler)
    initialize(level=1)
    yield
    finalize()


def affine() -> Graph:
    """y = w * x + b, and the next w, which is w + 1."""
    builder = GraphBuilder("affine")
    w, x, b = (builder.input(TensorType(dt.float32, (2,)), name) for name in "wxb")
    builder.output(w * x + b, w + 1)
    return builder.build()


ONES = np.ones(2, "float32")


def test_a_graph_runs_by_its_number() -> None:
    with Session() as session:
        session.add_graph(7, affine())
        assert session.is_rebuild_needed(7)
        y, w = session.run_graph(7, [ONES * 2, ONES * 3, ONES])
        assert y.tolist() == [7.0, 7.0] and w.tolist() == [3.0, 3.0]
        assert not session.is_rebuild_needed(7)
        session.remove_graph(7)
        with pytest.raises(EngineError, match="no graph 7"):
            session.run_graph(7)


def test_variables_live_in_the_session() -> None:
    with Session() as one, Session() as two:
        for session in (one, two):
            session.set_variable("w", ONES)
            session.add_graph(0, affine(), updates={1: "w"})
            session.add_graph(1, affine())
        assert [one.run_graph(0, [ONES, ONES])[0][0] for _ in range(3)] == [2.0, 3.0, 4.0]
        assert one.variable("w").tolist() == [4.0, 4.0]
        assert one.run_graph(1, [ONES, ONES])[0].tolist() == [5.0, 5.0]
        assert two.variable("w").tolist() == [1.0, 1.0]
        saved = one.save_variables()
        one.set_variable("w", saved["w"] * 10)
        assert saved["w"].tolist() == [4.0, 4.0]
        assert one.run_graph(0, [ONES, ONES])[0].tolist() == [41.0, 41.0]


def test_options_go_from_engine_to_session_to_graph() -> None:
    with Session(fusion=False) as session:
        session.add_graph(0, affine(), level=0)
        session.add_graph(1, affine())
        session.build_graph(0)
        options = [session._graphs[i].stages.source.options for i in (0, 1)]
    assert [(o.level, o.fusion) for o in options] == [(0, False), (1, False)]


def test_runs_can_overlap() -> None:
    done = threading.Event()
    with Session() as session:
        session.add_graph(0, affine())
        futures = [
            session.run_graph_async(0, [ONES * i, ONES, ONES], lambda f: done.set())
            for i in range(8)
        ]
        assert [f.result()[0][0] for f in futures] == [i + 1.0 for i in range(8)]
        assert done.wait(300)
        assert session._graphs[0].builds == 1


def test_misuse_is_explained() -> None:
    with pytest.raises(EngineError, match="initialized already"):
        initialize()
    with pytest.raises(EngineError, match="there is no option 'levle'"):
        Session(levle=1)
    with pytest.raises(EngineError, match="takes int, not str"):
        Session(level="2")
    session = Session()
    with pytest.raises(EngineError, match="sessions are open"):
        finalize()
    session.add_graph(0, affine())
    with pytest.raises(EngineError, match="exists already"):
        session.add_graph(0, affine())
    with pytest.raises(EngineError, match="cannot become variable"):
        session.add_graph(1, affine(), updates={1: "w"})
    session.set_variable("w", np.ones(3, "float32"))
    with pytest.raises(EngineError, match="another type"):
        session.add_graph(1, affine(), updates={1: "w"})
    with pytest.raises(EngineError, match="does not fit input"):
        session.run_graph(0, [ONES, np.ones(5, "float32"), ONES])
    with pytest.raises(EngineError, match="does not fit input"):
        session.run_graph(0, [ONES])
    with pytest.raises(EngineError, match="no variable 'v'"):
        session.variable("v")
    session.close()
    session.close()
    with pytest.raises(EngineError, match="closed"):
        session.run_graph(0)


def test_a_malformed_graph_is_refused_when_it_is_added() -> None:
    graph = affine()
    broken = graph.with_nodes(graph.nodes[1:], graph.outputs)
    with Session() as session, pytest.raises(GraphError):
        session.add_graph(0, broken)


def test_the_engine_must_be_initialized() -> None:
    finalize()
    try:
        with pytest.raises(EngineError, match="not initialized"):
            Session()
        with pytest.raises(EngineError, match="not initialized"):
            finalize()
    finally:
        initialize()
