"""Shapes given to array methods: what counts as an extent."""

from typing import Any

import numpy as np
import pytest

import treadle
from treadle.base.symbol import symbol
from treadle.ops.methods import as_shape


def test_extents_in_every_spelling() -> None:
    n = symbol("n")
    one = treadle.tensor([2, 3])
    for given in ((2, 3), ([2, 3],), (np.array([2, 3]),), (np.int64(2), np.uint8(3)), (one,)):
        assert as_shape(given) == (2, 3) and all(type(d) is int for d in as_shape(given))
    assert as_shape((n, 2)) == (n, 2) and as_shape(((),)) == ()


@pytest.mark.parametrize(
    "given", [(2.5,), (2.0,), ([1, 2.0],), (np.array([4.0]),), ("4",), (None,)]
)
def test_what_is_no_extent(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        as_shape(given)
