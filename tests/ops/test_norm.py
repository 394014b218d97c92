"""Normalization where samples do not reach: single values, empty batches, 16-bit statistics."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.ops.batch_norm import BatchNormInfer, BatchNormTrain
from treadle.ops.norm import GroupNorm, LayerNorm, Standardize

RNG = np.random.default_rng(0)


def test_batch_statistics_are_mean_and_unbiased_variance() -> None:
    x = RNG.normal(3, 2, (4, 3, 5))
    y, mean, variance = BatchNormTrain(0.0).reference(x)
    np.testing.assert_allclose(mean, x.mean((0, 2)), rtol=1e-12)
    np.testing.assert_allclose(variance, x.var((0, 2), ddof=1), rtol=1e-12)
    np.testing.assert_allclose(y.var((0, 2)), 1, rtol=1e-12)


def test_a_single_value_has_no_variance() -> None:
    y, mean, variance = BatchNormTrain().reference(np.full((1, 2), 7.0))
    np.testing.assert_array_equal((y[0], mean, variance), [[0, 0], [7, 7], [0, 0]])


def test_an_empty_batch_has_no_mean() -> None:
    y, mean, _ = BatchNormTrain().reference(np.zeros((0, 2, 3), np.float32))
    assert y.shape == (0, 2, 3) and np.isnan(mean).all()


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16])
def test_statistics_of_16_bits_are_float32(dtype: dt.DType) -> None:
    x = RNG.normal(200, 1, (64, 2)).astype(dtype.numpy)
    y, mean, variance = BatchNormTrain().reference(x)
    assert y.dtype == dtype.numpy and mean.dtype == variance.dtype == np.float32
    np.testing.assert_allclose(mean, x.astype(np.float32).mean(0), rtol=1e-6)


def test_inference_with_batch_statistics_repeats_training() -> None:
    x = RNG.normal(size=(6, 3, 2))
    weight, bias = RNG.normal(size=(2, 3))
    y, mean, variance = BatchNormTrain().reference(x, weight, bias)
    again = BatchNormInfer().reference(x, weight, bias, mean, variance * (11 / 12))
    np.testing.assert_allclose(again, y, rtol=1e-10, atol=1e-12)


def test_large_means_do_not_cancel() -> None:
    x = (RNG.normal(size=(4, 256)) + 1e4).astype(np.float32)
    y = LayerNorm().reference(x)
    np.testing.assert_allclose(y.var(-1), 1, rtol=1e-3)


def test_norms_are_one_another_where_they_should_be() -> None:
    x = RNG.normal(size=(2, 4, 3))
    one_group = GroupNorm(1).reference(x)
    np.testing.assert_allclose(one_group, LayerNorm(2).reference(x), rtol=1e-12)
    each_channel = GroupNorm(4).reference(x)
    np.testing.assert_allclose(each_channel, Standardize((2,)).reference(x), rtol=1e-12)
