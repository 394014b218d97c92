"""Measures of how far two arrays are apart, against what they are by definition."""

import ml_dtypes
import numpy as np
import pytest

from treadle.base.difference import difference, tolerance_of


def test_equal_arrays_are_not_apart() -> None:
    x = np.array([1.0, np.nan, np.inf, -np.inf, -0.0], "float32")
    found = difference(x, x * 1)
    assert (found.largest, found.relative, found.ulps, found.count) == (0.0, 0.0, 0.0, 0)
    assert found.first is None and found.around == "" and not found.differs
    empty = difference(np.zeros((0, 3)), np.zeros((0, 3)))
    assert not empty.differs and empty.size == 0


def test_the_first_element_that_differs_and_what_stands_beside_it() -> None:
    x = np.arange(12, dtype="float32").reshape(3, 4)
    y = x.copy()
    y[1, 2] += 0.5
    y[2, 0] -= 1.0
    found = difference(y, x)
    assert (found.count, found.size, found.first) == (2, 12, (1, 2))
    assert found.largest == 1.0 and found.relative == pytest.approx(1 / 11) and found.differs
    assert found.around == "from [1, 0]: found 4, 5, 6.5, 7; expected 4, 5, 6, 7"
    assert str(found).startswith("2 of 12 differ, first at [1, 2]; largest 1, relative 0.091")
    assert difference(np.float64(1.0), np.float64(2.0)).around == "found 1, expected 2"


def test_differences_within_the_tolerance_are_no_differences() -> None:
    x = np.array([1.0, 100.0], "float32")
    y = x + np.array([0.005, 0.0], "float32")
    assert not difference(y, x).differs, "measured against the largest"
    assert difference(y, x, rtol=1e-5).differs
    tiny = np.array([1e-3], "float32")
    assert difference(tiny, tiny * 0).differs
    assert not difference(tiny, tiny * 0, scale=100.0).differs, "what was added may cancel"
    assert tolerance_of("int32", rtol=0.5) == 0.0 and tolerance_of("float16", rtol=0.5) == 0.5


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
def test_units_in_the_last_place(dtype: object) -> None:
    x = np.array([1.0, -1.0, 0.0, 3.0], dtype)
    least = np.finfo(dtype) if dtype != ml_dtypes.bfloat16 else ml_dtypes.finfo(dtype)
    y = x.copy()
    y[0] += least.eps
    assert difference(y, x).ulps == 1.0
    y[2] = -0.0
    assert difference(y, x).ulps == 1.0, "both zeros are one number"
    y[2] = -least.smallest_subnormal
    assert difference(y, x).ulps == 1.0
    y[2] = least.smallest_subnormal * type(y[0])(3)
    assert difference(y, x).ulps == 3.0


def test_one_sided_infinities_and_nans_are_infinitely_far() -> None:
    x = np.array([1.0, 2.0], "float32")
    for odd in (np.nan, np.inf):
        y = np.array([1.0, odd], "float32")
        found = difference(y, x)
        assert found.largest == np.inf and found.differs and found.first == (1,)
        assert difference(x, y).differs


def test_integers_and_bools_must_be_equal() -> None:
    large = np.array([2**62, 5], "int64")
    found = difference(large + np.array([1, 0]), large)
    assert found.count == 1 and found.largest == 1.0 and found.ulps == 0.0 and found.differs
    flags = np.array([True, False])
    assert difference(flags, ~flags).count == 2 and not difference(flags, flags).differs


def test_complex_numbers() -> None:
    x = np.array([1 + 1j, 2j], "complex64")
    found = difference(x + np.array([0, 3 + 4j], "complex64"), x)
    assert found.largest == pytest.approx(5.0) and found.first == (1,) and found.differs
