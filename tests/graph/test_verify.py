"""Damaged graphs are caught, and the errors name the node and its line."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.random_graphs import graphs

from treadle.base import dtype as dt
from treadle.base.errors import GraphError
from treadle.base.loc import Loc
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph, Node, Value
from treadle.graph.parser import parse
from treadle.graph.spec import CAPTURED, PREPARED
from treadle.graph.verify import verify
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.control import Cond
from treadle.ops.elementwise import Add, Neg
from treadle.ops.transfer import StopGradient

F2 = TensorType(dt.float32, (2,))


def chain() -> Graph:
    return trace_body(lambda x: -(x + x) * x, [F2], "chain")


def mistype(node: Node, type_: TensorType) -> None:
    """Give a node another type, which its constructor would never do."""
    object.__setattr__(node, "outputs", (Value(type_, node, 0),))


def swapped(graph: Graph) -> Graph:
    first, second, third = graph.nodes
    return graph.with_nodes((second, first, third), graph.outputs)


def wrong_type(graph: Graph) -> Graph:
    x = graph.inputs[0]
    node = Node(Neg(), (x,), Loc("train.py", 3))
    mistype(node, TensorType(dt.float32, (3,)))
    return graph.with_nodes((node,), node.outputs)


def wrong_device(graph: Graph) -> Graph:
    x = graph.inputs[0]
    node = Node(Neg(), (x,))
    mistype(node, TensorType(dt.float32, (2,), "gpu0"))
    return graph.with_nodes((node,), node.outputs)


def undefined(graph: Graph) -> Graph:
    node = Node(Add(), (graph.inputs[0], Value(F2)))
    return graph.with_nodes((node,), node.outputs)


def undefined_output(graph: Graph) -> Graph:
    return graph.with_nodes(graph.nodes, (Value(F2),))


def dropped(graph: Graph) -> Graph:
    return graph.with_nodes(graph.nodes[1:], graph.outputs)


def repeated(graph: Graph) -> Graph:
    return graph.with_nodes((*graph.nodes, graph.nodes[0]), graph.outputs)


def duplicate_output(graph: Graph) -> Graph:
    first, second = Node(Neg(), graph.inputs), Node(Neg(), graph.inputs)
    object.__setattr__(second, "outputs", first.outputs)
    return graph.with_nodes((first, second), first.outputs)


def stolen_output(graph: Graph) -> Graph:
    first, second = Node(Neg(), graph.inputs), Node(Neg(), graph.inputs)
    object.__setattr__(second, "outputs", first.outputs)
    return graph.with_nodes((second,), first.outputs)


def repeated_input(graph: Graph) -> Graph:
    return Graph("chain", (graph.inputs[0],) * 2, graph.nodes, graph.outputs)


def misplaced_input(graph: Graph) -> Graph:
    return Graph("chain", (Value(F2, None, 5),), (), ())


def cyclic(graph: Graph) -> Graph:
    first = Node(Neg(), graph.inputs)
    second = Node(Add(), (first.output, graph.inputs[0]))
    object.__setattr__(first, "inputs", second.outputs)
    return graph.with_nodes((first, second), second.outputs)


def in_a_region(graph: Graph) -> Graph:
    region = wrong_type(trace_body(lambda x: x, [F2], "then"))
    object.__setattr__(region, "outputs", region.inputs)
    builder = GraphBuilder("outer")
    go, x = builder.input(TensorType(dt.bool_, ())), builder.input(F2)
    builder.output(*Cond(region, trace_body(lambda x: x, [F2])).outputs(go, x))
    return builder.build()


def missing_guard(graph: Graph) -> Graph:
    n, m = symbol("n"), symbol("m")
    types = [TensorType(dt.float32, (n,)), TensorType(dt.float32, (m,))]
    good = trace_body(lambda x, y: x + y, types)
    return Graph("g", good.inputs, good.nodes, good.outputs)


def two_ranges(graph: Graph) -> Graph:
    types = [TensorType(dt.float32, (symbol("n", 1, high),)) for high in (5, 6)]
    return trace_body(lambda x, y: x, types)


class Unlisted(Neg):
    name = "unlisted"


def unregistered(graph: Graph) -> Graph:
    node = Node(object.__new__(Unlisted), graph.inputs)
    return graph.with_nodes((node,), node.outputs)


DAMAGE = [
    swapped, wrong_type, wrong_device, undefined, undefined_output, dropped, repeated,
    duplicate_output, stolen_output, repeated_input, misplaced_input, cyclic, in_a_region,
    missing_guard, two_ranges, unregistered,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_damage_is_caught(damage: Callable[[Graph], Graph], golden) -> None:
    verify(chain())
    with pytest.raises(GraphError) as caught:
        verify(damage(chain()))
    error = caught.value
    golden(f"{error.where}: {error.problem}\nsaw: {error.saw}\nhint: {error.hint}")


def test_errors_carry_the_users_line() -> None:
    with pytest.raises(GraphError, match=r"at:   train\.py:3"):
        verify(wrong_type(chain()))


def test_a_cycle_names_its_nodes() -> None:
    with pytest.raises(GraphError, match="the nodes form a cycle: add -> neg -> add"):
        verify(cyclic(chain()))


def test_what_a_prepared_graph_may_not_hold() -> None:
    marked = trace_body(lambda x: StopGradient()(x), [F2])
    dead = trace_body(lambda x: (-x, x)[1], [F2])
    builder = GraphBuilder()
    data = ArrayData.absent(dt.float32, (2,), "0" * 32)
    builder.output(*builder.apply(Constant(data), ()))
    for graph, message in (
        (marked, "stop_gradient has no meaning"),
        (dead, "nothing depends on the node"),
        (builder.build(), "data of the constant is not attached"),
    ):
        verify(graph, CAPTURED)
        with pytest.raises(GraphError, match=f"illegal after prepared: .*{message}"):
            verify(graph, PREPARED)


def test_data_dependent_extents_keep_the_symbol_they_got() -> None:
    text = (
        "graph g[k: 0..2](%0: float32[2]) {\n"
        "  %1 = nonzero(%0) : int32[k,1]\n"
        "  %2 = reshape{shape=(k,)}(%1) : int32[k]\n"
        "  return %2\n}\n"
    )
    graph = parse(text)
    verify(graph)
    (found,) = evaluate(graph, [np.array([0, 3], np.float32)])
    assert found.tolist() == [1]
    with pytest.raises(GraphError, match="declared int32"):
        parse(text.replace("0..2", "0..5"))


@given(graphs(), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_random_damage_is_caught(graph: Graph, random) -> None:
    """Exchange two nodes of which one uses the other: no order check may miss that."""
    pairs = [
        (i, j)
        for j, node in enumerate(graph.nodes)
        for i, other in enumerate(graph.nodes[:j])
        if any(v.producer is other for v in node.inputs)
    ]
    if not pairs:
        return
    i, j = random.choice(pairs)
    nodes = list(graph.nodes)
    nodes[i], nodes[j] = nodes[j], nodes[i]
    with pytest.raises(GraphError, match="used before it is defined"):
        verify(graph.with_nodes(nodes, graph.outputs))
