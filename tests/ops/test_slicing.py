"""Slices and borders against NumPy, over many bounds."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import ShapeError
from treadle.base.guards import recording_guards
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.ops.slicing import Pad, Slice, SliceUpdate

BOUNDS = (None, -9, -4, -1, 0, 2, 4, 9)


@pytest.mark.parametrize("step", [1, 2, 5, -1, -3])
@pytest.mark.parametrize("extent", [0, 1, 4])
def test_every_slice_is_numpys(extent: int, step: int) -> None:
    x = np.arange(extent)
    for start in BOUNDS:
        for stop in BOUNDS:
            cut = slice(start, stop, step)
            first, last, by = cut.indices(extent)
            bounds = (first,), (last,), (by,)
            expected = x[cut]
            (inferred,) = Slice(*bounds).infer(TensorType(dt.int64, x.shape))
            assert inferred.shape == expected.shape, cut
            np.testing.assert_array_equal(Slice(*bounds).reference(x), expected)
            written = x.copy()
            written[cut] = -1
            got = SliceUpdate(*bounds).reference(x, np.full(expected.shape, -1))
            np.testing.assert_array_equal(got, written)


def test_symbolic_bounds_become_guards() -> None:
    n = symbol("n")
    x = TensorType(dt.float32, (n,))
    with recording_guards() as guards:
        (cut,) = Slice((2,), (n,), (1,)).infer(x)
    assert cut.shape == (n - 2,)
    assert all(g.holds({"n": 2}) for g in guards) and not all(g.holds({"n": 1}) for g in guards)
    with pytest.raises(ShapeError, match="0:5:1 are not bounds of axis 0 with extent n"):
        Slice((0,), (5,), (1,)).infer(x)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_borders_are_numpys(mode: str) -> None:
    x = np.arange(12.0).reshape(3, 4)
    for widths in (((2, 1), (0, 3)), ((0, 0), (1, 1)), ((2, 2), (3, 3))):
        got = Pad(widths, mode).reference(x)  # type: ignore[arg-type]
        np.testing.assert_array_equal(got, np.pad(x, widths, mode=mode))  # type: ignore[call-overload]


def test_the_border_takes_the_elements_type() -> None:
    padded = Pad(((1, 0),), value=300).reference(np.array([7], np.uint8))
    assert padded.dtype == np.uint8 and list(padded) == [44, 7]
    assert list(Pad(((0, 1),), value=True).reference(np.array([False]))) == [False, True]
