"""sort, top_k and random_permutation against their references."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.irregular import DTYPES, against_reference, check_op, draw

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.ops.distribution import RandomPermutation
from treadle.ops.random import STATE
from treadle.ops.sort import Sort, TopK

NUMBERS = [d for d in DTYPES if d is not dt.bool_]


@pytest.mark.parametrize("op", [Sort, TopK])
def test_samples(op: type) -> None:
    check_op(op)


def test_permutation_samples() -> None:
    check_op(RandomPermutation, dtypes=(dt.uint32,))


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_ties_and_nan(dtype: DType, down: bool) -> None:
    """Lengths around those where another way of sorting is chosen."""
    for n in (1, 2, 5, 63, 64, 65, 300):
        against_reference(Sort(1, down), [draw((4, n), dtype, n, nan=0.05)])
        against_reference(Sort(0, down), [draw((n, 3), dtype, n, nan=0.05)])


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_any_k(dtype: DType, largest: bool) -> None:
    for n in (1, 5, 40, 300):
        for k in {1, min(4, n), min(17, n), min(33, n), n}:
            against_reference(TopK(1, k, largest), [draw((3, n), dtype, k, nan=0.05)])
            against_reference(TopK(0, k, largest), [draw((n, 3), dtype, k, nan=0.05)])


def _wide(dtype: DType) -> Array:
    """Numbers of all magnitudes."""
    rng = np.random.default_rng(1)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        return rng.integers(limits.min, limits.max, (2, 1500), dtype.numpy, endpoint=True)
    drawn = rng.standard_normal((2, 1500)) * 10.0 ** rng.integers(-4, 4, (2, 1500))
    drawn[:, :3] = np.inf, -np.inf, np.nan
    return drawn.astype(dtype.numpy)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_the_whole_range(dtype: DType) -> None:
    x = _wide(dtype)
    for op in (Sort(1), Sort(1, True), TopK(1, 7), TopK(1, 7, False), TopK(1, 200)):
        against_reference(op, [x])


def test_sorted_lines_are_the_worst_of_a_list() -> None:
    x = np.sort(_wide(dt.float32))
    for largest in (False, True):
        against_reference(TopK(1, 20, largest), [x])
        against_reference(TopK(1, 20, largest), [np.ascontiguousarray(x[:, ::-1])])


@pytest.mark.parametrize("dtype", [dt.float32, dt.int64], ids=str)
def test_a_few_of_many_where_samples_mislead(dtype: DType) -> None:
    """Every tenth element, and so every sample, is among the least: the bar is too low."""
    x = np.arange(640) + 1000 * (np.arange(640) % 10 != 0)
    against_reference(TopK(0, 150, False), [x.astype(dtype.numpy)])
    against_reference(TopK(0, 150, False), [np.zeros(640, dtype.numpy)])
    against_reference(TopK(0, 320, True), [x.astype(dtype.numpy)])


def test_equal_upper_halves() -> None:
    """Doubles that differ in their last bits only: a few of them, runs of them, nothing else."""
    rng = np.random.default_rng(1)
    for share in (0.02, 0.1, 1.0):
        x = rng.standard_normal((3, 900))
        near = 1 + rng.integers(0, 9, x.shape) * 2.0**-50
        x = np.where(rng.random(x.shape) < share, near, x)
        against_reference(Sort(1), [x])
        against_reference(Sort(1, True), [x])


def test_permutation() -> None:
    state = STATE.make(dt.uint32, np.random.default_rng(0))
    for n in (64, 65, 3000):
        against_reference(RandomPermutation(n), [state])
