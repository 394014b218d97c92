"""Long sums are as exact as NumPy's, eager and compiled, along any axes, on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.targets import HERE, compiling_for

import treadle as mge
import treadle.functional as F

RNG = np.random.default_rng(3)
TENTHS = np.full(1 << 21, 0.1, np.float32)
LONG = RNG.random((8, 1 << 17), np.float32)
COLUMNS = RNG.random((1 << 15, 96), np.float32)
IMAGES = RNG.random((8, 8, 90, 91), np.float32)
CASES: dict[str, tuple[Any, Any, np.ndarray]] = {
    "all": (F.sum, lambda x: x.sum(), TENTHS),
    "mean": (F.mean, lambda x: x.mean(), TENTHS),
    "norm": (F.norm, lambda x: np.sqrt((x * x).sum()), TENTHS),
    "rows": (lambda x: F.sum(x, axis=1), lambda x: x.sum(1), LONG),
    "few columns": (lambda x: F.sum(x, axis=0), lambda x: x.sum(0), LONG.reshape(-1, 8)),
    "columns": (lambda x: F.sum(x, axis=0), lambda x: x.sum(0), COLUMNS),
    "channels": (lambda x: F.sum(x, axis=(0, 2, 3)), lambda x: x.sum((0, 2, 3)), IMAGES),
    "variance": (F.var, lambda x: x.var(), LONG),
}


def error(got: Any, exact: Any) -> float:
    return float(np.max(np.abs(np.asarray(got, np.float64) - exact) / exact))


@pytest.mark.parametrize("name", CASES)
def test_long_sums(name: str) -> None:
    function, oracle, x = CASES[name]
    exact = oracle(x.astype(np.float64))
    # NumPy adds the terms of a column one after the other: it is no measure there.
    limit = min(max(4 * error(oracle(x), exact), 5e-7), 1e-6)
    assert error(function(mge.tensor(x)).numpy(), exact) < limit
    for target in HERE:
        with compiling_for(target):
            got = mge.jit.compile(function)(mge.tensor(x)).numpy()
            assert error(got, exact) < limit, target


@pytest.mark.parametrize("rows", [1, 16])
def test_long_products(rows: int) -> None:
    """No sum that rounds takes more than some thousand terms one after the other.

    All terms in one sum leave an error of 1e-2. Without fused multiply-add products round as well:
    panels of sixteen rows leave 6.5e-5.
    """
    x = np.ascontiguousarray(TENTHS.reshape(rows, -1))
    y = np.ones((3, x.shape[1]), np.float32)
    exact = x.astype(np.float64).sum(1, keepdims=True)

    def product(x: Any, y: Any) -> Any:
        return F.matmul(x, y, transpose_b=True)

    assert error(product(mge.tensor(x), mge.tensor(y)).numpy(), exact) < 1e-4
    for target in HERE:
        with compiling_for(target):
            got = mge.jit.compile(product)(mge.tensor(x), mge.tensor(y)).numpy()
            assert error(got, exact) < 1e-4, target
