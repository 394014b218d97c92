"""Batch normalization folded into the layer before it, for inference."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import treadle.functional as F
from treadle.base.errors import ShapeError
from treadle.module.activation import ReLU
from treadle.module.batchnorm import BatchNorm1d, BatchNorm2d
from treadle.module.conv import Conv2d, ConvRelu2d
from treadle.module.conv_bn import ConvBn2d, ConvBnRelu2d
from treadle.module.conv_transpose import ConvTranspose2d, ConvTransposeRelu2d
from treadle.module.conv_transpose_bn import ConvTransposeBn2d, ConvTransposeBnRelu2d
from treadle.module.linear import Linear, LinearRelu
from treadle.module.linear_bn import LinearBn1d, LinearBnRelu1d
from treadle.module.module import Module
from treadle.tensor import Parameter, Tensor


def fold_weight_bias(
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    bn_mean: Tensor,
    bn_var: Tensor,
    eps: float = 1e-5,
    transpose: bool = False,
) -> tuple[Tensor, Tensor]:
    """Weight and bias of the layer that does what a layer and batch normalization do.

    With s = gamma / sqrt(bn_var + eps), the weight is multiplied by s along its output channels
    and the bias is beta + (bias - bn_mean) s.

    Args:
        weight: (O, I) of an affine layer, (O, I, h, w) of a convolution or (G, O/G, I/G, h, w) of
            a grouped one; with `transpose` (I, O, h, w) or (G, I/G, O/G, h, w).
        bias: O elements; zeros if None.
        gamma, beta: O elements; ones and zeros if None.
        bn_mean, bn_var: running statistics, O elements.
        eps: added to the variance.
        transpose: whether the weight is that of a transposed convolution.

    Returns:
        The weight, and the bias in the shape of `bias`, or of `bn_mean` if that is None.

    Raises:
        ShapeError: the weight has another number of output channels than there are statistics.
    """
    axes = _output_axes(weight, transpose)
    channels = [weight.shape[axis] for axis in axes]
    count = 1
    for n in channels:
        count *= n
    if count != bn_mean.size:
        raise ShapeError(
            "fold_weight_bias",
            f"the weight has {count} output channels, the statistics {bn_mean.size}",
            saw=f"weight {weight.type}, bn_mean {bn_mean.type}",
        )
    scale: Tensor = 1.0 / F.sqrt(bn_var.reshape(-1) + eps)
    if gamma is not None:
        scale = gamma.reshape(-1) * scale
    centered = -bn_mean.reshape(-1) if bias is None else bias.reshape(-1) - bn_mean.reshape(-1)
    shift = centered * scale
    if beta is not None:
        shift = beta.reshape(-1) + shift
    shape = [weight.shape[axis] if axis in axes else 1 for axis in range(weight.ndim)]
    like = bn_mean if bias is None else bias
    return weight * scale.reshape(shape), shift.reshape(like.shape)


def _output_axes(weight: Tensor, transpose: bool) -> tuple[int, ...]:
    """The axes of a weight that count output channels."""
    if weight.ndim == 5:
        return (0, 2) if transpose else (0, 1)
    return (1,) if transpose else (0,)


def _check(layer: Any, bn: Any, channels: int) -> None:
    if layer.training != bn.training:
        raise AssertionError("the layer and its batch norm must be in the same mode; call eval()")
    if bn.num_features != channels:
        raise AssertionError(
            f"the batch norm has {bn.num_features} features, the layer {channels} outputs"
        )


def _adopt(new: Any, layer: Any, bn: Any) -> None:
    """Give a new layer the weights of another, with batch norm folded in if there is one."""
    weight, bias = layer.weight, layer.bias
    if bn is not None:
        weight, bias = fold_weight_bias(
            *(weight, bias, bn.weight, bn.bias, bn.running_mean, bn.running_var, bn.eps),
            transpose=isinstance(layer, ConvTranspose2d),
        )
    new.weight = Parameter(weight)
    new.bias = None if bias is None else Parameter(bias)


def _fused(layer: Any, bn: Any, made: Any, name: str) -> Module:
    """Weights for a layer of the kind that was made; in training batch norm stays beside it."""
    whole: Module = made
    if bn is not None and layer.training:
        _adopt(getattr(made, name), layer, None)
        made.bn = deepcopy(bn)
    else:
        _adopt(made, layer, bn)
    whole.train(layer.training)
    return whole


def fuse_conv_bn_relu_module(
    conv: Conv2d | ConvTranspose2d, bn: BatchNorm2d | None, relu: ReLU | None
) -> Module:
    """One layer for a convolution, batch normalization and a rectifier, either of these optional.

    Returns:
        In evaluation mode a `Conv2d` or `ConvRelu2d` with folded weights; in training mode, where
        there is batch normalization, a `ConvBn2d` or `ConvBnRelu2d`, which folds later. For a
        transposed convolution the layers of these names with `ConvTranspose`.

    Raises:
        AssertionError: modes or channels differ, or there is nothing to fuse.
    """
    options: dict[str, Any] = {
        "in_channels": conv.in_channels,
        "out_channels": conv.out_channels,
        "kernel_size": conv.kernel_size,
        "stride": conv.stride,
        "padding": conv.padding,
        "dilation": conv.dilation,
        "groups": conv.groups,
        "bias": conv.bias is not None,
        "conv_mode": conv.conv_mode,
        "compute_mode": conv.compute_mode,
        "name": conv.name,
    }
    if bn is None and relu is None:
        raise AssertionError("fuse_conv_bn_relu_module: there is nothing to fuse with")
    if bn is not None:
        _check(conv, bn, conv.out_channels)
    plain: Any = Conv2d if relu is None else ConvRelu2d
    beside: Any = ConvBn2d if relu is None else ConvBnRelu2d
    name = "conv"
    if isinstance(conv, ConvTranspose2d):
        options["output_padding"] = conv.output_padding
        plain = ConvTranspose2d if relu is None else ConvTransposeRelu2d
        beside = ConvTransposeBn2d if relu is None else ConvTransposeBnRelu2d
        name = "conv_transpose2d"
    else:
        options["padding_mode"] = conv.padding_mode
    made = (beside if bn is not None and conv.training else plain)(**options)
    return _fused(conv, bn, made, name)


def fuse_linear_bn_relu_module(linear: Linear, bn: BatchNorm1d | None, relu: ReLU | None) -> Module:
    """One layer for an affine layer, batch normalization and a rectifier, these two optional.

    Returns:
        In evaluation mode a `Linear` or `LinearRelu` with folded weights; in training mode, where
        there is batch normalization, a `LinearBn1d` or `LinearBnRelu1d`, which folds later.

    Raises:
        AssertionError: modes or features differ, or there is nothing to fuse.
    """
    options: dict[str, Any] = {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
        "compute_mode": linear.compute_mode,
        "name": linear.name,
    }
    if bn is None and relu is None:
        raise AssertionError("fuse_linear_bn_relu_module: there is nothing to fuse with")
    if bn is not None:
        _check(linear, bn, linear.out_features)
    if bn is not None and linear.training:
        kind = LinearBn1d if relu is None else LinearBnRelu1d
        return _fused(linear, bn, kind(**options), "linear")
    made: Linear | LinearRelu = (Linear if relu is None else LinearRelu)(**options)
    _fused(linear, bn, made, "linear")
    if made.bias is not None:
        made.bias = Parameter(made.bias.reshape((-1,)))  # statistics are (1, C, 1, 1)
    return made


__all__ = ["fold_weight_bias", "fuse_conv_bn_relu_module", "fuse_linear_bn_relu_module"]
