"""The text form: what it looks like, that it parses back exactly, and what parse errors say."""

import numpy as np
import pytest
from tests.graph.samples import graph_of

from treadle.base import dtype as dt
from treadle.base.errors import GraphError
from treadle.base.loc import Loc
from treadle.base.symbol import maximum, symbol
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value
from treadle.graph.parser import parse
from treadle.graph.printer import node_lines, to_text, value_names
from treadle.graph.verify import verify
from treadle.ops import REGISTRY
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.op import Op, op

F2 = TensorType(dt.float32, (2,))


@op
class Carrier(Op):
    """Carries one attribute of any kind, for these tests."""

    payload: object

    name = "carrier_for_text_tests"
    dtypes = dt.ALL

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def reference(self, x):
        return x

    @classmethod
    def samples(cls):
        return ()


@pytest.fixture(autouse=True, scope="module")
def _unregister():
    REGISTRY["carrier_for_text_tests"] = Carrier
    yield
    del REGISTRY["carrier_for_text_tests"]


del REGISTRY["carrier_for_text_tests"]  # Other tests look at every op there is.


def carrying(payload: object) -> Graph:
    x = Value(F2)
    node = Node(Carrier(payload), (x,))
    return Graph("g", (x,), (node,), node.outputs)


def payload_of(graph: Graph) -> object:
    return graph.nodes[0].op.attributes["payload"]


N, M = symbol("n", 1, 64, 8), symbol("m", 0)
PAYLOADS = [
    0, -7, 2**70, True, False, None, "", "it's \"quoted\"\n\\ # é %0", b"\x00\xff'", dt.bfloat16,
    0.1, -0.0, 1e300, 5e-324, float("inf"), float("-inf"), 1e16, 1 + 2j,
    complex(-0.0, float("inf")),
    (), (1,), (1, (2.5, "x"), ()), ("a", None, dt.float32), F2,
    TensorType(dt.int8, (N, 3), "gpu0:1"),
    N, N * M + 3, -N, N - M, (N * 2) // 3, (N + 1) % 4, maximum(N, M) * 2, (N, 2, M // N),
    N // (M + 1) * M,
    ArrayData(np.float32(0.1)), ArrayData(np.zeros((2, 0, 3), np.int8)),
    ArrayData(np.array([1.5, -0.0, np.nan, np.inf], dt.bfloat16.numpy)),
    ArrayData(np.array([[True], [False]])), ArrayData(np.array([1 + 2j, -0.0j], np.complex64)),
    ArrayData(np.full((100, 100), -np.inf, np.float64)), ArrayData(np.array(2**63, np.uint64)),
    REGISTRY["neg"](), REGISTRY["cast"](dt.int32),
]  # fmt: skip


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda p: repr(p)[:40])
def test_attributes_of_every_kind_parse_back(payload: object) -> None:
    graph = carrying(payload)
    text = to_text(graph)
    again = parse(text)
    found = payload_of(again)
    assert to_text(again) == text
    assert again == graph
    assert type(found) is type(payload)
    assert isinstance(payload, Op) or repr(found) == repr(payload)


def test_nan_parses_back() -> None:
    assert repr(payload_of(parse(to_text(carrying(float("nan")))))) == "nan"


def test_a_nan_with_a_payload_is_kept_by_digest() -> None:
    data = ArrayData(np.array([0x7FC00001, 0x7FC00000], np.uint32).view(np.float32))
    table: dict[str, ArrayData] = {}
    text = to_text(carrying(data), constants=table)
    assert "digest" in text
    assert payload_of(parse(text, table)) == data


@pytest.mark.parametrize("payload", [object(), np.float32(1), [1], {1: 2}, np.zeros(2)])
def test_other_attributes_are_refused(payload: object) -> None:
    with pytest.raises(GraphError, match=r"an attribute of type .* has no text form"):
        to_text(carrying(payload))


def test_full_form(golden) -> None:
    builder = GraphBuilder("train step")
    x = builder.input(TensorType(dt.float32, (N, 3), "xpux:0"), "x")
    y = builder.input(TensorType(dt.float32, (M, 3), "xpux:0"), "layer/1:weight")
    flag = builder.input(TensorType(dt.bool_, ()))
    with builder.at(Loc("train.py", 42, "forward")):
        z = x + y
    builder.output(*builder.cond(flag, lambda a: a.sum(0), lambda a: a.sum(0) * 2, [z]), x)
    z.constant(np.arange(100, dtype=np.float32))
    text = to_text(builder.build(), locs=True)
    golden(text)
    again = parse(text)
    assert to_text(again, locs=True) == text
    assert again.nodes[0].loc == Loc("train.py", 42, "forward")
    assert again == builder.build()
    assert again.guards == builder.build().guards


def test_names_are_made_unique_and_kept() -> None:
    x, y, z = (Value(F2, None, i, n) for i, n in enumerate(("x", "x", "x_2")))
    node = Node(REGISTRY["add"](), (x, y), names=("0",))
    graph = Graph("g", (x, y, z), (node,), node.outputs)
    assert list(value_names(graph).values()) == ["%x", "%x_2", "%x_2_2", '%"0"']
    text = to_text(graph)
    assert to_text(parse(text)) == text


def test_lines_of_nodes_are_known() -> None:
    builder = GraphBuilder()
    x = builder.input(TensorType(dt.bool_, ()))
    (y,) = builder.cond(x, lambda a: a, lambda a: a, [x])
    builder.output(REGISTRY["logical_not"]()(y))
    graph = builder.build()
    lines = to_text(graph).splitlines()
    for node, line in node_lines(graph).items():
        assert f"= {node.op.name}" in lines[line - 1]


def test_long_inputs_stand_one_to_a_line(golden) -> None:
    builder = GraphBuilder()
    for i in range(5):
        builder.input(TensorType(dt.float32, (1024, 1024), "xpux:0"), f"weight_{i}")
    text = to_text(builder.build())
    golden(text)
    assert to_text(parse(text)) == text


def test_missing_data_is_missed_only_when_it_is_needed() -> None:
    builder = GraphBuilder()
    builder.output(builder.constant(np.arange(99)))
    graph = parse(to_text(builder.build()))
    assert graph == builder.build()
    op_ = graph.nodes[0].op
    assert isinstance(op_, Constant)
    assert not op_.data.is_present
    with pytest.raises(GraphError, match="is not attached"):
        graph.evaluate([])


def test_wrong_data_in_the_table_is_refused() -> None:
    builder = GraphBuilder()
    builder.output(builder.constant(np.arange(99)))
    table: dict[str, ArrayData] = {}
    text = to_text(builder.build(), constants=table)
    (digest,) = table
    with pytest.raises(GraphError, match="the table holds other data"):
        parse(text, {digest: ArrayData(np.arange(98))})


GOOD = "graph g(%0: float32[2,3]) {\n  %1 = neg(%0) : float32[2,3]\n  return %1\n}\n"
BAD = {
    "empty": ("", "line 1, column 1: expected 'graph', found the end"),
    "character": ("graph ?", "line 1, column 7: '?' begins no word"),
    "unknown op": (GOOD.replace("neg", "nog"), "line 2, column 8: expected the name of an op"),
    "wrong type": (GOOD.replace(": float32[2,3]\n  r", ": int8[2]\n  r"), "declared int8[2]"),
    "element type": (GOOD.replace("float32", "float33"), "expected an element type"),
    "undefined": (GOOD.replace("(%0)", "(%7)"), "line 2, column 12: %7 is used before"),
    "defined twice": (GOOD.replace("%1 =", "%0 ="), "%0 is defined twice"),
    "no attribute": (GOOD.replace("neg", "neg{a=1}"), "neg has no attribute a"),
    "lacks attribute": (GOOD.replace("neg", "cast"), "cast lacks attribute dtype"),
    "given twice": (GOOD.replace("neg", "neg{a=1, a=2}"), "attribute a is given twice"),
    "too few inputs": (GOOD.replace("neg", "add"), "add: 1 inputs do not fit"),
    "results": (GOOD.replace("%1 =", "%1, %2 ="), "neg has 1 results, but 2 are named"),
    "type rule": (GOOD.replace("neg", "transpose{permutation=(0, 0)}"), "not a permutation"),
    "after the end": (GOOD + "graph", "line 5, column 1: expected the end of the text"),
    "unclosed": (GOOD[:-3], "expected '}', found the end of the text"),
    "no value": (GOOD.replace("neg", "cast{dtype=}"), "line 2, column 19: expected a value"),
    "undeclared": (GOOD.replace("[2,3]", "[n,3]"), "expected a value, found 'n'"),
    "negative": (GOOD.replace("[2,3]", "[-2,3]"), "an extent is negative"),
    "float extent": (GOOD.replace("[2,3]", "[2.0,3]"), "expected an extent"),
    "mixed sum": (
        GOOD.replace("neg", "cast{dtype='a' + 1}"),
        "between values that are not extents",
    ),
    "negated text": (GOOD.replace("neg", "cast{dtype=-'a'}"), "stands before something"),
    "divided by 0": (GOOD.replace("[2,3]", "[2 // 0,3]"), "division by zero"),
    "min of one": (GOOD.replace("[2,3]", "[min(2),3]"), "min takes two numbers"),
    "nested": ("graph g(%0: float32[" + "(" * 100_000, "nested too deeply"),
    "few elements": (GOOD.replace("neg", "cast{dtype=int8[2](1)}"), "expected 2 elements"),
    "large element": (GOOD.replace("neg", "cast{dtype=int8[1](300)}"), "make no int8"),
    "huge": (GOOD.replace("neg", "cast{dtype=int8[99999999999999](all 0)}"), "make no int8"),
    "same extent": ("graph g[n: 1.., n: 1..]() { return }", "declared twice or reserved"),
    "reserved": ("graph g[int8: 1..]() { return }", "declared twice or reserved"),
    "relation": ("graph g[n: 1..]() where n = 0 { return }", "expected '==', '>=' or '!='"),
    "guard": (
        "graph g[n: 1.., m: 1..](%0: int8[n], %1: int8[m]) {\n"
        "  %2 = add(%0, %1) : int8[n]\n  return\n}",
        "state it behind 'where'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_parse_errors_say_where_and_what(case: str) -> None:
    text, message = BAD[case]
    with pytest.raises(GraphError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert caught.value.where.startswith("line ")


def test_spaces_and_comments_do_not_matter() -> None:
    loose = GOOD.replace("{", "{ # note\n\n").replace("(", " ( ").replace("\n  return", " return")
    assert parse(loose) == parse(GOOD)


def test_reserved_names_of_extents_are_refused() -> None:
    with pytest.raises(GraphError, match="cannot be written as the name of an extent"):
        to_text(carrying(symbol("float32")))


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_op_parses_back(name: str) -> None:
    for sample in REGISTRY[name].samples():
        graph = graph_of(sample)
        verify(graph)
        table: dict[str, ArrayData] = {}
        text = to_text(graph, constants=table)
        again = parse(text, table)
        assert to_text(again) == text
        assert again.digest == graph.digest


def test_a_guard_may_be_spelled_either_way() -> None:
    text = (
        "graph g[m: 1.., n: 1..](%0: float32[m], %1: float32[n]) where {} == 0 {{\n  return %0\n}}"
    )
    assert parse(text.format("m - n")) == parse(text.format("-m + n"))
