"""What depends on frozen inputs alone is computed once, and scales fold into frozen weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.random_graphs import close, programs, small_arrays
from tests.engine.workloads import f32

import treadle as mge
import treadle.functional as F
from treadle.backends.program import runs_of
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.engine.optimize.fold_scales import fold_scales
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.builder import trace_body
from treadle.graph.frozen import fixed_values
from treadle.graph.ir import Graph
from treadle.graph.verify import verify
from treadle.inspect import Inspected
from treadle.ops.conv import Conv, ConvGradInput
from treadle.ops.elementwise import Add, Cast, Mul, Sub
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Broadcast, Reshape, Transpose
from treadle.ops.unary import Exp, Relu, Sqrt, Tanh

CONV = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
CHECKED = Options(check=True)


def stages(graph: Graph, frozen: Sequence[bool], options: Options = CHECKED) -> Inspected:
    return Inspected(Stages(graph, Interface(tuple(frozen)), options))


def labels(of: Inspected) -> tuple[list[str], list[str]]:
    """What runs once, and what runs every time."""
    plan = of.planned()
    return [r.label for r in runs_of(plan.prelude)], [r.label for r in runs_of(plan.steps)]


def same(
    graph: Graph, frozen: Sequence[bool], options: Options = CHECKED, seed: int = 0
) -> Inspected:
    """The program gives what the graph does, also when a frozen array is replaced."""
    made = stages(graph, frozen, options)
    executor = made.compile()
    for s in (seed, seed, seed + 1):
        arrays = small_arrays(graph, s)
        found = executor.run([a.copy() for a in arrays])
        for x, y in zip(found, graph.evaluate(arrays), strict=True):
            assert close(x, np.asarray(y))
    return made


# -- once --------------------------------------------------------------------------------------


def test_what_follows_from_frozen_inputs_runs_once() -> None:
    def body(x: Any, w: Any, v: Any) -> Any:
        scale = Sqrt()(Exp()(v))
        return Tanh()(x * scale + Matmul()(w, w))

    graph = trace_body(body, [f32(8, 8), f32(8, 8), f32(8)], "g")
    made = same(graph, (False, True, True))
    once, always = labels(made)
    assert {"matmul", "loop(exp+sqrt)"} == set(once)
    assert always == ["loop(mul+add+tanh)"]
    fates = {op.name: op.fate for op in made.explain().ops}
    assert fates["sqrt"] == fates["matmul"] == "once" and fates["tanh"] == "fused"
    assert "2 groups once" in made.explained()
    once, _ = labels(same(graph, (False, True, False)))
    assert once == ["matmul"]
    once, _ = labels(same(graph, (False, True, True), Options(disabled=("precompute",))))
    assert "matmul" not in once
    assert labels(same(graph, (False, False, False)))[0] == []


def test_what_is_only_packed_is_not_kept() -> None:
    """Weights made once, one after the other, share memory that runs use otherwise."""
    layers, width = 4, 64

    def body(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = Matmul()(x, Exp()(w))
        return x

    graph = trace_body(body, [f32(64, width), *(f32(width, width) for _ in range(layers))], "g")
    plan = same(graph, (False, *(True,) * layers)).planned()
    one = 4 * width * width
    assert plan.memory.peak <= 3 * one
    assert layers * one <= plan.kept < (layers + 1) * one


def test_weights_may_lie_in_one_order_only() -> None:
    """Without prepacking nothing is kept beside weights, and results are the same."""
    graph = trace_body(Matmul(), [f32(96, 80), f32(80, 64)], "g")
    kept = [
        same(graph, (False, True), Options(disabled=names)).planned().kept
        for names in ((), ("prepack",))
    ]
    assert kept[0] >= 4 * 80 * 64 and kept[1] == 0


def test_results_that_nothing_varies() -> None:
    def body(x: Any, w: Any) -> Any:
        made = Exp()(w)
        return made, Reshape((6,))(made), Transpose((1, 0))(Tanh()(made)), x + 1, w

    graph = trace_body(body, [f32(3), f32(2, 3)], "g")
    same(graph, (False, True))


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.int8], ids=str)
@pytest.mark.parametrize("way", ["flag", "transpose(cast)"])
@pytest.mark.parametrize("rows", [1, 6, 7, 40])
@pytest.mark.parametrize("columns", [1100, 96])
def test_products_read_narrow_weights(columns: int, rows: int, way: str, dtype: Any) -> None:
    """It is not kept in float32, which takes twice its memory, nor widened in every run.

    Nor is one of less than 1 MiB, of which a model has many, and a program for every width.
    """

    def body(x: Any, w: Any) -> Any:
        wide, turn = Cast(dt.float32), Transpose((1, 0))
        if way == "flag":
            return Relu()(Matmul(False, True)(x, wide(w)))
        return Relu()(Matmul()(x, turn(wide(w))))

    weight = TensorType(dtype, (columns, 512))
    graph = trace_body(body, [f32(rows, 512), weight], "g")
    for frozen in (False, True):
        once, always = labels(same(graph, (False, frozen)))
        assert not once and len(always) == 1


def test_everything_is_frozen() -> None:
    graph = trace_body(lambda a, b: Matmul()(Exp()(a), b), [f32(4, 4), f32(4, 4)], "g")
    same(graph, (True, True))


def test_an_update_reads_what_is_computed_once() -> None:
    graph = trace_body(lambda s, w: (Add()(s, Exp()(w)), Exp()(w)), [f32(5), f32(5)], "g")
    made = Inspected(Stages(graph, Interface((False, True), ((0, 0),)), CHECKED))
    state, w = np.zeros(5, "float32"), np.linspace(0, 1, 5, dtype="float32")
    for _ in range(2):
        (second,) = made.compile().run([state, w])
    assert np.allclose(state, 2 * np.exp(w)) and np.allclose(second, np.exp(w))


def test_what_grows_is_computed_again() -> None:
    """A large result that is larger than its operands would take memory for good."""
    long = 600

    def body(x: Any, v: Any) -> Any:
        return x + Exp()(Broadcast((long, long))(v)) * Exp()(v)

    graph = trace_body(body, [f32(long, long), f32(long)], "g")
    known = fixed_values(graph, graph.inputs[1:])
    assert max(v.type.nbytes for v in known) == 4 * long
    once, _ = labels(same(graph, (False, True)))
    assert all("broadcast" not in label for label in once)


@settings(max_examples=25, deadline=None)
@given(programs(), st.integers(0, 255), st.integers(0, 9))
def test_random_programs(graph: Graph, bits: int, seed: int) -> None:
    same(graph, [bool(bits >> i & 1) for i in range(len(graph.inputs))], seed=seed)


def test_module_in_eval_mode() -> None:
    net = mge.module.Sequential(
        mge.module.Conv2d(3, 8, 3, padding=1, bias=False),
        mge.module.BatchNorm2d(8),
        mge.module.ReLU(),
    )
    net.eval()
    rng = np.random.default_rng(0)
    x = mge.tensor(rng.standard_normal((2, 3, 6, 6), "float32"))
    forward = mge.jit.compile(net)
    for _ in range(3):
        for buffer in (*net.parameters(), *net.buffers()):
            buffer[...] = mge.tensor(rng.uniform(0.5, 1.5, buffer.shape).astype("float32"))
        np.testing.assert_allclose(forward(x).numpy(), net(x).numpy(), rtol=2e-5, atol=2e-5)
    plan = forward.lower(x).planned()
    assert "sqrt" not in " ".join(r.label for r in runs_of(plan.steps))
    assert len(plan.steps) <= 2
    assert "scale in its weight" in forward.explain(x)


# -- scales in weights -------------------------------------------------------------------------


def bn(x: Any, scale: Any, shift: Any) -> Any:
    shape = (1, -1, *(1,) * (x.type.ndim - 2))
    flat = tuple(int(x.type.shape[1]) if d == -1 else d for d in shape)
    return Add()(Mul()(x, Reshape(flat)(scale)), Reshape(flat)(shift))


def folded(graph: Graph, frozen: int = 1, *, narrow: bool = False) -> int:
    """How many scales are folded where inputs from number `frozen` on are frozen."""
    made, notes = fold_scales(graph, graph.inputs[frozen:], narrow=narrow)
    verify(made)
    assert notes or made is graph
    arrays = small_arrays(graph, 3)
    for x, y in zip(made.evaluate(arrays), graph.evaluate(arrays), strict=True):
        assert close(np.asarray(x, "float32"), np.asarray(y, "float32"), 2e-2 if narrow else 2e-5)
    return sum(notes.values())


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_scale_goes_into_the_weight(groups: int) -> None:
    def body(x: Any, w: Any, b: Any, s: Any, t: Any) -> Any:
        y = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), groups)(x, w)
        return Relu()(bn(Sub()(y, Reshape((1, 4, 1, 1))(b)), s, t))

    graph = trace_body(
        body, [f32(2, 4, 5, 5), f32(4, 4 // groups, 3, 3), f32(4), f32(4), f32(4)], "g"
    )
    assert folded(graph) == 1
    made, _ = fold_scales(graph, graph.inputs[1:])
    conv = next(n for n in made.nodes if isinstance(n.op, Conv))
    (reader,) = [n for n in made.nodes if conv.output in n.inputs]
    assert isinstance(reader.op, Add)
    made_stages = same(graph, (False, True, True, True, True))
    assert labels(made_stages)[1][-1] == "contraction(conv+add+relu)"


def test_a_transposed_convolution() -> None:
    op = ConvGradInput((2, 2), ((1, 1), (1, 1)), (1, 1), 1, (9, 9))
    types = [f32(2, 6, 5, 5), f32(6, 4, 3, 3), f32(4), f32(4)]
    graph = trace_body(lambda x, w, s, t: bn(op(x, w), s, t), types, "g")
    assert folded(graph) == 1


def _plain_then_bn(x: Any, w: Any, s: Any, t: Any) -> Any:
    n = x.type.ndim - 2
    return bn(Conv((1,) * n, ((0, 0),) * n, (1,) * n, 1)(x, w), s, t)


def test_other_dimensions_and_one_number_for_all() -> None:
    for n in (1, 3):
        types = [f32(2, 3, *(4,) * n), f32(5, 3, *(2,) * n), f32(5), f32(5)]
        assert folded(trace_body(_plain_then_bn, types, "g")) == 1
    types = [f32(1, 3, 4, 4), f32(5, 3, 3, 3), f32(), f32(1, 1)]
    assert folded(trace_body(lambda x, w, s, t: CONV(x, w) * s + t, types, "g")) == 1


@pytest.mark.parametrize(
    "body",
    [
        lambda x, w, s: CONV(x, w) + s,  # No scale.
        lambda x, w, s: Mul()(Relu()(CONV(x, w)), s),
        lambda x, w, s: (lambda y: (y * s, y + 1))(CONV(x, w)),  # Two readers.
        lambda x, w, s: (lambda y: (y, y * s))(CONV(x, w)),  # A result of the program.
        lambda x, w, s: CONV(x, w) * Reshape((1, 1, 1, 3))(Reshape((3,))(s)),  # Per column.
        lambda x, w, s: (lambda y: y * y)(CONV(x, w)),
    ],
)
def test_what_is_no_scale_stays(body: Callable[..., Any]) -> None:
    types = [f32(2, 2, 3, 3), f32(3, 2, 3, 3), f32(1, 3, 1, 1)]
    assert folded(trace_body(body, types, "g")) == 0


def test_only_frozen_weights_and_statistics() -> None:
    types = [f32(2, 2, 3, 3), f32(3, 2, 3, 3), f32(1, 3, 1, 1)]
    graph = trace_body(lambda x, w, s: CONV(x, w) * s, types, "g")
    assert folded(graph) == 1
    assert folded(graph, frozen=2) == 0
    assert folded(graph, frozen=3) == 0


def test_switches() -> None:
    types = [f32(2, 2, 3, 3), f32(3, 2, 3, 3), f32(1, 3, 1, 1)]
    graph = trace_body(lambda x, w, s: CONV(x, w) * s, types, "g")
    frozen = (False, True, True)
    assert "mul" not in str(labels(stages(graph, frozen))[1])
    names = ("fold_scales", "precompute")
    for options in (Options(level=1), *(Options(disabled=(name,)) for name in names)):
        assert "mul" in str(labels(stages(graph, frozen, options))[1])


def test_weights_of_few_digits_only_where_asked() -> None:
    def narrow(*shape: int) -> TensorType:
        return TensorType(dt.bfloat16, shape)

    types = [narrow(2, 2, 3, 3), narrow(3, 2, 3, 3), narrow(1, 3, 1, 1)]
    graph = trace_body(lambda x, w, s: CONV(x, w) * s, types, "g")
    assert folded(graph) == 0
    assert folded(graph, narrow=True) == 1


def test_error_of_folding() -> None:
    """Against float64, in sums of the products' magnitudes."""
    rng = np.random.default_rng(5)
    types = [f32(2, 32, 6, 6), f32(16, 32, 3, 3), f32(16), f32(16)]
    graph = trace_body(lambda x, w, s, t: bn(CONV(x, w), s, t), types, "g")
    arrays = [rng.standard_normal(t.shape).astype("float32") for t in types]
    wide = [a.astype("float64") for a in arrays]
    graph64 = trace_body(
        lambda x, w, s, t: bn(CONV(x, w), s, t),
        [TensorType(dt.float64, t.shape) for t in types],
        "g",
    )
    exact = graph64.evaluate(wide)[0]
    magnitude = graph64.evaluate([np.abs(a) for a in wide])[0]
    once = (False, True, True, True)
    direct = Options(winograd=0)
    plain = Options(winograd=0, disabled=("fold_scales",))
    errors = [
        np.abs(stages(graph, once, o).compile().run(arrays)[0] - exact) / magnitude
        for o in (direct, plain)
    ]
    # Roundings of weights hardly show among those of sums of 288 products.
    assert max(e.max() for e in errors) < 6 * 2.0**-24
    assert np.square(errors[0]).mean() < 2 * np.square(errors[1]).mean()


def test_functional_inference_uses_handles_as_they_are() -> None:
    """A handle that changes is computed from again; one that does not is not."""
    w, v = mge.Parameter(np.ones((4, 4), "float32")), mge.Parameter(np.zeros(4, "float32"))

    @mge.jit.compile
    def f(x: Any) -> Any:
        return F.matmul(x, w) * F.exp(v)

    x = mge.tensor(np.ones((4, 4), "float32"))
    assert f(x).numpy().tolist() == np.full((4, 4), 4.0).tolist()
    v[...] = mge.tensor(np.log(np.full(4, 2.0, "float32")))
    np.testing.assert_allclose(f(x).numpy(), 8.0, rtol=1e-6)
    w[...] = w * 2
    np.testing.assert_allclose(f(x).numpy(), 16.0, rtol=1e-6)
