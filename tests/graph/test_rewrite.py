import pytest

from treadle.base import dtype as dt
from treadle.base.errors import GraphError
from treadle.base.loc import Loc
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.printer import to_text
from treadle.graph.rewrite import Filled, P, Rule, counting_hits, rewrite
from treadle.graph.verify import verify
from treadle.ops.elementwise import Add, Cast, Mul, Neg, Sub
from treadle.ops.unary import Abs, Relu

F2 = TensorType(dt.float32, (2,))
DOUBLE_NEG = Rule("neg(neg(x)) => x", P(Neg, (P(Neg, ("x",)),)), lambda m: m["x"])
SUB_TO_ADD = Rule(
    "x - y => x + neg(y)",
    P(Sub, ("x", "y")),
    lambda m: m.apply(Add(), m["x"], m.apply(Neg(), m["y"])),
)


def names(graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def test_what_a_rule_makes_is_rewritten_too() -> None:
    graph = trace_body(lambda x, y: x - -y, [F2, F2])
    with counting_hits() as hits:
        after = rewrite(graph, (DOUBLE_NEG, SUB_TO_ADD))
    assert names(after) == ["add"]
    assert dict(hits) == {"neg(neg(x)) => x": 1, "x - y => x + neg(y)": 1}
    verify(after)


def test_users_of_what_changed_are_rewritten() -> None:
    graph = trace_body(lambda x: Neg()(Neg()(Neg()(Neg()(x)))), [F2])
    after = rewrite(graph, (DOUBLE_NEG,))
    assert after.nodes == ()
    assert after.outputs == after.inputs == graph.inputs


def test_an_unchanged_graph_is_itself() -> None:
    graph = trace_body(lambda x: -x, [F2])
    assert rewrite(graph, (DOUBLE_NEG,)) is graph


def test_shared_values_stay_shared() -> None:
    def body(x):
        y = Neg()(Neg()(x)) * 2
        return y, y + y

    after = rewrite(trace_body(body, [F2]), (DOUBLE_NEG,))
    assert names(after) == ["constant", "mul", "add"]
    assert after.outputs[0] is after.nodes[2].inputs[0] is after.nodes[2].inputs[1]


def test_new_nodes_get_the_line_of_the_old() -> None:
    builder = GraphBuilder()
    x = builder.input(F2)
    with builder.at(Loc("train.py", 9)):
        y = x - x
    builder.output(y)
    after = rewrite(builder.build(), (SUB_TO_ADD,))
    assert {str(n.loc) for n in after.nodes} == {"train.py:9"}


def test_rules_are_tried_in_order_and_may_decline() -> None:
    tried = []
    first = Rule("decline", P(Neg, ("x",)), lambda m: tried.append("decline"))
    second = Rule("neg => abs", P(Neg, ("x",)), lambda m: m.apply(Abs(), m["x"]))
    third = Rule("neg => relu", P(Neg, ("x",)), lambda m: m.apply(Relu(), m["x"]))
    after = rewrite(trace_body(lambda x: -x, [F2]), (first, second, third))
    assert tried == ["decline"]
    assert names(after) == ["abs"]


def test_a_rule_may_not_change_a_type() -> None:
    wrong = Rule("neg => cast", P(Neg, ("x",)), lambda m: m.apply(Cast(dt.int32), m["x"]))
    with pytest.raises(GraphError) as caught:
        rewrite(trace_body(lambda x: -x, [F2]), (wrong,))
    assert str(caught.value).startswith(
        "rule neg => cast: changes the type of neg\n  saw:  float32[2] became int32[2]"
    )


def test_a_rule_that_drops_the_only_operand_with_a_device_declines() -> None:
    """Constants lie on no device, and captured inputs may lie on one."""
    drop = Rule("x + y => y", P(Add, ("x", "y")), lambda m: m["y"])
    placed = TensorType(dt.float32, (2,), "xpux:0")
    assert names(rewrite(trace_body(lambda x, y: x + y, [placed, F2]), (drop,))) == ["add"]
    assert names(rewrite(trace_body(lambda x, y: y + x, [placed, F2]), (drop,))) == []


def test_rules_that_undo_each_other_are_named() -> None:
    there = Rule("add => mul", P(Add, ("x", "y")), lambda m: m.apply(Mul(), m["x"], m["y"]))
    back = Rule("mul => add", P(Mul, ("x", "y")), lambda m: m.apply(Add(), m["x"], m["y"]))
    with pytest.raises(GraphError, match="rewriting does not end") as caught:
        rewrite(trace_body(lambda x: x + x, [F2], "g"), (there, back), fuel=50)
    assert "most fired: [('add => mul', 26), ('mul => add', 25)]" in str(caught.value)


def test_repeated_names_mean_one_value() -> None:
    same = Rule("x + x => x", P(Add, ("x", "x")), lambda m: m["x"])
    assert names(rewrite(trace_body(lambda x, y: (x + x) + y, [F2, F2]), (same,))) == ["add"]


def test_inputs_may_be_swapped_where_the_pattern_says_so() -> None:
    pattern = (P(Neg, ("x",)), "y")
    for commutes, left in ((True, ["sub"]), (False, ["neg", "add"])):
        rule = Rule(
            "neg(x) + y => y - x",
            P(Add, pattern, commutes=commutes),
            lambda m: m.apply(Sub(), m["y"], m["x"]),
        )
        assert names(rewrite(trace_body(lambda x, y: y + -x, [F2, F2]), (rule,))) == left


@pytest.mark.parametrize(
    ("wanted", "value", "matches"),
    [(0.0, 0.0, True), (0.0, -0.0, False), (-0.0, -0.0, True), (1, 1.0, True), (1, 1.5, False)],
)
def test_constants_match_by_value_and_sign(wanted: float, value: float, matches: bool) -> None:
    rule = Rule("x + c => x", P(Add, ("x", Filled(wanted))), lambda m: m["x"])
    graph = trace_body(lambda x: x + x.constant(value), [F2])
    assert (rewrite(graph, (rule,)).nodes == ()) is matches


def test_repeated_constants_match() -> None:
    rule = Rule("x + 1 => x", P(Add, ("x", Filled(1))), lambda m: m["x"])
    graph = trace_body(lambda x: x + x.constant(1.0).broadcast_to((1, 2)).reshape((2,)), [F2])
    assert rewrite(graph, (rule,)).nodes == ()


def test_attributes_and_constants_are_at_hand(golden) -> None:
    rule = Rule(
        "cast(cast(x)) => cast(x) * 2",
        P(Cast, (P(Cast, ("x",), "inner"),)),
        lambda m: (
            m.apply(Mul(), m.apply(Cast(m.type.dtype), m["x"]), m.constant(2))
            if m.attribute("inner", "dtype") is dt.float64 and m.attribute("", "dtype") is dt.int32
            else None
        ),
    )
    graph = trace_body(lambda x: Cast(dt.int32)(Cast(dt.float64)(x)), [F2])
    golden(to_text(rewrite(graph, (rule,))))


def test_long_chains_need_no_recursion() -> None:
    def deep(x):
        for _ in range(5000):
            x = x - x
        return x

    after = rewrite(trace_body(deep, [F2]), (SUB_TO_ADD,))
    assert len(after.nodes) == 10_000
