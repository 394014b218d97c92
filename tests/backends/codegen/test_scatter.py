"""index_add, index_update, add_along_axis and scatter_along_axis against their references.

Sums are made in the order of the references, so they are equal to the last bit.
"""

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
    run,
)

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.gather import IndexAdd, IndexUpdate
from treadle.ops.gather_along import AddAlongAxis, ScatterAlongAxis

BOTH = [(op, d) for op in (IndexAdd, IndexUpdate) for d in DTYPES if d in op.dtypes]
ALONG = [(op, d) for op in (AddAlongAxis, ScatterAlongAxis) for d in DTYPES if d in op.dtypes]


@pytest.mark.parametrize("op", [IndexAdd, IndexUpdate, AddAlongAxis, ScatterAlongAxis])
def test_samples(op: type) -> None:
    check_op(op)


@pytest.mark.parametrize(("op", "dtype"), BOTH, ids=str)
def test_repeated_indices(op: type, dtype: DType) -> None:
    rows = indices((57,), 9, 1)
    against_reference(op((0,)), [draw((9, 131), dtype, 2), draw((57, 131), dtype, 3), rows])
    against_reference(op((0,)), [draw((9, 3), dtype, 4), draw((57, 3), dtype, 5), rows])
    against_reference(op((1,)), [draw((3, 9, 33), dtype, 6), draw((3, 57, 33), dtype, 7), rows])


@pytest.mark.parametrize("op", [IndexAdd, IndexUpdate])
def test_several_indices(op: type) -> None:
    x = draw((4, 3, 5, 6), dt.float32, 1)
    apart = [indices((7, 1), 4, 2), indices((3,), 5, 3)]
    against_reference(op((0, 2)), [x, draw((7, 3, 3, 6), dt.float32, 4), *apart])
    beside = [indices((7, 1), 3, 5), indices((3,), 5, 6, dt.int64)]
    against_reference(op((1, 2)), [x, draw((4, 7, 3, 6), dt.float32, 7), *beside])


@pytest.mark.parametrize(("op", "dtype"), ALONG, ids=str)
def test_along_an_axis(op: type, dtype: DType) -> None:
    last = indices((3, 100), 40, 1)
    against_reference(op(1), [draw((3, 40), dtype, 2), last, draw((3, 100), dtype, 3)])
    first = indices((14, 3, 130), 9, 4)
    against_reference(op(0), [draw((9, 5, 133), dtype, 5), first, draw((14, 3, 130), dtype, 6)])
    middle = indices((2, 17, 4, 13), 9, 7, dt.int64)
    values = draw((2, 17, 4, 13), dtype, 8)
    against_reference(op(1), [draw((3, 9, 4, 13), dtype, 9), middle, values])


def test_sums_of_half_types_round_once() -> None:
    """2048 ones added one by one to 2048 in float16 would stay 2048."""
    x, ones = np.full((1, 2), 2048, np.float16), np.ones((2048, 2), np.float16)
    (found,) = run(IndexAdd((0,)), [x, ones, np.zeros(2048, np.int32)])
    assert (found == 4096).all()


def test_an_update_in_place() -> None:
    x, v, rows = draw((9, 40), dt.float32, 1), draw((20, 40), dt.float32, 2), indices((20,), 9, 3)
    lines, values = indices((9, 70), 40, 4), draw((9, 70), dt.float32, 5)
    for op, operands in (
        (IndexAdd((0,)), (x, v, rows)),
        (IndexUpdate((0,)), (x, v, rows)),
        (AddAlongAxis(1), (x, lines, values)),
        (ScatterAlongAxis(1), (x, lines, values)),
    ):
        (apart,), (same,) = run(op, operands), run(op, operands, in_place=True)
        assert apart.tobytes() == same.tobytes()


def test_an_index_out_of_range_stays_in_memory() -> None:
    x, v = np.zeros((3, 2), np.float32), np.ones((2, 2), np.float32)
    (found,) = run(IndexAdd((0,)), [x, v, np.array([7, -9], np.int32)], interpreted)
    np.testing.assert_array_equal(found, [[1, 1], [0, 0], [1, 1]])
