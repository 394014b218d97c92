"""cum_sum, cum_prod and linear_recurrence against their references, bit by bit."""

from __future__ import annotations

import pytest
from tests.backends.codegen.irregular import DTYPES, against_reference, check_op, draw

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.cumulative import CumProd, CumSum, LinearRecurrence

NUMBERS = [d for d in DTYPES if d is not dt.bool_]


@pytest.mark.parametrize("op", [CumSum, CumProd, LinearRecurrence])
def test_samples(op: type) -> None:
    check_op(op)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_directions(dtype: DType, reverse: bool, exclusive: bool) -> None:
    for axis, shape in ((1, (5, 77)), (1, (3, 20, 13)), (0, (9, 40))):
        against_reference(CumSum(axis, exclusive, reverse), [draw(shape, dtype, axis)])
        against_reference(
            CumProd(axis, exclusive, reverse),
            [
                draw(shape, dtype, axis) / 8
                if dtype.is_float and dtype.itemsize > 2
                else draw(shape, dtype, axis) * 0
            ],
        )


@pytest.mark.parametrize("dtype", dt.FLOATS, ids=str)
def test_recurrence(dtype: DType) -> None:
    for reverse in (False, True):
        a, b = draw((4, 30, 11), dtype, 1), draw((4, 30, 11), dtype, 2)
        against_reference(LinearRecurrence(1, reverse), [(a / 16).astype(a.dtype), b])
