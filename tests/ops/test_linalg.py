"""Properties of inverses and decompositions."""

import numpy as np
import pytest
from tests.ops.harness import TapeOperand, gradients

from treadle.base import dtype as dt
from treadle.base.errors import NoGradient
from treadle.ops.linalg import MatInv, Svd
from treadle.ops.op import Pullback

RNG = np.random.default_rng(3)


def test_an_inverse_undoes_the_matrix() -> None:
    x = RNG.normal(size=(2, 4, 4)) + 4 * np.eye(4)
    np.testing.assert_allclose(
        MatInv().reference(x) @ x, np.broadcast_to(np.eye(4), x.shape), 0, 1e-12
    )
    half = np.array([[2.0, 0.0], [0.0, 4.0]]).astype(dt.bfloat16.numpy)
    np.testing.assert_array_equal(MatInv().reference(half).astype(float), [[0.5, 0], [0, 0.25]])


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 3), (2, 3, 2)])
def test_the_factors_give_the_matrix_back(shape: tuple[int, ...], full: bool) -> None:
    x = RNG.normal(size=shape)
    u, s, vh = Svd(full).reference(x)
    k = s.shape[-1]
    back = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
    np.testing.assert_allclose(back, x, 1e-12, 1e-12)
    assert (np.diff(s) <= 0).all()


def test_singular_values_have_a_gradient_even_with_full_matrices() -> None:
    """The sum of singular values (nuclear norm) has the gradient u vh."""
    x = RNG.normal(size=(4, 2))
    (dx,) = gradients(lambda xs: [Svd(True).outputs(*xs)[1]], [x], [np.ones(2)])
    u, _, vh = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(dx, u @ vh, 1e-10, 1e-12)


def test_vectors_that_are_not_unique_have_none() -> None:
    x = TapeOperand(RNG.normal(size=(4, 2)), [])
    outputs = Svd(True).outputs(x)
    with pytest.raises(NoGradient, match="not unique"):
        Svd(True).vjp(Pullback((outputs[0], None, None), (x,), outputs, (True,)))
