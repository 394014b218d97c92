"""Which algorithm computes a convolution, and that programs stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.structural_compiler import StructuralCompiler

from treadle.backends.api import Support, no
from treadle.backends.program import Lowered, MapLayout
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.errors import GraphError
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.engine.optimize import optimize
from treadle.engine.optimize.algorithms import Maps, choose_algorithms
from treadle.engine.optimize.bodies import Trial
from treadle.engine.options import Options
from treadle.engine.report import CompileReport
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.graph.verify import verify
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, Convolution, WideConv
from treadle.ops.op import Op
from treadle.ops.unary import Relu
from treadle.ops.winograd import Winograd, WinogradConv, WinogradConvGradWeight

EVEN = ((1, 1), (1, 1))
LAYER = Conv((1, 1), EVEN, (1, 1), 1)


class Unaware(StructuralCompiler):
    """A compiler without kernels for Winograd's algorithm."""

    def lower(self, op: Op, types: Any, frozen: Any = (), /) -> Lowered | Support:
        if isinstance(op, (WinogradConv, WinogradConvGradWeight)):
            return no("op", "is not generated")
        return super().lower(op, types, frozen)


def layer(
    op: Convolution, x: tuple[Any, ...], weight: tuple[int, ...], dtype: DType = dt.float32
) -> Graph:
    """Relu(op(x, weight))."""
    types = TensorType(dtype, x), TensorType(dtype, weight)
    return trace_body(lambda a, b: Relu()(op(a, b)), types, "layer")


def tile(graph: Graph, largest: int = 4, frozen: bool = False, compiler: Any = None) -> int:
    """The tiles that the one convolution of a graph is given; 0 for none."""
    known = graph.inputs[1:2] if frozen else ()
    trial = Trial(compiler or StructuralCompiler())
    after, notes = choose_algorithms(graph, trial, largest, known)
    verify(after)
    assert parse(to_text(after)) == after
    tiled = (WinogradConv, WinogradConvGradWeight)
    found = [n.op.tile for n in after.nodes if isinstance(n.op, tiled)]
    assert len(found) == len(notes) and (found or after is graph)
    return found[0] if found else 0


def test_usual_layers() -> None:
    for images, channels, size in ((4, 64, 56), (1, 128, 28), (32, 256, 8), (32, 512, 4)):
        graph = layer(LAYER, (images, channels, size, size), (channels, channels, 3, 3))
        assert tile(graph) == 4
        assert tile(graph, largest=2) == 2
        assert tile(graph, largest=0) == 0


def test_weights_that_must_be_transformed_in_every_run_count() -> None:
    graph = layer(LAYER, (1, 512, 7, 7), (512, 512, 3, 3))
    assert tile(graph) == 0
    assert tile(graph, frozen=True) == 2


@pytest.mark.parametrize(
    "op, x, weight",
    [
        (Conv((2, 2), EVEN, (1, 1), 1), (4, 64, 56, 56), (64, 64, 3, 3)),
        (Conv((1, 1), EVEN, (2, 2), 1), (4, 64, 56, 56), (64, 64, 3, 3)),
        (Conv((1, 1), EVEN, (1, 1), 2), (4, 64, 56, 56), (64, 32, 3, 3)),
        (LAYER, (4, 64, 56, 56), (64, 64, 1, 1)),
        (LAYER, (4, 3, 56, 56), (64, 3, 3, 3)),
        (LAYER, (4, 64, 56, 56), (10, 64, 3, 3)),
        (LAYER, (1, 32, 4, 4), (32, 32, 3, 3)),
        (LAYER, (symbol("n"), 64, 56, 56), (64, 64, 3, 3)),
        (Conv((1,), ((1, 1),), (1,), 1), (4, 64, 560), (64, 64, 3)),
    ],
    ids=["strides", "dilation", "groups", "1x1", "inputs", "outputs", "small", "symbolic", "1-d"],
)
def test_others_stay_as_they_are(
    op: Convolution, x: tuple[Any, ...], weight: tuple[int, ...]
) -> None:
    assert tile(layer(op, x, weight)) == 0


def test_other_element_types_stay_as_they_are() -> None:
    for dtype in (dt.float16, dt.float64):
        assert tile(layer(LAYER, (4, 64, 56, 56), (64, 64, 3, 3), dtype)) == 0


class Narrow(StructuralCompiler):
    """A compiler whose products of bfloat16 are so many times as fast as those of float32."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self.layouts = (MapLayout("channels-last", bfloat16=speed),)


@pytest.mark.parametrize(
    "op, second",
    [
        (LAYER, (64, 64, 3, 3)),
        (ConvGradInput((1, 1), EVEN, (1, 1), 1, (56, 56)), (64, 64, 3, 3)),
        (ConvGradWeight((1, 1), EVEN, (1, 1), 1, (3, 3)), (4, 64, 56, 56)),
    ],
    ids=["forward", "input", "weight"],
)
def test_layers_of_bfloat16_go_through_tiles_of_float32(
    op: Convolution, second: tuple[int, ...]
) -> None:
    """A step of ResNet-18 in mixed precision took 1.5 times as long as in float32."""
    graph = layer(op, (4, 64, 56, 56), second, dt.bfloat16)
    for speed, expected in ((1.0, 4), (1.9, 4), (12.0, 0)):
        assert tile(graph, compiler=Narrow(speed)) == expected
    assert tile(graph, frozen=True, compiler=Narrow(1.9)) == 4
    after, _ = choose_algorithms(graph, Trial(Narrow(1.9)), 4)
    assert [isinstance(n.op, Winograd) for n in after.nodes] == [True, False]
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(v.type.shape).astype(dt.bfloat16.numpy) for v in graph.inputs]
    exact, found = (evaluate(g, given)[0].astype(np.float32) for g in (graph, after))
    np.testing.assert_allclose(found, exact, rtol=2**-7, atol=2**-7 * np.abs(exact).max())


def test_sums_of_bfloat16_that_are_not_rounded_stay_so() -> None:
    """A layer of PyTorch with a bias could not be compiled: its result is not that of its maps."""
    op = WideConv((1, 1), EVEN, (1, 1), 1)
    graph = layer(op, (4, 64, 56, 56), (64, 64, 3, 3), dt.bfloat16)
    assert tile(graph, compiler=Narrow(1.9)) == 4
    after, _ = choose_algorithms(graph, Trial(Narrow(1.9)), 4)
    assert after.outputs[0].type == graph.outputs[0].type
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(v.type.shape).astype(dt.bfloat16.numpy) for v in graph.inputs]
    exact, found = (evaluate(g, given)[0] for g in (graph, after))
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_a_compiler_without_kernels_for_it_is_asked() -> None:
    graph = layer(LAYER, (4, 64, 56, 56), (64, 64, 3, 3))
    assert tile(graph, compiler=Unaware()) == 0


@pytest.mark.parametrize("padding", [((0, 0), (0, 0)), EVEN, ((2, 0), (1, 2))])
@pytest.mark.parametrize("back", [False, True], ids=["forward", "gradient"])
def test_programs_stay_the_same(back: bool, padding: tuple[tuple[int, int], ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 32, 40, 41)).astype(np.float32)
    weight = rng.standard_normal((32, 32, 3, 3)).astype(np.float32)
    plain = Conv((1, 1), padding, (1, 1), 1)
    spatial = tuple(n + 2 - sum(pair) for n, pair in zip(x.shape[2:], padding, strict=True))
    op = ConvGradInput((1, 1), padding, (1, 1), 1, spatial) if back else plain
    graph = layer(op, x.shape, weight.shape)
    after, notes = choose_algorithms(graph, Trial(StructuralCompiler()), 4)
    (subject,) = notes
    assert subject[0].startswith(op.name) and subject[1] == "4x4 tiles"
    (wanted,), (got,) = evaluate(graph, [x, weight]), evaluate(after, [x, weight])
    np.testing.assert_allclose(got, wanted, 0, 1e-4)


def weight_gradient(
    images: int,
    inputs: int,
    outputs: int,
    size: int,
    padding: tuple[tuple[int, int], ...] = EVEN,
    kernel: tuple[int, int] = (3, 3),
) -> Graph:
    """Relu of the gradient of a convolution in its weight."""
    op = ConvGradWeight((1, 1), padding, (1, 1), 1, kernel)
    spatial = [size + sum(p) - k + 1 for p, k in zip(padding, kernel, strict=True)]
    return layer(op, (images, inputs, size, size), (images, outputs, spatial[0], spatial[1]))


def test_usual_gradients_in_the_weight() -> None:
    for images, channels, size in ((4, 64, 56), (4, 128, 28), (32, 256, 8), (32, 512, 4)):
        graph = weight_gradient(images, channels, channels, size)
        assert [tile(graph, largest=n) for n in (4, 2, 0)] == [4, 2, 0]
        assert tile(graph, compiler=Unaware()) == 0


def test_other_gradients_in_the_weight_stay_as_they_are() -> None:
    assert tile(weight_gradient(4, 64, 64, 56, kernel=(1, 1))) == 0
    assert tile(weight_gradient(4, 3, 64, 56)) == 0
    assert tile(weight_gradient(4, 64, 10, 56)) == 0
    # Few tiles do not pay for the many sums that are transformed in the end.
    assert tile(weight_gradient(1, 512, 512, 7)) == 0


def test_gradients_in_the_weight_stay_the_same() -> None:
    rng = np.random.default_rng(1)
    graph = weight_gradient(2, 32, 32, 40, padding=((2, 0), (1, 2)))
    given = [rng.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs]
    after, notes = choose_algorithms(graph, Trial(StructuralCompiler()), 4)
    (subject,) = notes
    assert subject[0].startswith("conv_grad_weight") and subject[1] == "4x4 tiles"
    (wanted,), (got,) = evaluate(graph, given), evaluate(after, given)
    np.testing.assert_array_equal(got, wanted)


def test_gradients_with_much_padding_stay_as_they_are() -> None:
    op = ConvGradInput((1, 1), ((3, 3), (1, 1)), (1, 1), 1, (52, 56))
    assert tile(layer(op, (4, 64, 56, 56), (64, 64, 3, 3))) == 0


def test_the_stage_reports_the_choice_and_can_be_told() -> None:
    graph = layer(LAYER, (4, 64, 56, 56), (64, 64, 3, 3))

    def names(options: Options) -> tuple[set[str], list[str]]:
        report = CompileReport()
        after = optimize(graph, StructuralCompiler(), options, report, graph.inputs[1:])
        verify(after)
        return {op for n in after.nodes for op in _names(n.op)}, [
            d.outcome for d in report.decisions
        ]

    ops, said = names(Options(check=True))
    assert "winograd_conv" in ops and "conv" not in ops and "4x4 tiles" in said
    assert "2x2 tiles" in names(Options(winograd=2))[1]
    for off in (Options(winograd=0), Options(disabled=("winograd",)), Options(level=1)):
        ops, said = names(off)
        assert "conv" in ops and not any("tiles" in line for line in said)


def _names(op: Op) -> list[str]:
    body = getattr(op, "body", None)
    return [n.op.name for n in body.nodes] if isinstance(body, Graph) else [op.name]


def test_regions_of_control_flow_are_treated_alike() -> None:
    builder = GraphBuilder("branches")
    maps, kernel = TensorType(dt.float32, (4, 64, 56, 56)), TensorType(dt.float32, (64, 64, 3, 3))
    x, weight = builder.input(maps), builder.input(kernel)
    flag = builder.input(TensorType(dt.bool_, ()))
    builder.output(*builder.cond(flag, LAYER, lambda a, b: Relu()(a), (x, weight)))
    graph = builder.build()
    after, notes = choose_algorithms(graph, Trial(StructuralCompiler()), 4)
    verify(after)
    assert len(notes) == 1 and "winograd_conv" in to_text(after)


def test_tiles_that_do_not_exist_are_refused() -> None:
    with pytest.raises(GraphError, match="no tiles of 3"):
        Options(winograd=3)


def test_the_model_counts_ragged_tiles() -> None:
    whole, ragged = (Maps(8, 64, 64, size, size) for size in (12, 13))
    assert ragged.winograd(4, False) / ragged.direct(False) > 1.3 * (
        whole.winograd(4, False) / whole.direct(False)
    )
