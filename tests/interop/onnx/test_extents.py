"""ONNX models as programs for many extents: shapes that nodes compute stay expressions."""

from itertools import chain
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
runtime = pytest.importorskip("onnxruntime", reason="needs ONNX Runtime to compare with")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from tests.interop.onnx import models  # noqa: E402

import treadle as mge  # noqa: E402
from treadle import jit  # noqa: E402
from treadle.engine.extents import plans  # noqa: E402
from treadle.interop.onnx import load  # noqa: E402


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made here, whatever earlier runs have left on disk."""
    mge.set_default_device("cpux")
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


def integers(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def outputs(reference: ReferenceEvaluator, x: Any) -> list[Any]:
    """What the reference evaluator gives."""
    return list(reference.run(None, {"x": x}))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers_over_time_of_any_length(kind: str, gates: int, direction: str) -> None:
    """Each length was a program with all turns written out."""
    random, ways, hidden = np.random.default_rng(0), 1 + (direction == "bidirectional"), 5
    sizes = {"w": (gates * hidden, 3), "r": (gates * hidden, hidden), "b": (2 * gates * hidden,)}
    weights = [
        numpy_helper.from_array(random.standard_normal((ways, *s)).astype("f") / 2, name)
        for name, s in sizes.items()
    ]
    made = node(kind, "x w r b", "y", hidden_size=hidden, direction=direction)
    proto = models.model([made], {"x": ("t", "n", 3)}, {"y": ("t", ways, "n", hidden)}, weights)
    session = runtime.InferenceSession(proto.SerializeToString())
    network = load(proto)
    compiled = jit.compile(dynamic={0: {0: "t", 1: "n"}})(lambda x: network(x))
    for shape in ((5, 3, 3), (9, 2, 3), (3, 7, 3), (15, 15, 3)):
        x = random.standard_normal(shape).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(compiled(mge.tensor(x)).numpy(), expected, atol=1e-5)
    ((family,),) = compiled._captures.families.values()
    assert not family.alone and not family.captured.pins and len(family.regimes) == 1


def check(proto: Any, axes: dict[int, str], shapes: list[tuple[int, ...]]) -> Any:
    """One capture and one plan serve all shapes, and give what the reference evaluator does."""
    network, reference = load(proto), ReferenceEvaluator(proto)
    compiled = jit.compile(dynamic={0: axes})(lambda x: network(x))
    for shape in shapes:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        expected = outputs(reference, x)[0]
        found = compiled(mge.tensor(x)).numpy()
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    ((family,),) = compiled._captures.families.values()
    assert family.alone == ""
    assert len(family.regimes) == 1
    return family


def test_a_shape_that_nodes_compute_serves_all_lengths() -> None:
    # [n, l, 12] -> heads [n, l, 3, 4] -> [n, 3, l, 4] -> products -> [n, l, 12]
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "n", axis=0),
        node("Gather", "shape one", "l", axis=0),
        node("Unsqueeze", "n zeros", "n1"),
        node("Unsqueeze", "l zeros", "l1"),
        node("Concat", "n1 l1 heads", "apart", axis=0),
        node("Reshape", "x apart", "split"),
        node("Transpose", "split", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "split", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "q k", "scores"),
        node("Softmax", "scores", "p", axis=-1),
        node("MatMul", "p q", "seen"),
        node("Transpose", "seen", "back", perm=[0, 2, 1, 3]),
        node("Mul", "heads0 heads1", "width"),
        node("Concat", "n1 l1 width", "together", axis=0),
        node("Reshape", "back together", "y"),
    ]
    given = [
        numpy_helper.from_array(np.array(0, np.int64), "zero"),
        numpy_helper.from_array(np.array(1, np.int64), "one"),
        integers("zeros", 0),
        integers("heads", 3, 4),
        integers("heads0", 3),
        integers("heads1", 4),
    ]
    proto = models.model(nodes, {"x": ("n", "l", 12)}, {"y": ("y0", "y1", "y2")}, given)
    family = check(proto, {0: "n", 1: "l"}, [(9, 40, 12), (7, 33, 12), (13, 90, 12)])
    assert not family.captured.pins


def test_arithmetic_slices_and_masks_of_extents() -> None:
    # y = x[:, l // 2 :] * 2 + (0, 1, ... ) + ones of that length
    nodes = [
        node("Shape", "x", "shape"),
        node("Slice", "shape a b", "l"),
        node("Div", "l two", "half"),
        node("Slice", "x half ends a", "late"),
        node("Sub", "l half", "rest"),
        node("Squeeze", "rest zeros", "rest0"),
        node("Range", "first rest0 step", "places"),
        node("Cast", "places", "numbers", to=TensorProto.FLOAT),
        node("ConstantOfShape", "rest", "ones", value=numpy_helper.from_array(np.ones(1, "f"))),
        node("Add", "late numbers", "some"),
        node("Add", "some ones", "y"),
    ]
    given = [
        integers("a", 1),
        integers("b", 2),
        integers("two", 2),
        integers("ends", 2**63 - 1),
        integers("zeros", 0),
        numpy_helper.from_array(np.array(0, np.int64), "first"),
        numpy_helper.from_array(np.array(1, np.int64), "step"),
    ]
    proto = models.model(nodes, {"x": (3, "l")}, {"y": ("y0", "y1")}, given)
    check(proto, {1: "l"}, [(3, 40), (3, 33), (3, 90)])


def test_an_extent_as_a_number_of_the_program() -> None:
    nodes = [
        node("Shape", "x", "shape", start=0, end=1),
        node("Cast", "shape", "n", to=TensorProto.FLOAT),
        node("Div", "x n", "y"),
    ]
    proto = models.model(nodes, {"x": ("n", 3)}, {"y": ("y0", "y1")})
    check(proto, {0: "n"}, [(40, 3), (33, 3), (90, 3)])


def test_sizes_of_pictures_that_a_model_resizes_to() -> None:
    nodes = [
        node("Conv", "x w", "c", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Shape", "x", "shape"),
        node("Slice", "shape a b", "plane"),
        node("Shape", "c", "inner"),
        node("Slice", "inner zeros a", "outer"),
        node("Concat", "outer plane", "sizes", axis=0),
        helper.make_node(
            "Resize",
            ["c", "", "", "sizes"],
            ["y"],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
    ]
    given = [
        models.array("w", 4, 3, 3, 3),
        integers("a", 2),
        integers("b", 4),
        integers("zeros", 0),
    ]
    proto = models.model(nodes, {"x": (1, 3, "h", "w")}, {"y": ("y0", "y1", "y2", "y3")}, given)
    check(proto, {2: "h", 3: "w"}, [(1, 3, 48, 64), (1, 3, 50, 33), (1, 3, 90, 17)])


@pytest.mark.parametrize("height", [6, 24])
def test_a_convolution_of_planes_whose_height_is_a_number(height: int) -> None:
    # The table of positions has an axis of a symbolic extent below one of numbers.
    nodes = [
        node("Conv", "x w", "c", strides=[2, 1], pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Conv", "r v", "y", pads=[1, 1, 1, 1]),
    ]
    given = [models.array("w", 8, 3, 3, 3), models.array("v", 8, 8, 3, 3, seed=1)]
    proto = models.model(nodes, {"x": (1, 3, height, "w")}, {"y": ("y0", "y1", "y2", "y3")}, given)
    check(proto, {3: "w"}, [(1, 3, height, n) for n in (40, 33, 90)])


def test_a_softmax_over_axes_that_might_be_empty() -> None:
    """A softmax of nothing is nothing; the largest number in it needs one: a guard."""
    nodes = [
        node("MaxPool", "x", "some", kernel_shape=[1, 1], strides=[16, 1]),
        node("AveragePool", "some", "p", kernel_shape=[3, 2], strides=[3, 2]),
        node("Reshape", "p flat", "r"),
        node("Softmax", "r", "y", axis=-1),
    ]
    given = [integers("flat", 0, 0, -1)]
    proto = models.model(nodes, {"x": (1, 3, "h", "w")}, {"y": ("y0", "y1", "y2")}, given)
    check(proto, {2: "h", 3: "w"}, [(1, 3, 40, 64), (1, 3, 96, 33), (1, 3, 120, 17)])


@pytest.mark.parametrize(
    ("kernel", "strides", "group"), [(3, [1, 1], 1), (3, [2, 1], 1), (1, [1, 1], 1), (3, [1, 1], 8)]
)
def test_convolutions_of_bytes(kernel: int, strides: list[int], group: int) -> None:
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("ConvInteger", "q w zero", "c", strides=strides, group=group, dilations=[1, 1]),
        node("Cast", "c", "y", to=TensorProto.FLOAT),
    ]
    rng = np.random.default_rng(0)
    weight = rng.integers(-128, 128, (16, 8 // group, kernel, kernel)).astype(np.int8)
    given = [
        numpy_helper.from_array(np.float32(0.02), "scale"),
        numpy_helper.from_array(np.uint8(128), "zero"),
        numpy_helper.from_array(weight, "w"),
    ]
    proto = models.model(nodes, {"x": (1, 8, "h", "w_")}, {"y": ("y0", "y1", "y2", "y3")}, given)
    check(proto, {2: "h", 3: "w_"}, [(1, 8, 40, 64), (1, 8, 50, 33), (1, 8, 90, 17)])


def test_products_of_bytes_by_columns_of_any_number() -> None:
    """Terms of a column lie as many elements apart as there are columns."""
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("MatMulInteger", "w q", "c"),
        node("Cast", "c", "y", to=TensorProto.FLOAT),
    ]
    given = [
        numpy_helper.from_array(np.float32(0.02), "scale"),
        numpy_helper.from_array(np.int8(0), "zero"),
        numpy_helper.from_array(np.random.default_rng(0).integers(0, 255, (20, 37), np.uint8), "w"),
    ]
    proto = models.model(nodes, {"x": (37, "n")}, {"y": ("y0", "y1")}, given)
    check(proto, {1: "n"}, [(37, 40), (37, 33), (37, 90)])


def test_products_of_bytes_over_terms_of_any_number() -> None:
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("Transpose", "q", "t", perm=[1, 0]),
        node("MatMulInteger", "t q", "c"),
        node("Cast", "c", "y", to=TensorProto.FLOAT),
    ]
    given = [
        numpy_helper.from_array(np.float32(0.02), "scale"),
        numpy_helper.from_array(np.int8(0), "zero"),
    ]
    proto = models.model(nodes, {"x": ("n", 24)}, {"y": ("y0", "y1")}, given)
    check(proto, {0: "n"}, [(40, 24), (33, 24), (90, 24)])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_over_any_number_of_sequences(kind: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    nodes = [node(kind, "x w r", "y", hidden_size=5)]
    given = [models.array("w", 1, gates * 5, 6), models.array("r", 1, gates * 5, 5, seed=1)]
    proto = models.model(nodes, {"x": (3, "n", 6)}, {"y": ("y0", "y1", "y2", "y3")}, given)
    family = check(proto, {1: "n"}, [(3, 40, 6), (3, 33, 6), (3, 90, 6)])
    assert not family.captured.pins


def test_padding_that_keeps_planes_has_a_program_for_each_remainder() -> None:
    nodes = [node("Conv", "x w", "y", strides=[2], auto_pad="SAME_UPPER")]
    proto = models.model(
        nodes, {"x": (1, 3, "l")}, {"y": ("y0", "y1", "y2")}, [models.array("w", 4, 3, 3)]
    )
    network, reference = load(proto), ReferenceEvaluator(proto)
    compiled = jit.compile(dynamic={0: {2: "l"}})(lambda x: network(x))
    for length in (40, 33, 90, 41, 64, 127):
        x = np.random.default_rng(length).standard_normal((1, 3, length)).astype(np.float32)
        expected = outputs(reference, x)[0]
        np.testing.assert_allclose(compiled(mge.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(next(iter(compiled._captures.families.values()))) == 2


def test_a_compiled_model_has_open_axes_for_symbols_from_the_second_shape_on() -> None:
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1]),
        node("Shape", "c", "shape"),
        node("Slice", "shape zeros one", "n"),
        node("Concat", "n rest", "flat", axis=0),
        node("Reshape", "c flat", "y"),
    ]
    given = [models.array("w", 4, 3, 3)]
    given += [integers("zeros", 0), integers("one", 1), integers("rest", -1)]
    proto = models.model(nodes, {"x": ("batch", 3, "length")}, {"y": ("y0", "y1")}, given)
    network, reference = load(proto), ReferenceEvaluator(proto)
    assert network.open_axes == {0: {0: "batch", 2: "length"}}
    compiled = jit.compile(network)
    for shape in ((3, 3, 20), (2, 3, 40), (5, 3, 50), (9, 3, 90), (3, 3, 20), (1, 3, 40)):
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        (expected,) = outputs(reference, x)
        np.testing.assert_allclose(compiled(mge.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    # Symbols for batches of two and more, and for those of one.
    many, one = compiled._captures.families.values()
    assert [len(many), len(one), len(many[0].regimes)] == [1, 1, 1]


def test_names_that_a_call_contradicts_are_no_symbols() -> None:
    nodes = [node("Add", "x z", "y")]
    proto = models.model(nodes, {"x": ("n", 3), "z": ("n", 3)}, {"y": ("n", 3)})
    compiled = jit.compile(load(proto))
    for rows in (2, 3, 4):
        x = np.ones((rows, 3), np.float32)
        found = compiled(mge.tensor(x), mge.tensor(x[:1])).numpy()
        np.testing.assert_array_equal(found, x + x[:1])
    # Rows of x alone may be a symbol, of its own name.
    families = chain.from_iterable(compiled._captures.families.values())
    extents = {d for f in families for v in f.captured.graph.inputs for d in v.type.shape}
    assert "n" not in map(str, extents)


def test_a_shape_may_be_a_result() -> None:
    proto = models.model(
        [node("Shape", "x", "y")], {"x": ("n", "l")}, {"y": (2,)}, dtype=TensorProto.FLOAT
    )
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    compiled = jit.compile(load(proto))
    for shape in ((2, 3), (4, 5), (7, 8)):
        found = compiled(mge.tensor(np.zeros(shape, np.float32)))
        assert found.numpy().tolist() == list(shape)
