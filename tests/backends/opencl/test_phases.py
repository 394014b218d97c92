"""Extents that data decide on a device: programs there, with the deciding ops between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit


def chosen(x: mge.Tensor) -> mge.Tensor:
    return x[x[:, 0] > 0]


def masked(x: mge.Tensor) -> Any:
    return chosen(x) * 2, chosen(x).sum(0), F.non_zero(x[:, 1] > 0)


def branched(x: mge.Tensor) -> Any:
    few = chosen(x)
    total = jit.cond(x.sum() > 0, lambda: few[few[:, 1] > 0].sum(), lambda: few.sum() - 1)

    def turn(state: mge.Tensor, row: mge.Tensor) -> tuple[mge.Tensor, ...]:
        return state + row[row > 0].sum(), row + state

    return total, jit.scan(turn, (total,), (x,))


def flat(made: Any) -> list[mge.Tensor]:
    return [t for part in made for t in flat(part)] if isinstance(made, (tuple, list)) else [made]


@pytest.mark.parametrize("f", [masked, branched], ids=lambda f: f.__name__)
def test_phases_run_there(f: Any) -> None:
    compiled = jit.compile(f)
    for shift in (9.0, -9.0, 0.0):
        numbers = np.random.default_rng(0).standard_normal((4, 3)).astype("float32") + shift
        wanted = flat(f(mge.tensor(numbers, device="cpux")))
        for got, want in zip(
            flat(compiled(mge.tensor(numbers, device="opencl0"))), wanted, strict=True
        ):
            assert str(got.device).startswith("opencl0") and got.shape == want.shape
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5)
