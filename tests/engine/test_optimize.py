"""Optimize: the groups an expert would write, and never another result."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tests.engine.random_graphs import close, programs, small_arrays
from tests.engine.structural_compiler import StructuralCompiler
from tests.engine.workloads import arrays, f32, gpt_step, linear, mlp_step

from treadle.backends.program import Lowered
from treadle.base import dtype as dt
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.engine.optimize import optimize
from treadle.engine.optimize.groups import Groups
from treadle.engine.optimize.model import modelled_bytes
from treadle.engine.options import Options
from treadle.engine.prepare import prepare
from treadle.engine.report import CompileReport
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.graph.verify import verify
from treadle.ops.activation import Gelu
from treadle.ops.attention import Attention
from treadle.ops.fused import Fused
from treadle.ops.logic import Less
from treadle.ops.matmul import Matmul
from treadle.ops.norm import LayerNorm
from treadle.ops.reduce import Mean
from treadle.ops.slicing import along
from treadle.ops.softmax import Softmax
from treadle.ops.unary import Exp, Relu, Tanh

QUIET = ("reshape", "constant", "broadcast", "slice", "transpose", "iota")


def run(graph: Graph, level: int = 2, refused: tuple[str, ...] = ()) -> Graph:
    compiler, options = StructuralCompiler(refused), Options(level=level, check=True)
    report = CompileReport(graph.name)
    before = prepare(graph, options, report, compiler)
    after = optimize(before, compiler, options, report)
    verify(after)
    assert parse(to_text(after)) == after
    assert all_taken(after, compiler)
    return after


def all_taken(graph: Graph, compiler: StructuralCompiler) -> bool:
    """Whether the compiler takes every group as it was made in the end."""
    groups = [n for n in graph.nodes if isinstance(n.op, Fused)]
    return all(
        isinstance(compiler.lower(n.op, [v.type for v in n.inputs]), Lowered) for n in groups
    )


def summary(graph: Graph) -> list[str]:
    """One line per node that computes: a group's kind, what is in it, and its results."""
    lines = []
    for node in graph.nodes:
        if not isinstance(node.op, Fused):
            lines.append(node.op.name)
            continue
        assert isinstance(node.op.body, Graph)
        inside = [n.op.name for n in node.op.body.nodes if n.op.name not in QUIET]
        lines.append(f"{node.op.kind}({' '.join(inside)}) -> {len(node.outputs)}")
    return [line for line in lines if line not in QUIET]


def check_results(graph: Graph, after: Graph, high: int = 3) -> None:
    given_ = arrays(graph, 1, high)
    for x, y in zip(evaluate(graph, given_), evaluate(after, given_), strict=True):
        assert close(x, y)


# -- whole training steps ----------------------------------------------------------------------


def test_mlp_step(golden: Any) -> None:
    graph = mlp_step(8, (12, 16, 16, 4))
    after = run(graph)
    golden("\n".join(summary(after)))
    check_results(graph, after)
    counts = Counter(line.split("(")[0] for line in summary(after))
    assert counts["contraction"] == 5  # every product with something to apply
    assert counts["sgd_update"] == 6


def test_gpt_step(golden: Any) -> None:
    graph = gpt_step(2, 8, 16, 2, 2, 5)
    after = run(graph)
    golden("\n".join(summary(after)))
    check_results(graph, after, 5)


def test_expert_groups_of_a_block() -> None:
    lines = summary(run(gpt_step(8, 128, 256, 1, 8, 256)))
    # Both linear layers around GELU: the derivative is kept in place of what it is taken of.
    (up,) = [x for x in lines if "tanh" in x]
    assert up.startswith("contraction(matmul add") and up.endswith("-> 2")
    assert lines.count("contraction(matmul add add) -> 1") == 2
    assert "contraction(matmul mul) -> 1" in lines
    assert "attention(attention) -> 1" in lines
    assert "attention(attention_grad) -> 3" in lines
    # Layer norm: one kernel forward, one backward with its column sums.
    norms = [x for x in lines if x.startswith("loop") and "sqrt" in x]
    assert len(norms) == 3
    backward = [
        x for x in lines if x.startswith("loop") and x.count("mean") == 2 and "sqrt" not in x
    ]
    assert len(backward) == 3 and all("sum" in x for x in backward)
    # Cross-entropy in two: rows with their gradient, then the mean over rows.
    (rows,) = [x for x in lines if " exp " in x]
    assert rows.endswith("-> 2")
    assert lines.count("mean") == 1
    assert lines.count("adam_w_update") == 17


# -- single groups -----------------------------------------------------------------------------


def one(
    body: Any, *shapes: tuple[int, ...], level: int = 2, refused: tuple[str, ...] = ()
) -> list[str]:
    graph = trace_body(body, [f32(*s) for s in shapes], "g")
    after = run(graph, level, refused)
    check_results(graph, after)
    return summary(after)


def test_epilogue_with_residual() -> None:
    found = one(lambda x, w, b, r: Tanh()(linear(x, w, b)) + r, (8, 4), (6, 4), (6,), (8, 6))
    assert found == ["contraction(matmul add tanh add) -> 1"]


def test_epilogue_leaves_what_a_row_kernel_reads() -> None:
    found = one(lambda x, w, b: Softmax(1)(linear(x, w, b)), (8, 4), (6, 4), (6,))
    assert found[0] == "contraction(matmul add) -> 1"
    assert len(found) == 2 and "exp" in found[1]


def test_operand_moves_are_read_through() -> None:
    found = one(lambda x, y: Matmul()(x.transpose((1, 0, 2)), y), (4, 3, 8), (8, 5))
    assert found == ["contraction(matmul) -> 1"]


def test_results_are_written_where_a_move_puts_them() -> None:
    def body(x: Any, w: Any, b: Any) -> Any:
        return linear(x, w, b).transpose((1, 0)).reshape((2, 3, 8))

    assert one(body, (8, 4), (6, 4), (6,)) == ["contraction(matmul add) -> 1"]


def test_attention_reads_heads_where_they_lie() -> None:
    def body(x: Any) -> Any:
        q = x.reshape((2, 4, 2, 3)).transpose((0, 2, 1, 3))
        return Attention()(q, q, q).transpose((0, 2, 1, 3)).reshape((2, 4, 6))

    assert one(body, (2, 4, 6)) == ["attention(attention) -> 1"]


def test_a_residual_that_depends_on_the_product_is_no_epilogue() -> None:
    """The sum needs the second product, which needs the first: no group may hold both ends."""

    def body(x: Any, w: Any) -> Any:
        y = Matmul()(x, w)
        return Relu()(y) + Matmul()(y, w)

    assert one(body, (4, 4), (4, 4)) == [
        "contraction(matmul relu) -> 2", "contraction(matmul add) -> 1",
    ]  # fmt: skip


def test_updates_are_no_epilogue() -> None:
    names = summary(run(mlp_step(8, (12, 16, 4))))
    assert "sgd_update" in names
    assert not [n for n in names if "contraction" in n and "sgd" in n]


def test_layer_norm_is_one_kernel() -> None:
    found = one(lambda x, w, b: LayerNorm()(x, w, b), (4, 8), (8,), (8,))
    assert len(found) == 1 and found[0].startswith("loop")


def test_siblings_that_read_one_array_are_merged() -> None:
    found = one(lambda x, y: (Exp()(x) * y, Tanh()(x) + y), (512, 64), (512, 64))
    assert found == ["loop(exp mul tanh add) -> 2"]


def test_loops_over_other_axes_stay_apart() -> None:
    def body(x: Any) -> Any:
        return Mean((1,), True)(x) + Mean((0,), True)(x)

    assert len(one(body, (64, 64))) > 1


def test_cheap_values_are_made_again() -> None:
    """The centered rows are not stored for their reader behind the product, only their means."""

    def body(x: Any, w: Any) -> Any:
        centered = x - Mean((1,), True)(x)
        return Matmul()(Exp()(centered), w).sum((1,), keepdims=True) * centered

    graph = trace_body(body, [f32(256, 512), f32(512, 8)], "g")
    after = run(graph)
    check_results(graph, after)
    first, *_, last = [n for n in after.nodes if isinstance(n.op, Fused)]
    assert sorted(str(v.type) for v in first.outputs) == ["float32[256,1]", "float32[256,512]"]
    assert "float32[256,512]" in {str(v.type) for v in last.inputs}


# -- levels, refusals, switches ----------------------------------------------------------------


def test_level_0_fuses_nothing() -> None:
    graph = gpt_step(1, 8, 16, 1, 2, 5)
    assert not [n for n in run(graph, 0).nodes if isinstance(n.op, Fused)]


def test_level_1_groups_have_one_result() -> None:
    after = run(gpt_step(1, 8, 16, 1, 2, 5), 1)
    groups = [n for n in after.nodes if isinstance(n.op, Fused) and n.op.kind != "attention"]
    assert len(groups) > 10
    assert {len(n.outputs) for n in groups} == {1}


@pytest.mark.parametrize("graph", [mlp_step(), gpt_step(layers=1)], ids=str)
def test_each_level_moves_fewer_bytes(graph: Graph) -> None:
    bytes_ = [modelled_bytes(run(graph, level)) for level in (0, 1, 2)]
    assert bytes_[0] > bytes_[1] > bytes_[2]


def test_fusion_can_be_switched_off() -> None:
    graph = mlp_step(4, (6, 8, 3))
    before = prepare(graph, Options(), CompileReport(), StructuralCompiler())
    for options in (Options(fusion=False), Options(disabled=("fuse",))):
        assert optimize(before, StructuralCompiler(), options, CompileReport()) is before


@pytest.mark.parametrize(
    "refused", ["tanh", "mean", "matmul", "add", "constant", "transpose", "sum"]
)
def test_refused_groups_are_split(refused: str) -> None:
    graph = gpt_step(2, 8, 16, 1, 2, 5)
    after = run(graph, refused=(refused,))
    for node in after.nodes:
        if isinstance(node.op, Fused) and isinstance(node.op.body, Graph):
            assert refused not in [n.op.name for n in node.op.body.nodes]
    check_results(graph, after, 5)


def test_refusals_are_reported() -> None:
    report = CompileReport()
    compiler = StructuralCompiler(("tanh",))
    graph = trace_body(lambda x, w: Tanh()(Matmul()(x, w)), [f32(4, 4), f32(4, 4)], "g")
    optimize(prepare(graph, Options(), report, compiler), compiler, Options(), report)
    assert "tanh is refused" in [d.reason for d in report.decisions]
    assert "epilogue is left out" in str(report)


def test_the_compiler_is_asked_once_per_shape() -> None:
    counts = []
    for layers in (1, 3):
        compiler = StructuralCompiler()
        graph = prepare(gpt_step(2, 8, 16, layers, 2, 5), Options(), CompileReport(), compiler)
        optimize(graph, compiler, Options(), CompileReport())
        counts.append(compiler.asked)
    assert counts[1] <= counts[0] + 8


def test_regions_are_fused() -> None:
    builder = GraphBuilder("g")
    x = builder.input(f32(4, 8))
    test = Less()(x.sum(), x.constant(0.0))
    builder.output(*builder.cond(test, lambda a: LayerNorm()(a), lambda a: a, (x,)))
    after = run(builder.build())
    (cond,) = [n.op for n in after.nodes if n.op.name == "cond"]
    assert [n.op.name for n in cond.then.nodes] == ["fused"]  # type: ignore[attr-defined]


# -- properties --------------------------------------------------------------------------------


@given(graph=programs())
@settings(max_examples=50)
def test_random_programs_stay(graph: Graph) -> None:
    given_ = small_arrays(graph)
    compiler = StructuralCompiler()
    before = prepare(graph, Options(), CompileReport(), compiler)
    moved = []
    with np.errstate(all="ignore"):
        expected = evaluate(graph, given_)
        for level in (1, 2):
            after = optimize(before, compiler, Options(level=level), CompileReport())
            verify(after)
            assert all_taken(after, compiler)
            moved.append(modelled_bytes(after))
            results = evaluate(after, given_)
            assert all(close(x, y) for x, y in zip(expected, results, strict=True))
    assert moved[1] <= moved[0]


def test_the_same_program_gives_the_same_groups() -> None:
    graph = gpt_step(1, 8, 16, 2, 2, 5)
    assert to_text(run(graph)) == to_text(run(graph))


def test_a_reshape_between_two_loops_is_no_obstacle() -> None:
    found = one(lambda x: Exp()(Tanh()(x).reshape((8, 2))), (4, 4))
    assert found == ["loop(tanh exp) -> 1"]


def test_symbolic_extents_are_left_alone() -> None:
    n = symbol("n", low=4)
    types = [TensorType(dt.float32, (n, 4)), f32(4, 4)]

    def body(x: Any, w: Any) -> Any:
        return Softmax(1)(Matmul()(x, w)), Tanh()(Exp()(along(x, 0, 0, 2)))

    graph = trace_body(body, types, "g")
    after = run(graph)
    assert "fused" not in [n.op.name for n in after.nodes if not n.output.type.is_static]
    x = [np.ones((5, 4), np.float32), np.eye(4, dtype=np.float32)]
    for one_, other in zip(evaluate(graph, x), evaluate(after, x), strict=True):
        assert close(one_, other)


# -- groups: cycles ----------------------------------------------------------------------------


def diamond() -> Groups:
    def body(x: Any) -> Any:
        a = Exp()(x)
        return Tanh()(a) + Matmul()(a, a)

    return Groups(trace_body(body, [f32(4, 4)], "g"))


def test_a_merge_around_another_node_closes_a_cycle() -> None:
    groups = diamond()
    first, tanh, product, total = groups.owner
    assert groups.closes_cycle((first, total))
    assert not groups.closes_cycle((first, tanh))
    merged = groups.keep(groups.joined((first, tanh), "loop"))
    assert groups.closes_cycle((merged, total))
    assert not groups.closes_cycle((merged, product))
    every = groups.keep(groups.joined((merged, product), "loop"))
    assert not groups.closes_cycle((every, total))


def test_merging_siblings_joins_their_ways() -> None:
    """After two siblings are one, what one needs comes before what the other feeds."""

    def body(x: Any, y: Any) -> Any:
        a, b = Exp()(x), Tanh()(y)
        return Relu()(a), Exp()(b)

    groups = Groups(trace_body(body, [f32(4, 4), f32(4, 4)], "g"))
    a, b, c, d = groups.owner
    merged = groups.keep(groups.joined((a, d), "loop"))
    assert groups.closes_cycle((b, merged)) is False
    assert groups.closes_cycle((b, c)) is True
    groups.split(merged)
    assert groups.owner == [a, b, c, d]


def test_low_precision_epilogue() -> None:
    t = TensorType(dt.bfloat16, (8, 8))
    graph = trace_body(lambda x, w: Gelu()(Matmul()(x, w)).astype(dt.float32), [t, t], "g")
    found = summary(run(graph))
    assert len(found) == 1 and found[0].startswith("contraction(matmul")
