"""Random words are those of the reference; uniform numbers, too; normal ones but for rounding."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.irregular import against_reference, check_op

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.distribution import RandomNormal, RandomUniform
from treadle.ops.random import RandomBits

WRAPPING = np.array([17, 42, 0xFFFFFFFE, 3], np.uint32)
"""A state whose counter soon carries into its high word."""


@pytest.mark.parametrize("op", [RandomBits, RandomUniform])
def test_samples(op: type) -> None:
    check_op(op, dtypes=(dt.uint32,))


def test_normal_samples() -> None:
    check_op(RandomNormal, exact=False, dtypes=(dt.uint32,))


@pytest.mark.parametrize("n", [1, 3, 31, 32, 33, 1000, 70001])
def test_words(n: int) -> None:
    against_reference(RandomBits((n,)), [WRAPPING])


@pytest.mark.parametrize("dtype", dt.FLOATS, ids=str)
def test_draws(dtype: DType) -> None:
    for n in (1, 31, 33, 5001):
        against_reference(RandomUniform((n,), dtype), [WRAPPING])
        against_reference(RandomNormal((n,), dtype), [WRAPPING], exact=False)


def test_the_last_words_of_the_stream() -> None:
    """The counter itself wraps around."""
    state = np.array([1, 2, 0xFFFFFFF0, 0xFFFFFFFF], np.uint32)
    against_reference(RandomBits((500,)), [state])
