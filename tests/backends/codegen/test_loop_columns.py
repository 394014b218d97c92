"""Sums of columns and batch statistics: few passes, sound numbers, the same bits for any split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen import irregular
from tests.backends.codegen.execution import RUNNABLE, object_code

from treadle.backends.codegen.loops import division
from treadle.backends.codegen.loops import lower_loops as loops
from treadle.backends.codegen.target import AVX512, GENERIC, NEON, Target
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.ops.batch_norm import BatchNormGrad, BatchNormTrain
from treadle.ops.fused import Fused
from treadle.ops.reduce import Max, Mean
from treadle.ops.unary import Relu, Square

SHAPES = [(40_000, 3), (9_000, 17), (9_000, 32), (6_000, 64), (2_500, 200), (520, 2048), (300, 512)]
"""Rows and columns: narrow ones that registers hold, and wide ones."""


def drawn(shape: Sequence[int], seed: int = 0, dtype: DType = dt.float32) -> Array:
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(tuple(shape)).astype(dtype.numpy)


def fused(body: Callable[..., Any], arrays: Sequence[Array]) -> Fused:
    return Fused("loop", trace_body(body, [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]))


def moments(x: Any) -> Any:
    """Mean and variance of each column, and the standardized columns."""
    mean = Mean((0,), keepdims=True)(x)
    centered = x - mean
    variance = Mean((0,), keepdims=True)(Square()(centered))
    return centered / (variance + 1e-5), mean, variance


def computed(
    body: Callable[..., Any], *arrays: Array, target: Target = irregular.HOST
) -> tuple[Array, ...]:
    """Native results, which are the same bits however the items are split."""
    op = fused(body, arrays)
    results = irregular.run(op, arrays, target=target)
    again = irregular.run(op, arrays, split=irregular.one_by_one, target=target)
    for one, other in zip(results, again, strict=True):
        assert one.tobytes() == other.tobytes()
    return results


def wide(x: Array) -> tuple[Array, Array]:
    """Mean and variance in double precision."""
    exact = x.astype(np.float64)
    return exact.mean(0, keepdims=True), exact.var(0, keepdims=True)


# -- statistics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_statistics_take_one_pass_and_the_result_another(shape: tuple[int, int]) -> None:
    x = drawn(shape)
    assert len(irregular.lowered(fused(moments, [x]), [x]).launches) == 3
    y, mean, variance = computed(moments, x)
    exact_mean, exact_variance = wide(x)
    np.testing.assert_allclose(mean, exact_mean, 0, 2e-6)
    np.testing.assert_allclose(variance, exact_variance, 4e-6)
    wanted = (x - exact_mean) / (exact_variance + 1e-5)
    np.testing.assert_allclose(y, wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["large mean", "outliers first", "drift"])
def test_nothing_cancels(shape: tuple[int, int], kind: str) -> None:
    x = drawn(shape, 1)
    if kind == "large mean":
        x += np.float32(1000.0)
    elif kind == "outliers first":
        x[:3] *= 1e5
    else:
        x += np.linspace(0, 1e4, shape[0], dtype=np.float32)[:, None]
    _, mean, variance = computed(moments, x)
    exact_mean, exact_variance = wide(x)
    # What rounding each element alone, half a unit in the last place of the mean, would do.
    spread = np.sqrt(exact_variance) * 1e-5 + np.abs(exact_mean) * 1e-6
    assert (np.abs(mean - exact_mean) <= spread).all()
    np.testing.assert_allclose(variance, exact_variance, 1e-4)


@pytest.mark.parametrize("shape", [(9_000, 17), (6_000, 64), (40_000, 3)], ids=str)
def test_what_is_not_finite_stays_in_its_column(shape: tuple[int, int]) -> None:
    x = drawn(shape, 2)
    x[0, 0], x[-1, 1], x[shape[0] // 2, 2] = np.inf, -np.inf, np.nan
    _, mean, variance = computed(moments, x)
    np.testing.assert_array_equal(mean[0, :3], [np.inf, -np.inf, np.nan])
    assert np.isnan(variance[0, :3]).all()
    assert np.isfinite(mean[0, 3:]).all()
    assert np.isfinite(variance[0, 3:]).all()


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(9_000, 64), (70_001, 3), (5_000, 200)], ids=str)
def test_equal_values_have_no_variance(shape: tuple[int, int], target: Target) -> None:
    x = np.full(shape, 3.3, np.float32)
    _, mean, variance = computed(moments, x, target=target)
    assert (mean == x[:1]).all()
    assert (variance == 0).all()


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16, dt.float64], ids=str)
def test_statistics_of_other_types(dtype: DType) -> None:
    x = drawn((9_000, 64), 3, dtype)
    weight = np.ones(64, dtype.numpy)
    _, mean, variance = computed(lambda x, w: BatchNormTrain().outputs(x, w, w), x, weight)
    exact = wide(x)
    np.testing.assert_allclose(mean, exact[0][0], 0, 5e-6)
    np.testing.assert_allclose(variance, exact[1][0] * 9_000 / 8_999, 1e-5)


def test_the_mean_and_variance_of_one_long_row() -> None:
    x = drawn((1, 700_000), 4) + np.float32(100.0)

    def body(x: Any) -> Any:
        mean = Mean((1,))(x)
        return mean, Mean((1,))(Square()(x - mean.reshape((1, 1))))

    mean, variance = computed(body, x)
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(), 1e-6)
    np.testing.assert_allclose(variance, x.astype(np.float64).var(), 1e-5)


# -- batch norm ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 3, 40, 40), (32, 64, 16, 16), (5_000, 48)], ids=str)
def test_batch_norm_with_what_follows(shape: tuple[int, ...]) -> None:
    x, residual, row = drawn(shape), drawn(shape, 1), drawn(shape[1:2], 2)

    def body(x: Any, weight: Any, bias: Any, residual: Any) -> Any:
        y, mean, variance = BatchNormTrain().outputs(x, weight, bias)
        y = y + residual
        return Relu()(y), y > 0.0, mean, variance

    y, mask, mean, _ = computed(body, x, row, row, residual)
    wanted = BatchNormTrain().reference(x, row, row)
    np.testing.assert_allclose(y, np.maximum(wanted[0] + residual, 0), 1e-5, 2e-5)
    np.testing.assert_array_equal(mask, y > 0)
    np.testing.assert_allclose(mean, wanted[1], 0, 1e-5)


@pytest.mark.parametrize("shape", [(8, 3, 40, 40), (16, 64, 16, 16), (5_000, 48)], ids=str)
def test_batch_norm_backward(shape: tuple[int, ...]) -> None:
    arrays = drawn(shape), drawn(shape, 1), drawn(shape[1:2], 2)
    results = computed(BatchNormGrad().outputs, *arrays)
    wanted = BatchNormGrad().reference(*(a.astype(np.float64) for a in arrays))
    for got, exact in zip(results, wanted, strict=True):
        np.testing.assert_allclose(got, exact, 1e-4, 2e-3)


def test_backward_reads_twice_and_divides_per_channel_only() -> None:
    wide = dt.float64
    x, dy, row = drawn((9_000, 64), 0, wide), drawn((9_000, 64), 1, wide), drawn((64,), 2, wide)

    def body(x: Any, dy: Any, mean: Any, std: Any, weight: Any) -> Any:
        centered = x - mean
        total, product = dy.sum((0,)), (dy * centered).sum((0,))
        return (dy - total / 9e3 - centered * (product / std)) * (weight / std), product, total

    arrays = x, dy, row, np.abs(row) + 1e3, row
    op = fused(body, arrays)
    launches = irregular.lowered(op, arrays).launches
    large = [launch for launch in launches if launch.nbytes > x.nbytes]
    assert [launch.nbytes // x.nbytes for launch in large] == [2, 3]
    assert "div" not in large[-1].kernel.name
    irregular.against_reference(op, arrays, exact=False)


# -- sums ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_sums_of_columns_in_one_pass(shape: tuple[int, int]) -> None:
    x, y = np.rint(drawn(shape) * 4), np.rint(drawn(shape, 1) * 4)

    def body(x: Any, y: Any) -> Any:
        return x.sum((0,)), (x * y).sum((0,)), Max((0,))(x - y)

    sums = computed(body, x, y)
    np.testing.assert_array_equal(sums[0], x.sum(0, dtype=np.float64))
    np.testing.assert_array_equal(sums[1], (x * y).sum(0, dtype=np.float64))
    np.testing.assert_array_equal(sums[2], (x - y).max(0))


def test_sums_over_rows_on_three_axes() -> None:
    x = np.rint(drawn((4, 40, 40, 24)) * 4)
    (total,) = computed(lambda x: x.sum((0, 1, 2)), x)
    np.testing.assert_array_equal(total, x.sum((0, 1, 2), dtype=np.float64))


# -- other targets ---------------------------------------------------------------------------------


def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have shapes that the interpreter can walk through take the ways of large ones."""
    lowered = {"STRIP": 4, "STRIPS": 0.0, "LEAST_ROWS": 8, "PART": 1.0, "STARVED": 0.0}
    for name, value in lowered.items():
        monkeypatch.setattr(division, name, value)
    loops.lower_body.cache_clear()


@pytest.mark.parametrize("columns", [3, 70])
def test_narrow_vectors(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _small(monkeypatch)
    target = dataclasses.replace(GENERIC, l2=1)
    x = drawn((45, columns), 5, dt.float64) + 10.0
    try:
        op = fused(moments, [x])
        results = irregular.run(op, [x], irregular.interpreted, target=target)
        assert len(irregular.lowered(op, [x], target).launches) == 3
    finally:
        loops.lower_body.cache_clear()
    for got, wanted in zip(results, op.reference(x), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-11)


@pytest.mark.parametrize("target", [AVX512, NEON], ids=lambda t: t.name)
def test_other_targets_compile(target: Target) -> None:
    kernels = []
    for shape in SHAPES:
        x = drawn(shape)
        kernels += [n.kernel for n in irregular.lowered(fused(moments, [x]), [x], target).launches]
    assert object_code(list(dict.fromkeys(kernels)), target)
