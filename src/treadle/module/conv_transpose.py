"""Transposed convolution layers."""

from __future__ import annotations

import math

import treadle.functional as F
from treadle.module.conv import ConvolutionLayer, window_sizes
from treadle.module.window import Extents, extents
from treadle.tensor import Tensor


class _Transposed(ConvolutionLayer):
    """Transposed convolutions: the weight's channel axes are exchanged."""

    def __init__(
        self,
        channels: tuple[int, int],
        window: dict[str, Extents],
        output_padding: Extents,
        groups: int,
        bias: bool,
        modes: tuple[str, str],
        name: str | None,
    ) -> None:
        super().__init__(channels, window, groups, bias, modes, name)
        what = f"{type(self).__name__}: output_padding"
        self.output_padding = extents(output_padding, self._spatial, what, least=0)

    def _channel_shape(self) -> tuple[int, int]:
        return self.in_channels // self.groups, self.out_channels // self.groups

    def _fan_in(self) -> int:
        return math.prod(self.kernel_size) * self.out_channels

    def _module_info_string(self) -> str:
        more = f", output_padding={self.output_padding}" if any(self.output_padding) else ""
        return super()._module_info_string() + more


class ConvTranspose2d(_Transposed):
    """The gradient of a 2-D convolution as a layer, over (N, C, H, W).

    An output extent is (input - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 +
    output_padding.

    Args:
        in_channels: channels C of the input.
        out_channels: channels of the output.
        kernel_size, stride, padding, output_padding, dilation: extents along (H, W); an int
            stands for both.
        groups: channels are split into as many groups that do not see each other.
        bias: whether to add a trainable bias.
        conv_mode: "cross_correlation".
        compute_mode: "default", or "float32" to accumulate float16 products in float32.
        name: a name for messages and graphs.

    Parameters: `weight` (in, out, kh, kw), or (groups, in/groups, out/groups, kh, kw); normal
    with deviation sqrt(1 / (out * kh * kw)). `bias` (1, out, 1, 1), zero.

    Raises:
        ShapeError: a size is malformed or channels are not divisible by `groups`.
    """

    _spatial = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Extents,
        stride: Extents = 1,
        padding: Extents = 0,
        output_padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        name: str | None = None,
    ) -> None:
        super().__init__(
            (in_channels, out_channels),
            window_sizes(kernel_size, stride, padding, dilation),
            output_padding,
            groups,
            bias,
            (conv_mode, compute_mode),
            name,
        )

    def calc_conv_transpose2d(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's operation with another weight and bias, as quantization calls it."""
        spec = self._spec()
        rest = *spec[:2], self.output_padding, *spec[2:]
        return F.conv_transpose2d(inp, weight, bias, *rest)

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv_transpose2d(inp, self.weight, self.bias)


class ConvTransposeRelu2d(ConvTranspose2d):
    """relu(conv_transpose(x)), as one layer for quantization; built as `ConvTranspose2d` is."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.relu(self.calc_conv_transpose2d(inp, self.weight, self.bias))


class ConvTranspose3d(_Transposed):
    """The gradient of a 3-D convolution as a layer, over (N, C, D, H, W).

    Args:
        in_channels: channels C of the input.
        out_channels: channels of the output.
        kernel_size, stride, padding, output_padding, dilation: extents along (D, H, W); an int
            stands for all.
        groups: channels are split into as many groups that do not see each other.
        bias: whether to add a trainable bias.
        name: a name for messages and graphs.

    Parameters: `weight` (in, out, kd, kh, kw), or (groups, in/groups, out/groups, kd, kh, kw);
    normal with deviation sqrt(1 / (out * kd * kh * kw)). `bias` (1, out, 1, 1, 1), zero.

    Raises:
        ShapeError: a size is malformed or channels are not divisible by `groups`.
    """

    _spatial = 3

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Extents,
        stride: Extents = 1,
        padding: Extents = 0,
        output_padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        bias: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(
            (in_channels, out_channels),
            window_sizes(kernel_size, stride, padding, dilation),
            output_padding,
            groups,
            bias,
            ("cross_correlation", "default"),
            name,
        )

    def forward(self, inp: Tensor) -> Tensor:
        spec = self._spec()
        rest = *spec[:2], self.output_padding, *spec[2:4]
        return F.conv_transpose3d(inp, self.weight, self.bias, *rest)
