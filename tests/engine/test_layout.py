"""Layouts: the best that there is, and the same numbers as without."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from tests.engine.conv_graphs import batch_norm, conv, forward, training
from tests.engine.layout_compiler import LayoutCompiler
from tests.engine.workloads import arrays, f32, linear

from treadle.engine.optimize import optimize
from treadle.engine.optimize.bodies import Trial
from treadle.engine.optimize.layout import (
    CHANNELS_LAST,
    LAYOUTS,
    ROW_MAJOR,
    Sides,
    inverse,
    is_neutral,
    keeps_place,
    placed,
)
from treadle.engine.optimize.layout_axes import remapped
from treadle.engine.optimize.layout_costs import conversion, seconds
from treadle.engine.optimize.layout_pass import lay_out
from treadle.engine.optimize.layout_problem import Assignment, LayoutModel, assign
from treadle.engine.optimize.layout_rebuild import rebuild
from treadle.engine.options import Options
from treadle.engine.prepare import prepare
from treadle.engine.report import CompileReport
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.gradient import value_and_gradient
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.graph.verify import verify
from treadle.ops.adaptive_pool import AdaptiveAvgPool
from treadle.ops.conv import Conv
from treadle.ops.fused import Fused
from treadle.ops.pool import MaxPool
from treadle.ops.reduce import Mean
from treadle.ops.unary import Relu


def prepared(graph: Graph) -> Graph:
    return prepare(graph, Options(), CompileReport(graph.name), LayoutCompiler())


def pooled(x: Any) -> Any:
    return MaxPool((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), False)(x)


def check_same(before: Graph, after: Graph, seed: int = 0) -> None:
    verify(after)
    assert parse(to_text(after)) == after
    assert after.input_types == before.input_types
    assert after.output_types == before.output_types
    given = arrays(before, seed)
    for x, y in zip(evaluate(before, given), evaluate(after, given), strict=True):
        np.testing.assert_allclose(x, y, 2e-4, 2e-5)


def any_assignment(model: LayoutModel, states: list[int]) -> Assignment:
    """The assignment of given states, be it good or bad."""
    caring = {n: found[states[model.number[n]]][0] for n, found in model.caring.items()}
    others = {}
    for node, number in model.clusters.items():
        form = remapped(node, LAYOUTS[states[number]])
        if states[number] and form is not None:
            others[node] = CHANNELS_LAST, form
    used = {n: s for n, s in caring.items() if s.count(CHANNELS_LAST)}
    return Assignment(used, others)


def sizes(model: LayoutModel) -> list[int]:
    """How many states each op, or chain of ops that do not care, has."""
    found = {model.number[n]: len(offers) for n, offers in model.caring.items()}
    found.update(dict.fromkeys(model.clusters.values(), len(LAYOUTS)))
    return [found[i] for i in range(len(found))]


# -- orders of axes ----------------------------------------------------------------------------


def test_orders() -> None:
    assert CHANNELS_LAST.order(4) == (0, 2, 3, 1)
    assert CHANNELS_LAST.order(2) == (0, 1)
    assert ROW_MAJOR.order(3) == (0, 1, 2)
    assert inverse((0, 2, 3, 1)) == (0, 3, 1, 2)
    assert placed((2, 3, 4, 5), (0, 2, 3, 1)) == (2, 4, 5, 3)
    assert keeps_place((2, 1, 4, 5), (0, 2, 3, 1))
    assert not keeps_place((2, 2, 4, 5), (0, 2, 3, 1))
    assert is_neutral((1, 8, 1, 1)) and is_neutral((2, 8)) and not is_neutral((1, 8, 1, 2))


# -- the same numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", [(8,), (8, 7), (4, 5, 4)])
@pytest.mark.parametrize("seed", range(6))
def test_networks_are_the_same_in_the_layouts_chosen(seed: int, spatial: tuple[int, ...]) -> None:
    graph = prepared(forward(seed, 10, spatial))
    after, _ = lay_out(graph, Trial(LayoutCompiler()))
    check_same(graph, after, seed)


@pytest.mark.parametrize("make", [forward, training])
@pytest.mark.parametrize("seed", range(16))
def test_networks_are_the_same_in_any_layouts(make: Any, seed: int) -> None:
    graph, rng = prepared(make(seed)), random.Random(seed)
    model = LayoutModel(graph, Trial(LayoutCompiler()))
    model.build()
    for _ in range(2):
        states = [rng.randrange(n) for n in sizes(model)]
        after, _ = rebuild(graph, any_assignment(model, states))
        check_same(graph, after, seed)


@pytest.mark.parametrize("seed", range(8))
def test_training_steps_are_the_same_in_groups(seed: int) -> None:
    graph, report = prepared(training(seed)), CompileReport()
    after = optimize(graph, LayoutCompiler(), Options(check=True), report)
    check_same(graph, after, seed)


# -- the best layouts --------------------------------------------------------------------------


def modelled(graph: Graph, chosen: Assignment, model: LayoutModel) -> float:
    """The cost of an assignment, by what is in the rebuilt program."""
    total = 0.0
    for node, found in model.caring.items():
        layouts = chosen.caring.get(node, found[0][0])
        total += next(cost for sides, cost in found if sides == layouts)
    return total + sum(conversion(v) for v in rebuild(graph, chosen)[1])


def small_networks() -> list[Graph]:
    """Graphs with few choices, so that all can be tried: some where layouts pay, and not."""
    x, w, stem = f32(4, 16, 16, 16), f32(16, 16, 3, 3), f32(16, 3, 3, 3)

    def residual(x: Any, v: Any, w: Any) -> Any:
        y = Relu()(conv(x, v))
        return Relu()(y + conv(y, w))

    def pool_between(x: Any, v: Any, w: Any) -> Any:
        return pooled(conv(pooled(conv(x, v)), w))

    def two_results(x: Any, v: Any, w: Any) -> Any:
        y = conv(x, v)
        return Relu()(y), Mean((2, 3))(conv(Relu()(y), w)), y + conv(y, w)

    def stemmed(x: Any, stem: Any, w: Any) -> Any:
        y = Relu()(conv(x, stem, 2))
        return Mean((2, 3))(conv(y, w) + y.reshape((4, 4096)).sum((1,), True).reshape((4, 1, 1, 1)))

    made = [trace_body(f, [x, w, w], f.__name__) for f in (residual, pool_between, two_results)]
    made.append(trace_body(stemmed, [f32(4, 3, 32, 32), stem, w], "stemmed"))
    made += [training_of(residual, [x, w, w]), training_of(lambda x, w: pooled(conv(x, w)), [x, w])]
    return [prepared(g) for g in made]


def training_of(body: Any, types: Any) -> Graph:
    from_body = trace_body(lambda *xs: Mean((0, 1, 2, 3))(body(*xs)), types, body.__name__)
    return value_and_gradient(from_body, range(1, len(types)))


@pytest.mark.parametrize("row_major", [(), ("max_pool",), ("conv_grad_weight", "max_pool_grad")])
@pytest.mark.parametrize("number", range(6))
def test_no_assignment_is_cheaper(number: int, row_major: tuple[str, ...]) -> None:
    graph = small_networks()[number]
    trial = Trial(LayoutCompiler(row_major))
    model = LayoutModel(graph, trial)
    model.build()
    everything = itertools.product(*map(range, sizes(model)))
    chosen = assign(graph, trial)
    best = min(modelled(graph, any_assignment(model, list(s)), model) for s in everything)
    assert modelled(graph, chosen, model) == pytest.approx(chosen.seconds)
    assert chosen.seconds == pytest.approx(best, rel=1e-9)


def test_all_row_major_is_never_better() -> None:
    for seed in range(10):
        chosen = assign(prepared(training(seed)), Trial(LayoutCompiler()))
        assert chosen.seconds <= chosen.row_major


def test_what_the_compiler_refuses_stays_row_major() -> None:
    graph = small_networks()[1]
    _, layouts = lay_out(graph, Trial(LayoutCompiler(("max_pool",))))
    assert layouts.row_major["max_pool"] == 2
    after, layouts = lay_out(graph, Trial(LayoutCompiler(("max_pool", "conv"))))
    assert after is graph and not layouts.ops
    assert layouts.outcome == "row-major: 2 convolutions, 2 max_pools"


# -- what programs look like -------------------------------------------------------------------


def classifier() -> Graph:
    """A small network for images."""

    def body(x: Any, stem: Any, w: Any, gain: Any, fc: Any, bias: Any) -> Any:
        y = pooled(Relu()(conv(x, stem) * gain.reshape((16, 1, 1))))
        return linear(Mean((2, 3))(Relu()(y + conv(y, w))), fc, bias)

    types = [f32(4, 3, 15, 15), f32(16, 3, 3, 3), f32(16, 16, 3, 3), f32(16), f32(10, 16), f32(10)]
    return trace_body(body, types, "classifier")


def summary(graph: Graph) -> list[str]:
    """A line per group: its kind and ops, moves included."""
    return [
        f"{n.op.kind}({' '.join(m.op.name for m in n.op.body.nodes)})"
        for n in graph.nodes
        if isinstance(n.op, Fused) and isinstance(n.op.body, Graph)
    ]


def test_classifier(golden: Any) -> None:
    graph = prepared(classifier())
    after, layouts = lay_out(graph, Trial(LayoutCompiler()))
    golden(to_text(after))
    assert layouts.is_proven
    assert layouts.ops == {"convolution": 2, "max_pool": 1}
    grouped = optimize(graph, LayoutCompiler(), Options(check=True), CompileReport())
    golden("\n".join(summary(grouped)), "groups")


def test_report_and_switches() -> None:
    graph = prepared(classifier())
    report = CompileReport()
    optimize(graph, LayoutCompiler(), Options(), report)
    (said,) = (d for d in report.decisions if d.subject == "layout")
    assert said.outcome.startswith("channels-last: 2 convolutions, 1 max_pool, ")
    assert "ms row-major, the least of all choices" in said.reason
    for options in (Options(level=1), Options(disabled=("layout",)), Options(fusion=False)):
        report = CompileReport()
        after = optimize(graph, LayoutCompiler(), options, report)
        assert not any(d.subject == "layout" for d in report.decisions)
        assert "transpose{" not in to_text(after)


def test_epilogues_see_through_the_transpose() -> None:
    def body(x: Any, v: Any, w: Any, gain: Any) -> Any:
        y = Relu()(conv(x, v) + gain.reshape((16, 1, 1)))
        return Mean((2, 3))(Relu()(conv(y, w) + y))

    types = [f32(4, 16, 16, 16), f32(16, 16, 3, 3), f32(16, 16, 3, 3), f32(16)]
    graph = prepared(trace_body(body, types, "g"))
    after = optimize(graph, LayoutCompiler(), Options(check=True), CompileReport())
    lines = summary(after)
    assert "contraction(transpose conv transpose add relu)" in lines
    convs = [line for line in lines if "conv" in line]
    assert len(convs) == 2 and all(line.endswith("add relu)") for line in convs)
    check_same(graph, after)


def test_copies_at_borders_are_left_to_loops() -> None:
    """No kernel reads or writes an order for which a copy was found to be cheaper."""
    graph = prepared(
        trace_body(
            lambda x, v, w: Relu()(conv(Relu()(conv(x, v)), w)),
            [f32(4, 64, 16, 16), f32(64, 64, 3, 3), f32(64, 64, 3, 3)],
        )
    )
    after = optimize(graph, LayoutCompiler(), Options(check=True), CompileReport())
    first, *products, last = summary(after)
    assert first == "loop(transpose)" and last == "loop(transpose relu)"
    assert [line.count("transpose") for line in products] == [2, 2]
    check_same(graph, after)


def test_gradients_keep_their_epilogues() -> None:
    graph = training_of(
        lambda x, v, w: Relu()(conv(Relu()(conv(x, v)), w)) + x,
        [f32(4, 16, 16, 16), f32(16, 16, 3, 3), f32(16, 16, 3, 3)],
    )
    after = optimize(prepared(graph), LayoutCompiler(), Options(check=True), CompileReport())
    (masked,) = (line for line in summary(after) if "conv_grad_input" in line)
    assert masked.endswith("transpose where)")


def test_statistics_are_moved_without_copies() -> None:
    """What is one number per channel changes its shape, not its place."""

    def body(x: Any, v: Any, w: Any, gain: Any, mean: Any) -> Any:
        y = Relu()(batch_norm(conv(x, v), gain))
        seen = Mean((0, 2, 3), True)(y)
        return Mean((2, 3))(conv(y, w)), mean * 0.9 + seen * 0.1

    types = [f32(4, 16, 16, 16), f32(16, 16, 3, 3), f32(16, 16, 3, 3), f32(16), f32(1, 16, 1, 1)]
    graph = prepared(trace_body(body, types, "g"))
    after, layouts = lay_out(graph, Trial(LayoutCompiler()))
    assert layouts.copies <= 1
    moved = [n.output.type.shape for n in after.nodes if n.op.name == "transpose"]
    assert all(16 == shape[1] == shape[2] for shape in moved)
    assert after.outputs[1].producer is not None
    assert after.outputs[1].producer.op.name == "add"
    check_same(graph, after)


def test_transposes_of_the_program_disappear() -> None:
    """Maps that are channels-last to begin with are read as they are."""

    def body(x: Any, v: Any, w: Any) -> Any:
        y = conv(Relu()(conv(x.transpose((0, 3, 1, 2)), v)), w)
        return y.transpose((0, 2, 3, 1))

    types = [f32(4, 16, 16, 16), f32(16, 16, 3, 3), f32(16, 16, 3, 3)]
    graph = prepared(trace_body(body, types, "g"))
    after, layouts = lay_out(graph, Trial(LayoutCompiler()))
    assert layouts.copies == 0
    grouped = optimize(graph, LayoutCompiler(), Options(), CompileReport())
    assert [n.op.name for n in grouped.nodes] == ["fused", "fused"]
    check_same(graph, after)


def test_patches_become_tokens_without_a_copy() -> None:
    def body(x: Any, w: Any) -> Any:
        y = Conv((4, 4), ((0, 0), (0, 0)), (1, 1), 1)(x, w)
        return y.reshape((4, 16, 64)).transpose((0, 2, 1))

    graph = prepared(trace_body(body, [f32(4, 3, 32, 32), f32(16, 3, 4, 4)], "g"))
    after, layouts = lay_out(graph, Trial(LayoutCompiler()))
    assert layouts.ops == {"convolution": 1}
    assert after.nodes[-1].op.name == "reshape"
    check_same(graph, after)


def test_nothing_to_choose_leaves_the_graph_alone() -> None:
    graph = trace_body(lambda x, w: Relu()(x.transpose((0, 2, 1))) @ w, [f32(2, 3, 4), f32(3, 3)])
    assert lay_out(graph, Trial(LayoutCompiler()))[0] is graph
    tiny = prepared(trace_body(lambda x, w: conv(x, w), [f32(1, 2, 4, 4), f32(2, 2, 3, 3)]))
    assert lay_out(tiny, Trial(LayoutCompiler()))[0] is tiny


def test_bodies_of_loops_are_laid_out_like_programs() -> None:
    builder = GraphBuilder("g")
    x, w = builder.input(f32(4, 16, 16, 16)), builder.input(f32(3, 16, 16, 3, 3))

    def turn(x: Any, w: Any) -> Any:
        return conv(Relu()(conv(conv(x, w), w)), w), Mean((2, 3))(x)

    builder.output(*builder.scan(turn, (x,), (w,), 3))
    graph = builder.build()
    after, layouts = lay_out(graph, Trial(LayoutCompiler()))
    assert layouts.ops == {"convolution": 3}
    check_same(graph, after)


def test_channels_of_extent_one_take_no_copy() -> None:
    def gated(x: Any, w: Any, narrow: Any) -> Any:
        y = conv(x, w)
        return conv(y * AdaptiveAvgPool((1, 1))(conv(y, narrow)), w)

    types = [f32(4, 16, 16, 16), f32(16, 16, 3, 3), f32(1, 16, 1, 1)]
    graph = prepared(trace_body(gated, types, "g"))
    after, layouts = lay_out(graph, Trial(LayoutCompiler()))
    assert layouts.ops == {"convolution": 3}
    check_same(graph, after)


def test_costs_prefer_what_is_measured_to_be_faster() -> None:
    node = prepared(trace_body(conv, [f32(4, 64, 28, 28), f32(64, 64, 3, 3)])).nodes[0]
    plain, last = (Sides((x, None), (x,)) for x in LAYOUTS)
    assert seconds(node, last) < seconds(node, plain)
    few = prepared(trace_body(conv, [f32(4, 3, 28, 28), f32(2, 3, 3, 3)])).nodes[0]
    assert seconds(few, plain) < seconds(few, last)
    (value,) = node.outputs
    assert conversion(value) > 0
