"""Optimizer updates against MegEngine's three-step values and against plain formulas."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.ops.update import AdamUpdate, AdamWUpdate, MomentumUpdate, SgdUpdate, Update

LR = np.asarray(np.float32(0.1))
GRAD = np.array([1.0, -2.0], np.float32)


def scalar(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


def three_steps(
    op: Update, operands: Callable[[int], tuple[np.ndarray, ...]], n_state: int
) -> np.ndarray:
    """The parameter [1, 2] after three steps with the gradient [1, -2]."""
    values: list[np.ndarray] = [np.array([1.0, 2.0], np.float32)]
    values += [np.zeros(2, np.float32) for _ in range(n_state)]
    for step in (1, 2, 3):
        results = op.reference(values[0], GRAD, *values[1:], *operands(step))
        values = list(results) if isinstance(results, tuple) else [results]
    return values[0]


CASES = [
    (SgdUpdate(), 0, lambda t: (LR, scalar(0)), [0.7, 2.6]),
    (MomentumUpdate(0.9), 1, lambda t: (LR, scalar(0)), [0.439, 3.122]),
    (MomentumUpdate(0.9, nesterov=True), 1, lambda t: (LR, scalar(0)), [0.1951, 3.6098]),
    (AdamUpdate(), 2, lambda t: (scalar(t), LR, scalar(0)), [0.7, 2.3]),
    (AdamWUpdate(), 2, lambda t: (scalar(t), LR, scalar(0.01)), [0.697303, 2.293706]),
]


@pytest.mark.parametrize(("op", "n", "operands", "expected"), CASES, ids=[str(c[0]) for c in CASES])
def test_three_steps(
    op: Update,
    n: int,
    operands: Callable[[int], tuple[np.ndarray, ...]],
    expected: list[float],
) -> None:
    np.testing.assert_allclose(three_steps(op, operands, n), expected, rtol=2e-6)


def test_bias_correction_keeps_its_digits_in_float32() -> None:
    """A first step is lr in size whatever the betas, which 1 - beta**t in float32 would miss."""
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    op = AdamUpdate(0.9, 0.99999, 0.0)
    new = op.reference(zero, one, zero, zero, scalar(1), LR, scalar(0))[0]
    np.testing.assert_allclose(new, [-0.1], rtol=1e-6)


def test_a_16_bit_parameter_keeps_float32_state() -> None:
    param, grad = (np.full(2, v, dt.bfloat16.numpy) for v in (1.0, 2.0**-9))
    state = np.ones(2, np.float32)
    new, velocity = MomentumUpdate(0.9).reference(param, grad, state, LR, scalar(0))
    assert new.dtype == dt.bfloat16.numpy and velocity.dtype == np.float32
    np.testing.assert_allclose(velocity, 0.9 + 2.0**-9, rtol=1e-6)


def test_weight_decay_of_adam_goes_through_the_moments() -> None:
    rng = np.random.default_rng(0)
    p, g, m = (rng.normal(size=5) for _ in range(3))
    v = rng.uniform(0.1, 1, 5)
    results = AdamUpdate(0.8, 0.9, 1e-3).reference(p, g, m, v, scalar(4), LR, scalar(0.25))
    h = g + 0.25 * p
    m, v = 0.8 * m + 0.2 * h, 0.9 * v + 0.1 * h * h
    root = np.sqrt(v / (1 - 0.9**4)) + 1e-3
    expected = p - float(LR) * (m / (1 - 0.8**4)) / root
    for got, wanted in zip(results, (expected, m, v), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
    assert math.isclose(float(LR), 0.1, rel_tol=1e-7)
