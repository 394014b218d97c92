import gc

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import GraphError, ShapeError
from treadle.base.loc import Loc
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.graph.ir import Graph, Node, Value, constant, constant_of, op_key, symbols_of
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.elementwise import Add, Cast, Mul, Neg
from treadle.ops.movement import Reshape
from treadle.ops.transfer import Transfer

F23 = TensorType(dt.float32, (2, 3))


def test_a_node_is_typed_at_birth() -> None:
    x = Value(F23)
    node = Node(Cast(dt.int32), (x,))
    assert node.output.type == TensorType(dt.int32, (2, 3))
    assert node.output.producer is node
    with pytest.raises(ShapeError, match="cannot broadcast"):
        Node(Add(), (x, Value(TensorType(dt.float32, (4,)))))


def test_every_result_or_none_is_named() -> None:
    x = Value(F23)
    assert Node(Neg(), (x,), names=("y",)).output.name == "y"
    with pytest.raises(GraphError, match="neg: has 1 results, 2 are named"):
        Node(Neg(), (x,), names=("y", "z"))


def test_results_live_where_the_inputs_live() -> None:
    here, anywhere = Value(TensorType(dt.float32, (), "xpux")), Value(TensorType(dt.float32, ()))
    assert Node(Mul(), (anywhere, here)).output.type.device == "xpux"
    assert Node(Mul(), (anywhere, anywhere)).output.type.device == ""
    assert Node(Transfer("cpu1:0"), (here,)).output.type.device == "cpu1:0"


def test_graphs_compare_by_what_they_compute() -> None:
    def double(x):
        return x + x

    one, two = trace_body(double, [F23], "one", ["a"]), trace_body(double, [F23], "two")
    assert one == two
    assert hash(one) == hash(two)
    assert one != trace_body(double, [TensorType(dt.float32, (3, 2))])
    assert one != trace_body(lambda x: x * x, [F23])
    assert one != trace_body(lambda x: (x + x, x), [F23])
    assert one != "graph"


def test_source_lines_do_not_change_the_digest() -> None:
    x = Value(F23)
    graphs = []
    for line in (1, 2):
        node = Node(Neg(), (x,), Loc("train.py", line))
        graphs.append(Graph("g", (x,), (node,), node.outputs))
    assert graphs[0].digest == graphs[1].digest


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (Constant(ArrayData(np.float32(0.0))), Constant(ArrayData(np.float32(-0.0)))),
        (Constant(ArrayData(np.float32(1))), Constant(ArrayData(np.float64(1)))),
        (Constant(ArrayData(np.zeros((2, 3)))), Constant(ArrayData(np.zeros((3, 2))))),
        (Cast(dt.int32), Cast(dt.int64)),
        (Reshape((6,)), Reshape((6, 1))),
    ],
)
def test_keys_tell_attributes_apart(x, y) -> None:
    assert op_key(x) != op_key(y)
    assert op_key(x) == op_key(x)


def test_array_data_is_a_copy_that_nobody_can_write() -> None:
    source = np.ones(3, np.float32)
    data = ArrayData(source)
    source[0] = 5
    assert data.array.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        data.array[0] = 2
    assert data == ArrayData(np.ones(3, np.float32))
    assert ArrayData(np.float32("nan")) == ArrayData(np.float32("nan"))
    assert data != 1


def test_constants_are_found_behind_values() -> None:
    node = constant(np.arange(3), "xpux")
    found = constant_of(node.output)
    assert found is not None
    assert found.array.tolist() == [0, 1, 2]
    assert node.output.type.device == "xpux"
    assert constant_of(Value(F23)) is None
    assert constant_of(Node(Neg(), (node.output,)).output) is None


def test_symbols_are_collected_from_types_attributes_and_regions() -> None:
    n, m = symbol("n", 1, 8), symbol("m")
    types = [TensorType(dt.float32, (n, 2)), TensorType(dt.float32, (m // 2, n))]
    graph = trace_body(lambda x, y: x.reshape((n * 2,)), types)
    assert [s.name for s in symbols_of(graph)] == ["m", "n"]


def test_a_very_deep_graph_is_freed_without_recursion() -> None:
    before = len(gc.get_objects())
    value = Value(F23)
    for _ in range(20_000):
        value = Node(Neg(), (value,)).output
    assert len(gc.get_objects()) > before + 20_000
    del value
    gc.collect()
    assert len(gc.get_objects()) < before + 2_000
