"""LAMB against its formula, in float32 and with a wide copy of float16 parameters."""

from typing import Any

import numpy as np
import pytest

import treadle.jit as jit
from treadle.optimizer import LAMB, LAMBFp16
from treadle.tensor import Parameter, Tensor

START = np.array([[1.0, -2.0], [0.5, 3.0]])
GRADS = [np.array([[1.0, -2.0], [0.5, 0.25]]) * k for k in (1.0, -0.5, 2.0, 1.0)]


def _wanted(
    *,
    lr: float = 0.1,
    decay: float = 0.0,
    corrected: bool = True,
    always: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
) -> np.ndarray:
    p, m, v = START.copy(), np.zeros_like(START), np.zeros_like(START)
    a, b = betas
    for t, g in enumerate(GRADS, 1):
        m = a * m + (1 - a) * g
        v = b * v + (1 - b) * g * g
        first, second = (1 - a**t, 1 - b**t) if corrected else (1.0, 1.0)
        d = (m / first) / (np.sqrt(v / second) + 1e-8) + decay * p
        adapts = always or decay > 0
        ratio = np.linalg.norm(p) / np.linalg.norm(d) if adapts else 1.0
        p = p - lr * ratio * d
    return p


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("settings", "formula"),
    [
        ({}, {}),
        ({"weight_decay": 0.1}, {"decay": 0.1}),
        ({"always_adapt": True}, {"always": True}),
        ({"betas": (0.0, 0.9)}, {"betas": (0.0, 0.9)}),
        ({"betas": (0.0, 0.0)}, {"betas": (0.0, 0.0)}),
        ({"bias_correction": False, "weight_decay": 0.2}, {"corrected": False, "decay": 0.2}),
    ],
)
def test_formula(settings: dict[str, Any], formula: dict[str, Any], compiled: bool) -> None:
    param = Parameter(START.astype("float32"))
    optimizer = LAMB([param], 0.1, **settings)

    def step(grad: Tensor) -> None:
        param.grad = grad
        optimizer.step()

    run = jit.compile(step) if compiled else step
    for grad in GRADS:
        run(Tensor(grad.astype("float32")))
    np.testing.assert_allclose(param.numpy(), _wanted(**formula), rtol=1e-4, atol=1e-6)


def test_a_norm_of_zero_scales_nothing() -> None:
    param = Parameter(np.zeros(3, np.float32))
    optimizer = LAMB([param], 0.5, weight_decay=0.1)
    param.grad = Tensor([1.0, 1.0, 0.0])
    optimizer.step()
    np.testing.assert_allclose(param.numpy(), [-0.5, -0.5, 0.0], atol=1e-6)


def test_float16_parameters_follow_a_wide_copy() -> None:
    param = Parameter(START, dtype="float16")
    optimizer = LAMBFp16([param], 0.1, weight_decay=0.1)
    for grad in GRADS:
        param.grad = Tensor(grad, dtype="float16")
        assert optimizer.step() is optimizer
    state = optimizer.state_dict()["state"][0]
    assert sorted(state) == ["exp_avg", "exp_avg_sq", "param_fp32", "step"]
    assert {v.dtype for v in state.values()} == {np.dtype("float32")}
    np.testing.assert_allclose(state["param_fp32"], _wanted(decay=0.1), rtol=1e-4)
    assert param.dtype == np.float16
    np.testing.assert_array_equal(param.numpy(), state["param_fp32"].astype("float16"))


def test_state_continues() -> None:
    def one() -> tuple[Parameter, LAMB]:
        param = Parameter(START.astype("float32"))
        return param, LAMB([param], 0.1, weight_decay=0.1)

    (param, optimizer), (other, resumed) = one(), one()
    for grad in GRADS[:2]:
        param.grad = Tensor(grad.astype("float32"))
        optimizer.step()
    resumed.load_state_dict(optimizer.state_dict())
    other[...] = param
    for tensor, step in ((param, optimizer), (other, resumed)):
        tensor.grad = Tensor(GRADS[2].astype("float32"))
        step.step()
    np.testing.assert_array_equal(param.numpy(), other.numpy())


@pytest.mark.parametrize(
    "wrong", [{"lr": -1.0}, {"weight_decay": -1.0}, {"betas": (1.0, 0.9)}, {"eps": -1e-8}]
)
def test_bad_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="LAMB: invalid"):
        LAMB([Parameter([1.0])], **{"lr": 0.1, **wrong})
