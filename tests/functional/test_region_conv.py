"""Convolution within regions: values from loops, agreement with conv2d, gradients, errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.autodiff import GradManager
from treadle.base.errors import ShapeError

RNG = np.random.default_rng(4)
X = RNG.standard_normal((2, 4, 6, 5)).astype(np.float32)
W = RNG.standard_normal((2, 3, 2, 3, 2)).astype(np.float32)
RIN = RNG.integers(0, 3, (2, 6, 5)).astype(np.int32)
ROUT = RNG.integers(0, 3, (2, 3, 4)).astype(np.int32)
OPTIONS = {"stride": (2, 1), "padding": (1, 0), "groups": 2}


def test_values_are_sums_within_the_region() -> None:
    wanted = np.zeros((2, 6, 3, 4))
    for b, o, i, j in itertools.product(range(2), range(6), range(3), range(4)):
        for c, u, v in itertools.product(range(2), range(3), range(2)):
            y, x = i * 2 + u - 1, j + v
            if 0 <= y < 6 and 0 <= x < 5 and RIN[b, y, x] == ROUT[b, i, j]:
                wanted[b, o, i, j] += X[b, o // 3 * 2 + c, y, x] * W[o // 3, o % 3, c, u, v]
    given = [mge.tensor(a) for a in (X, W, RIN, ROUT)]
    bias = mge.tensor(RNG.standard_normal((1, 6, 1, 1)).astype(np.float32))
    found = F.region_restricted_conv(*given, bias, **OPTIONS)
    np.testing.assert_allclose((found - bias).numpy(), wanted, 1e-4, 1e-5)
    compiled = jit.compile(lambda *a: F.region_restricted_conv(*a, **OPTIONS))
    np.testing.assert_allclose(compiled(*given, bias).numpy(), found.numpy(), 1e-5, 1e-5)


def test_one_region_is_conv2d() -> None:
    x, w = mge.tensor(X), mge.tensor(W)
    regions = F.zeros((2, 6, 5), dtype="int32"), F.zeros((2, 3, 4), dtype="int32")
    found = F.nn.region_restricted_conv(x, w, *regions, **OPTIONS)
    np.testing.assert_allclose(found.numpy(), F.conv2d(x, w, **OPTIONS).numpy(), 1e-4, 1e-5)


def test_gradients_are_zero_across_the_border() -> None:
    x = mge.Parameter(X[:, :2])
    w = mge.Parameter(W[0])
    rin = RIN.copy()
    rin[:, :, 0] = 7
    with GradManager().attach([x, w]) as gm:
        y = F.region_restricted_conv(x, w, mge.tensor(rin), mge.tensor(rin[:, :4, :4]))
        gm.backward((y[:, :, :, 1:] ** 2).sum())
    assert (x.grad.numpy()[:, :, :, 0] == 0).all()
    assert np.abs(w.grad.numpy()).min() > 0


def test_wrong_shapes_are_refused() -> None:
    x, w, rin, rout = (mge.tensor(a) for a in (X, W, RIN, ROUT))
    with pytest.raises(ShapeError, match="the regions must be"):
        F.region_restricted_conv(x, w, rin, rin, **OPTIONS)
    with pytest.raises(ShapeError, match="groups of the weight's channels"):
        F.region_restricted_conv(x, w, rin, rout)
    with pytest.raises(AssertionError, match="conv_mode"):
        F.region_restricted_conv(x, w, rin, rout, conv_mode="convolution")
