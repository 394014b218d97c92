"""argmax and argmin against their references."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.irregular import DTYPES, against_reference, check_op, draw, run

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.reduce import Argmax, Argmin

NUMBERS = [d for d in DTYPES if d is not dt.bool_]


@pytest.mark.parametrize("op", [Argmax, Argmin])
def test_samples(op: type) -> None:
    check_op(op)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("op", [Argmax, Argmin])
def test_ties_and_nan(op: type, dtype: DType) -> None:
    for seed, shape in enumerate(((5, 77), (3, 8), (2, 1), (4, 3), (7, 33))):
        against_reference(op(1), [draw(shape, dtype, seed, nan=0.05)])
    against_reference(op(0), [draw((20, 19), dtype, 6, nan=0.05)])
    against_reference(op(1, True), [draw((3, 20, 5), dtype, 7, nan=0.05)])


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)
def test_infinities(dtype: DType) -> None:
    for extreme, op in ((-np.inf, Argmax(1)), (np.inf, Argmin(1))):
        against_reference(op, [np.full((3, 21), extreme, dtype.numpy)])
        x = np.full((2, 21), extreme, dtype.numpy)
        x[0, 17], x[1, 20] = np.nan, -extreme
        assert run(op, [x])[0].tolist() == [17, 20]
