"""take, index and take_along_axis against their references."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.irregular import (
    DTYPES,
    against_reference,
    check_op,
    draw,
    indices,
    interpreted,
    lowered,
    run,
)

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.gather import Index, Take
from treadle.ops.gather_along import TakeAlongAxis


@pytest.mark.parametrize("op", [Take, Index, TakeAlongAxis])
def test_samples(op: type) -> None:
    check_op(op)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_take(dtype: DType) -> None:
    against_reference(Take(0), [draw((37, 100), dtype, 1), indices((5, 9), 37, 2)])
    against_reference(Take(1), [draw((3, 37), dtype, 3), indices((1501,), 37, 4, dt.int64)])
    against_reference(Take(1), [draw((3, 5, 7), dtype, 5), indices((11,), 5, 6)])
    against_reference(Take(2), [draw((4, 2, 1), dtype, 7), indices((), 1, 8)])


@pytest.mark.parametrize("dtype", [dt.uint8, dt.float32, dt.float64], ids=str)
def test_index(dtype: DType) -> None:
    x = draw((4, 3, 5, 6), dtype, 1)
    against_reference(Index((0, 2)), [x, indices((7, 1), 4, 2), indices((3,), 5, 3)])
    against_reference(Index((1, 2)), [x, indices((7, 1), 3, 4), indices((3,), 5, 5, dt.int64)])
    against_reference(Index((0, 3)), [x, indices((2,), 4, 6), indices((1,), 6, 7)])
    against_reference(
        Index((0, 1, 3)), [x, indices((2, 1), 4, 8), indices((), 3, 9), indices((5,), 6, 10)]
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_take_along_axis(dtype: DType) -> None:
    against_reference(TakeAlongAxis(1), [draw((3, 40), dtype, 1), indices((3, 1031), 40, 2)])
    against_reference(TakeAlongAxis(0), [draw((9, 5, 13), dtype, 3), indices((4, 3, 7), 9, 4)])
    # Extents below those of x on either side of the axis.
    x = draw((3, 9, 4, 13), dtype, 5)
    against_reference(TakeAlongAxis(1), [x, indices((2, 17, 3, 12), 9, 6, dt.int64)])


def test_an_index_out_of_range_stays_in_memory() -> None:
    x, wrong = draw((4, 3), dt.float32, 1), np.array([0, 4, -5, 2**31 - 1], np.int32)
    (found,) = run(Take(0), [x, wrong], interpreted)
    np.testing.assert_array_equal(found, x[[0, 3, 0, 3]])


def test_one_kernel_for_all_types_of_a_size_and_all_shapes() -> None:
    one = lowered(Take(0), [draw((4, 3), dt.float32, 1), indices((2,), 4, 2)])
    other = lowered(Take(1), [draw((5, 7, 9), dt.int32, 3), indices((4, 6), 7, 4)])
    assert one.launches[0].kernel is other.launches[0].kernel
