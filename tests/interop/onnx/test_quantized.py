"""Models that ONNX Runtime's tools quantized: the same integers, computed on integers."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
ort = pytest.importorskip("onnxruntime", reason="needs onnxruntime, which the models are held to")
tools: Any = pytest.importorskip("onnxruntime.quantization")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tests.interop.onnx import models  # noqa: E402

import treadle as mge  # noqa: E402
from treadle import jit  # noqa: E402
from treadle.engine.pipeline import Stages  # noqa: E402
from treadle.graph.ir import Graph, regions_of  # noqa: E402
from treadle.inspect import Inspected  # noqa: E402
from treadle.interop.onnx import load  # noqa: E402
from treadle.jit.capture import capture  # noqa: E402
from treadle.jit.dump import Ends, argument_names, model_of  # noqa: E402

SHAPE = (2, 3, 16, 16)
FORMATS = {f.name: f for f in (tools.QuantFormat.QDQ, tools.QuantFormat.QOperator)}
KINDS = {k.name: k for k in (tools.QuantType.QUInt8, tools.QuantType.QInt8)}


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    mge.set_default_device("cpux")


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], name=output, **attributes)


def network() -> Any:
    """A residual network with what models of images consist of."""
    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[1] * 4),
        node("Relu", "c1", "r1"),
        node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p1 w2 b2", "c2", pads=[1] * 4),
        node("Add", "c2 p1", "a"),
        node("Relu", "a", "r2"),
        node("Conv", "r2 w3", "c3", pads=[1] * 4, group=16),
        node("Concat", "c3 r2", "cc", axis=1),
        node("Resize", "cc none scales", "big", mode="nearest"),
        node("AveragePool", "big", "ap", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "ap", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w4 b4", "fc", transB=1),
        node("MatMul", "fc w5", "y"),
    ]
    nodes[8].input[1] = ""
    weights = [
        models.array("w1", 16, 3, 3, 3, seed=1),
        models.array("b1", 16, seed=2),
        models.array("w2", 16, 16, 3, 3, seed=3),
        models.array("b2", 16, seed=4),
        models.array("w3", 16, 1, 3, 3, seed=5),
        models.array("w4", 10, 32, seed=6),
        models.array("b4", 10, seed=7),
        models.array("w5", 10, 6, seed=8),
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
    ]
    return models.model(nodes, {"x": SHAPE}, {"y": (2, 6)}, weights, opset=17)


class Images:
    """Calibration data."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.left = [{"x": rng.standard_normal(SHAPE, np.float32)} for _ in range(3)]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None


def quantized(folder: Path, style: str, kind: str) -> Path:
    source, made = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(network(), source)
    logging.disable(logging.WARNING)
    tools.quantize_static(
        source,
        made,
        Images(),
        quant_format=FORMATS[style],
        activation_type=KINDS[kind],
        weight_type=tools.QuantType.QInt8,
        per_channel=True,
        reduce_range=True,  # ONNX Runtime's sums overflow 16 bits without it
    )
    logging.disable(logging.NOTSET)
    return made


def graph_of(path: Path, x: Any) -> Graph:
    module = load(path)
    captured = capture(module, (mge.tensor(x),), {}, "model")
    names = Ends(module.input_names, module.output_names)
    return model_of("model", captured, argument_names([mge.tensor(x)], {}), names).graph


def ops_of(graph: Graph) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in graph.nodes:
        found[each.op.name] += 1
        for body in regions_of(each.op):
            found += ops_of(body)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", FORMATS)
def test_a_quantized_network_runs_on_integers(tmp_path: Path, style: str, kind: str) -> None:
    path = quantized(tmp_path, style, kind)
    x = np.random.default_rng(9).standard_normal(SHAPE, np.float32)
    (wanted,) = ort.InferenceSession(path).run(None, {"x": x})
    stages = Inspected(Stages(graph_of(path, x)))
    (found,) = stages.compile().run([x])
    step = np.diff(np.unique(wanted)).min()
    # Averages may round to another level; all later ones may differ by what that makes.
    np.testing.assert_allclose(found, wanted, atol=2.01 * step)
    ops = ops_of(stages.lower())
    assert ops["int_conv"] == 3 and ops["int_matmul"] == 2
    assert not ops["conv"] and not ops["matmul"]


def test_weights_stay_bytes_and_programs_of_modules_run_on_integers(tmp_path: Path) -> None:
    module = load(quantized(tmp_path, "QDQ", "QInt8"))
    assert [b.dtype for _, b in module.named_buffers()] == [np.int8] * 5
    x = mge.tensor(np.random.default_rng(9).standard_normal(SHAPE, np.float32))
    program = jit.compile(lambda image: module(image))
    np.testing.assert_allclose(program(x).numpy(), module(x).numpy(), atol=0.6)
    ops = {n.op.name for n in program.graph(x).nodes}
    assert "conv" in ops  # as it was captured
    assert "int_conv" in program.explain(x)


def test_products_of_dynamically_quantized_numbers() -> None:
    """Zero points that the program computes, and weights with zero points of their own."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(rng.integers(0, 256, (40, 7)).astype(np.uint8), "w"),
        numpy_helper.from_array(np.array(131, np.uint8), "wz"),
    ]
    proto = models.model(nodes, {"x": (5, 40)}, {"y": (5, 7)}, weights)
    x = rng.standard_normal((5, 40)).astype(np.float32)
    (wanted,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    module = load(proto)
    for run in (module, jit.compile(lambda data: module(data))):
        np.testing.assert_allclose(run(mge.tensor(x)).numpy(), wanted, rtol=1e-5, atol=1e-3)
