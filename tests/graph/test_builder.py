import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import GraphError, ShapeError
from treadle.base.loc import Loc
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.graph.verify import verify
from treadle.ops.elementwise import Neg

SCALAR = TensorType(dt.float32, ())
VECTOR = TensorType(dt.float32, (3,))


def test_operators_become_nodes(golden) -> None:
    graph = trace_body(lambda x, y: (x * 2 + y) / np.float32(3), [VECTOR, SCALAR], "g", ["x"])
    golden(to_text(graph))


def test_equal_nodes_are_shared_on_request() -> None:
    counts = []
    for share in (False, True):
        builder = GraphBuilder(share=share)
        x = builder.input(VECTOR)
        builder.output((x + 1) * (x + 1), -x - -x)
        counts.append(len(builder.build().nodes))
    assert counts == [8, 5]


def test_lines_are_recorded_on_request() -> None:
    builder = GraphBuilder(locate=True)
    builder.output(-builder.input(VECTOR))
    (node,) = builder.build().nodes
    assert node.loc.file.endswith("test_builder.py")
    assert node.loc.function == "test_lines_are_recorded_on_request"


def test_lines_can_be_given() -> None:
    builder = GraphBuilder()
    x = builder.input(VECTOR)
    with builder.at(Loc("model.py", 7)):
        Neg()(x)
    Neg()(x)
    assert [str(n.loc) for n in builder.build().nodes] == ["model.py:7", "unknown"]


def test_values_of_another_graph_are_refused() -> None:
    x, y = GraphBuilder("a").input(VECTOR), GraphBuilder("b").input(VECTOR)
    with pytest.raises(GraphError, match="belongs to another graph"):
        x + y
    with pytest.raises(GraphError, match="pass it to the region as an argument"):
        trace_body(lambda z: z + x, [VECTOR])
    with pytest.raises(GraphError, match="output: the operand"):
        x.builder.output(y)


def test_undecided_relations_become_guards() -> None:
    n, m = symbol("n"), symbol("m")
    types = [TensorType(dt.float32, (n,)), TensorType(dt.float32, (m,))]
    graph = trace_body(lambda x, y: x + y, types)
    assert [str(g) for g in graph.guards] in (["n - m == 0"], ["-m + n == 0"], ["m - n == 0"])
    verify(graph)
    ones = np.ones(4, np.float32)
    assert evaluate(graph, [ones, ones])[0].tolist() == [2] * 4
    with pytest.raises(ShapeError, match=r"the guard .* fails"):
        evaluate(graph, [ones, ones[:3]])


def test_constants_take_the_type_and_device_they_meet() -> None:
    builder = GraphBuilder()
    x = builder.input(TensorType(dt.float16, (2,), "xpux"))
    assert x.constant(1.5).type == TensorType(dt.float16, (), "xpux")
    assert x.constant(1, dt.int32).type == TensorType(dt.int32, (), "xpux")
    assert x.constant(np.arange(3)).type == TensorType(dt.int64, (3,), "xpux")


def test_control_flow(golden) -> None:
    builder = GraphBuilder("flow")
    go = builder.input(TensorType(dt.bool_, ()), "go")
    x = builder.input(SCALAR, "x")
    rows = builder.input(TensorType(dt.float32, (4,)), "rows")
    (y,) = builder.cond(go, lambda a: a + 1, lambda a: -a, [x])
    (z,) = builder.while_loop(lambda a: a < 100, lambda a: a * 2, [y * y + 1])
    total, sums = builder.scan(lambda s, r: (s + r, s * r), [z], [rows], 4)
    builder.output(y, z, total, sums)
    graph = builder.build()
    verify(graph)
    golden(to_text(graph))
    older = to_text(graph).replace(",\n    backwards=False", "")
    assert older != to_text(graph) and parse(older) == graph  # Files lack what is newer.
    results = evaluate(graph, [np.bool_(True), np.float32(2), np.arange(4, dtype=np.float32)])
    assert [r.tolist() for r in results] == [3, 160, 166, [0, 160, 322, 489]]
    assert evaluate(graph, [np.bool_(False), np.float32(2), np.ones(4, np.float32)])[0] == -2


def test_the_result_of_a_body_may_be_its_argument() -> None:
    graph = trace_body(lambda x: x, [VECTOR])
    assert graph.outputs == graph.inputs
    assert graph.nodes == ()
