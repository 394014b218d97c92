"""Scans of many turns are loops in the program, not steps written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.engine.options import Options


@pytest.mark.parametrize("turns", [513, 100_000])
def test_many_turns_are_a_loop(turns: int) -> None:
    """Written out, 100,000 turns took minutes and more than a gigabyte."""
    rng = np.random.default_rng(0)
    x, s = (rng.standard_normal(shape).astype("float32") for shape in ((turns, 3), (1, 3)))
    w = mge.Parameter(rng.standard_normal((3, 3)).astype("float32") * 0.2)
    gm = GradManager().attach(w)

    def body(s: Any, x: Any) -> Any:
        state = F.tanh(F.matmul(s, w)) * 0.5 + x
        return state, (state * 2).sum(), x > 0

    def run(s: Any, x: Any) -> Any:
        with gm:
            (last,), (sums, signs) = mge.jit.scan(body, (s,), (x,))
            gm.backward((sums * sums).mean() + last.sum())
        return last, sums, signs

    made = mge.jit.compile(options=Options(check=True))(run)
    last, sums, signs = made(mge.tensor(s), mge.tensor(x))
    assert len(made.lower(mge.tensor(s), mge.tensor(x)).planned().steps) < 100
    state, expected = s.astype("float64"), np.empty(turns)
    for i in range(turns):
        state = np.tanh(state @ w.numpy().astype("float64")) * 0.5 + x[i]
        expected[i] = 2 * state.sum()
    np.testing.assert_allclose(last.numpy(), state, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(signs.numpy(), x > 0)
    assert np.isfinite(w.grad.numpy()).all()
    if turns < 1000:
        (grad,) = [w.grad.numpy()]
        w.grad = None
        run(mge.tensor(s), mge.tensor(x))
        np.testing.assert_allclose(grad, w.grad.numpy(), rtol=1e-3, atol=1e-4)
