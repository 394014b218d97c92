"""Elementwise functions against NumPy: values, promotion, special values."""

import math
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager

X = np.array([[-2.5, -0.5, 0.0], [0.25, 1.5, 3.0]], np.float32)
UNIT = np.array([-0.9, -0.1, 0.0, 0.4, 0.99], np.float32)

UNARY = {
    "neg": (np.negative, X),
    "abs": (np.abs, X),
    "exp": (np.exp, X),
    "expm1": (np.expm1, X),
    "erf": (np.vectorize(math.erf), X),
    "log": (np.log, np.abs(X) + 0.1),
    "log1p": (np.log1p, np.abs(X)),
    "sqrt": (np.sqrt, np.abs(X)),
    "square": (np.square, X),
    "ceil": (np.ceil, X),
    "floor": (np.floor, X),
    "cos": (np.cos, X),
    "sin": (np.sin, X),
    "tan": (np.tan, X),
    "acos": (np.arccos, UNIT),
    "asin": (np.arcsin, UNIT),
    "atan": (np.arctan, X),
    "cosh": (np.cosh, X),
    "sinh": (np.sinh, X),
    "tanh": (np.tanh, X),
    "acosh": (np.arccosh, np.abs(X) + 1),
    "asinh": (np.arcsinh, X),
    "atanh": (np.arctanh, UNIT),
    "sign": (np.sign, X),
    "isnan": (np.isnan, np.array([1.0, np.nan, np.inf])),
    "isinf": (np.isinf, np.array([1.0, np.nan, -np.inf])),
    "isfinite": (np.isfinite, np.array([1.0, np.nan, -np.inf])),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    expected, x = UNARY[name]
    function = getattr(F, name)
    np.testing.assert_allclose(function(mge.tensor(x)).numpy(), expected(x), 2e-6, 1e-6)
    np.testing.assert_allclose(function(x).numpy(), expected(x), 2e-6, 1e-6, err_msg="an array")
    assert function(mge.tensor(0.5)).shape == ()
    assert function(F.zeros((0, 2))).shape == (0, 2)
    with pytest.raises(TypeError, match="None"):
        function(None)


@pytest.mark.parametrize("name", ["exp", "log1p", "sqrt", "sin", "atan", "tanh", "erf", "expm1"])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_functions_of_real_numbers_compute_integers_in_float32(name: str, dtype: str) -> None:
    result = getattr(F, name)(mge.tensor([0, 1], dtype=dtype))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result.numpy(), UNARY[name][0](np.array([0.0, 1.0])), 1e-6)


@pytest.mark.parametrize("name", ["neg", "abs", "square", "round", "ceil", "floor", "sign"])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "bfloat16", "float64"])
def test_the_others_keep_the_type(name: str, dtype: str) -> None:
    assert getattr(F, name)(mge.tensor([1, 2], dtype=dtype)).dtype.name == dtype


def test_round_takes_halves_away_from_zero() -> None:
    assert F.round(mge.tensor([0.5, -0.5, 1.5, 2.5, -2.4])).tolist() == [1, -1, 2, 3, -2]


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "floor_div": np.floor_divide,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "atan2": np.arctan2,
    "logaddexp": np.logaddexp,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "mod": np.fmod,
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    function = getattr(F, name)
    x, y = np.abs(X) + 0.5, np.array([0.75, 2.0, 3.5], np.float32)
    expected = BINARY[name](x, y)
    tensors = mge.tensor(x), mge.tensor(y)
    for first, second in (tensors, (x, tensors[1]), (tensors[0], y), (x, y)):
        np.testing.assert_allclose(function(first, second).numpy(), expected, 1e-6)
    np.testing.assert_allclose(function(2.0, tensors[1]).numpy(), BINARY[name](2.0, y), 1e-6)
    np.testing.assert_allclose(function(tensors[1], 2).numpy(), BINARY[name](y, 2.0), 1e-6)
    for broken in ((None, tensors[0]), (tensors[0], None), (None, 1)):
        with pytest.raises(TypeError, match="None"):
            function(*broken)
    with pytest.raises(ValueError, match=r"2 against 3|3 against 2"):
        function(tensors[0], F.ones(2))


def test_logic_and_shifts() -> None:
    a, b = mge.tensor([True, True, False, False]), mge.tensor([True, False, True, False])
    assert F.logical_and(a, b).tolist() == [True, False, False, False]
    assert F.logical_or(a, b).tolist() == [True, True, True, False]
    assert F.logical_xor(a, b).tolist() == [False, True, True, False]
    assert F.logical_not(a).tolist() == [False, False, True, True]
    assert F.left_shift(mge.tensor([1, 2]), 2).tolist() == [4, 8]
    assert F.right_shift(mge.tensor([5, -5]), 1).tolist() == [2, -3]
    for broken in (
        lambda: F.logical_and(a, mge.tensor([1, 0, 1, 0])),
        lambda: F.logical_not(mge.tensor([1])),
        lambda: F.left_shift(mge.tensor([1.0]), 1),
    ):
        with pytest.raises(TypeError, match="does not take"):
            broken()


def test_clip() -> None:
    x = mge.tensor([-2.0, 0.0, 2.0])
    assert F.clip(x, -1, 1).tolist() == [-1, 0, 1]
    assert F.clip(x, lower=1).tolist() == [1, 1, 2] and F.clip(x, upper=0).tolist() == [-2, 0, 0]
    assert F.clip(x, mge.tensor([0.0, 1.0, 1.0]), 1.5).tolist() == [0, 1, 1.5]
    assert F.clip(mge.tensor([1, 5]), 2, 3).dtype == np.int32
    floats = F.clip(mge.tensor([1, 5]), 1.5, 3)
    assert floats.dtype == np.float32 and floats.tolist() == [1.5, 3]
    with pytest.raises(ValueError, match="at least one"):
        F.clip(x)
    manager = GradManager().attach(x)
    with manager:
        manager.backward(F.clip(x, -2, 0).sum())
    assert x.grad.tolist() == [1, 1, 0], "the gradient passes at both bounds"


@pytest.mark.parametrize(
    ("x", "y"), [(0.0, 0.0), (1000.0, 0.0), (-np.inf, -np.inf), (np.inf, 1.0), (-np.inf, 2.0)]
)
def test_logaddexp_of_extremes(x: float, y: float) -> None:
    assert F.logaddexp(mge.tensor(x), y).item() == pytest.approx(np.logaddexp(x, y))


def test_logaddexp_shares_its_gradient_fairly() -> None:
    x, y = mge.tensor([1.0, 0.0]), mge.tensor([1.0, 2.0])
    manager = GradManager().attach([x, y])
    with manager:
        manager.backward(F.logaddexp(x, y).sum())
    share = 1 / (1 + math.exp(2))
    np.testing.assert_allclose(x.grad.numpy(), [0.5, share], 1e-6)
    np.testing.assert_allclose(y.grad.numpy(), [0.5, 1 - share], 1e-6)


SUBGRADIENTS: list[tuple[Any, float, float]] = [
    (F.relu, 0.0, 0.0),
    (F.relu6, 0.0, 0.0),
    (F.relu6, 6.0, 0.0),
    (F.leaky_relu, 0.0, 1.0),
    (F.hswish, -3.0, -0.5),
    (F.hswish, 3.0, 1.5),
    (lambda x: F.maximum(x, x.detach()), 1.0, 1.0),
    (lambda x: F.mod(x, 3.0), 5.0, 1.0),
    (F.sqrt, 0.0, math.inf),
]


@pytest.mark.parametrize(("function", "at", "slope"), SUBGRADIENTS)
def test_subgradients_are_megengines(function: Any, at: float, slope: float) -> None:
    x = mge.tensor(at)
    manager = GradManager().attach(x)
    with manager:
        manager.backward(function(x))
    assert x.grad.item() == slope


@pytest.mark.parametrize("function", [F.floor, F.round, F.ceil, lambda x: F.argmax(x) * 1.0])
def test_piecewise_constant_functions_leave_no_gradient(function: Any) -> None:
    x = mge.tensor([1.25, 2.5])
    manager = GradManager().attach(x)
    with manager:
        manager.backward(function(x).sum())
    assert x.grad is None
