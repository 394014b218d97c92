"""ONNX models as modules: values, parameters, compiling, training, users' converters."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")

from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from tests.interop.onnx import models  # noqa: E402

import treadle as mge  # noqa: E402
import treadle.functional as F  # noqa: E402
from treadle import jit  # noqa: E402
from treadle.autodiff import GradManager  # noqa: E402
from treadle.base.errors import LoadError, UnsupportedOp  # noqa: E402
from treadle.interop.onnx import converts, load  # noqa: E402
from treadle.optimizer import SGD  # noqa: E402


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    mge.set_default_device("cpux")


def sample(*shape: int) -> Any:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def test_values_are_those_of_the_reference_evaluator() -> None:
    proto, x = models.small_cnn(), sample(2, 3, 8, 8)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(load(proto)(x).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_compiled_call_computes_the_same_and_knows_the_nodes() -> None:
    network, x = load(models.small_cnn()), mge.tensor(sample(2, 3, 8, 8))
    step = jit.compile(lambda data: network(data))
    np.testing.assert_allclose(step(x).numpy(), network(x).numpy(), rtol=1e-5, atol=1e-6)
    assert "stem" in step.explain(full=True)


def test_parameters_have_the_names_of_the_model_and_learn() -> None:
    network, x = load(models.small_cnn()), mge.tensor(sample(4, 3, 8, 8))
    names = dict(network.named_parameters())
    assert {"conv_weight", "conv_bias", "fc_weight", "fc_bias"} <= set(names)
    labels = mge.tensor([0, 1, 2, 3], dtype="int32")
    gm, optimizer = GradManager().attach(network.parameters()), SGD(network.parameters(), lr=0.05)

    @jit.compile
    def step(data: Any, wanted: Any) -> Any:
        with gm:
            loss = F.nn.cross_entropy(network(data), wanted)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    losses = [step(x, labels).item() for _ in range(8)]
    assert losses[-1] < losses[0]


def test_inputs_go_by_name_too_and_mistakes_are_named() -> None:
    network, x = load(models.small_cnn()), sample(1, 3, 8, 8)
    np.testing.assert_array_equal(network(x=x).numpy(), network(x).numpy())
    with pytest.raises(LoadError, match="inputs are missing: x"):
        network()
    with pytest.raises(LoadError, match="no input y"):
        network(x, y=x)


def test_an_operator_without_converter_names_its_node_and_users_register_theirs() -> None:
    node = helper.make_node("Twice", ["x"], ["y"], name="mine", domain="test.ops")
    proto = models.model([node], {"x": (3,)}, {"y": (3,)})
    proto.opset_import.append(helper.make_opsetid("test.ops", 1))
    with pytest.raises(UnsupportedOp, match=r"Twice.*'mine'"):
        load(proto)(sample(3))

    @converts("Twice", domain="test.ops")
    def _twice(node: Any, x: Any) -> Any:
        return x * 2

    np.testing.assert_array_equal(load(proto)(sample(3)).numpy(), sample(3) * 2)


def test_models_before_version_7_align_operands_at_an_axis() -> None:
    shapes: dict[str, tuple[int | str, ...]] = {"x": (2, 3, 4), "y": (3,)}
    nodes = [helper.make_node("Add", ["x", "y"], ["z"], axis=1, broadcast=1)]
    x, y = sample(2, 3, 4), sample(3)
    found = load(models.model(nodes, shapes, {"z": (2, 3, 4)}, opset=6))(x, y)
    np.testing.assert_allclose(found.numpy(), x + y[:, None], rtol=1e-6)
    nodes = [helper.make_node("PRelu", ["x", "y"], ["z"])]
    found = load(models.model(nodes, shapes, {"z": (2, 3, 4)}, opset=6))(x, y)
    np.testing.assert_allclose(found.numpy(), np.where(x < 0, x * y[:, None], x), rtol=1e-6)


def test_a_shape_that_data_decide_is_refused_while_compiling() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["target"], to=onnx.TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["target"], ["y"]),
    ]
    network = load(models.model(nodes, {"x": (2,)}, {"y": (None, None)}))
    given = mge.tensor([2.0, 3.0])
    assert network(given).shape == (2, 3)
    step = jit.compile(lambda x: network(x))
    with pytest.raises(UnsupportedOp, match=r"input 0 must be known"):
        step(given)


def test_integers_of_a_quantized_product_are_exact() -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(0, 256, (4, 70), dtype=np.uint8)
    b = rng.integers(0, 256, (70, 5), dtype=np.uint8)
    zero = {"za": np.array(13, np.uint8), "zb": np.array(200, np.uint8)}
    node = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info("a", onnx.TensorProto.UINT8, a.shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, (4, 5))],
        [onnx.numpy_helper.from_array(v, n) for n, v in {"b": b, **zero}.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    expected = (a.astype(np.int64) - 13) @ (b.astype(np.int64) - 200)
    np.testing.assert_array_equal(load(proto)(a).numpy(), expected)


def integers(op: str, *arrays: Any, **attributes: Any) -> tuple[Any, Any]:
    """What a model of one operator gives for integers, as it is and compiled."""
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(op, names, ["y"], **attributes)
    kinds = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in arrays]
    given = [
        helper.make_tensor_value_info(n, k, a.shape)
        for n, k, a in zip(names, kinds, arrays, strict=True)
    ]
    graph = helper.make_graph(
        [node], "test", given, [helper.make_tensor_value_info("y", kinds[0], arrays[0].shape)]
    )
    network = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    tensors = [mge.tensor(a, dtype=a.dtype) for a in arrays]
    return network(*tensors).numpy(), jit.compile(lambda *xs: network(*xs))(*tensors).numpy()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_stay_integers_and_exact(dtype: str) -> None:
    big = 2**40 if dtype == "int64" else 2**20
    x = np.array([[big + 1, 3], [-7, 5]], dtype)
    base = np.array([7, 2, -2, -1, 1, 0, 3], dtype)
    power = np.array([19, -1, -1, -3, -2, 0, 5], dtype)
    exact = np.array([7**19 if dtype == "int64" else 7**19 % 2**32 - 2**32 * (7**19 >> 31 & 1)])
    for got in integers("Pow", base, power):
        assert got.dtype == dtype and got.tolist() == [exact.item(), 0, 0, -1, 1, 1, 243]
    halves = np.array([2.0, 0.5, -1.0, 3.0, 1.5, 2.5, 5.0], "float32")
    for got in integers("Pow", np.abs(base) + 3, halves):
        assert got.tolist() == [100, 2, 0, 64, 8, 15, 7776]
    for got in integers("MatMul", x, x):
        np.testing.assert_array_equal(got, x @ x)
        assert got.dtype == dtype
    for got in integers("Gemm", x, x, x, alpha=3.0, beta=2.0, transA=1):
        np.testing.assert_array_equal(got, 3 * (x.T @ x) + 2 * x)
