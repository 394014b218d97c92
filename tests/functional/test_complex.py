"""Complex numbers from parts: values, arithmetic, gradients, compiled runs, errors."""

from __future__ import annotations

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.autodiff import GradManager
from treadle.base.errors import DTypeError, ShapeError

A = np.array([[1.0, -2.0, 0.5]], np.float32)
B = np.array([[0.25], [3.0]], np.float32)


def test_parts_make_complex_numbers_and_come_apart() -> None:
    z = F.complex(mge.tensor(A), mge.tensor(B))
    assert z.dtype == np.complex64
    np.testing.assert_array_equal(z.numpy(), A + 1j * B)
    np.testing.assert_array_equal(F.real(z).numpy(), np.broadcast_to(A, (2, 3)))
    np.testing.assert_array_equal(F.imag(z).numpy(), np.broadcast_to(B, (2, 3)))


def test_polar_is_magnitude_and_angle() -> None:
    z = F.polar(mge.tensor(A), mge.tensor(B))
    np.testing.assert_allclose(z.numpy(), A * np.exp(1j * B), 1e-6)


def test_integers_and_scalars_become_float32() -> None:
    assert F.complex(mge.tensor(2), mge.tensor(3)).item() == 2 + 3j
    assert mge.tensor([1 + 2j]).dtype == np.complex64


def test_parts_of_real_tensors() -> None:
    x = mge.tensor(A)
    np.testing.assert_array_equal(F.real(x).numpy(), A)
    np.testing.assert_array_equal(F.imag(x).numpy(), np.zeros_like(A))
    assert F.real(x) is not x


def loss(a: mge.Tensor, b: mge.Tensor) -> mge.Tensor:
    """|a exp(i b)|^2 weighted part by part: its gradients are known."""
    z = F.polar(a, b)
    return (F.real(z) * 2 + F.imag(z) * 3).sum()


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_follow_the_parts(compiled: bool) -> None:
    a, b = mge.Parameter(A), mge.Parameter(B)

    def step(scale: mge.Tensor) -> mge.Tensor:
        with GradManager().attach([a, b]) as gm:
            y = loss(a, b) * scale
            gm.backward(y)
        return y

    (jit.compile(step) if compiled else step)(mge.tensor(1.0))
    da = (2 * np.cos(B) + 3 * np.sin(B)).sum(0, keepdims=True) * np.ones_like(A)
    db = (A * (3 * np.cos(B) - 2 * np.sin(B))).sum(1, keepdims=True)
    np.testing.assert_allclose(a.grad.numpy(), da, 1e-5)
    np.testing.assert_allclose(b.grad.numpy(), db, 1e-5)


def test_a_gradient_of_a_complex_tensor_is_complex() -> None:
    z = F.complex(mge.tensor(A), mge.tensor(A))
    gm = GradManager()
    x = mge.tensor(A)
    gm.attach([x])
    with gm:
        gm.backward(F.complex(x, x), F.complex(mge.tensor(A), mge.tensor(2 * A)))
    np.testing.assert_allclose(x.grad.numpy(), 3 * A)
    assert z.shape == A.shape


def test_complex_parts_are_refused() -> None:
    z = F.complex(mge.tensor(A), mge.tensor(A))
    with pytest.raises(DTypeError, match="takes real numbers"):
        F.complex(z, mge.tensor(A))
    with pytest.raises(ShapeError):
        F.complex(mge.tensor(A), mge.tensor([1.0, 2.0]))


@pytest.mark.parametrize("compiled", [False, True])
def test_arithmetic_is_that_of_complex_numbers(compiled: bool) -> None:
    def compute(x: mge.Tensor, y: mge.Tensor) -> list[mge.Tensor]:
        return [x + y, x - y, x * y, x / y, 2.0 * x, 1.0 - y, x / 2]

    z, w = (A + 1j * B).astype(np.complex64), (B - 2j * A + 1).astype(np.complex64)
    run = jit.compile(compute) if compiled else compute
    found = run(mge.tensor(z), mge.tensor(w))
    wanted = [z + w, z - w, z * w, z / w, 2 * z, 1 - w, z / 2]
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, 1e-5, 1e-6)


def test_gradient_of_a_product_is_by_the_conjugate() -> None:
    x = mge.tensor(A)
    w = np.array([2.0 + 3.0j], np.complex64)
    gm = GradManager().attach([x])
    with gm:
        z = F.complex(x, 2 * x) * mge.tensor(w)
        gm.backward((F.real(z) * 5 + F.imag(z) * 7).sum())
    # d(5 Re + 7 Im)/dx of (1 + 2i)(2 + 3i) x = (-4 + 7i) x
    np.testing.assert_allclose(x.grad.numpy(), np.full_like(A, 5 * -4 + 7 * 7))
