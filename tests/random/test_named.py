"""Named distributions: moments, shapes, repeatability, captures, bad parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.random as R
from treadle import jit
from treadle.base.errors import NumericError, ShapeError

N = 40000
MOMENTS: list[tuple[str, tuple[Any, ...], float, float]] = [
    ("gamma", (2.5, 1.5), 3.75, 5.625),
    ("gamma", (0.4,), 0.4, 0.4),
    ("beta", (2.0, 3.0), 0.4, 0.04),
    ("beta", (0.5, 0.5), 0.5, 0.125),
    ("poisson", (0.7,), 0.7, 0.7),
    ("poisson", (40.0,), 40.0, 40.0),
    ("exponential", (4.0,), 0.25, 0.0625),
]


@pytest.mark.parametrize(("name", "given", "mean", "variance"), MOMENTS)
def test_moments(name: str, given: tuple[Any, ...], mean: float, variance: float) -> None:
    x = getattr(R.RNG(seed=3), name)(*given, size=(N,)).numpy()
    assert x.dtype == np.float32 and x.shape == (N,) and x.min() >= 0
    assert abs(x.mean() - mean) < 5 * math.sqrt(variance / N)
    assert x.var() == pytest.approx(variance, rel=0.1)
    if name == "poisson":
        assert (x == np.round(x)).all()


@pytest.mark.parametrize("name", ["gamma", "poisson", "exponential"])
def test_sizes_stand_before_the_parameters(name: str) -> None:
    draw = getattr(R, name)
    columns = mge.tensor([[1.0], [2.0]])
    assert draw(2.0).shape == (1,) and draw(mge.tensor(2.0)).shape == (1,)
    assert draw(2.0, size=3).shape == (3,) and draw(2.0, size=(2, 3)).shape == (2, 3)
    assert draw(columns).shape == (2, 1) and draw(columns, size=4).shape == (4, 2, 1)
    assert draw(2.0, size=(0, 2)).shape == (0, 2)


def test_parameters_broadcast() -> None:
    shape, scale = mge.tensor([[1.0], [100.0]]), mge.tensor([1.0, 5.0, 50.0])
    assert R.gamma(shape, scale).shape == (2, 3)
    assert R.beta(shape, scale, size=2).shape == (2, 2, 3)
    R.seed(1)
    x = R.gamma(shape, scale, size=3000).numpy().mean(0)
    np.testing.assert_allclose(x, shape.numpy() * scale.numpy(), 0.1)
    with pytest.raises(ShapeError, match="do not broadcast"):
        R.gamma(mge.tensor([1.0, 2.0]), scale)


@pytest.mark.parametrize("name", ["gamma", "beta", "poisson", "exponential"])
def test_a_seed_repeats_the_sequence_and_draws_differ(name: str) -> None:
    given = (2.0, 3.0) if name == "beta" else (2.0,)
    first, second = (getattr(R.RNG(seed=7), name) for _ in range(2))
    a, b = first(*given, size=50).numpy(), first(*given, size=50).numpy()
    np.testing.assert_array_equal(a, second(*given, size=50).numpy())
    assert (a != b).any()


def test_poisson_of_mean_zero_is_zero() -> None:
    assert R.poisson(0.0, size=5).tolist() == [0] * 5


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_parameters_without_a_distribution_are_refused(bad: float) -> None:
    for draw in (R.gamma, R.poisson):
        with pytest.raises(NumericError, match="has no distribution"):
            draw(bad, size=2)
    with pytest.raises(NumericError):
        R.beta(0.0, 1.0)


def test_multinomial_with_replacement_follows_the_weights() -> None:
    weights = np.array([[1.0, 0.0, 3.0], [2.0, 2.0, 0.0]], np.float32)
    drawn = R.RNG(seed=4).multinomial(mge.tensor(weights), 20000, replacement=True)
    assert drawn.shape == (2, 20000) and drawn.dtype == np.int32
    for row, wanted in zip(drawn.numpy(), weights, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 20000, wanted / 4, atol=0.02)
    assert R.multinomial(mge.tensor([0.0, 1.0]), 5, replacement=True).tolist() == [1] * 5


def test_multinomial_without_replacement_draws_distinct_classes() -> None:
    rng = R.RNG(seed=6)
    weights = mge.tensor([1.0, 0.0, 2.0, 5.0])
    for _ in range(20):
        assert sorted(rng.multinomial(weights, 3).tolist()) == [0, 2, 3]
    firsts = [rng.multinomial(weights, 1).item() for _ in range(2000)]
    assert np.mean(np.equal(firsts, 3)) == pytest.approx(5 / 8, abs=0.05)
    assert rng.multinomial(mge.tensor(np.ones((3, 6), np.float32)), 2).shape == (3, 2)


def test_multinomial_of_wrong_weights_is_refused() -> None:
    for bad in ([-1.0, 2.0], [float("nan"), 1.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="multinomial"):
            R.multinomial(mge.tensor(bad), 1)
    with pytest.raises(ValueError, match="2 of 1 without replacement"):
        R.multinomial(mge.tensor([1.0]), 2)
    with pytest.raises(ValueError, match="a row has 1 classes"):
        R.multinomial(mge.tensor([1.0, 0.0]), 2)
    with pytest.raises(ValueError, match="at least 1"):
        R.multinomial(mge.tensor([1.0]), 0)
    with pytest.raises(ShapeError, match="takes weights"):
        R.multinomial(mge.tensor(np.ones((1, 1, 2), np.float32)), 1)
    with pytest.raises(TypeError, match="takes a tensor"):
        R.multinomial([1.0, 2.0], 1)  # type: ignore[arg-type]


def test_compiled_functions_draw_anew_at_each_call_and_as_eager_ones() -> None:
    def draw(lam: mge.Tensor) -> list[mge.Tensor]:
        order = R.permutation(5)
        return [R.poisson(lam, size=3), R.gamma(lam), R.multinomial(lam, 2), order]

    lam = mge.tensor([1.0, 10.0, 30.0])
    compiled = jit.compile(draw)
    R.seed(9)
    eager = [[x.numpy() for x in draw(lam)] for _ in range(2)]
    R.seed(9)
    for wanted in eager:
        for mine, theirs in zip(compiled(lam), wanted, strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs, 1e-5)
    assert (eager[0][0] != eager[1][0]).any()


def test_methods_of_a_generator_are_the_functions_of_the_module() -> None:
    rng = R.RNG(seed=11)
    R.seed(11)
    x = mge.tensor([1.0, 2.0, 3.0])
    pairs = [
        (rng.gamma(2.0, size=3), R.gamma(2.0, size=3)),
        (rng.beta(2.0, 1.0, size=3), R.beta(2.0, 1.0, size=3)),
        (rng.poisson(x), R.poisson(x)),
        (rng.exponential(x), R.exponential(x)),
        (rng.multinomial(x, 2), R.multinomial(x, 2)),
        (rng.permutation(4), R.permutation(4)),
        (rng.uniform(0, 2, (3,)), R.uniform(0, 2, (3,))),
        (rng.normal(1, 2, (3,)), R.normal(1, 2, (3,))),
    ]
    for mine, theirs in pairs:
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    first, second = mge.tensor([1, 2, 3, 4]), mge.tensor([1, 2, 3, 4])
    rng.shuffle(first)
    R.shuffle(second)
    assert first.tolist() == second.tolist() and sorted(first.tolist()) == [1, 2, 3, 4]


def test_scales_may_be_tensors() -> None:
    mean, std = mge.tensor([[-100.0], [0.0], [100.0]]), mge.tensor([0.0, 1.0])
    drawn = [R.RNG(seed=3).normal(m, s, (3, 2)) for m, s in ((mean, std), (0, 1))]
    np.testing.assert_allclose(drawn[0].numpy(), drawn[1].numpy() * std.numpy() + mean.numpy())
    compiled = mge.jit.compile(lambda m: R.uniform(m, m + 1.0, (3, 1)) - R.normal(m, 0.0, (3, 1)))
    assert ((compiled(mean).numpy() >= 0) & (compiled(mean).numpy() < 1)).all()
    with pytest.raises(ShapeError, match="more extents"):
        R.normal(mean)
