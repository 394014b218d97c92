"""Elementwise functions by MegEngine's names: all of them exist, gradients are gradients."""

import math

import numpy as np
import pytest

import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.tensor import Tensor

VOCABULARY = """
ABS ACOS ASIN CEIL COS EXP EXPM1 FLOOR LOG LOG1P NEGATE SIGMOID SIN TANH ABS_GRAD ADD FLOOR_DIV MAX
MIN MOD MUL POW SIGMOID_GRAD SUB SWITCH_GT0 TANH_GRAD TRUE_DIV LOG_SUM_EXP LT LEQ EQ NEQ SHL SHR
COND_LEQ_MOV COND_LT_MOV FUSE_MUL_ADD3 FUSE_MUL_ADD4 FUSE_ADD_RELU FUSE_ADD_SIGMOID FUSE_ADD_TANH
FUSE_ADD_H_SWISH FAST_TANH FAST_TANH_GRAD ROUND RMULH ATAN2 ERF ERFINV ERFC ERFCINV H_SWISH
H_SWISH_GRAD NOT AND OR XOR SILU SILU_GRAD GELU GELU_GRAD ISNAN ISINF SINH COSH ASINH ACOSH ATANH
TAN SQRT SQUARE SIGN PRELU CLIP SOFTPLUS RELU RELU6 HSIGMOID LOGSIGMOID
"""
X = Tensor(np.array([-4.0, -2.5, -0.5, 0.25, 2.0, 4.5, 7.0], np.float32))


def test_every_name_is_known() -> None:
    for name in VOCABULARY.split():
        assert M.Elemwise(name).method == name
        assert M.Elemwise(name.lower())._module_info_string() == f"method={name.lower()}"
    with pytest.raises(ValueError, match="unknown method 'NOTHING'"):
        M.Elemwise("NOTHING")


# Of x, or of the function's own result.
OF_INPUT = ["ABS", "ASINH", "FAST_TANH", "GELU", "HSIGMOID", "H_SWISH", "LOGSIGMOID", "RELU6"]
OF_INPUT += ["SILU", "SOFTPLUS"]
OF_RESULT = ["SIGMOID", "TANH"]


@pytest.mark.parametrize("name", [*OF_INPUT, *OF_RESULT])
def test_gradients(name: str) -> None:
    x, dy = Tensor(X), Tensor(np.linspace(1, 2, 7, dtype=np.float32))
    manager = GradManager().attach(x)
    with manager:
        y = M.Elemwise(name)(x)
        manager.backward(y, dy)
    found = M.Elemwise(f"{name}_GRAD")(x if name in OF_INPUT else y, dy)
    np.testing.assert_allclose(found.numpy(), x.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_inverse_error_functions() -> None:
    y = np.linspace(-0.9999, 0.9999, 999, dtype=np.float32)
    x = M.Elemwise("ERFINV")(Tensor(y)).numpy()
    np.testing.assert_allclose([math.erf(v) for v in x.tolist()], y, atol=2e-7)
    assert M.Elemwise("ERFINV")(Tensor([-1.0, 1.0])).tolist() == [-np.inf, np.inf]
    again = M.Elemwise("ERFCINV")(1.0 - Tensor(y)).numpy()
    np.testing.assert_allclose(again, x, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(M.Elemwise("ERFC")(Tensor(x)).numpy(), 1 - y, rtol=1e-4, atol=1e-6)


def test_conditions_and_fixed_point() -> None:
    x, y, z = Tensor([1.0, 2.0, 3.0]), Tensor([2.0, 2.0, 2.0]), Tensor([7.0, 8.0, 9.0])
    assert M.Elemwise("COND_LT_MOV")(x, y, z).tolist() == [7.0, 0.0, 0.0]
    assert M.Elemwise("COND_LEQ_MOV")(x, y, z).tolist() == [7.0, 8.0, 0.0]
    assert M.Elemwise("SWITCH_GT0")(x - y, z).tolist() == [0.0, 0.0, 9.0]
    half = Tensor(np.array([2**30, -(2**30)], np.int32))
    assert M.Elemwise("RMULH")(half, half).tolist() == [2**29, 2**29]
    assert M.Elemwise("PRELU_GRAD")(Tensor([-1.0, 1.0]), Tensor([2.0, 2.0]), 0.25).tolist() == [
        0.5,
        2.0,
    ]


def test_fused_names() -> None:
    a, b = Tensor([-3.0, 1.0]), Tensor([1.0, 2.0])
    assert M.Elemwise("FUSE_ADD_RELU")(a, b).tolist() == [0.0, 3.0]
    assert M.Elemwise("FUSE_MUL_ADD3")(a, b, b).tolist() == [-2.0, 4.0]
    assert M.Elemwise("FUSE_MUL_ADD4")(a, b, a, b).tolist() == [-6.0, 4.0]
    np.testing.assert_allclose(
        M.Elemwise("FUSE_ADD_H_SWISH")(a, b).numpy(), F.hswish(a + b).numpy()
    )
