"""Quantization beyond what samples show: ties, limits, NaN, straight-through gradients."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.ops.abstract import ArrayOperand
from treadle.ops.op import Pullback
from treadle.ops.quant import Dequantize, FakeQuantize, Quantize, limits_of, round_half_away

ONE, ZERO = np.float32(1), np.int32(0)


def quantize(op: Quantize, values: list[float], scale: float = 1.0, zero: int = 0) -> list[int]:
    x = np.array(values, np.float32)
    return list(op.reference(x, np.asarray(np.float32(scale)), np.asarray(np.int32(zero))))


def test_halves_round_away_from_zero() -> None:
    assert quantize(Quantize(), [0.5, -0.5, 1.5, -1.5, 2.5, 0.49999997]) == [1, -1, 2, -2, 3, 0]


def test_values_beyond_the_limits_are_clamped() -> None:
    assert quantize(Quantize(qmin=-127), [-1e9, 1e9, -np.inf, np.inf]) == [-127, 127, -127, 127]
    assert quantize(Quantize(dt.uint8, 0, 255), [-3, 300], zero=2) == [0, 255]


def test_nan_becomes_the_lower_limit() -> None:
    assert quantize(Quantize(qmin=-100), [np.nan]) == [-100]


def test_int32_keeps_all_its_values() -> None:
    low, high = limits_of(dt.int32)
    assert quantize(Quantize(dt.int32, low, high), [-1e30, 1e30, 16777217]) == [low, high, 16777216]


def test_round_half_away_is_exact_where_adding_a_half_is_not() -> None:
    values = np.array([0.49999997, 8388609.0, -8388609.0, 4503599627370497.0], np.float32)
    np.testing.assert_array_equal(round_half_away(values), np.rint(values))


def test_dequantize_inverts_quantize_on_the_grid() -> None:
    grid = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)
    scale, zero = np.array([0.5, 0.125], np.float32), np.array([3, -7], np.int32)
    real = Dequantize(0).reference(grid, scale, zero)
    np.testing.assert_array_equal(Quantize(axis=0).reference(real, scale, zero), grid)


@pytest.mark.parametrize("axis", [None, 1])
def test_fake_quantize_is_quantize_then_dequantize(axis: int | None) -> None:
    shape = () if axis is None else (3,)
    x = np.random.default_rng(0).uniform(-20, 20, (5, 3)).astype(np.float32)
    scale, zero = np.full(shape, 0.1, np.float32), np.full(shape, 4, np.int32)
    fake = FakeQuantize(axis=axis).reference(x, scale, zero.astype(np.float32))
    levels = Quantize(axis=axis).reference(x, scale, zero)
    np.testing.assert_array_equal(fake, Dequantize(axis).reference(levels, scale, zero))


def test_gradient_passes_straight_through_inside_the_limits() -> None:
    x = ArrayOperand(np.array([-200.0, -128.4, 0.3, 127.4, 127.6]))
    one, zero = ArrayOperand(np.asarray(1.0)), ArrayOperand(np.asarray(0.0))
    (y,) = FakeQuantize().outputs(x, one, zero)
    dy = ArrayOperand(np.arange(1.0, 6.0))
    grads = FakeQuantize().vjp(Pullback((dy,), (x, one, zero), (y,), (True, True, True)))
    assert grads[0] is not None and grads[1:] == (None, None)
    np.testing.assert_array_equal(grads[0].array, [0, 2, 3, 4, 0])
    none = FakeQuantize().vjp(Pullback((dy,), (x, one, zero), (y,), (False, True, True)))
    assert none == (None, None, None)
