"""Folding batch normalization into the layer before it."""

from treadle.module.fusion import (
    fold_weight_bias,
    fuse_conv_bn_relu_module,
    fuse_linear_bn_relu_module,
)

__all__ = ["fold_weight_bias", "fuse_conv_bn_relu_module", "fuse_linear_bn_relu_module"]
