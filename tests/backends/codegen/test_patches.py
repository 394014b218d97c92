"""sliding_window and its transpose against their references."""

from __future__ import annotations

import pytest
from tests.backends.codegen.irregular import against_reference, check_op, draw

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.sliding import SlidingWindow, SlidingWindowTranspose


def test_samples() -> None:
    check_op(SlidingWindow)
    check_op(SlidingWindowTranspose, exact=False)


@pytest.mark.parametrize("dtype", [dt.uint8, dt.bfloat16, dt.float32, dt.int64], ids=str)
def test_windows(dtype: DType) -> None:
    for extents, attributes in (
        ((13, 17), ((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))),
        ((9, 10), ((2, 4), (3, 2), ((0, 2), (3, 0)), (2, 3))),
        ((30,), ((5,), (2,), ((4, 4),), (2,))),
        ((3, 4, 9), ((2, 2, 3), (1, 2, 2), ((1, 0), (0, 1), (1, 1)), (1, 1, 2))),
    ):
        x = draw((2, 3, *extents), dtype, 1)
        op = SlidingWindow(*attributes)
        against_reference(op, [x])
        patches = draw(op.reference(x).shape, dtype, 2)
        back = SlidingWindowTranspose(*attributes, extents)
        against_reference(back, [patches], exact=False)
