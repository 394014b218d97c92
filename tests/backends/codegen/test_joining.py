"""concat and slice_update against their references."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.irregular import against_reference, check_op, draw, lowered, run

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.movement import Concat
from treadle.ops.slicing import SliceUpdate

SIZES = [dt.bool_, dt.bfloat16, dt.float32, dt.int64]


@pytest.mark.parametrize("op", [Concat, SliceUpdate])
def test_samples(op: type) -> None:
    check_op(op)


@pytest.mark.parametrize("dtype", SIZES, ids=str)
def test_concat(dtype: DType) -> None:
    shapes = (30, 7, 3), (30, 1, 3), (30, 50, 3)
    against_reference(Concat(1), [draw(s, dtype, i) for i, s in enumerate(shapes)])
    against_reference(Concat(-1), [draw((5, 1), dtype, i) for i in range(9)])
    # Longer than a block of a copy.
    against_reference(Concat(0), [draw((300, 700), dtype, 1), draw((1, 700), dtype, 2)])


def test_concat_leaves_out_empty_inputs() -> None:
    arrays = [draw((2, n), dt.float32, n) for n in (3, 0, 1)]
    assert len(lowered(Concat(1), arrays[::2]).launches) == 2
    (found,) = run(Concat(1), arrays[::2])
    np.testing.assert_array_equal(found, np.concatenate(arrays, 1))


@pytest.mark.parametrize("dtype", SIZES, ids=str)
def test_slice_update(dtype: DType) -> None:
    x = draw((10, 7, 6), dtype, 1)
    for starts, stops, steps in (
        ((1, 0, 5), (9, 7, -1), (3, 1, -2)),
        ((1, 0, 0), (9, 7, 6), (1, 1, 1)),
        ((9, 6, 5), (-1, -1, -1), (-1, -1, -1)),
        ((2, 3, 1), (3, 4, 5), (1, 1, 1)),
    ):
        op = SliceUpdate(starts, stops, steps)
        v = draw(op.cut(x).shape, dtype, 2)
        against_reference(op, [x, v])
        assert run(op, [x, v], in_place=True)[0].tobytes() == op.reference(x, v).tobytes()


def test_a_long_regular_box_is_shared_among_items() -> None:
    op = SliceUpdate((0, 0), (2000, 1000), (1, 2))
    arrays = [draw((2000, 1000), dt.float32, 1), draw((2000, 500), dt.float32, 2)]
    assert lowered(op, arrays).launches[1].items > 8
    against_reference(op, arrays)
