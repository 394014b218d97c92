"""Rounding and integer contractions beside PyTorch's."""

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.quantization import QuantMode, create_qparams, fake_quant_tensor
from treadle.quantization.dtype import get_scale, qint8, quint8

pytestmark = pytest.mark.oracle


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="the comparison framework is not installed")


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("zero", [0, 37])
def test_fake_quantization_and_its_gradient(torch, zero):
    x, dy = numbers(3, 50) * 20, numbers(3, 50)
    family = "qint8" if zero == 0 else "quint8"
    low, high = (-128, 127) if zero == 0 else (0, 255)
    params = create_qparams(QuantMode.ASYMMERTIC, family, 0.13, float(zero))
    own = mge.tensor(x)
    with GradManager().attach(own) as gm:
        y = fake_quant_tensor(own, params)
        gm.backward(y, mge.tensor(dy))
    theirs = torch.tensor(x, requires_grad=True)
    wanted = torch.fake_quantize_per_tensor_affine(theirs, 0.13, zero, low, high)
    wanted.backward(torch.tensor(dy))
    np.testing.assert_allclose(y.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(own.grad.numpy(), theirs.grad.numpy())


def test_scales_per_channel(torch):
    x, scale = numbers(4, 3, 5), np.array([0.01, 0.02, 0.03, 0.04], np.float32)
    params = create_qparams(QuantMode.SYMMERTIC, "qint8", scale.reshape(4, 1, 1))
    found = fake_quant_tensor(mge.tensor(x), params)
    zeros = torch.zeros(4, dtype=torch.int32)
    wanted = torch.fake_quantize_per_channel_affine(
        torch.tensor(x), torch.tensor(scale), zeros, 0, -128, 127
    )
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("given", [qint8(0.05), quint8(0.05, 120)])
@pytest.mark.parametrize("window", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}])
def test_sums_of_convolutions(torch, given, window):
    x = mge.tensor(numbers(2, 4, 9, 9)).astype(given)
    w = mge.tensor(numbers(6, 4, 3, 3)).astype(qint8(0.02))
    found = F.quantized.conv_bias_activation(x, w, None, **window)
    zero = 0 if given == np.int8 else 120
    exact = torch.nn.functional.conv2d(
        torch.tensor(x.numpy().astype(np.float64) - zero),
        torch.tensor(w.numpy().astype(np.float64)),
        **window,
    )
    np.testing.assert_array_equal(found.numpy(), exact.numpy().astype(np.int64))
    assert get_scale(found.dtype) == pytest.approx(0.001)


@pytest.mark.parametrize("given", [qint8(0.05), quint8(0.05, 120)])
def test_sums_of_transposed_convolutions(torch, given):
    window = {"stride": (2, 3), "padding": (1, 2), "output_padding": (1, 0), "dilation": (1, 2)}
    x = mge.tensor(numbers(2, 4, 5, 6)).astype(given)
    w = mge.tensor(numbers(2, 2, 3, 3, 3)).astype(qint8(0.02))
    found = F.quantized.conv_transpose2d(x, w, groups=2, **window)
    zero = 0 if given == np.int8 else 120
    exact = torch.nn.functional.conv_transpose2d(
        torch.tensor(x.numpy().astype(np.float64) - zero),
        torch.tensor(w.numpy().astype(np.float64).reshape(4, 3, 3, 3)),
        groups=2,
        **window,
    )
    np.testing.assert_array_equal(found.numpy(), exact.numpy().astype(np.int64))
