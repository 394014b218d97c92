"""Layouts whose channels lie in blocks: the same numbers, the least cost, what the target says."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.engine.conv_graphs import conv, forward, training
from tests.engine.layout_compiler import LayoutCompiler
from tests.engine.test_layout import check_same, modelled, pooled, small_networks, summary
from tests.engine.workloads import arrays, f32

from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, NEON
from treadle.backends.program import MapLayout
from treadle.base.errors import GraphError
from treadle.engine.optimize import layout_offers, layout_problem, optimize
from treadle.engine.optimize.bodies import Trial
from treadle.engine.optimize.layout import (
    CHANNELS_LAST,
    ROW_MAJOR,
    Layout,
    Moves,
    across,
    layouts_of,
)
from treadle.engine.optimize.layout_axes import remapped
from treadle.engine.optimize.layout_pass import lay_out
from treadle.engine.optimize.layout_problem import Assignment, LayoutModel, assign
from treadle.engine.optimize.layout_rebuild import rebuild
from treadle.engine.options import Options
from treadle.engine.prepare import prepare
from treadle.engine.report import CompileReport
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph
from treadle.ops.control import While
from treadle.ops.conv import Conv
from treadle.ops.cumulative import CumSum
from treadle.ops.gather import Take
from treadle.ops.movement import Concat, Flip, Roll
from treadle.ops.reduce import Argmax, Max, Mean, Sum
from treadle.ops.slicing import Pad, Slice, along
from treadle.ops.unary import Exp, Log, Relu

FOUR, EIGHT = Layout("fours", 4), Layout("eights", 8)
DOMAINS = {
    "exact": (ROW_MAJOR, FOUR),
    "padded": (ROW_MAJOR, EIGHT),
    "all": (ROW_MAJOR, CHANNELS_LAST, EIGHT, FOUR),
}


def prepared(graph: Graph) -> Graph:
    return prepare(graph, Options(), CompileReport(graph.name), LayoutCompiler())


def moved(x: Any, moves: Moves) -> Any:
    for op in moves:
        x = op.reference(x)
    return x


# -- how values are held -----------------------------------------------------------------------

SHAPES = [(2, 8, 3, 5), (1, 6, 4), (2, 1, 3, 3), (3, 5, 1, 1), (2, 9, 2, 3, 4), (1, 4, 7, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", [FOUR, EIGHT, CHANNELS_LAST, ROW_MAJOR], ids=lambda x: x.name)
def test_there_and_back(layout: Layout, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    held = moved(x, layout.into(shape))
    assert held.shape == layout.held(shape)
    np.testing.assert_array_equal(moved(held, layout.back(shape)), x)
    for other in (FOUR, EIGHT, CHANNELS_LAST, ROW_MAJOR):
        np.testing.assert_array_equal(
            moved(held, across(shape, layout, other)), moved(x, other.into(shape))
        )


def test_blocks_hold_neighbors() -> None:
    x = np.arange(2 * 6 * 3).reshape(2, 6, 3)
    held = moved(x, FOUR.into(x.shape))
    assert held.shape == (2, 2, 3, 4)
    np.testing.assert_array_equal(held[1, 0, 2], x[1, :4, 2])
    np.testing.assert_array_equal(held[1, 1, 2], [*x[1, 4:, 2], 0, 0])


# -- ops that do not care ----------------------------------------------------------------------


def ops_on(shape: tuple[int, ...]) -> list[Any]:
    """Functions of x and its channels' gains, most of which have a form on blocks."""
    n, c, *s = shape
    space = tuple(range(2, len(shape)))
    widths = ((0, 0),) * len(shape)
    whole = [0] * len(shape), list(shape), [1] * len(shape)
    part = [0, 0, *(1 for _ in s)], list(shape), [1, 1, *(2 for _ in s)]
    return [
        lambda x, g: Exp()(x) + g,
        lambda x, g: x * Max((1,), True)(x),
        lambda x, g: Mean(space, True)(x) - x,
        lambda x, g: Sum(space)(x),
        lambda x, g: Sum((0, *space))(x),
        lambda x, g: Sum((0, *space), True)(x),
        lambda x, g: Sum((0,))(x),
        lambda x, g: Mean((1,))(x),
        lambda x, g: Argmax(1)(x),
        lambda x, g: Concat(1)(x, x * 2.0),
        lambda x, g: Concat(2)(x, g.broadcast_to(shape)),
        lambda x, g: CumSum(2)(x),
        lambda x, g: CumSum(1)(x),
        lambda x, g: Slice(*map(tuple, whole))(x),
        lambda x, g: Slice(*map(tuple, part))(x),
        lambda x, g: along(x, 1, 0, c // 2),
        lambda x, g: along(x, 1, c // 2, c),
        lambda x, g: Pad((*widths[:2], (1, 2), *widths[3:]), "constant", 3.0)(x),
        lambda x, g: Pad((widths[0], (1, 0), *widths[2:]))(x),
        lambda x, g: Flip((2,))(x),
        lambda x, g: Flip((1, 2))(x),
        lambda x, g: Roll((2,), (1,))(x),
        lambda x, g: x.reshape((n, c, int(np.prod(s)))),
        lambda x, g: Take(0)(x, x.constant(np.array([0, 0, 1]))),
    ]


@pytest.mark.parametrize("channels", [1, 8, 10, 16])
@pytest.mark.parametrize("number", range(24))
def test_ops_on_blocks_give_the_same(number: int, channels: int) -> None:
    shape = (2, channels, 4, 3)
    body = ops_on(shape)[number]
    graph = trace_body(body, [f32(*shape), f32(1, channels, 1, 1)], "g")
    forms = {}
    for node in graph.nodes:
        form = remapped(node, FOUR) if node.inputs else None
        if form is not None:
            forms[node] = FOUR, form
    after, _ = rebuild(graph, Assignment({}, forms))
    check_same(graph, after)


def test_what_would_mix_channels_with_what_fills_blocks_has_no_form() -> None:
    refused = {3 + 3: (8, 10), 7: (10,), 8: (8, 10), 9: (10,), 12: (8, 10), 16: (10,), 18: (8,)}
    for number, each in refused.items():
        for channels in each:
            body = ops_on((2, channels, 4, 3))[number]
            graph = trace_body(body, [f32(2, channels, 4, 3), f32(1, channels, 1, 1)], "g")
            assert remapped(graph.nodes[-1], FOUR) is None


# -- whole networks ----------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("make", [forward, training])
@pytest.mark.parametrize("seed", range(8))
def test_networks_are_the_same_in_any_layouts(seed: int, make: Any, domain: str) -> None:
    graph, rng = prepared(make(seed)), random.Random(seed)
    model = LayoutModel(graph, Trial(LayoutCompiler()), DOMAINS[domain])
    model.build()
    for _ in range(2):
        after, _ = rebuild(graph, random_assignment(model, rng))
        check_same(graph, after, seed)


def random_assignment(model: LayoutModel, rng: random.Random) -> Assignment:
    caring = {n: rng.choice(found)[0] for n, found in model.caring.items()}
    states = {i: rng.random() for i in model.clusters.values()}
    return with_forms(model, caring, {n: states[i] for n, i in model.clusters.items()})


def with_forms(model: LayoutModel, caring: Any, shares: Any) -> Assignment:
    others = {}
    for node, share in shares.items():
        layouts = model.forms_of(node)
        layout = layouts[int(share * len(layouts))]
        form = remapped(node, layout)
        if layout is not ROW_MAJOR and form is not None:
            others[node] = layout, form
    used = {n: s for n, s in caring.items() if s.main is not ROW_MAJOR}
    return Assignment(used, others)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spatial", [(8,), (8, 7), (4, 5, 4)])
def test_networks_are_the_same_in_groups(seed: int, spatial: tuple[int, ...]) -> None:
    graph = prepared(forward(seed, 8, spatial))
    layouts = (MapLayout("blocked", 4), MapLayout("channels-last"))
    compiler = LayoutCompiler(layouts=layouts)
    after = optimize(graph, compiler, Options(check=True), CompileReport())
    check_same(graph, after, seed)


@pytest.mark.parametrize("number", range(5))
def test_no_assignment_is_cheaper(number: int) -> None:
    graph = small_networks()[number]
    trial, domain = Trial(LayoutCompiler()), (ROW_MAJOR, CHANNELS_LAST, Layout("b", 8, 0.9, 1.2))
    model = LayoutModel(graph, trial, domain)
    model.build()
    clusters = sorted(set(model.clusters.values()))
    counts = {model.clusters[n]: len(model.forms_of(n)) for n in model.clusters}
    ways = [range(len(o)) for o in model.caring.values()] + [range(counts[i]) for i in clusters]
    if np.prod([len(w) for w in ways]) > 3000:
        pytest.fail("the network is too large to try everything")
    chosen = assign(graph, trial, domain)
    best = np.inf
    for states in itertools.product(*ways):
        caring = {n: model.caring[n][i][0] for n, i in zip(model.caring, states, strict=False)}
        at = dict(zip(clusters, states[len(model.caring) :], strict=True))
        shares = {n: (at[i] + 0.5) / counts[i] for n, i in model.clusters.items()}
        best = min(best, modelled(graph, with_forms(model, caring, shares), model))
    assert modelled(graph, chosen, model) == pytest.approx(chosen.seconds)
    assert chosen.seconds == pytest.approx(best, rel=1e-9)


# -- what programs look like -------------------------------------------------------------------

BLOCKED = LayoutCompiler(layouts=(MapLayout("blocked", 16),))


def report_of(graph: Graph, compiler: LayoutCompiler, options: Options) -> str:
    report = CompileReport()
    optimize(graph, compiler, options, report)
    return next((d.outcome for d in report.decisions if d.subject == "layout"), "")


def classifier(channels: int) -> Graph:
    def body(x: Any, stem: Any, w: Any, fc: Any) -> Any:
        y = pooled(Relu()(conv(x, stem)))
        return Mean((2, 3))(Relu()(y + conv(y, w))) @ fc

    types = [f32(4, 3, 33, 33), f32(channels, 3, 3, 3), f32(channels, channels, 3, 3)]
    return prepared(trace_body(body, [*types, f32(channels, 10)], "classifier"))


def test_the_target_decides() -> None:
    """The same program for three targets: what their kernels like is what it gets."""
    graph = classifier(64)
    last, blocked = MapLayout("channels-last"), MapLayout("blocked", 16, dense=1.1)
    said = [
        report_of(graph, LayoutCompiler(layouts=layouts), Options(winograd=0))
        for layouts in ((last,), (blocked,), (last, blocked), ())
    ]
    assert said[0].startswith("channels-last: 2 convolutions, 1 max_pool, ")
    assert said[1].startswith("blocks of 16 channels: 2 convolutions, 1 max_pool, ")
    assert said[2] == said[1]
    assert said[3] == "row-major: 2 convolutions, 1 max_pool"


def test_layouts_differ_between_processors() -> None:
    """20 channels fill tiles of 8 columns better than ones of 16, and of 32 not at all."""
    body = lambda x, v, w: Mean((2, 3))(conv(Relu()(conv(x, v)), w))  # noqa: E731
    types = [f32(8, 20, 32, 32), f32(20, 20, 3, 3), f32(20, 20, 3, 3)]
    graph = prepared(trace_body(body, types, "g"))
    said = {
        target.name: report_of(graph, LayoutCompiler(layouts=target.layouts), Options(winograd=0))
        for target in (GENERIC, NEON, AVX2, AVX512)
    }
    assert said["generic"] == said["neon"] == "channels-last: 2 convolutions, 0 conversions"
    assert said["avx2"] == said["avx512"] == "row-major: 2 convolutions"
    other = replace(AVX2, preferred=("blocked",))
    wide = prepared(trace_body(body, [f32(8, 32, 32, 32), *[f32(32, 32, 3, 3)] * 2], "g"))
    for target, name in ((AVX2, "channels-last"), (other, "blocks of 16 channels")):
        compiler = LayoutCompiler(layouts=target.layouts)
        assert report_of(wide, compiler, Options(winograd=0)).startswith(name)


def test_the_user_decides() -> None:
    graph = classifier(64)
    known = MapLayout("channels-last"), MapLayout("blocked", 16, preferred=False)
    compiler = LayoutCompiler(layouts=known)
    assert report_of(graph, compiler, Options()).startswith("channels-last")
    assert report_of(graph, compiler, Options(layouts=("blocked",))).startswith("blocks of 16")
    assert report_of(graph, compiler, Options(layouts=("row-major",))).startswith("row-major")
    with pytest.raises(GraphError, match="no layout 'diagonal'") as error:
        report_of(graph, compiler, Options(layouts=("diagonal",)))
    assert "channels-last, blocked, or row-major" in str(error.value)


def test_winograd_is_left_out_where_its_maps_cannot_be() -> None:
    """Its kernels take channels-last maps; elsewhere they would compute directly."""
    graph = prepared(trace_body(conv, [f32(4, 64, 32, 32), f32(64, 64, 3, 3)], "g"))
    known = MapLayout("channels-last"), MapLayout("blocked", 16, preferred=False)
    for layouts, found in (((), 1), (("blocked",), 0), (("blocked", "channels-last"), 1)):
        report = CompileReport()
        optimize(graph, LayoutCompiler(layouts=known), Options(layouts=layouts), report)
        assert sum("tiles" in d.outcome for d in report.decisions) == found


def test_layouts_of_a_target() -> None:
    known = MapLayout("channels-last"), MapLayout("blocked", 16, preferred=False)
    assert layouts_of(known, ()) == (ROW_MAJOR, CHANNELS_LAST)
    assert layouts_of(known, ())[1] is CHANNELS_LAST
    row_major, blocked = layouts_of(known, ("blocked",))
    assert row_major is ROW_MAJOR and (blocked.name, blocked.block) == ("blocks of 16 channels", 16)


def test_convolutions_keep_their_epilogues() -> None:
    def body(x: Any, v: Any, w: Any, gain: Any) -> Any:
        y = Relu()(conv(x, v) + gain.reshape((32, 1, 1)))
        return Mean((2, 3))(Relu()(conv(y, w) + y))

    types = [f32(4, 32, 16, 16), f32(32, 32, 3, 3), f32(32, 32, 3, 3), f32(32)]
    graph = prepared(trace_body(body, types, "g"))
    compiler = LayoutCompiler(layouts=(MapLayout("blocked", 16, dense=5.0),))
    after = optimize(graph, compiler, Options(check=True, winograd=0), CompileReport())
    lines = [line for line in summary(after) if "conv" in line]
    assert lines[1] == ("contraction(transpose reshape conv reshape transpose add relu)") and lines[
        0
    ].endswith("conv reshape transpose add relu)")
    check_same(graph, after)


@pytest.fixture
def liked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices by which nothing stays row-major that need not."""
    monkeypatch.setattr(layout_problem, "conversion", lambda value: 1e-12)
    monkeypatch.setattr(layout_offers, "seconds", lambda node, sides: sides.count(ROW_MAJOR))


@pytest.mark.parametrize("channels", [32, 20])
def test_only_borders_are_converted(channels: int, liked: None) -> None:
    """Copies there and back meet nowhere inside; what fills up blocks is left out at the end."""

    def body(x: Any, v: Any, w: Any) -> Any:
        return pooled(conv(Relu()(conv(pooled(x), v)) * 2.0, w))

    weight = f32(channels, channels, 3, 3)
    graph = prepared(trace_body(body, [f32(4, channels, 32, 32), weight, weight], "g"))
    after, layouts = lay_out(graph, Trial(BLOCKED), (ROW_MAJOR, Layout("b", 16)))
    assert layouts.ops == {"convolution": 2, "max_pool": 2} and layouts.copies == 2
    names = [n.op.name for n in after.nodes]
    # Both convolutions read no more channels than there are, and neither does the caller.
    assert names.count("slice") == (0 if channels == 32 else 3)
    # x is filled up, and so are the results, by their weights.
    assert names.count("pad") == (0 if channels == 32 else 3)
    check_same(graph, after)


def test_what_fills_up_blocks_never_counts() -> None:
    """Even where it is no number: log(0) and 0 / 0 stay in lanes that nobody reads."""

    def body(x: Any, v: Any, w: Any) -> Any:
        y = conv(x, v)
        z = Log()(Relu()(y) + 1.0) / y.constant(2.0)
        rest = z / (y * y)
        return conv(Log()(rest * rest), w)

    types = [f32(2, 20, 8, 8), f32(20, 20, 3, 3), f32(20, 20, 3, 3)]
    graph = prepared(trace_body(body, types, "g"))
    after, _ = lay_out(graph, Trial(BLOCKED), (ROW_MAJOR, Layout("b", 16)))
    given = [np.abs(a) + 0.5 for a in arrays(graph, 1)]
    with np.errstate(all="ignore"):
        wanted, found = (evaluate(g, given)[0] for g in (graph, after))
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(found, wanted, 2e-4, 2e-4)


def test_constants_are_filled_up_at_compile_time() -> None:
    gain = np.arange(20, dtype=np.float32)

    def body(x: Any, v: Any, w: Any) -> Any:
        y = conv(x, v) * x.constant(gain.reshape(20, 1, 1)) + x.constant(
            np.ones((1, 20, 16, 16), np.float32) * gain.reshape(1, 20, 1, 1)
        )
        return conv(Relu()(y), w)

    types = [f32(1, 20, 16, 16), f32(20, 20, 3, 3), f32(20, 20, 3, 3)]
    graph = prepared(trace_body(body, types, "g"))
    domain = ROW_MAJOR, Layout("b", 16, dense=20.0)
    after, layouts = lay_out(graph, Trial(BLOCKED), domain)
    assert layouts.ops == {"convolution": 2}
    shapes = [n.output.type.shape for n in after.nodes if n.op.name == "constant"]
    assert (1, 2, 1, 1, 16) in shapes and (1, 2, 16, 16, 16) in shapes
    check_same(graph, after)


def test_depthwise_layers_have_groups_for_what_fills_up_blocks() -> None:
    def body(x: Any, v: Any, w: Any) -> Any:
        return conv(Relu()(conv(conv(x, v), w, 1, 20)), v)

    types = [f32(2, 20, 16, 16), f32(20, 20, 1, 1), f32(20, 1, 3, 3)]
    graph = prepared(trace_body(body, types, "g"))
    after, layouts = lay_out(graph, Trial(BLOCKED), (ROW_MAJOR, Layout("b", 16)))
    assert layouts.ops == {"convolution": 3}
    convs = [n.op for n in after.nodes if isinstance(n.op, Conv)]
    assert [op.groups for op in convs] == [1, 32, 1]
    check_same(graph, after)


def test_bodies_of_loops_are_laid_out_like_programs() -> None:
    builder = GraphBuilder("g")
    x, w = builder.input(f32(4, 16, 16, 16)), builder.input(f32(3, 16, 16, 3, 3))

    def turn(x: Any, w: Any) -> Any:
        return conv(Relu()(conv(conv(x, w), w)), w), Mean((2, 3))(x)

    builder.output(*builder.scan(turn, (x,), (w,), 3))
    graph = builder.build()
    after, layouts = lay_out(graph, Trial(BLOCKED), (ROW_MAJOR, Layout("b", 16)))
    assert layouts.ops == {"convolution": 3}
    check_same(graph, after)


@pytest.mark.parametrize("layout", [Layout("b", 16), CHANNELS_LAST], ids=lambda x: x.name)
@pytest.mark.parametrize("channels", [16, 20])
def test_what_a_loop_does_not_change_is_converted_before_it(
    layout: Layout, channels: int, liked: None
) -> None:
    """The maps that every turn reads go along in both layouts."""
    builder = GraphBuilder("g")
    maps = builder.input(f32(2, channels, 8, 8))
    w = builder.input(f32(3, channels, channels, 3, 3))
    total = builder.input(f32(2, channels))

    def turn(maps: Any, total: Any, w: Any) -> Any:
        return maps, total + Mean((2, 3))(Relu()(pooled(maps) + conv(maps, w, 2))), total

    builder.output(*builder.scan(turn, (maps, total), (w,), 3))
    graph = builder.build()
    after, layouts = lay_out(graph, Trial(BLOCKED), (ROW_MAJOR, layout))
    assert layouts.ops == {"convolution": 1, "max_pool": 1}
    (loop,) = (n for n in after.nodes if n.op.name == "scan")
    assert loop.op.n_carried == 3
    assert loop.inputs[2].type.shape == layout.held((2, channels, 8, 8))
    first = layout.into((2, channels, 8, 8))[0]
    region = loop.op.body
    assert not any(n.op == first and n.inputs[0] is region.inputs[0] for n in region.nodes)
    check_same(graph, after)


def test_loops_until_a_condition_convert_before_it(liked: None) -> None:
    def body(maps: Any, w: Any, count: Any) -> Any:
        return maps, w, count + Mean((0, 1, 2, 3))(Relu()(pooled(conv(maps, w)))) + 1.0

    types = [f32(2, 16, 8, 8), f32(16, 16, 3, 3), f32()]
    region = trace_body(body, types, "body")
    condition = trace_body(lambda maps, w, count: count < 4.0, types, "condition")
    graph = trace_body(lambda *xs: xs[0].apply(While(condition, region), xs), types, "g")
    after, _ = lay_out(graph, Trial(BLOCKED), (ROW_MAJOR, Layout("b", 16)))
    (loop,) = (n for n in after.nodes if n.op.name == "while")
    assert len(loop.inputs) == 4 and loop.inputs[3].type.shape == (2, 1, 8, 8, 16)
    check_same(graph, after)
