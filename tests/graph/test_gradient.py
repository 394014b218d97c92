import numpy as np
import pytest
from tests.graph.samples import graph_of

from treadle.base import dtype as dt
from treadle.base.errors import NoGradient
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.gradient import is_differentiable, pullback, value_and_gradient
from treadle.graph.ir import Graph
from treadle.graph.printer import to_text
from treadle.graph.verify import verify
from treadle.ops import REGISTRY
from treadle.ops.abstract import ArrayOperand
from treadle.ops.control import Scan
from treadle.ops.elementwise import Cast
from treadle.ops.op import Pullback, Sample
from treadle.ops.transfer import StopGradient

D = TensorType(dt.float64, ())
D3 = TensorType(dt.float64, (3,))
BOOL = TensorType(dt.bool_, ())


def test_value_and_gradient(golden) -> None:
    graph = trace_body(lambda w, x: (w * x).sum(), [D3, D3], "dot", ["w", "x"])
    both = value_and_gradient(graph)
    verify(both)
    golden(to_text(both))
    w, x = np.arange(3.0), np.array([5.0, 6, 7])
    value, dw, dx = evaluate(both, [w, x])
    assert (value, dw.tolist(), dx.tolist()) == (20, x.tolist(), w.tolist())


def test_only_what_is_wanted() -> None:
    graph = trace_body(lambda w, x: (w * x).sum(), [D3, D3])
    (one,) = evaluate(value_and_gradient(graph, [1]), [np.ones(3), np.ones(3)])[1:]
    assert one.tolist() == [1, 1, 1]
    assert len(value_and_gradient(graph, []).outputs) == 1


def test_pullback_takes_a_cotangent_for_each_floating_output() -> None:
    graph = trace_body(lambda x: (x * 2, Cast(dt.int32)(x), x), [D3])
    back = pullback(graph)
    verify(back)
    assert [str(t) for t in back.input_types] == ["float64[3]"] * 3
    (dx,) = evaluate(back, [np.ones(3), np.ones(3), np.full(3, 10.0)])
    assert dx.tolist() == [12, 12, 12]


def test_inputs_without_influence_get_zeros() -> None:
    graph = trace_body(lambda x, y: (StopGradient()(x) * y).sum(), [D3, D3])
    _, dx, dy = evaluate(value_and_gradient(graph), [np.full(3, 2.0), np.ones(3)])
    assert dx.tolist() == [0, 0, 0]
    assert dy.tolist() == [2, 2, 2]


def test_integers_have_no_gradient() -> None:
    graph = trace_body(lambda i, x: x * Cast(dt.float64)(i), [TensorType(dt.int32, ()), D])
    value, dx = evaluate(value_and_gradient(graph), [np.int32(3), np.float64(2)])
    assert (value, dx) == (6, 3)


def test_second_order() -> None:
    graph = trace_body(lambda x: x * x * x, [D])
    once = pullback(graph, [True])
    twice = pullback(once, [True, False])
    (result,) = evaluate(twice, [np.float64(2), np.float64(1), np.float64(1)])
    assert result == 12


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (trace_body(lambda x: x, [D3]), "is not one number"),
        (trace_body(lambda x: x, [TensorType(dt.int32, ())]), "not a floating-point number"),
    ],
)
def test_what_cannot_be_differentiated(graph: Graph, message: str) -> None:
    with pytest.raises(NoGradient, match=message):
        value_and_gradient(graph)


def branching() -> Graph:
    builder = GraphBuilder("branching")
    go, x, y = builder.input(BOOL), builder.input(D, "x"), builder.input(D, "y")
    r, s = builder.cond(go, lambda a, b: (a * b, a), lambda a, b: (a * a, b * 3), [x, y])
    builder.output(r * 2 + s)
    return builder.build()


@pytest.mark.parametrize(("go", "expected"), [(True, (33, 11, 6)), (False, (33, 12, 3))])
def test_branches(go: bool, expected: tuple[float, ...]) -> None:
    both = value_and_gradient(branching())
    verify(both)
    found = evaluate(both, [np.bool_(go), np.float64(3), np.float64(5)])
    assert tuple(found) == expected


def looping(length: int = 4, backwards: bool = False) -> Graph:
    """s = s * w + r * r for the rows r, and the sum of all s * r by their number."""
    builder = GraphBuilder("looping")
    s, w, n = builder.input(D, "s"), builder.input(D, "w"), builder.input(TensorType(dt.int32, ()))
    rows = builder.input(TensorType(dt.float64, (length, 3)), "rows")

    def turn(state, weight, count, row):
        following = state * weight + (row * row).sum()
        return following, weight, count + 1, following * row

    body = trace_body(turn, [s.type, w.type, n.type, D3])
    scan = Scan(body, 3, length, backwards)
    end, _, _, seen = builder.apply(scan, (s, w, n, rows))
    rank = builder.constant(np.arange(length, dtype=np.float64)[:, None])
    builder.output(end + (seen * rank).sum())
    return builder.build()


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_loops(length: int, backwards: bool) -> None:
    graph = looping(length, backwards)
    both = value_and_gradient(graph)
    verify(both)
    rows = np.random.default_rng(0).standard_normal((length, 3))
    point = [np.float64(0.7), np.float64(1.2), np.int32(0), rows]
    value, ds, dw, drows = evaluate(both, point)
    assert value == evaluate(graph, point)[0]
    for place, slope in ((0, ds), (1, dw), (3, drows)):
        step = np.random.default_rng(1).standard_normal(point[place].shape)
        ends = []
        for sign in (1, -1):
            moved = list(point)
            moved[place] = np.asarray(point[place] + sign * 1e-6 * step)
            ends.append(float(evaluate(graph, moved)[0]))
        assert np.sum(slope * step) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)


def test_loops_differentiate_again() -> None:
    """Squaring three times gives the eighth power."""
    builder = GraphBuilder()
    x = builder.input(D)
    rows = builder.input(TensorType(dt.float64, (3,)))
    (power,) = builder.scan(lambda s, r: s * s, [x], [rows], 3)
    builder.output(power)
    once = value_and_gradient(builder.build(), [0])
    again = value_and_gradient(Graph("d", once.inputs, once.nodes, once.outputs[1:]), [0])
    (second,) = evaluate(again, [np.float64(0.5), np.zeros(3)])[1:]
    assert second == pytest.approx(56 * 0.5**6)


def test_open_loops_differentiate_once() -> None:
    builder = GraphBuilder()
    x = builder.input(D)
    builder.output(*builder.while_loop(lambda a: a < 9, lambda a: a * a, [x]))
    once = value_and_gradient(builder.build())
    assert [float(v) for v in evaluate(once, [np.float64(2)])] == [16, 4 * 2**3]
    assert [float(v) for v in evaluate(once, [np.float64(9)])] == [9, 1]
    again = Graph("d", once.inputs, once.nodes, once.outputs[1:])
    with pytest.raises(NoGradient, match="is a gradient of a loop whose turns are not known"):
        value_and_gradient(again)


def differentiable_samples() -> list[Sample]:
    """A sample of every op that is differentiable with respect to something."""
    return [
        next(s for s in cls.samples() if s.gradient)
        for _, cls in sorted(REGISTRY.items())
        if not cls.no_gradient and any(s.gradient for s in cls.samples())
    ]


@pytest.mark.parametrize("sample", differentiable_samples(), ids=lambda s: s.op.name)
def test_every_gradient_rule_records(sample: Sample) -> None:
    """Recorded and evaluated, a rule gives what it gives on arrays."""
    dtype = next((d for d in (dt.float64, dt.float32) if d in sample.element_types()), None)
    if dtype is None:
        dtype = sample.element_types()[0]
    graph = graph_of(sample, dtype)
    back = pullback(graph)
    verify(back)
    arrays = list(sample.arrays(dtype))
    rng = np.random.default_rng(0)
    dys = [
        np.asarray(rng.standard_normal(t.shape)).astype(t.dtype.numpy)
        for t in back.input_types[len(arrays) :]
    ]
    found = evaluate(back, [*arrays, *dys])

    inputs = tuple(ArrayOperand(a) for a in arrays)
    results = sample.op.outputs(*inputs) if inputs else ()
    needs = tuple(is_differentiable(x.type) for x in inputs)
    given = iter(dys)
    cotangents = tuple(
        ArrayOperand(next(given)) if is_differentiable(r.type) else None for r in results
    )
    expected = sample.op.vjp(Pullback(cotangents, inputs, results, needs))
    wanted = [dx for dx, need in zip(expected, needs, strict=True) if need]
    for array, dx in zip(found, wanted, strict=True):
        exact = np.zeros_like(array) if dx is None else dx.array
        np.testing.assert_allclose(array, exact, rtol=1e-12, atol=1e-12)
