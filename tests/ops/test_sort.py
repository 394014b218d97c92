"""Order of equal elements and of NaN, and positions."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.base.types import TensorType
from treadle.ops.gather import Nonzero
from treadle.ops.op import Op
from treadle.ops.reduce import Argmax, Argmin
from treadle.ops.sort import Sort, TopK


def lists(results: tuple[Array, Array]) -> tuple[list[float], list[int]]:
    return results[0].tolist(), results[1].tolist()


def test_equal_elements_keep_their_order_both_ways() -> None:
    x = np.array([2, 1, 2, 1])
    assert lists(Sort(0).reference(x)) == ([1, 1, 2, 2], [1, 3, 0, 2])
    assert lists(Sort(0, True).reference(x)) == ([2, 2, 1, 1], [0, 2, 1, 3])
    assert lists(TopK(0, 3).reference(x)) == ([2, 2, 1], [0, 2, 1])
    assert lists(TopK(0, 3, largest=False).reference(x)) == ([1, 1, 2], [1, 3, 0])


def test_nan_is_greater_than_infinity() -> None:
    x = np.array([np.nan, np.inf, -np.inf])
    assert Sort(0).reference(x)[1].tolist() == [2, 1, 0]
    assert Sort(0, True).reference(x)[1].tolist() == [0, 1, 2]


def test_unsigned_numbers_sort_downwards_without_negation() -> None:
    x = np.array([0, 255, 1], np.uint8)
    assert lists(Sort(0, True).reference(x)) == ([255, 1, 0], [1, 2, 0])


@pytest.mark.parametrize("op", [Argmax(0), Argmin(0), Sort(0), TopK(0, 3), Nonzero()], ids=str)
def test_positions_that_int32_does_not_hold_are_refused(op: Op) -> None:
    """`argmax` of more than 2^31 elements gave a negative position."""
    op.infer(TensorType(dt.uint8, (1 << 31,)))
    with pytest.raises(ShapeError, match=f"{op.name}: axis 0 has 2147483649 elements"):
        op.infer(TensorType(dt.uint8, ((1 << 31) + 1,)))
