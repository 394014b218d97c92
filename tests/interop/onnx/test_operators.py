"""Operators that were refused or left programs: eager and compiled, against ONNX Runtime."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime")

from onnx import helper, numpy_helper  # noqa: E402
from tests.interop.onnx import models  # noqa: E402
from tests.interop.onnx.fuzz.growing import by_runtime, single  # noqa: E402
from tests.interop.onnx.fuzz.judging import by_treadle  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.base.errors import IndexRangeError, ShapeError, TreadleError, UnsupportedOp  # noqa: E402
from treadle.interop.onnx import load  # noqa: E402

Array = np.ndarray[Any, Any]
RUNTIME = "com.microsoft"


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    mge.set_default_device("cpux")


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def check(
    op: str,
    *given: Array | None,
    outputs: int = 1,
    domain: str = "",
    known: tuple[int, ...] = (),
    atol: float = 2e-6,
    opset: int = 21,
    **attributes: Any,
) -> None:
    """One node gives what ONNX Runtime gives; inputs of numbers in `known` are initializers."""
    inputs = {f"x{i}": np.asarray(a) for i, a in enumerate(given) if a is not None}
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(given)]
    ends = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, ends, domain=domain, **attributes)
    expected = by_runtime(single(node, inputs, opset), inputs)
    made = dict(zip(ends, expected, strict=True))
    fixed = frozenset(f"x{i}" for i in known)
    model = single(node, inputs, opset, made, fixed)
    rest = {n: a for n, a in inputs.items() if n not in fixed}
    for how in ("eager", "compiled"):
        for mine, other in zip(by_treadle(model, rest, how), expected, strict=True):
            assert mine.dtype == other.dtype
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=atol, err_msg=f"{op} {how}")


# -- scatters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_scatters_of_any_reduction(how: str, dtype: str) -> None:
    """Of truth values a sum is "or", a product "and"; ONNX Runtime takes these by row alone."""
    if dtype == "bool" and how in ("max", "min"):
        pytest.skip("ONNX Runtime has neither for truth values")
    x = (numbers(4, 5) * 4).astype(dtype)
    index = np.array([[0, 2, -1], [3, 3, 1]])
    if how == "none":
        index = np.array([[0, 2, -1], [3, 1, 2]])
    if dtype != "bool" or how == "none":
        check("ScatterElements", x, index, (numbers(2, 3) * 4).astype(dtype), axis=1, reduction=how)
    places = np.array([[0], [2]]) if how == "none" else np.array([[2], [0], [2], [-2]])
    updates = (numbers(len(places), 5) * 4).astype(dtype)
    check("ScatterND", x, places, updates, reduction=how)
    pairs = np.array([[1, 2], [0, 0]]) if how == "none" else np.array([[1, 2], [0, 0], [1, -3]])
    check("ScatterND", x, pairs, updates[0, : len(pairs)], reduction=how)


@pytest.mark.parametrize("index", [-7, -5, -4, 3])
@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("Gather", (2, 2, 3)),
        ("GatherElements", (2, 2)),
        ("GatherND", (2,)),
        ("ScatterElements", (3, 3)),
    ],
)
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_an_index_counts_from_the_end_once(
    op: str, shape: tuple[int, ...], index: int, how: str
) -> None:
    x, places = numbers(3, 3), np.array([[0, index], [1, 0]])
    inputs = {"x": x, "i": places}
    if op == "ScatterElements":
        inputs["u"] = numbers(2, 2)
    node = helper.make_node(op, list(inputs), ["y"])
    model = single(node, inputs, 21, {"y": numbers(*shape)})
    with pytest.raises(IndexRangeError, match=f"index {index} is out of range"):
        by_treadle(model, inputs, how)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_columns_of_scatters_do_not_run_into_the_next_row(reduction: str, how: str) -> None:
    inputs = {"x": numbers(3, 4), "i": np.array([[0, 1], [0, 5]]), "u": numbers(2)}
    node = helper.make_node("ScatterND", list(inputs), ["y"], reduction=reduction)
    with pytest.raises(IndexRangeError, match="index 5 is out of range"):
        by_treadle(single(node, inputs, 21, {"y": inputs["x"]}), inputs, how)


@pytest.mark.parametrize(
    ("op", "more", "attributes"),
    [
        ("Gather", {"i": np.array([0])}, {"axis": 2}),
        ("GatherElements", {"i": np.array([[0]])}, {"axis": -3}),
        ("Softmax", {}, {"axis": 7}),
        ("Hardmax", {}, {"axis": -3}),
        ("ArgMax", {}, {"axis": 2}),
        ("ReduceSum", {"i": np.array([2])}, {}),
        ("CumSum", {"i": np.array(5)}, {}),
        ("Squeeze", {"i": np.array([2])}, {}),
        ("Unsqueeze", {"i": np.array([4])}, {}),
        ("Concat", {"i": numbers(1, 4)}, {"axis": 2}),
        ("LayerNormalization", {"i": numbers(4)}, {"axis": 2}),
        ("Pad", {"i": np.array([1, 1]), "v": np.float32(0), "a": np.array([2])}, {}),
        ("Expand", {"i": np.array([5])}, {}),
        ("Expand", {"i": np.array([2, 2, 3])}, {}),
        ("MaxPool", {}, {"kernel_shape": [2, 2], "auto_pad": "SAME"}),
    ],
)
def test_axes_shapes_and_names_that_are_none_are_refused(
    op: str, more: dict[str, Array], attributes: dict[str, Any]
) -> None:
    """ONNX Runtime refuses each, and so does its reference; none is taken for a neighbor."""
    shape = (1, 1, 3, 4) if op == "MaxPool" else (1, 4)
    inputs = {"x": numbers(*shape), **{n: np.asarray(a) for n, a in more.items()}}
    node = helper.make_node(op, list(inputs), ["y"], **attributes)
    fixed = frozenset() if op == "Concat" else frozenset(more)
    model = single(node, inputs, 21, {"y": inputs["x"]}, fixed)
    with pytest.raises(TreadleError, match=op):
        by_treadle(model, {n: a for n, a in inputs.items() if n not in fixed}, "eager")


# -- branches ----------------------------------------------------------------------------------


def branching(then: onnx.NodeProto, other: onnx.NodeProto) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(np.float32(3), "k"), models.array("w", 4, 2)]
    shape = (2, "n")
    graphs = [
        helper.make_graph([n], "g", [], [helper.make_tensor_value_info("b", 1, shape)])
        for n in (then, other)
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Less", ["total", "k"], ["test"]),
        helper.make_node(
            "If", ["test"], ["y"], name="gate", then_branch=graphs[0], else_branch=graphs[1]
        ),
    ]
    return models.model(nodes, {"x": (2, "m")}, {"y": shape}, weights)


def test_a_branch_is_taken_at_run_time() -> None:
    made = branching(
        helper.make_node("Mul", ["x", "k"], ["b"]), helper.make_node("Neg", ["x"], ["b"])
    )
    network = load(made)
    program = mge.jit.compile(lambda x: network(x))
    low, high = np.full((2, 3), -1, np.float32), np.full((2, 3), 2, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(program(mge.tensor(low)).numpy(), low * 3)
        np.testing.assert_array_equal(program(mge.tensor(high)).numpy(), -high)


def test_a_branch_that_does_not_fit_is_an_error_only_when_taken() -> None:
    """Exporters guard shapes: silero-vad has a branch per sample rate."""
    made = branching(
        helper.make_node("MatMul", ["x", "w"], ["b"]), helper.make_node("Neg", ["x"], ["b"])
    )
    network = load(made)
    program = mge.jit.compile(lambda x: network(x))
    high, low = np.full((2, 2), 2, np.float32), np.full((2, 2), -2, np.float32)
    np.testing.assert_array_equal(program(mge.tensor(high)).numpy(), -high)
    with pytest.raises(TreadleError):
        program(mge.tensor(low))


def test_branches_of_other_types_are_refused_by_name() -> None:
    made = branching(
        helper.make_node("MatMul", ["x", "w"], ["b"]), helper.make_node("Neg", ["x"], ["b"])
    )
    network = load(made)
    with pytest.raises(UnsupportedOp, match=r"equal|return different.*'gate'"):
        mge.jit.compile(lambda x: network(x))(mge.tensor(np.ones((2, 4), np.float32)))


def test_an_error_of_an_op_names_the_node_and_its_inputs() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    made = models.model([node], {"x": (2, "n")}, {"y": (2, 2)}, [models.array("w", 4, 2)])
    network = load(made)
    for run in (network, mge.jit.compile(lambda x: network(x))):
        with pytest.raises(ShapeError, match=r"onnx MatMul 'fc' of x, w: matmul"):
            run(mge.tensor(np.ones((2, 3), np.float32)))


# -- others ------------------------------------------------------------------------------------


def test_determinants_pools_and_regions() -> None:
    for n in (1, 2, 5):
        check("Det", numbers(3, n, n), atol=1e-5)
    singular = np.array([[[0, 1], [0, 2]], [[0, 1], [1, 0]]], np.float32)
    check("Det", singular)
    check("GlobalLpPool", numbers(2, 3, 4, 5), p=3)
    for op, more in (("MaxPool", {}), ("AveragePool", {"count_include_pad": 1})):
        check(op, numbers(1, 2, 3, 3), kernel_shape=[4, 4], ceil_mode=1, strides=[2, 2], **more)
        check(op, numbers(1, 2, 5, 6), kernel_shape=[3, 2], ceil_mode=1, strides=[2, 3], **more)
    boxes = np.array([[0, 0, 5, 4], [1, 2, 2, 7], [-2, -2, 9, 9]], np.float32)
    for mode in ("avg", "max"):
        for opset in (10, 16):
            check(
                *("RoiAlign", numbers(2, 3, 8, 7), boxes, np.array([0, 1, 1])),
                **{"output_height": 2, "output_width": 3, "sampling_ratio": 2, "mode": mode},
                opset=opset,
            )


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("opset", [10, 16])
def test_regions_with_as_many_samples_as_they_need(mode: str, opset: int) -> None:
    """Inside, small, half outside, turned inside out, outside, and larger than any map."""
    boxes = [[0, 0, 6, 5], [1.3, 2.2, 4.7, 6.9], [0, 0, 0.5, 0.4], [-4, -3, 12, 11], [5, 5, 2, 2]]
    boxes += [[-30, -30, -20, -20], [-500, -500, 700, 700], [6.9, 7.9, 30, 30]]
    images = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    sizes = {"output_height": 2, "output_width": 3, "mode": mode, "spatial_scale": 0.75}
    check(
        "RoiAlign", numbers(3, 4, 9, 8), np.array(boxes, np.float32), images, opset=opset, **sizes
    )


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_regions_without_measure_end(how: str) -> None:
    """A sample per position of 1e9 would take hours; those outside of the map are not visited."""
    boxes = np.array([[-1e9, -1e9, 1e9, 1e9], [np.nan, 0, 1, 1], [0, 0, np.inf, 4]], np.float32)
    given = {"x0": numbers(1, 1, 4, 4), "x1": boxes, "x2": np.zeros(3, np.int64)}
    node = helper.make_node("RoiAlign", list(given), ["y0"])
    model = single(node, given, 16, {"y0": np.zeros((3, 1, 1, 1), np.float32)})
    assert by_treadle(model, given, how)[0].shape == (3, 1, 1, 1)


def test_a_number_to_pad_with_may_be_computed() -> None:
    check("Pad", numbers(2, 3), np.array([1, -1, 0, 2]), np.float32(0.5), known=(1,))


def test_zeros_are_quantized_with_a_scale_of_one() -> None:
    check("DynamicQuantizeLinear", np.zeros((2, 2), np.float32), outputs=3)
    check("DynamicQuantizeLinear", numbers(3, 4), outputs=3)


def test_integer_products_of_vectors() -> None:
    a, b = np.array([1, -7, 100], np.int8), np.array([[3, 4], [250, 9], [0, 200]], np.uint8)
    check("MatMulInteger", a, b, np.int8(3), np.uint8(7))
    check("MatMulInteger", a, b, np.int8(3), known=(0, 1))


# -- ONNX Runtime's own operators --------------------------------------------------------------

X, SKIP, WIDE = numbers(2, 3, 8), numbers(2, 3, 8, seed=1), numbers(8, seed=2)


def test_norms_and_activations() -> None:
    for bias in (None, numbers(8, seed=4)):
        check(
            *("SkipLayerNormalization", X, SKIP, WIDE, numbers(8, seed=3), bias),
            **{"domain": RUNTIME, "epsilon": 1e-5},
        )
        check("SkipSimplifiedLayerNormalization", X, SKIP, WIDE, bias, domain=RUNTIME, epsilon=1e-5)
    for op in ("BiasGelu", "FastGelu"):
        check(op, X, WIDE, domain=RUNTIME)
    check("Gelu", X, domain=RUNTIME)
    check("QuickGelu", X, domain=RUNTIME, alpha=1.3)
    check("FusedMatMul", X, numbers(2, 4, 8), domain=RUNTIME, transB=1, alpha=0.5)
    image, weight = numbers(1, 2, 5, 5), numbers(3, 2, 3, 3)
    check("FusedConv", image, weight, WIDE[:3], domain=RUNTIME, activation="Relu", pads=[1] * 4)
    check(
        *("FusedConv", image, weight, None, numbers(1, 3, 3, 3)),
        **{"domain": RUNTIME, "activation": "Relu"},
    )
    check(
        *("FusedConv", image, weight),
        **{"domain": RUNTIME, "activation": "LeakyRelu", "activation_params": [0.3]},
    )
    check(
        *("FusedGemm", numbers(2, 3), numbers(3, 4), WIDE[:4]),
        **{"domain": RUNTIME, "activation": "LeakyRelu", "activation_alpha": 0.2},
    )


def test_embeddings() -> None:
    ids, kinds = np.array([[1, 5, 0], [2, 2, 3]], np.int32), np.array([[0, 1, 1]] * 2, np.int32)
    tables = numbers(6, 8), numbers(4, 8), numbers(2, 8)
    check(
        *("EmbedLayerNormalization", ids, kinds, *tables, WIDE, WIDE + 1),
        np.array([[1, 1, 0], [1, 1, 1]], np.int32),
        **{"outputs": 2, "domain": RUNTIME, "epsilon": 1e-5},
    )


@pytest.mark.parametrize(
    ("mask", "more"),
    [
        (None, {}),
        (np.array([2, 3], np.int32), {}),
        (np.array([[1, 1, 0], [0, 1, 1]], np.int32), {}),
        (None, {"unidirectional": 1, "scale": 0.3}),
        (None, {"qkv_hidden_sizes": [8, 8, 4]}),
    ],
)
def test_attention(mask: Array | None, more: dict[str, Any]) -> None:
    width = sum(more.get("qkv_hidden_sizes", [8, 8, 8]))
    given = X, numbers(8, width), numbers(width, seed=7), mask
    check("Attention", *given, domain=RUNTIME, num_heads=2, **more)


def test_attention_with_a_past() -> None:
    past = numbers(2, 2, 2, 5, 4)
    given = X, numbers(8, 24), numbers(24), None, past
    check("Attention", *given, outputs=2, domain=RUNTIME, num_heads=2, unidirectional=1)
    key = numbers(2, 4, 8, seed=5)
    check("MultiHeadAttention", X, key, key * 2, numbers(24), domain=RUNTIME, num_heads=2)


@pytest.mark.parametrize("way", ["forward", "bidirectional"])
def test_a_quantized_lstm(way: str) -> None:
    """Weights have 7 bits: two products with more overflow ONNX Runtime's sums of 16 on AVX2."""
    n = 2 if way == "bidirectional" else 1
    check(*quantized_lstm(n), **LSTM, outputs=3, direction=way, atol=1e-5)


def test_integers_of_an_lstm_stay_integers() -> None:
    """Its weights were made float32, which is four times as much to read in every turn."""
    node = helper.make_node(
        *("DynamicQuantizeLSTM", ["x", *"wrb", *[""] * 4, "sw", "zw", "sr", "zr"], ["y"]),
        **{"domain": RUNTIME, "hidden_size": 4},
    )
    _, x, w, r, b, *_, scale, zero = quantized_lstm(1)
    given = {"x": x, "w": w, "r": r, "b": b, "sw": scale, "zw": zero, "sr": scale, "zr": zero}
    made = dict(zip("y", by_runtime(single(node, given, 21), given), strict=True))
    model = single(node, given, 21, made, frozenset(given) - {"x"})
    graph = mge.jit.compile(load(model)).graph(mge.tensor(x))
    names = [n.op.name for n in graph.nodes]
    assert "matmul" not in names
    assert names.count("int_matmul") >= 1 + 5


LSTM: dict[str, Any] = {"domain": RUNTIME, "hidden_size": 4, "known": (1, 2, 8, 9, 10, 11)}


def quantized_lstm(directions: int) -> tuple[Any, ...]:
    """An operator and its inputs."""
    rng = np.random.default_rng(0)
    w, r = (rng.integers(-64, 64, (directions, k, 16)).astype(np.int8) for k in (3, 4))
    scale, zero = np.full((directions,), 0.01, np.float32), np.zeros((directions,), np.int8)
    given = numbers(5, 2, 3), w, r, numbers(directions, 32), None, None, None, None
    return "DynamicQuantizeLSTM", *given, scale, zero, scale, zero


@pytest.mark.parametrize(
    ("op", "gates", "per_turn"), [("RNN", 1, 1), ("GRU", 3, 2), ("LSTM", 4, 1)]
)
def test_inputs_are_multiplied_once_for_all_turns(op: str, gates: int, per_turn: int) -> None:
    """And not once in every turn, with weights that are read again each time."""
    x, turns = numbers(5, 2, 3), 5
    w, r = numbers(1, 4 * gates, 3), numbers(1, 4 * gates, 4)
    check(op, x, w, r, outputs=2, hidden_size=4, known=(1, 2))
    node = helper.make_node(op, ["x", "w", "r"], ["y"], hidden_size=4)
    given = {"x": x, "w": w, "r": r}
    made = dict(zip("y", by_runtime(single(node, given, 21), given), strict=True))
    model = single(node, given, 21, made, frozenset("wr"))
    graph = mge.jit.compile(load(model)).graph(mge.tensor(x))
    assert sum(n.op.name == "matmul" for n in graph.nodes) == 1 + turns * per_turn


def test_integer_products_become_floats() -> None:
    a, b = np.array([[1, 200, 7]], np.uint8), np.array([[3, -4], [-50, 9], [0, 100]], np.int8)
    scales = np.float32(0.1), np.array([0.2, 0.3], np.float32)
    check("MatMulIntegerToFloat", a, b, *scales, np.uint8(12), None, WIDE[:2], domain=RUNTIME)
    check(
        *("DynamicQuantizeMatMul", numbers(4, 3), b, np.float32(0.02), np.int8(0)),
        **{"domain": RUNTIME, "known": (1, 2, 3)},
    )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_of_old_models(mode: str) -> None:
    """Only whole factors of the nearest mode were taken; detectors of 2018 have others."""
    x = numbers(1, 2, 3, 4)
    check("Upsample", x, opset=7, mode=mode, scales=[1.0, 1.0, 2.0, 3.0])
    for scales in ((1, 1, 2, 3), (1, 1, 1.5, 1.5), (1, 1, 2.6, 1.3)):
        check("Upsample", x, np.array(scales, np.float32), known=(1,), opset=9, mode=mode)
