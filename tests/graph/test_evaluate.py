import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import GraphError, ShapeError
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate, specialize
from treadle.graph.ir import result_types
from treadle.graph.verify import verify
from treadle.ops.fused import Fused
from treadle.ops.gather import Nonzero
from treadle.ops.movement import Concat
from treadle.ops.slicing import Slice

F2 = TensorType(dt.float32, (2,))
ONES = np.ones(2, np.float32)


def test_arguments_are_checked() -> None:
    graph = trace_body(lambda x: -x, [F2], "g")
    with pytest.raises(GraphError, match="takes 1 inputs, got 2"):
        evaluate(graph, [ONES, ONES])
    with pytest.raises(ShapeError, match=r"input 0 should be float32\[2\], got float64\[2\]"):
        evaluate(graph, [np.ones(2)])
    with pytest.raises(ShapeError, match=r"should be float32\[2\], got float32\[3\]"):
        evaluate(graph, [np.ones(3, np.float32)])


def test_every_result_can_be_observed() -> None:
    graph = trace_body(lambda x: -(x + x), [F2])
    seen = []
    evaluate(graph, [ONES], lambda node, results: seen.append((node.op.name, results[0].tolist())))
    assert seen == [("add", [2, 2]), ("neg", [-2, -2])]


def test_extents_are_read_off_the_arrays() -> None:
    n = symbol("n", 2, 8, 2)
    types = [TensorType(dt.float32, (n, 3)), TensorType(dt.float32, (n * 3,))]
    graph = trace_body(lambda x, y: x.reshape((n * 3,)) + y, types)
    x = np.arange(12, dtype=np.float32)
    assert evaluate(graph, [x.reshape(4, 3), x])[0].tolist() == (2 * x).tolist()
    with pytest.raises(ShapeError, match=r"input 1 should be float32\[12\], got float32\[3\]"):
        evaluate(graph, [x.reshape(4, 3), x[:3]])
    for rows in (3, 10):
        with pytest.raises(ShapeError, match=f"the extent n cannot be {rows}"):
            evaluate(graph, [np.ones((rows, 3), np.float32), x])


def test_specialized_graphs_have_no_symbols_left() -> None:
    n = symbol("n")
    builder = GraphBuilder()
    x = builder.input(TensorType(dt.float32, (n,)), "x")
    go = builder.input(TensorType(dt.bool_, ()))
    builder.output(
        *builder.cond(go, lambda a: a.reshape((1, n)), lambda a: -a.reshape((1, n)), [x])
    )
    graph = specialize(builder.build(), {"n": 4})
    verify(graph)
    assert graph.input_types[0].shape == (4,)
    assert graph.output_types[0].shape == (1, 4)
    x4 = np.arange(4, dtype=np.float32)
    for flag, sign in ((True, 1), (False, -1)):
        (result,) = evaluate(graph, [x4, np.bool_(flag)])
        (symbolic,) = evaluate(builder.build(), [x4, np.bool_(flag)])
        assert result.tolist() == symbolic.tolist() == [(sign * x4).tolist()]


@pytest.mark.parametrize("n", [2, 3, 9])
def test_types_of_specialized_graphs_are_those_that_type_rules_give(n: int) -> None:
    extent = symbol("n", 2)
    builder = GraphBuilder("many")
    x = builder.input(TensorType(dt.float32, (extent, 4)))
    body = trace_body(lambda a: a * 2.0, (x.type,))
    halves = x.reshape((extent * 2, 2)).sum((0,))
    joined = Concat(0)(x, x.broadcast_to((extent, 4)))
    (fused,) = x.apply(Fused("elementwise", body), (x,))
    (chosen,) = x.apply(Slice((1, 0), (extent * 2, 4), (2, 1)), (joined,))
    builder.output(halves, joined, chosen, fused)
    made = specialize(builder.build(), {"n": n})
    for node in made.nodes:
        assert tuple(v.type for v in node.outputs) == result_types(node.op, node.inputs)
        assert all(v.type.is_static for v in node.outputs)
    verify(made)
    assert [v.type.shape for v in made.outputs] == [(2,), (2 * n, 4), (n, 4), (n, 4)]


def test_what_data_decide_has_the_range_that_specialized_extents_give() -> None:
    extent = symbol("n", 2)
    builder = GraphBuilder("found")
    x = builder.input(TensorType(dt.float32, (extent, 4)))
    (places,) = x.apply(Nonzero(), (x,))
    builder.output(places * 2)
    verify(specialize(builder.build(), {"n": 3}))
