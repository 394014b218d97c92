"""Integers: exact, of the declared types, rounded as ONNX says; against numbers that are known."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

pytest.importorskip("onnx", reason="needs the onnx extra")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tests.interop.onnx import models  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.base.errors import LoadError  # noqa: E402
from treadle.interop.onnx import load  # noqa: E402

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    mge.set_default_device("cpux")


def both(node: Any, rank: int, x: Array, *weights: Array) -> list[Array]:
    """What a node gives for x and initializers, eagerly and compiled; it has so many axes."""
    names = [f"w{i}" for i in range(len(weights))]
    given = [numpy_helper.from_array(w, n) for w, n in zip(weights, names, strict=True)]
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    made = models.model([node], {"x": x.shape}, {"y": ("?",) * rank}, given, dtype=dtype)
    network = load(made)
    compiled = mge.jit.compile(lambda x: network(x))
    return [f(mge.tensor(x, dtype=x.dtype)).numpy() for f in (network, compiled)]


def node(op: str, weights: int = 0, **attributes: Any) -> Any:
    return helper.make_node(op, ["x", *(f"w{i}" for i in range(weights))], ["y"], **attributes)


BIG = (1 << 40) + 1
CASES: dict[str, tuple[Any, tuple[Array, ...], Array]] = {
    "matmul": (
        node("MatMul", 1),
        (np.array([[1, 2, BIG]]), np.array([[1], [1], [BIG - 2]])),
        np.array([[3 + BIG * (BIG - 2) - (1 << 80)]]),
    ),
    "matmul of vectors": (
        node("MatMul", 1),
        (np.array([1, 2, 3]), np.array([1, 1, 1])),
        np.array(6),
    ),
    "gemm": (
        node("Gemm", 2, transB=1, alpha=2.0),
        (np.array([[1, BIG]]), np.array([[1, 3]]), np.array([5])),
        np.array([[2 * (1 + 3 * BIG) + 5]]),
    ),
    "einsum": (
        node("Einsum", 1, equation="ij,jk->ik"),
        (np.array([[1, BIG]]), np.array([[1], [3]])),
        np.array([[1 + 3 * BIG]]),
    ),
    "mean": (
        node("ReduceMean", 1, keepdims=0),
        (np.array([[-1, 0, 0, 0], [5, 2, 0, 0]]), np.array([1])),
        np.array([0, 1]),
    ),
    "power": (
        node("Pow", 1),
        (np.array([7, 2, -2, -1, 1, 0]), np.array([19, -1, -1, -3, -5, 0])),
        np.array([11398895185373143, 0, 0, -1, 1, 1]),
    ),
    "power of 32 bits": (
        node("Pow", 1),
        (np.array([7, -3], np.int32), np.array([10, 3])),
        np.array([282475249, -27], np.int32),
    ),
    "logarithm of each": (
        node("ReduceLogSum", noop_with_empty_axes=1),
        (np.array([1, 9, 100]),),
        np.array([0, 2, 4]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_integers(name: str) -> None:
    made, given, expected = CASES[name]
    for found in both(made, expected.ndim, *given):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (-9, -20, -1, [0]),
        (-9, 0, -1, []),
        (-1, -20, -2, [3, 1]),
        (20, -9, -3, [3, 0]),
        (-9, 2, 1, [0, 1]),
    ],
)
def test_slices_from_before_the_axis(start: int, end: int, step: int, expected: list[int]) -> None:
    """Backward from before the axis is its first cell, as the specification clamps it."""
    bounds = (np.array([v]) for v in (start, end, 0, step))
    for found in both(node("Slice", 4), 1, np.arange(4), *bounds):
        np.testing.assert_array_equal(found, np.array(expected, np.int64))


def test_inputs_have_the_types_that_the_model_declares() -> None:
    ends = {n: ("n", 2) for n in ("x", "m")}
    made = models.model([helper.make_node("Sub", ["x", "m"], ["y"])], ends, {"y": ("n", 2)})
    for i, code in enumerate((TensorProto.FLOAT, TensorProto.INT64)):
        made.graph.input[i].type.tensor_type.elem_type = code
    made.graph.node[0].CopyFrom(helper.make_node("Shape", ["x"], ["s"]))
    made.graph.node.append(helper.make_node("Mul", ["s", "m"], ["y"]))
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    network = load(made)
    compiled = mge.jit.compile(lambda x, m: network(x, m))
    x, m = np.ones((2, 2), np.float64), np.array([[1, 2], [3, 4]])
    for f in (network, compiled):
        for values in (
            m,
            mge.tensor(m),
            mge.tensor(m, dtype="int64"),
            mge.tensor(m, dtype="uint8"),
        ):
            found = f(x, values)
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found.numpy(), m * 2)
    with pytest.raises(LoadError, match="'m' is int64 in the model"):
        network(x, x)
