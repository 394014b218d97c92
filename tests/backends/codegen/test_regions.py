"""Means over regions against their reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.irregular import HOST, against_reference, check_op

from treadle.backends.codegen.target import GENERIC
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.regions import RegionMean


def test_samples() -> None:
    check_op(RegionMean, exact=False)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [1, 8, 29])
def test_region_mean(channels: int, dtype: DType) -> None:
    rng = np.random.default_rng(channels)
    x = rng.random((2, 6, 5, channels)).astype(dtype.numpy)
    images = rng.integers(-2, 2, 3).astype(np.int64)
    for down, across in ((1, 2), (3, 6)):
        rows = rng.integers(0, 6, (3, 2 * down, 2)).astype(np.int32)
        columns = rng.integers(0, 5, (3, 3 * across, 2)).astype(np.int32)
        weights = [rng.random(p.shape).astype(dtype.numpy) for p in (rows, columns)]
        given = [x, images, rows, weights[0], columns, weights[1]]
        for target in (HOST, GENERIC):
            against_reference(RegionMean((2, 3), (down, across)), given, exact=False, target=target)
