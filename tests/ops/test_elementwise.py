"""Corner cases of arithmetic, of unary functions, of logic and of choices."""

import math
from typing import Any

import numpy as np
import pytest
from tests.ops import harness

from treadle.base import dtype as dt
from treadle.base.errors import DTypeError, NoGradient
from treadle.base.types import TensorType
from treadle.ops import elementwise as ew
from treadle.ops import logic, special, unary
from treadle.ops.op import Op, Pullback
from treadle.ops.select import Clip, Where


def gradient(op: Op, *values: Any, needs: tuple[bool, ...] | None = None) -> list[Any]:
    """Gradients of the sum of the op's result."""
    xs = tuple(harness.TapeOperand(np.array(v), []) for v in values)
    outputs = op.outputs(*xs)
    dy = outputs[0].constant(np.ones_like(outputs[0].array))
    grads = op.vjp(Pullback((dy,), xs, outputs, needs or (True,) * len(xs)))
    return [None if g is None else g.array.tolist() for g in grads]


# ── kinks and poles: which subgradient is chosen ──────────────────────────────────────────────


@pytest.mark.parametrize(
    ("op", "x", "expected"),
    [
        (unary.Abs(), [-2.0, 0.0, 2.0], [-1, -1, 1]),
        (unary.Relu(), [-2.0, 0.0, 2.0], [0, 0, 1]),
        (unary.Sqrt(), [0.0, 4.0], [math.inf, 0.25]),
        (Clip(-1, 1), [-2.0, -1.0, 0.0, 1.0, 2.0], [0, 1, 1, 1, 0]),
        (unary.Softplus(), [-1000.0, 0.0, 1000.0], [0, 0.5, 1]),
        (unary.Sigmoid(), [-1000.0, 0.0, 1000.0], [0, 0.25, 0]),
    ],
)
def test_gradient_at_kinks(op: Op, x: list[float], expected: list[float]) -> None:
    assert gradient(op, x) == [expected]


def test_ties_give_the_gradient_to_the_first() -> None:
    for op in (ew.Maximum(), ew.Minimum()):
        assert gradient(op, [1.0, 2.0], [1.0, 2.0]) == [[1, 1], [0, 0]]


def test_power_at_zero() -> None:
    x, y = [0.0, 0.0, 0.0, -2.0, -2.0], [2.0, 1.0, 0.0, 3.0, 2.0]
    assert gradient(ew.Pow(), x, y) == [[0, 1, 0, 12, -4], [0, 0, 0, 0, 0]]


def test_second_derivative_of_a_power_at_zero() -> None:
    def slope(values: list[harness.TapeOperand]) -> list[harness.TapeOperand | None]:
        (x,) = values
        y = x.constant(2.0)
        out = ew.Pow()(x, y)
        at = Pullback((out.constant(np.ones(2)),), (x, y), (out,), (True, False))
        return [ew.Pow().vjp(at)[0]]

    (second,) = harness.gradients(slope, [np.array([0.0, 3.0])], [np.ones(2)])
    assert second.tolist() == [2.0, 2.0]


def test_remainder_passes_one_to_the_dividend_and_the_quotient_to_the_divisor() -> None:
    assert gradient(ew.Mod(), [7.5, -7.5], [2.0, 2.0]) == [[1, 1], [-3, 3]]


@pytest.mark.parametrize(
    "op", [unary.Floor(), unary.Ceil(), unary.Round(), unary.Trunc(), unary.Sign()]
)
def test_steps_let_nothing_through(op: Op) -> None:
    assert gradient(op, [0.3]) == [None]


@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_comparisons_have_no_gradient_on_either_side(needs: tuple[bool, ...]) -> None:
    with pytest.raises(NoGradient, match=r"^less: is a comparison"):
        gradient(logic.Less(), 1.0, 2.0, needs=needs)


def test_casts_pass_between_floats_only() -> None:
    assert gradient(ew.Cast(dt.float16), [0.3]) == [[1.0]]
    assert gradient(ew.Cast(dt.int32), [0.3]) == [None]


def test_the_branch_not_taken_contributes_no_nan() -> None:
    mask, x = np.array([True, False]), np.array([1.0, np.inf])
    assert gradient(Where(), mask, x, x, needs=(False, True, True)) == [None, [1, 0], [0, 1]]


# ── values ────────────────────────────────────────────────────────────────────────────────────


def apply(op: Op, *values: Any) -> Any:
    return harness.run(op, [np.array(v) for v in values])[0].tolist()


def test_rounding_takes_halves_away_from_zero() -> None:
    below = float(np.nextafter(0.5, 0))
    x = [-2.5, -1.5, -0.5, -below, below, 0.5, 1.5, 2.5, 2.0**60, math.inf]
    assert apply(unary.Round(), x) == [-3, -2, -1, 0, 0, 1, 2, 3, 2.0**60, math.inf]
    assert apply(unary.Round(), np.array([-3, 4], np.int8)) == [-3, 4]


def test_remainders_of_either_sign() -> None:
    x, y = [7, -7, 7, -7, 7], [3, 3, -3, -3, 0]
    assert apply(ew.Mod(), np.array(x, np.int32), np.array(y, np.int32)) == [1, 2, -2, -1, 0]
    assert apply(ew.FloorDiv(), np.array(x, np.int32), np.array(y, np.int32)) == [2, -3, -3, 2, 0]
    floats = apply(ew.Mod(), [7.0, -7.0, 7.0, -7.0], [3.0, 3.0, -3.0, -3.0])
    assert floats == [1, -1, 1, -1]
    assert math.isnan(apply(ew.Mod(), 7.0, 0.0)) and apply(ew.FloorDiv(), 7.0, 0.0) == math.inf


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_the_smallest_integer_divided_by_minus_one_does_not_trap(dtype: Any) -> None:
    low = np.iinfo(dtype).min
    x, y = np.array([low], dtype), np.array([-1], dtype)
    assert apply(ew.FloorDiv(), x, y) == [low] and apply(ew.Mod(), x, y) == [0]


def test_shifts_beyond_the_width_are_defined() -> None:
    x, y = np.array([-5, 5, -5, 5], np.int32), np.array([32, 32, -1, 100], np.int32)
    assert apply(logic.ShiftLeft(), x, y) == [0, 0, 0, 0]
    assert apply(logic.ShiftRight(), x, y) == [-1, 0, -1, 0]


def test_extremes_overflow_to_their_limits() -> None:
    x = np.array([-1e4, 0, 1e4], np.float32)
    assert apply(unary.Sigmoid(), x) == [0, 0.5, 1]
    assert apply(unary.Tanh(), x) == [-1, 0, 1]
    assert apply(unary.Softplus(), x) == pytest.approx([0, math.log(2), 1e4])


def test_not_a_number_stays() -> None:
    nan = float("nan")
    for op in (unary.Relu(), unary.Sign(), unary.Round(), unary.Erf(), Clip(0, 1)):
        assert math.isnan(apply(op, nan)), op
    for pair in (ew.Maximum(), ew.Minimum()):
        assert math.isnan(apply(pair, nan, 1.0)) and math.isnan(apply(pair, 1.0, nan))
    assert apply(logic.Equal(), nan, nan) is False and apply(logic.NotEqual(), nan, nan) is True


def test_tests_of_integers_follow_from_their_having_no_special_values() -> None:
    x = np.array([0, 7], np.int32)
    assert apply(logic.IsNan(), x) == [False, False] == apply(logic.IsInf(), x)
    assert apply(logic.IsFinite(), x) == [True, True]


def test_clip_keeps_integers_and_explains_bounds_they_cannot_hold() -> None:
    assert apply(Clip(0, 100), np.array([-5, 50, 120], np.int8)) == [0, 50, 100]
    with pytest.raises(DTypeError, match="the bound 300 is not a value of uint8") as caught:
        Clip(high=300).infer(TensorType(dt.uint8, (2,)))
    assert "saw:  x uint8[2]" in str(caught.value) and "hint: cast x" in str(caught.value)


@pytest.mark.parametrize(("dtype", "ulp"), [(np.float64, 5), (np.float32, 5)])
def test_error_function_is_within_its_stated_bound(dtype: Any, ulp: float) -> None:
    x = np.concatenate([np.linspace(-7, 7, 40_001), np.logspace(-30, 2, 4_001)]).astype(dtype)
    exact = np.array([math.erf(float(v)) for v in x])
    spacing = np.spacing(np.abs(exact).astype(dtype)).astype(np.float64)
    got = special.erf(x)
    assert got.dtype == dtype
    assert np.max(np.abs(got.astype(np.float64) - exact) / spacing) <= ulp


def test_error_function_at_its_limits() -> None:
    got = special.erf(np.array([0.0, -0.0, np.inf, -np.inf]))
    assert got.tolist() == [0, 0, 1, -1] and np.signbit(got).tolist() == [False, True, False, True]
    for dtype in (dt.float16, dt.bfloat16):
        assert special.erf(np.array([0.5], dtype.numpy)).dtype == dtype.numpy
