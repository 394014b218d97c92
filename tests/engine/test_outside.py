"""Faults that programs from outside found: the same numbers and types, op by op and compiled."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F

WHOLE = np.array([[3_000_000_019, -2], [1, 5]], np.int64)


def both(function: Callable[..., Any], *given: np.ndarray) -> list[np.ndarray]:
    """What the function gives op by op, and compiled at all levels."""
    compiled = [mge.jit.compile(function, level=level) for level in range(4)]
    tensors = [mge.tensor(x, dtype=str(x.dtype)) for x in given]
    return [run(*tensors).numpy() for run in (function, *compiled)]


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        (lambda x: F.softmax(x, 0), np.float32([np.inf, 1, 2]), np.float32([np.nan] * 3)),
        (lambda x: 1 / F.relu(x), np.float32([-0.0, 0.0]), np.float32([np.inf, np.inf])),
        (
            lambda x: (x + 0.7).astype("float32"),
            np.float16([0.1]),
            (np.float16([0.1]) + np.float16(0.7)).astype(np.float32),
        ),
        (lambda x: x**2, np.int64([3_000_000_019]), np.int64([3_000_000_019**2])),
        (lambda x: F.matmul(x, x), WHOLE, WHOLE @ WHOLE),
    ],
    ids=["softmax of infinity", "relu of -0", "a cast of 16 bits", "int64 ** 2", "int64 matmul"],
)
def test_numbers_and_types(
    function: Callable[..., Any], given: np.ndarray, expected: np.ndarray
) -> None:
    for found in both(function, given):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_labels_beyond_the_classes(dtype: str) -> None:
    scores, labels = mge.tensor(np.zeros((4, 3), np.float32)), np.array([0, 1, 2, 9], dtype)
    for run in (F.nn.cross_entropy, mge.jit.compile(F.nn.cross_entropy)):
        with pytest.raises(IndexError, match="9 is"):
            run(scores, mge.tensor(labels)).numpy()
