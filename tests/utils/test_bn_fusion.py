"""Folding batch normalization; dotted attributes and modes of modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.base.errors import ShapeError
from treadle.utils.bn_fusion import (
    fold_weight_bias,
    fuse_conv_bn_relu_module,
    fuse_linear_bn_relu_module,
)
from treadle.utils.module_utils import (
    get_expand_structure,
    set_expand_structure,
    set_module_mode_safe,
)


def drawn(*shape: int) -> mge.Tensor:
    return mge.tensor(np.random.RandomState(sum(shape)).rand(*shape).astype("float32") + 0.5)


def settled(bn: Any) -> Any:
    """A batch norm layer with numbers in it."""
    for tensor in (bn.weight, bn.bias, bn.running_mean, bn.running_var):
        tensor[...] = drawn(*tensor.shape)
    return bn


@pytest.mark.parametrize("relu", [None, M.ReLU()])
@pytest.mark.parametrize("groups", [1, 2])
def test_fuse_conv(groups: int, relu: Any) -> None:
    conv = M.Conv2d(4, 6, 3, 2, 1, 1, groups, bias=groups == 1, padding_mode="reflect")
    bn, x = settled(M.BatchNorm2d(6)), drawn(2, 4, 7, 7)
    for module in (conv, bn):
        module.eval()
    expected = bn(conv(x))
    expected = expected if relu is None else relu(expected)
    fused = fuse_conv_bn_relu_module(conv, bn, relu)
    assert type(fused) is (M.Conv2d if relu is None else M.ConvRelu2d)
    assert not fused.training
    np.testing.assert_allclose(fused(x).numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
    assert (conv.bias is None) == (groups == 2)
    for module in (conv, bn):
        module.train()
    fused = fuse_conv_bn_relu_module(conv, bn, relu)
    assert type(fused) is (M.ConvBn2d if relu is None else M.ConvBnRelu2d)
    assert fused.training
    assert fused.bn is not bn
    expected = bn(conv(x))
    expected = expected if relu is None else relu(expected)
    np.testing.assert_allclose(fused(x).numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("relu", [None, M.ReLU()])
@pytest.mark.parametrize("groups", [1, 2])
def test_fuse_transposed_convolutions(groups: int, relu: Any) -> None:
    conv = M.ConvTranspose2d(4, 6, 3, 2, 1, 1, 1, groups, bias=groups == 1)
    bn, x = settled(M.BatchNorm2d(6)), drawn(2, 4, 5, 5)
    for kind in ("", "Bn"):
        for module in (conv, bn):
            module.train(bool(kind))
        fused = fuse_conv_bn_relu_module(conv, bn, relu)
        after = "2d" if relu is None else "Relu2d"
        assert type(fused).__name__ == f"ConvTranspose{kind}{after}"
        expected = bn(conv(x)) if relu is None else relu(bn(conv(x)))
        np.testing.assert_allclose(fused(x).numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_fuse_conv_and_relu() -> None:
    conv, x = M.Conv2d(2, 3, 1), drawn(1, 2, 4, 4)
    fused = fuse_conv_bn_relu_module(conv, None, M.ReLU())
    np.testing.assert_allclose(fused(x).numpy(), F.relu(conv(x)).numpy(), rtol=1e-6)
    assert fused.training


@pytest.mark.parametrize("relu", [None, M.ReLU()])
@pytest.mark.parametrize("bias", [True, False])
def test_fuse_linear(bias: bool, relu: Any) -> None:
    linear, bn, x = M.Linear(4, 6, bias=bias), settled(M.BatchNorm1d(6)), drawn(5, 4)
    for module in (linear, bn):
        module.eval()
    expected = bn(linear(x))
    expected = expected if relu is None else relu(expected)
    fused = fuse_linear_bn_relu_module(linear, bn, relu)
    assert type(fused) is (M.Linear if relu is None else M.LinearRelu)
    assert fused.bias.shape == (6,)
    np.testing.assert_allclose(fused(x).numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
    for module in (linear, bn):
        module.train()
    fused = fuse_linear_bn_relu_module(linear, bn, relu)
    assert type(fused) is (M.LinearBn1d if relu is None else M.LinearBnRelu1d)
    np.testing.assert_allclose(
        fused(x).numpy(),
        (bn(linear(x)) if relu is None else relu(bn(linear(x)))).numpy(),
        rtol=1e-4,
        atol=1e-5,
    )


def test_fusing_refuses() -> None:
    conv, bn = M.Conv2d(2, 3, 1), M.BatchNorm2d(3)
    with pytest.raises(AssertionError, match="nothing to fuse"):
        fuse_conv_bn_relu_module(conv, None, None)
    with pytest.raises(AssertionError, match="nothing to fuse"):
        fuse_linear_bn_relu_module(M.Linear(2, 2), None, None)
    bn.eval()
    with pytest.raises(AssertionError, match="same mode"):
        fuse_conv_bn_relu_module(conv, bn, None)
    conv.eval()
    wide = M.BatchNorm2d(4)
    wide.eval()
    with pytest.raises(AssertionError, match="4 features, the layer 3"):
        fuse_conv_bn_relu_module(conv, wide, None)


def test_fold_weight_bias() -> None:
    w, mean, var = drawn(3, 2, 1, 1), drawn(1, 3, 1, 1), drawn(1, 3, 1, 1) + 1
    weight, bias = fold_weight_bias(w, None, None, None, mean, var, 1e-3)
    scale = 1 / np.sqrt(var.numpy().reshape(-1) + 1e-3)
    np.testing.assert_allclose(weight.numpy(), w.numpy() * scale[:, None, None, None], rtol=1e-5)
    np.testing.assert_allclose(bias.numpy(), -mean.numpy() * scale.reshape(1, 3, 1, 1), rtol=1e-5)
    weight, _ = fold_weight_bias(drawn(2, 3, 1, 1), None, None, None, mean, var, transpose=True)
    assert weight.shape == (2, 3, 1, 1)
    with pytest.raises(ShapeError, match="2 output channels, the statistics 3"):
        fold_weight_bias(drawn(2, 3, 1, 1), None, None, None, mean, var)


class Nested(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = {"b": [M.Linear(1, 2), (M.Linear(2, 3), M.Dropout())]}

    def forward(self, x: Any) -> Any:
        return x


def test_dotted_attributes() -> None:
    net = Nested()
    for name, module in net.named_modules():
        assert get_expand_structure(net, name) is module
    for name, tensor in net.named_tensors():
        assert get_expand_structure(net, name) is tensor
    set_expand_structure(net, "a.b.0", M.Linear(5, 6))
    set_expand_structure(net, "a.b.1.0", M.Linear(7, 8))
    set_expand_structure(net, "a.b.1.0.bias", None)
    set_expand_structure(net, "a.c", M.Identity())
    assert net.a["b"][0].in_features == 5
    assert isinstance(net.a["b"][1], tuple)
    assert net.a["b"][1][0].bias is None
    assert isinstance(get_expand_structure(net, "a.c"), M.Identity)
    for path in ("a.b.9", "a.b.x", "a.d.e", "x", "a.b.0.weight.shape"):
        with pytest.raises(AttributeError):
            get_expand_structure(net, path)
    with pytest.raises(ValueError, match="empty"):
        set_expand_structure(net, "", None)


def test_modes_come_back() -> None:
    net = Nested()
    dropout = net.a["b"][1][1]
    dropout.eval()
    with pytest.raises(RuntimeError), set_module_mode_safe(net, training=True) as same:
        assert same is net
        assert dropout.training
        raise RuntimeError
    assert net.training
    assert not dropout.training
    with set_module_mode_safe(net):
        assert not net.training
    assert net.training
