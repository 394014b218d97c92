"""Distributions: moments, densities, quantiles, draws, broadcasting, gradients."""

from __future__ import annotations

import numpy as np
import pytest

import treadle as mge
from treadle.autodiff import GradManager
from treadle.distributions import Distribution, Exponential

RATE = np.array([0.5, 2.0, 4.0], np.float32)
X = np.array([[0.1], [1.5]], np.float32)


def test_moments_and_functions_follow_the_formulas() -> None:
    d = Exponential(mge.tensor(RATE))
    assert d.batch_shape == (3,) and d.event_shape == ()
    np.testing.assert_allclose(d.mean.numpy(), 1 / RATE)
    np.testing.assert_allclose(d.variance.numpy(), RATE**-2.0)
    np.testing.assert_allclose(d.stddev.numpy(), 1 / RATE)
    x = mge.tensor(X)
    np.testing.assert_allclose(d.log_prob(x).numpy(), np.log(RATE) - RATE * X, 1e-6)
    np.testing.assert_allclose(d.cdf(x).numpy(), 1 - np.exp(-RATE * X), 1e-5)
    np.testing.assert_allclose(d.icdf(d.cdf(x)).numpy(), np.broadcast_to(X, (2, 3)), 1e-3)
    assert repr(d) == "Exponential(batch_shape=(3,))"


def test_draws_have_the_mean_and_the_shape() -> None:
    mge.random.seed(5)
    drawn = Exponential(mge.tensor(RATE)).sample((20000,))
    assert drawn.shape == (20000, 3) and drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.numpy().mean(0), 1 / RATE, 0.05)
    assert drawn.numpy().min() >= 0
    one = Exponential(2.0)
    assert one.batch_shape == () and one.sample().shape == () and one.sample((2, 3)).shape == (2, 3)


def test_expand_broadcasts_the_parameters() -> None:
    d = Exponential(mge.tensor(RATE)).expand((2, 3))
    assert d.batch_shape == (2, 3) and d.rate.shape == (2, 3) and d.sample((4,)).shape == (4, 2, 3)
    with pytest.raises(ValueError, match="broadcast"):
        Exponential(mge.tensor(RATE)).expand((2,))


def test_gradients_flow_to_the_rate() -> None:
    rate = mge.Parameter(RATE)
    with GradManager().attach([rate]) as gm:
        gm.backward(Exponential(rate).log_prob(mge.tensor([1.0])).sum())
    np.testing.assert_allclose(rate.grad.numpy(), 1 / RATE - 1, 1e-5)


def test_the_base_names_what_a_distribution_lacks() -> None:
    base = Distribution((2,), (3,))
    assert base.batch_shape == (2,) and base.event_shape == (3,)
    assert base.expand((4, 2)).batch_shape == (4, 2)
    x = mge.tensor([1.0])
    for call in (base.sample, lambda: base.log_prob(x), lambda: base.cdf(x), lambda: base.icdf(x)):
        with pytest.raises(NotImplementedError, match="Distribution"):
            call()
    for name in ("mean", "variance", "stddev"):
        with pytest.raises(NotImplementedError, match="has no"):
            getattr(base, name)
    with pytest.raises(TypeError, match="numbers or a tensor"):
        Exponential("fast")  # type: ignore[arg-type]
