import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import GraphError
from treadle.base.types import TensorType
from treadle.graph import analysis
from treadle.graph.analysis import Interval, Reachability
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph
from treadle.graph.printer import value_names
from treadle.ops.elementwise import Add, Mul, Neg

F3 = TensorType(dt.float32, (3,), "xpux")


@pytest.fixture
def affine() -> Graph:
    """y = (w * x) + b."""
    builder = GraphBuilder("affine")
    w, x, b = (builder.input(F3, name) for name in "wxb")
    (p,) = builder.apply(Mul(), (w, x), ("p",))
    builder.output(*builder.apply(Add(), (p, b), ("y",)))
    return builder.build()


def test_data_nodes(affine: Graph) -> None:
    nodes = analysis.data_nodes(affine, value_names(affine))
    assert [(n.name, n.role) for n in nodes] == [
        ("%w", "input"), ("%x", "input"), ("%b", "input"), ("%p", "intermediate"), ("%y", "output"),
    ]  # fmt: skip
    assert {(n.shape, n.dtype, n.device) for n in nodes} == {((3,), "float32", "xpux")}
    p = nodes[3]
    assert p.producer is affine.nodes[0]
    assert p.consumers == (affine.nodes[1],)


def test_compute_nodes(affine: Graph) -> None:
    nodes = analysis.compute_nodes(affine, value_names(affine))
    assert [(n.op, n.attributes, n.inputs, n.outputs) for n in nodes] == [
        ("mul", {}, ("%w", "%x"), ("%p",)),
        ("add", {}, ("%p", "%b"), ("%y",)),
    ]


def test_producers_and_consumers(affine: Graph) -> None:
    mul, add = affine.nodes
    assert analysis.producers(add) == (mul,)
    assert analysis.producers(mul) == ()
    assert analysis.consumers(affine, mul) == (add,)
    assert analysis.consumers(affine, affine.inputs[2]) == (add,)
    assert analysis.consumers(affine, add) == ()


def test_a_used_node_cannot_be_removed(affine: Graph) -> None:
    mul, add = affine.nodes
    with pytest.raises(GraphError, match="cannot remove mul: its result is used by add"):
        analysis.remove(affine, mul)
    with pytest.raises(GraphError, match="its result is used by return"):
        analysis.remove(affine, add)
    smaller = analysis.remove(affine.with_nodes(affine.nodes, mul.outputs), add)
    assert smaller.nodes == (mul,)
    with pytest.raises(GraphError, match="is not one of its nodes"):
        analysis.remove(smaller, add)


def test_the_graph_computes_what_it_shows(affine: Graph) -> None:
    w, x, b = (np.float32([i, 2, 3]) for i in range(3))
    assert evaluate(affine, [w, x, b])[0].tolist() == (w * x + b).tolist()


def test_users_in_order() -> None:
    graph = trace_body(lambda x: (x * x, x), [F3])
    uses = analysis.users(graph)[graph.inputs[0]]
    mul = graph.nodes[0]
    assert [(u.node, u.index) for u in uses] == [(mul, 0), (mul, 1), (None, 1)]


def test_topological_order_mends_any_order() -> None:
    graph = trace_body(lambda x: -((x + 1) * (x + 2)), [F3])
    order = analysis.topological_order(graph.nodes[::-1])
    place = {node: i for i, node in enumerate(order)}
    assert sorted(place.values()) == list(range(len(graph.nodes)))
    for node in order:
        assert all(place[p] < place[node] for p in analysis.producers(node))
    assert analysis.topological_order(graph.nodes) == graph.nodes


def test_topological_order_of_a_deep_graph() -> None:
    def deep(x):
        for _ in range(5_000):
            x = -x
        return x

    graph = trace_body(deep, [F3])
    assert analysis.topological_order(graph.nodes[::-1]) == graph.nodes


def test_liveness() -> None:
    graph = trace_body(lambda x: (-(x * x), x + x)[0], [F3])
    mul, neg, add = graph.nodes
    found = analysis.liveness(graph)
    assert found[graph.inputs[0]] == Interval(-1, 2)
    assert found[mul.output] == Interval(0, 1)
    assert found[neg.output] == Interval(1, 3)
    assert found[add.output] == Interval(2, 2)
    assert found[mul.output].overlaps(found[neg.output])
    assert not found[mul.output].overlaps(found[add.output])
    assert analysis.live_nodes(graph) == {mul, neg}


def test_reachability() -> None:
    graph = trace_body(lambda x: (-x + x * x, x + 1), [F3])
    neg, mul, total, _, other = graph.nodes
    reach = Reachability(graph)
    assert reach.reaches(neg, total)
    assert not reach.reaches(total, neg)
    assert not reach.reaches(neg, neg)
    assert not reach.reaches(neg, other)
    assert reach.ancestors(total) == 0b11
    assert not reach.closes_cycle([neg, total])
    assert not reach.closes_cycle([neg, mul])


def test_merging_around_a_node_closes_a_cycle() -> None:
    graph = trace_body(lambda x: Neg()(Neg()(Neg()(x))), [F3])
    first, middle, last = graph.nodes
    reach = Reachability(graph)
    assert reach.closes_cycle([first, last])
    assert not reach.closes_cycle([first, middle, last])
    assert not reach.closes_cycle([first, middle])
