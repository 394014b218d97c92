"""Samples make the inputs they promise."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.ops import elementwise as ew
from treadle.ops.arg import Arg
from treadle.ops.op import Sample


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_arguments_have_shape_and_type(dtype: dt.DType) -> None:
    for shape in ((), (0, 3), (2, 3)):
        for arg in (Arg(shape), Arg(shape, distinct=True), Arg(shape, low=0.2, high=3.0)):
            made = arg.make(dtype, np.random.default_rng(0))
            assert made.shape == shape and made.dtype == dtype.numpy


def test_values_keep_away_from_kinks() -> None:
    made = Arg((1000,), avoid=(0.0, 1.0)).make(dt.float64, np.random.default_rng(0))
    for point in (0.0, 1.0):
        assert np.min(np.abs(made - point)) >= 0.1 - 1e-12
    whole = Arg((1000,), avoid=(0.0,)).make(dt.int32, np.random.default_rng(0))
    assert not np.any(whole == 0)


def test_distinct_values_differ() -> None:
    for dtype in (dt.float64, dt.float32, dt.float16, dt.int8):
        made = np.sort(Arg((4, 5), distinct=True).make(dtype, np.random.default_rng(0)).ravel())
        assert np.min(np.diff(made.astype(np.float64))) >= 0.05


def test_exact_values_and_own_types_win() -> None:
    arg = Arg((2,), dt.int32, values=(3, 4))
    made = arg.make(dt.float64, np.random.default_rng(0))
    assert made.dtype == np.int32 and made.tolist() == [3, 4]


def test_samples_repeat_themselves() -> None:
    sample = ew.Add.samples()[0]
    for one, two in zip(sample.arrays(dt.float32), sample.arrays(dt.float32), strict=True):
        np.testing.assert_array_equal(one, two)


def test_element_types_and_labels() -> None:
    arg = Arg((2, 3))
    assert Sample(ew.Div(), (arg, arg)).element_types() == dt.FLOATS
    assert Sample(ew.Div(), (arg, arg), dtypes=(dt.float32,)).element_types() == (dt.float32,)
    fixed = Arg((2, 3), dt.int32)
    assert Sample(ew.Add(), (fixed, fixed)).element_types() == (dt.int32,)
    assert str(Sample(ew.Add(), (arg, Arg(())))) == "add(2x3,0d)"
    assert str(Sample(ew.Add(), (arg, arg), label="two matrices")) == "two matrices"
