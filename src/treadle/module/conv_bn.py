"""A convolution and the batch normalization behind it, as one layer that quantization folds."""

from __future__ import annotations

import treadle.functional as F
from treadle.module.batchnorm import BatchNorm2d
from treadle.module.conv import Conv2d
from treadle.module.module import Module
from treadle.module.window import Extents
from treadle.tensor import Tensor


class _ConvBnActivation2d(Module):
    """Holds the two layers."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Extents,
        stride: Extents = 1,
        padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        padding_mode: str = "zeros",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.conv = Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            conv_mode,
            compute_mode,
            padding_mode,
        )
        self.bn = BatchNorm2d(out_channels, eps, momentum, affine, track_running_stats)


class ConvBn2d(_ConvBnActivation2d):
    """bn(conv(x)), over (N, C, H, W).

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, conv_mode,
            compute_mode, padding_mode: of the sub-module `conv`, a `Conv2d`.
        eps, momentum, affine, track_running_stats: of the sub-module `bn`, a `BatchNorm2d`.
        name: a name for messages and graphs.

    Raises:
        ShapeError: a size is malformed or channels are not divisible by `groups`.
    """

    def forward(self, inp: Tensor) -> Tensor:
        out: Tensor = self.bn(self.conv(inp))
        return out


class ConvBnRelu2d(_ConvBnActivation2d):
    """relu(bn(conv(x))), over (N, C, H, W).

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, conv_mode,
            compute_mode, padding_mode: of the sub-module `conv`, a `Conv2d`.
        eps, momentum, affine, track_running_stats: of the sub-module `bn`, a `BatchNorm2d`.
        name: a name for messages and graphs.

    Raises:
        ShapeError: a size is malformed or channels are not divisible by `groups`.
    """

    def forward(self, inp: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(inp)))
