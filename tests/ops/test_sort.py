"""Order of equal elements and of NaN."""

import numpy as np

from treadle.ops.op import Array
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
