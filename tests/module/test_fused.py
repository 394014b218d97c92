"""Layers that quantization treats as a whole equal their parts, and are built as these are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle.functional as F
import treadle.module as M
from treadle.base.errors import ShapeError
from treadle.tensor import Tensor

IMAGE = (2, 4, 5, 6)


def _x(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).normal(size=shape).astype("float32"))


def _same_state(layer: M.Module, plain: M.Module) -> None:
    plain.load_state_dict(layer.state_dict())


@pytest.mark.parametrize(
    ("fused", "plain"),
    [
        (M.ConvRelu2d(4, 6, 3, padding=1, groups=2), M.Conv2d(4, 6, 3, padding=1, groups=2)),
        (M.ConvTransposeRelu2d(4, 6, 3, 2), M.ConvTranspose2d(4, 6, 3, 2)),
        (M.LinearRelu(6, 3), M.Linear(6, 3)),
    ],
)
def test_relu_follows(fused: M.Module, plain: M.Module) -> None:
    _same_state(fused, plain)
    out, wanted = fused(_x(*IMAGE)), F.relu(plain(_x(*IMAGE)))
    np.testing.assert_allclose(out.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "first", "shape"),
    [
        (M.ConvBn2d, "conv", IMAGE),
        (M.ConvBnRelu2d, "conv", IMAGE),
        (M.ConvTransposeBn2d, "conv_transpose2d", IMAGE),
        (M.ConvTransposeBnRelu2d, "conv_transpose2d", IMAGE),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_convolution_and_batch_norm(
    make: Callable[..., Any], first: str, shape: tuple[int, ...], training: bool
) -> None:
    layer = make(4, 6, 3, stride=2, padding=1, bias=False, eps=1e-3, momentum=0.5)
    layer.train(training)
    assert layer.bn.eps == 1e-3
    assert layer.bn.momentum == 0.5
    before = layer.bn.running_mean.numpy().copy()
    out = layer(_x(*shape))
    moved = not np.array_equal(before, layer.bn.running_mean.numpy())
    assert moved == training
    wanted = layer.bn(getattr(layer, first)(_x(*shape)))
    wanted = F.relu(wanted) if "Relu" in make.__name__ else wanted
    if training:
        np.testing.assert_allclose(out.numpy(), wanted.numpy(), rtol=1e-6, atol=1e-6)
    keys = set(layer.state_dict())
    assert keys == {f"{first}.weight", *(f"bn.{n}" for n in BATCH_NORM)}


BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


@pytest.mark.parametrize("make", [M.LinearBn1d, M.LinearBnRelu1d])
def test_linear_and_batch_norm(make: Callable[..., Any]) -> None:
    layer = make(3, 2)
    out = layer(_x(4, 3)).numpy()
    product = layer.linear(_x(4, 3)).numpy()
    wanted = (product - product.mean(0)) / np.sqrt(product.var(0) + 1e-5)
    wanted = np.maximum(wanted, 0) if "Relu" in make.__name__ else wanted
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


def test_repr_shows_both_parts() -> None:
    assert repr(M.ConvBn2d(1, 2, 3)) == (
        "ConvBn2d(\n"
        "  (conv): Conv2d(1, 2, kernel_size=(3, 3))\n"
        "  (bn): BatchNorm2d(2, eps=1e-05, momentum=0.9, affine=True, track_running_stats=True)\n"
        ")"
    )


@pytest.mark.parametrize("mode", ["identity", "relu", "RELU"])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_matmul_activation(mode: str, bias: bool) -> None:
    layer = M.BatchMatMulActivation(2, 3, 4, bias, mode)
    assert layer.weight.shape == (2, 4, 3)
    if layer.bias is not None:
        layer.bias[...] = Tensor(np.arange(4, dtype=np.float32))
    x = _x(2, 3, 5)
    wanted = layer.weight.numpy() @ x.numpy()
    wanted += np.arange(4)[:, None] * bias
    wanted = np.maximum(wanted, 0) if mode.lower() == "relu" else wanted
    np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="nonlinear_mode must be one of identity, relu"):
        M.BatchMatMulActivation(1, 2, 3, nonlinear_mode="tanh")
    with pytest.raises(ShapeError, match="divisible by groups"):
        M.ConvBn2d(3, 4, 3, groups=2)


def test_stubs_return_what_they_get() -> None:
    x = _x(2)
    assert M.QuantStub()(x) is x
    assert M.DequantStub()(x) is x


def test_sync_batch_norm_is_batch_norm_in_one_process() -> None:
    for shape in ((4, 3), (4, 3, 5), (4, 3, 5, 2)):
        ours, plain = M.SyncBatchNorm(3), M.BatchNorm2d(3)
        x = _x(*shape)
        wide = x.reshape((*shape, 1, 1)[:4])
        np.testing.assert_array_equal(ours(x).numpy(), plain(wide).numpy().reshape(shape))
        np.testing.assert_array_equal(
            ours.state_dict()["running_var"], plain.state_dict()["running_var"]
        )
    with pytest.raises(ShapeError):
        M.SyncBatchNorm(3)(_x(1, 3, 1, 1, 1))
