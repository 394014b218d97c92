"""Pooling and its gradients against their references."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.backends.codegen.irregular import against_reference, check_op, draw, lowered

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops import adaptive_pool, pool
from treadle.ops.adaptive_pool import AdaptiveAvgPool
from treadle.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGather, MaxPoolGrad

MAXIMA = [
    pool.MaxPool,
    pool.MaxPoolGather,
    pool.MaxPoolGrad,
    adaptive_pool.AdaptiveMaxPool,
    adaptive_pool.AdaptiveMaxPoolGather,
    adaptive_pool.AdaptiveMaxPoolGrad,
]
AVERAGES = [
    pool.AvgPool,
    pool.AvgPoolGrad,
    adaptive_pool.AdaptiveAvgPool,
    adaptive_pool.AdaptiveAvgPoolGrad,
]


@pytest.mark.parametrize("op", MAXIMA + AVERAGES)
def test_samples(op: type) -> None:
    check_op(op, exact=False)


def _windows() -> Iterator[tuple[tuple[int, ...], tuple[object, ...]]]:
    """(extents, (kernel, strides, padding, dilation, ceil_mode)) of many kinds."""
    yield (21, 19), ((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), False)
    yield (20, 37), ((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), False)
    yield (9, 30), ((3, 5), (1, 1), ((1, 1), (2, 2)), (1, 1), False)
    yield (12, 29), ((2, 3), (3, 3), ((0, 1), (1, 0)), (2, 2), True)
    yield (5, 40), ((1, 20), (1, 4), ((0, 0), (3, 3)), (1, 1), True)
    yield (33,), ((4,), (2,), ((3, 3),), (3,), False)
    yield (4, 6, 18), ((2, 3, 2), (1, 2, 2), ((1, 0), (1, 1), (0, 1)), (1, 1, 1), False)
    yield (2, 5), ((2, 2), (2, 2), ((3, 3), (3, 3)), (1, 1), False)  # some see padding only


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.bfloat16, dt.int8], ids=str)
def test_maxima(dtype: DType) -> None:
    for extents, window in _windows():
        x = draw((2, 3, *extents), dtype, 1, nan=0.03)
        op = MaxPool(*window)
        against_reference(op, [x])
        if not dtype.is_float:
            continue
        against_reference(MaxPoolGather(*window), [x, draw(x.shape, dtype, 2)])
        dy = draw(op.reference(x).shape, dtype, 3)
        against_reference(MaxPoolGrad(*window), [x, dy])


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.float16], ids=str)
def test_gradients_of_maxima_in_rows_without_nan(dtype: DType) -> None:
    more = [
        ((3, 3), ((2, 2), (2, 2), ((0, 1), (0, 1)), (1, 1), False)),
        ((28, 28), ((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), False)),
        ((17, 18), ((5, 4), (2, 1), ((2, 2), (2, 1)), (1, 1), False)),
        ((10, 11), ((2, 3), (3, 2), ((1, 0), (2, 2)), (1, 2), False)),
        ((19,), ((3,), (2,), ((1, 1),), (1,), True)),
    ]
    for extents, window in (*_windows(), *more):
        x = draw((2, 3, *extents), dtype, 1, nan=0.0005)
        y = MaxPool(*window).reference(x)
        dy = draw(y.shape, dtype, 2)
        against_reference(MaxPoolGrad(*window), [x, dy])


@pytest.mark.parametrize("extreme", [-np.inf, np.inf, np.nan])
def test_gradients_of_equal_cells_go_to_the_first(extreme: float) -> None:
    for extents, window in _windows():
        x = np.full((1, 2, *extents), extreme, np.float32)
        x.reshape(-1)[::7] = 0.0
        op = MaxPool(*window)
        against_reference(MaxPoolGrad(*window), [x, draw(op.reference(x).shape, dt.float32, 1)])


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.float64], ids=str)
def test_averages(dtype: DType, counted: bool) -> None:
    for extents, (kernel, strides, padding, dilation, ceil_mode) in _windows():
        if max(dilation) > 1:  # type: ignore[call-overload]
            continue
        attributes = kernel, strides, padding, counted, ceil_mode
        x = draw((2, 3, *extents), dtype, 1)
        op = AvgPool(*attributes)
        against_reference(op, [x], exact=False)
        dy = draw(op.reference(x).shape, dtype, 2)
        against_reference(AvgPoolGrad(*attributes, extents), [dy], exact=False)


def test_windows_too_wide_for_a_line() -> None:
    x = draw((1, 1, 3, 5000), dt.float32, 1)
    window = (2, 2), (1, 2), ((0, 0), (1, 1)), (1, 1), False
    op = MaxPool(*window)
    against_reference(op, [x])
    against_reference(MaxPoolGrad(*window), [x, draw(op.reference(x).shape, dt.float32, 2)])


def test_the_average_of_planes() -> None:
    for extents in ((7, 7), (3,), (2, 3, 50)):
        x = draw((5, 9, *extents), dt.float32, 1)
        against_reference(AdaptiveAvgPool((1,) * len(extents)), [x], exact=False)


def test_adaptive_windows_of_one_size() -> None:
    x = draw((2, 3, 12, 30), dt.float32, 1, nan=0.02)
    dy = draw((2, 3, 4, 15), dt.float32, 2)
    against_reference(adaptive_pool.AdaptiveMaxPool((4, 15)), [x])
    against_reference(adaptive_pool.AdaptiveMaxPoolGrad((4, 15)), [x, dy])
    against_reference(AdaptiveAvgPool((4, 15)), [draw(x.shape, dt.float32, 3)], exact=False)


def test_one_kernel_for_many_extents() -> None:
    window = (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), False
    kernels = {
        lowered(MaxPool(*window), [draw((2, 3, h, w), dt.float32, 1)]).launches[0].kernel
        for h, w in ((8, 8), (9, 31), (64, 112))
    }
    assert len(kernels) == 1
