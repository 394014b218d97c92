"""Zeros of either sign, infinities, NaN and subnormal numbers through what programs rewrite.

Ops by themselves are compared in tests/backends/codegen/test_special_values.py; here two follow one
another, with numbers that rules look for between them, and results are those of eager calls to the
bit. One row of one element that is summed is left out: its zero may keep its sign.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.backends.codegen.execution import same

import treadle as mge
import treadle.functional as F

TINY = 1e-45, -1e-45, 1.17549435e-38, 1e-30
"""Subnormal numbers, the least that is none, and one whose square is 0."""
LARGE = np.inf, -np.inf, 3.4e38, -3.4e38
SPECIAL = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, 3, -3, 0.1, np.nan, *TINY, *LARGE], np.float32)
STEPS: dict[str, Callable[[mge.Tensor, mge.Tensor], mge.Tensor]] = {
    "x + 0": lambda x, y: x + 0,
    "x - 0": lambda x, y: x - 0,
    "0 - x": lambda x, y: 0 - x,
    "x * 1": lambda x, y: x * 1,
    "x * 0": lambda x, y: x * 0,
    "x * -1": lambda x, y: x * -1,
    "x / 1": lambda x, y: x / 1,
    "x / 2": lambda x, y: x / 2,
    "1 / x": lambda x, y: 1 / x,
    "-x": lambda x, y: -x,
    "x - y": lambda x, y: x - y,
    "y - x": lambda x, y: y - x,
    "x + y": lambda x, y: x + y,
    "x * y": lambda x, y: x * y,
    "x / y": lambda x, y: x / y,
    "x - x": lambda x, y: x - x,
    "x / x": lambda x, y: x / x,
    "x + x": lambda x, y: x + x,
    "x * x": lambda x, y: x * x,
    "x ** 2": lambda x, y: x**2,
    "x // y": lambda x, y: x // y,
    "x % y": lambda x, y: x % y,
    "abs": lambda x, y: F.abs(x),
    "maximum": lambda x, y: F.maximum(x, y),
    "minimum": lambda x, y: F.minimum(x, y),
    "relu": lambda x, y: F.relu(x),
    "clip": lambda x, y: F.clip(x, -1, 0),
    "where": lambda x, y: F.where(F.logical_not(x > y), x, y),
    "round": lambda x, y: F.round(x),
    "sqrt": lambda x, y: F.sqrt(x),
    "by float16": lambda x, y: x.astype("float16").astype("float32"),
    "by float64": lambda x, y: x.astype("float64").astype("float32"),
    "by int32": lambda x, y: x.astype("int32").astype("float32"),
}


@pytest.mark.parametrize("first", ["x + 0", "0 - x", "x - y", "x / 2", "maximum", "x % y"])
def test_two_steps(first: str) -> None:
    """`-(x - y)` became `y - x` and `x + 0` became `x`, whose zeros have other signs."""
    x, y = (mge.tensor(a.ravel()) for a in np.meshgrid(SPECIAL, SPECIAL))

    def steps(x: mge.Tensor, y: mge.Tensor) -> list[mge.Tensor]:
        made = STEPS[first](x, y)
        return [made, *(then(made, y) for then in STEPS.values())]

    eager, compiled = steps(x, y), mge.jit.compile(steps)(x, y)
    for name, wanted, got in zip(["", *STEPS], eager, compiled, strict=True):
        wrong = np.flatnonzero(~same(got.numpy(), wanted.numpy()))
        places = [(x.numpy()[i], y.numpy()[i], wanted.numpy()[i], got.numpy()[i]) for i in wrong]
        assert not places, f"{first}, then {name}: {places[:3]}"
