"""Precision of graphs: what runs in which type, what is kept, how near results stay."""

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.amp.precision import precision
from treadle.base import dtype as dt
from treadle.base.errors import GraphError
from treadle.base.types import TensorType
from treadle.engine.package.models import Model, Runner
from treadle.engine.pipeline import Stages
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.ir import Graph, regions_of
from treadle.graph.verify import verify
from treadle.inspect import Inspected
from treadle.jit.capture import capture
from treadle.jit.dump import Ends, argument_names, model_of
from treadle.ops.constant import Constant
from treadle.ops.elementwise import Cast
from treadle.ops.matmul import Matmul
from treadle.quantization import min_max_fakequant_qconfig, quantize_qat
from treadle.quantization.precision import MODES, calibration_batches, with_precision

SHAPE = (4, 3, 12, 12)
TYPES = {"mixed-bfloat16": dt.bfloat16, "mixed-float16": dt.float16}


class Network(M.Module):
    """Two residual blocks, one with a convolution beside, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = M.Conv2d(3, 16, 3, padding=1)
        self.norm = M.BatchNorm2d(16)
        self.first = M.Conv2d(16, 16, 3, padding=1, bias=False)
        self.second = M.Conv2d(16, 24, 3, padding=1)
        self.beside = M.Conv2d(16, 24, 1)
        self.layer = M.LayerNorm(24)
        self.head = M.Linear(24, 10)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.stem(x)))
        x = F.max_pool2d(x + F.relu(self.first(x)), 2)
        x = F.relu(self.second(x) + self.beside(x))
        return F.softmax(self.head(self.layer(F.mean(x, (2, 3)))), 1)


def images(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def model_from(function: Any, *arrays: Any) -> Model:
    tensors = tuple(mge.tensor(a, dtype=a.dtype) for a in arrays)
    captured = capture(function, tensors, {}, "network")
    return model_of("network", captured, argument_names(tensors, {}), Ends())


@pytest.fixture(scope="module")
def model() -> Model:
    mge.random.seed(3)
    network = Network()
    network.eval()
    return model_from(network, images(0))


def similarity(graph: Graph, model: Model) -> float:
    """The least cosine of scores to those of the model as it was."""
    verify(graph)
    assert graph.input_types == model.graph.input_types
    assert graph.output_types == model.graph.output_types
    (found,), (wanted,) = Runner(graph)([images(5)]), Runner(model.graph)([images(5)])
    # Scores of one example sum to 1: what counts is how they differ from example to example.
    found, wanted = (x - x.mean(1, keepdims=True) for x in (found, wanted))
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    return float(((found * wanted).sum(1) / norms).min())


def types_of(graph: Graph, op: str) -> set[dt.DType]:
    return {v.type.dtype for n in graph.nodes if n.op.name == op for v in n.inputs}


@pytest.mark.parametrize("mode", TYPES)
def test_mixed_precision_follows_the_lists_of_amp(model: Model, mode: str) -> None:
    graph, report = with_precision(model.graph, mode)
    assert similarity(graph, model) > 0.999
    low, rule = TYPES[mode], precision(TYPES[mode], "float32")
    for node in graph.nodes:
        for i, value in enumerate(node.inputs):
            wanted = rule.wanted(node.op, i)
            assert wanted in (None, value.type.dtype), node
    assert types_of(graph, "conv") == types_of(graph, "relu") == {low}
    assert types_of(graph, "layer_norm") == {dt.float32}
    assert report.ops["conv", low.name] == 4
    before, after = report.weight_bytes
    assert after < 0.6 * before
    assert low.name in str(report) and report.as_json()["mode"] == mode


def test_what_is_kept_stays_as_it_was(model: Model) -> None:
    keep = ["mat*", "max_pool"]
    graph, report = with_precision(model.graph, "mixed-bfloat16", keep=keep, allow=["layer_norm"])
    assert types_of(graph, "matmul") == types_of(graph, "max_pool") == {dt.float32}
    assert types_of(graph, "layer_norm") == types_of(graph, "conv") == {dt.bfloat16}
    assert report.kept == ["matmul", "max_pool"]
    similarity(graph, model)


def test_nodes_are_kept_by_the_name_of_a_value() -> None:
    builder = GraphBuilder("named")
    x = builder.input(TensorType(dt.float32, (2, 2)), "x")
    first = builder.apply(Matmul(), (x, x), ("blocks.0.fc",))[0]
    second = builder.apply(Matmul(), (first, x), ("blocks.1.fc",))[0]
    builder.output(second)
    graph, report = with_precision(builder.build(), "mixed-float16", keep=["blocks.1.*"])
    kinds = [n.inputs[0].type.dtype for n in graph.nodes if isinstance(n.op, Matmul)]
    assert kinds == [dt.float16, dt.float32]
    assert report.kept == ["matmul blocks.1.fc"]


@pytest.mark.parametrize("mode", ["bfloat16", "float16"])
def test_weights_alone_are_stored_in_few_bits(model: Model, mode: str) -> None:
    graph, report = with_precision(model.graph, mode, keep=["layer_norm"])
    assert similarity(graph, model) > 0.999
    assert types_of(graph, "conv") == types_of(graph, "matmul") == {dt.float32}
    stored = {n.output.type.dtype for n in graph.nodes if isinstance(n.op, Constant)}
    assert dt.as_dtype(mode) in stored
    assert report.weight_bytes[1] < 0.55 * report.weight_bytes[0]


def test_float32_takes_the_place_of_16_bits() -> None:
    def half(x: Any) -> Any:
        return F.softmax((x @ x.T).astype("float16") + 1, 1)

    x = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float16)
    given = model_from(half, x).graph
    graph, _ = with_precision(given, "float32")
    assert graph.input_types == given.input_types and graph.output_types == given.output_types
    inside = {v.type.dtype for n in graph.nodes if not isinstance(n.op, Cast) for v in n.inputs}
    assert inside == {dt.float32}
    np.testing.assert_allclose(Runner(graph)([x])[0], Runner(given)([x])[0], atol=2e-2)


def test_control_flow_keeps_its_types() -> None:
    def body(p: Any, x: Any) -> Any:
        y = Matmul()(x, x)
        return p.builder.cond(p, lambda v: v * 2.0, lambda v: v - 1.0, (y,))[0]

    given = trace_body(body, [TensorType(dt.bool_, ()), TensorType(dt.float32, (3, 3))])
    graph, _ = with_precision(given, "mixed-bfloat16")
    verify(graph)
    (branch,) = [n for n in graph.nodes if regions_of(n.op)]
    assert branch.inputs[1].type.dtype is dt.float32
    assert types_of(graph, "matmul") == {dt.bfloat16}


def test_integers_with_ranges_found_on_data(model: Model) -> None:
    batches = [[images(seed)] for seed in range(10, 14)]
    graph, report = with_precision(model.graph, "int8", calibration=batches)
    assert similarity(graph, model) > 0.98
    lowered = Stages(graph).lowered.graph
    inside = [n.op.name for g in lowered.nodes for body in regions_of(g.op) for n in body.nodes]
    ops = [*inside, *(n.op.name for n in lowered.nodes)]
    assert ops.count("int_conv") == 4 and ops.count("int_matmul") == 1
    assert "conv" not in ops and "matmul" not in ops
    assert report.ops["conv", "int8"] == 4
    assert report.weight_bytes[1] < 0.4 * report.weight_bytes[0]


def test_kept_products_stay_in_float(model: Model) -> None:
    graph, report = with_precision(model.graph, "int8", keep=["matmul"], calibration=[[images(1)]])
    assert report.ops["matmul", "float32"] == 1 and report.ops["conv", "int8"] == 4
    similarity(graph, model)


def test_a_network_that_was_trained_with_rounding_is_dumped_onto_integers() -> None:
    mge.random.seed(0)
    network = M.Sequential(
        M.QuantStub(), M.ConvRelu2d(3, 8, 3, padding=1), M.Conv2d(8, 4, 3), M.DequantStub()
    )
    trained = quantize_qat(network, qconfig=min_max_fakequant_qconfig)
    trained(mge.tensor(images(0)))
    trained.eval()
    dumped = model_from(trained, images(0)).graph
    assert "fake_quantize" in {n.op.name for n in dumped.nodes}
    program = Inspected(Stages(dumped))
    (found,) = program.compile().run([images(0)])
    wanted = trained(mge.tensor(images(0))).numpy()
    np.testing.assert_allclose(found, wanted, atol=1.01 * np.diff(np.unique(wanted)).min())
    inside = [n.op.name for g in program.lower().nodes for b in regions_of(g.op) for n in b.nodes]
    assert inside.count("int_conv") == 2 and "conv" not in inside


def test_mistakes_are_named(model: Model) -> None:
    with pytest.raises(GraphError, match=r"no mode 'int4'.*\n.*mixed-bfloat16"):
        with_precision(model.graph, "int4")
    with pytest.raises(GraphError, match="'nothing', which is not an op, node or value"):
        with_precision(model.graph, "float16", keep=["nothing"])
    with pytest.raises(GraphError, match="no op relu7"):
        with_precision(model.graph, "mixed-float16", allow=["relu7"])
    with pytest.raises(GraphError, match=r"(?s)calibration data.*quantize the module"):
        with_precision(model.graph, "int8")
    assert set(MODES) >= set(TYPES)


def test_files_of_examples_become_batches(model: Model) -> None:
    many = np.concatenate([images(0), images(1), images(2)[:3]])
    batches = calibration_batches(model.graph, ["x"], {"x": many})
    assert [b[0].shape for b in batches] == [SHAPE] * 2  # what fills no batch is left out
    np.testing.assert_array_equal(batches[1][0], images(1))
    assert len(calibration_batches(model.graph, ["x"], {"x": np.stack([images(0)] * 3)})) == 3
    with pytest.raises(GraphError, match="no array for input x"):
        calibration_batches(model.graph, ["x"], {"y": many})
    ranges = {"x": [(2, 8), (3, 3), (8, 20), (12, 12)]}
    for count, sizes in ((8, [8]), (11, [8, 3]), (9, [8])):  # a single one is below the range
        found = calibration_batches(model.graph, ["x"], {"x": many[:count]}, ranges)
        assert [len(batch) for (batch,) in found] == sizes
    with pytest.raises(GraphError, match="does not fit"):
        calibration_batches(model.graph, ["x"], {"x": many[:, :2]})
    with pytest.raises(GraphError, match="input x holds NaN"):
        calibration_batches(model.graph, ["x"], {"x": many * np.float32(np.nan)})
