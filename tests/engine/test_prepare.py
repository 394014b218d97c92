"""Prepare: what is known is used, composites are taken apart, results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tests.engine.random_graphs import close, programs, small_arrays
from tests.engine.structural_compiler import StructuralCompiler
from tests.engine.workloads import arrays, gpt_step, mlp_step

from treadle.base import dtype as dt
from treadle.base.errors import GraphError
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.engine.options import Options
from treadle.engine.prepare import pipeline, prepare
from treadle.engine.prepare.canonical import Canonicalize
from treadle.engine.prepare.control import FoldControl, JoinScans
from treadle.engine.prepare.values import Propagate, known_values
from treadle.engine.report import CompileReport
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.cleanup import DeadCode
from treadle.graph.evaluate import evaluate
from treadle.graph.gradient import value_and_gradient
from treadle.graph.ir import Graph, constant_of
from treadle.graph.parser import parse
from treadle.graph.pass_text import parse_passes
from treadle.graph.passes import PASSES, pass_text
from treadle.graph.printer import to_text
from treadle.ops.activation import Gelu
from treadle.ops.control import Scan
from treadle.ops.creation import Full, Iota
from treadle.ops.elementwise import Neg
from treadle.ops.gather import Take
from treadle.ops.logic import Greater, Less
from treadle.ops.movement import Concat, Reshape
from treadle.ops.norm import LayerNorm
from treadle.ops.select import Where
from treadle.ops.softmax import Softmax
from treadle.ops.transfer import Identity, StopGradient

F = TensorType(dt.float32, (2, 3))
I2 = TensorType(dt.int64, (2,))


def prepared(graph: Graph, **options: Any) -> Graph:
    report = CompileReport(graph.name)
    made = prepare(graph, Options(check=True, **options), report, StructuralCompiler())
    assert next(r.before for _, r in report.passes) == len(graph.nodes)
    return made


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


# -- the stage ---------------------------------------------------------------------------------

STAGES: dict[str, Callable[..., Any]] = {
    "layer_norm": lambda x: LayerNorm()(x),
    "softmax": lambda x: Softmax(1)(StopGradient()(Identity()(x))),
    "gelu": lambda x: Gelu("tanh")(x) * 1.0 + 0.0,
    "index": lambda x: Take(0)(x, x.apply(Iota(0, 1, 2, dt.int32), ())[0]),
}


@pytest.mark.parametrize("name", STAGES)
def test_small_programs(name: str, golden: Any) -> None:
    graph = trace_body(STAGES[name], [F], name)
    after = prepared(graph)
    golden(f"{to_text(graph)}--- prepared\n{to_text(after)}")
    assert parse(to_text(after)) == after


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("graph", [mlp_step(4, (6, 8, 3)), gpt_step(2, 8, 16, 1, 2, 5)], ids=str)
def test_training_steps_stay(graph: Graph, level: int) -> None:
    given_ = arrays(graph, 1)
    after = prepared(graph, level=level)
    for x, y in zip(evaluate(graph, given_), evaluate(after, given_), strict=True):
        assert close(x, y)


@given(graph=programs())
@settings(max_examples=40)
def test_random_programs_stay(graph: Graph) -> None:
    given_ = small_arrays(graph)
    with np.errstate(all="ignore"):
        before = evaluate(graph, given_)
        for options in (Options(level=1), Options(), Options(fast=True)):
            after = prepare(graph, options, CompileReport(), None)
            results = evaluate(after, given_)
            assert all(close(x, y) for x, y in zip(before, results, strict=True))


def test_kept_composites_stay_whole() -> None:
    after = names(prepared(gpt_step(1, 8, 16, 1, 2, 5)))
    assert {"attention", "attention_grad", "adam_w_update"} <= set(after)
    assert not {"layer_norm", "gelu", "softmax_cross_entropy", "softmax"} & set(after)


def test_preparing_again_changes_nothing() -> None:
    once = prepared(gpt_step(1, 8, 16, 1, 2, 5))
    assert prepared(once) == once


def test_levels_and_switches() -> None:
    graph = trace_body(lambda x: Softmax(1)(x), [F], "g")
    every = [p.name for p in pipeline(graph, Options(), None)]
    assert [p.name for p in pipeline(graph, Options(level=0), None)] == ["drop_markers"]
    fewer = [p.name for p in pipeline(graph, Options(disabled=("fold", "expand")), None)]
    assert set(every) - set(fewer) == {"fold", "expand"}
    assert names(prepared(graph, disabled=("expand",))) == ["softmax"]


def test_a_broken_graph_is_refused() -> None:
    graph = trace_body(lambda x: Neg()(Neg()(x)), [F], "g")
    broken = graph.with_nodes(graph.nodes[1:], graph.outputs)
    with pytest.raises(GraphError, match="is not defined"):
        prepare(broken, Options(check=True), CompileReport(), None)


def test_passes_are_known_by_name() -> None:
    assert {"propagate", "canonicalize", "fold_control"} <= set(PASSES)
    text = "propagate,canonicalize,fold_control{turns=3}"
    assert ",".join(map(pass_text, parse_passes(text))) == text


def test_arrays_of_one_number_are_seen_through() -> None:
    def body(x: Any) -> Any:
        (zeros,) = x.apply(Full((2, 3), 0.0, dt.float32), ())
        (ones,) = x.apply(Full((2, 3), 1.0, dt.float32), ())
        return (x - zeros) * ones

    graph = trace_body(body, [F], "g")
    assert names(prepared(graph, disabled=("fold",))) == []


def test_symbolic_extents(golden: Any) -> None:
    n = symbol("n", low=1)
    graph = trace_body(lambda x: Softmax(1)(x * 2.0), [TensorType(dt.float32, (n, 3))], "g")
    after = prepared(graph)
    golden(to_text(after))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert close(evaluate(graph, [x])[0], evaluate(after, [x])[0])


# -- small integers ----------------------------------------------------------------------------


def test_an_index_into_a_join_is_known_where_its_part_is() -> None:
    def body(x: Any) -> Any:
        sizes = Concat(0)(x, x.constant([7, 2**60 + 1], dt.int64))
        return Take(0)(sizes, x.constant([3, 2], dt.int64)) * 2 + 1

    after = DeadCode()(Propagate()(trace_body(body, [I2], "g")))
    data = constant_of(after.outputs[0])
    assert data is not None and data.array.tolist() == [2**61 + 3, 15]


def test_what_depends_on_the_input_is_unknown() -> None:
    def body(x: Any) -> Any:
        both = Concat(0)(x, x.constant([5], dt.int64))
        return both, Where()(both.constant([True, False, True]), both, both.constant([9, 9, 9])) + 1

    graph = trace_body(body, [I2], "g")
    known = known_values(graph)
    assert known[graph.outputs[0]].mask.tolist() == [False, False, True]
    assert known[graph.outputs[1]].mask.tolist() == [False, True, True]
    assert known[graph.outputs[1]].array[1:].tolist() == [10, 6]
    assert Propagate()(graph).outputs == graph.outputs


def test_large_and_floating_tensors_are_not_followed() -> None:
    def body(x: Any) -> Any:
        (numbers,) = x.apply(Iota(0, 1, 65, dt.int64), ())
        return numbers + 1, x.constant(2.0) * 3.0

    assert not [v for v in known_values(trace_body(body, [F], "g")).values() if v.array.size > 64]
    graph = trace_body(body, [F], "g")
    assert Propagate()(graph) is graph


# -- one spelling ------------------------------------------------------------------------------


def test_operands_are_ordered() -> None:
    graph = trace_body(
        lambda x, y: (y + x) * ((2.0 * x) + Where()(Greater()(y, x), x, y)), [F, F], "g"
    )
    after = Canonicalize()(graph)
    assert "greater" not in names(after) and "less" in names(after)
    assert [v is after.inputs[i] for i, v in enumerate(after.nodes[0].inputs)] == [True, True]
    assert Canonicalize()(after) is after
    given_ = small_arrays(graph)
    np.testing.assert_array_equal(evaluate(graph, given_)[0], evaluate(after, given_)[0])


def test_equal_comparisons_become_one() -> None:
    def body(x: Any, y: Any) -> Any:
        return Where()(Greater()(x, y), x, y) + Where()(Less()(y, x), y * 2.0, x)

    graph = trace_body(body, [F, F], "g")
    assert names(prepared(graph)).count("less") == 1


# -- control flow ------------------------------------------------------------------------------


def control(which: str) -> Graph:
    builder = GraphBuilder("g")
    x = builder.input(F)
    if which == "cond":
        made = builder.cond(x.constant(False, dt.bool_), lambda a: a + 1.0, lambda a: a * 3.0, (x,))
    elif which == "while":
        made = builder.while_loop(lambda a: a.sum() < a.constant(-np.inf), lambda a: a + 1.0, (x,))
        never = builder.while_loop(lambda a: a.constant(False, dt.bool_), lambda a: a + 1.0, made)
        made = never
    else:
        rows = x.reshape((1, 2, 3))
        made = builder.scan(lambda s, row: (s + row, s * row), (x,), (rows,), 1)
    builder.output(*made)
    return builder.build()


@pytest.mark.parametrize(("which", "left"), [("cond", []), ("while", ["while"]), ("scan", [])])
def test_known_control_flow_is_inlined(which: str, left: list[str]) -> None:
    graph = control(which)
    after = prepared(graph)
    assert [n for n in names(after) if n in ("cond", "while", "scan")] == left
    given_ = small_arrays(graph)
    for x, y in zip(evaluate(graph, given_), evaluate(after, given_), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_scans_are_unrolled_up_to_a_number_of_turns() -> None:
    builder = GraphBuilder("g")
    x = builder.input(TensorType(dt.float32, (3, 2)))
    builder.output(*builder.scan(lambda s, row: (s + row, s * row), (x.sum((0,)),), (x,), 3))
    graph = builder.build()
    assert FoldControl()(graph) is graph
    after = FoldControl(turns=3)(graph)
    assert "scan" not in names(after)
    given_ = small_arrays(graph)
    for one, other in zip(evaluate(graph, given_), evaluate(after, given_), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_backward_scans_are_unrolled_backwards() -> None:
    row = TensorType(dt.float32, (2,))
    builder = GraphBuilder("g")
    s, x = builder.input(row, "s"), builder.input(TensorType(dt.float32, (3, 2)), "x")
    body = trace_body(lambda s, row: (s * 2 + row, s * row), [row, row])
    builder.output(*builder.apply(Scan(body, 1, 3, True), (s, x)))
    graph = builder.build()
    after = FoldControl(turns=3)(graph)
    assert "scan" not in names(after)
    given_ = small_arrays(graph)
    for one, other in zip(evaluate(graph, given_), evaluate(after, given_), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_gradient_runs_the_turns_of_a_scan_once() -> None:
    """What a scan computes and what its gradient keeps are one loop; what no turn changes stays."""
    row = TensorType(dt.float32, (2,))
    builder = GraphBuilder("g")
    s, w = builder.input(row, "s"), builder.input(F, "w")
    x = builder.input(TensorType(dt.float32, (3, 2)), "x")
    body = trace_body(lambda s, w, r: (s * w.sum() + r, w, s * r), [row, F, row])
    last, _, rows = builder.apply(Scan(body, 2, 3), (s, w, x))
    builder.output((last + rows.sum((0,))).sum())
    both = value_and_gradient(builder.build())
    scans = [n.op for n in both.nodes if isinstance(n.op, Scan)]
    assert [s.backwards for s in scans] == [False, False, True]
    after = JoinScans()(both)
    joined = [n for n in after.nodes if isinstance(n.op, Scan)]
    assert [n.op.backwards for n in joined if isinstance(n.op, Scan)] == [False, True]
    assert [v.type.shape for v in joined[0].outputs[2:]] == [(3, 2), (3, 2)]
    assert JoinScans()(after) is after
    given_ = small_arrays(both)
    for one, other in zip(evaluate(both, given_), evaluate(after, given_), strict=True):
        np.testing.assert_array_equal(one, other)


def test_regions_are_prepared() -> None:
    builder = GraphBuilder("g")
    x = builder.input(F)
    test = Less()(x.sum(), x.constant(0.0))
    builder.output(*builder.cond(test, lambda a: Softmax(1)(a), lambda a: Reshape((2, 3))(a), (x,)))
    text = to_text(prepared(builder.build()))
    assert "softmax" not in text and "exp" in text and "reshape" not in text
