"""Convolutions whose weights or windows vary over the image: local, deformable, by region."""

from __future__ import annotations

import treadle.functional as F
from treadle.base.errors import ShapeError
from treadle.module.conv import _PADDING_MODES, Conv2d, ConvolutionLayer, window_sizes
from treadle.module.window import Extents, require_size
from treadle.tensor import Tensor


class LocalConv2d(Conv2d):
    """A convolution with separate weights at every output position, over (N, C, H, W).

    Args:
        in_channels: channels C of the input.
        out_channels: channels of the output.
        input_height, input_width: extents H and W, which are fixed.
        kernel_size, stride, padding, dilation: extents along (H, W); an int stands for both.
        groups: channels are split into as many groups that do not see each other.
        conv_mode: "cross_correlation".
        name: a name for messages and graphs.

    Parameters: `weight` (groups, OH, OW, in/groups, kh, kw, out/groups), normal with deviation
    sqrt(1 / (in * kh * kw)); there is no bias.

    Raises:
        ShapeError: a size is malformed, the window is larger than the padded image, or channels
            are not divisible by `groups`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        input_height: int,
        input_width: int,
        kernel_size: Extents,
        stride: Extents = 1,
        padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        conv_mode: str = "cross_correlation",
        name: str | None = None,
    ) -> None:
        require_size(input_height, "LocalConv2d: input_height", least=1)
        require_size(input_width, "LocalConv2d: input_width", least=1)
        self.input_height = input_height
        self.input_width = input_width
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias=False,
            conv_mode=conv_mode,
            name=name,
        )

    def _weight_shape(self) -> tuple[int, ...]:
        out, depth = self._channel_shape()
        positions = tuple(
            (extent + 2 * pad - apart * (kernel - 1) - 1) // stride + 1
            for extent, pad, apart, kernel, stride in zip(
                (self.input_height, self.input_width),
                self.padding,
                self.dilation,
                self.kernel_size,
                self.stride,
                strict=True,
            )
        )
        if min(positions) < 1:
            raise ShapeError(
                "LocalConv2d",
                "the window is larger than the padded image",
                saw=f"image {(self.input_height, self.input_width)}, window {self.kernel_size}",
                hint="pad more, or take a smaller window",
            )
        return (self.groups, *positions, depth, *self.kernel_size, out)

    def forward(self, inp: Tensor) -> Tensor:
        sizes = self.stride, self.padding, self.dilation
        return F.local_conv2d(inp, self.weight, None, *sizes, self.conv_mode)


class DeformableConv2d(ConvolutionLayer):
    """A convolution that reads shifted and weighted cells (Zhu et al., 2019, DCN v2).

    `forward(inp, offset, mask)` takes inp (N, C, H, W), offset (N, 2 * G * kh * kw, OH, OW) and
    mask (N, G * kh * kw, OH, OW); see `F.deformable_conv2d`.

    Args:
        in_channels: channels C of the input.
        out_channels: channels of the output.
        kernel_size, stride, padding, dilation: extents along (H, W); an int stands for both.
        groups: channels are split into as many groups that do not see each other.
        bias: whether to add a trainable bias.
        conv_mode: "cross_correlation".
        compute_mode: "default", or "float32" to accumulate float16 products in float32.
        name: a name for messages and graphs.

    Parameters: `weight` (out, in, kh, kw), or (groups, out/groups, in/groups, kh, kw); normal
    with deviation sqrt(1 / (in * kh * kw)). `bias` (1, out, 1, 1), zero.

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
        dilation: Extents = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        name: str | None = None,
    ) -> None:
        window = window_sizes(kernel_size, stride, padding, dilation)
        channels, modes = (in_channels, out_channels), (conv_mode, compute_mode)
        super().__init__(channels, window, groups, bias, modes, name)

    def _channel_shape(self) -> tuple[int, int]:
        return self.out_channels // self.groups, self.in_channels // self.groups

    def _fan_in(self) -> int:
        return self.kernel_size[0] * self.kernel_size[1] * self.in_channels

    def calc_conv(
        self, inp: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor | None
    ) -> Tensor:
        """The layer's convolution with another weight and bias."""
        return F.deformable_conv2d(inp, weight, offset, mask, bias, *self._spec())

    def forward(self, inp: Tensor, offset: Tensor, mask: Tensor) -> Tensor:
        return self.calc_conv(inp, self.weight, offset, mask, self.bias)


class RegionRestrictedConv(ConvolutionLayer):
    """A convolution in which cells of one region see cells of the same region only.

    `forward(inp, rin, rout)` takes inp (N, C, H, W) and integer region numbers rin (N, H, W) and
    rout (N, OH, OW): a product counts where the region numbers of the cell read and of the cell
    written are equal.

    Args:
        in_channels: channels C of the input.
        out_channels: channels of the output.
        kernel_size: extents along (H, W); an int stands for both.
        groups: channels are split into as many groups that do not see each other.
        bias: whether to add a trainable bias.
        stride, padding, dilation: extents along (H, W); an int stands for both.
        conv_mode: "cross_correlation".
        compute_mode: "default", or "float32" to accumulate float16 products in float32.
        padding_mode: "zeros", "reflect" or "replicate"; the last two extend the regions, too.
        name: a name for messages and graphs.

    Parameters: `weight` (groups, out/groups, in/groups, kh, kw), also for one group; normal with
    deviation sqrt(1 / (in * kh * kw)). `bias` (1, out, 1, 1), zero.

    Raises:
        ShapeError: a size is malformed or channels are not divisible by `groups`.
        ValueError: there is no such padding mode.
    """

    _spatial = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Extents,
        groups: int = 1,
        bias: bool = True,
        stride: Extents = 1,
        padding: Extents = 0,
        dilation: Extents = 1,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        name: str | None = None,
    ) -> None:
        if padding_mode not in _PADDING_MODES:
            allowed = ", ".join(_PADDING_MODES)
            raise ValueError(f"padding_mode must be one of {allowed}; got {padding_mode!r}")
        window = window_sizes(kernel_size, stride, padding, dilation)
        channels, modes = (in_channels, out_channels), (conv_mode, compute_mode)
        super().__init__(channels, window, groups, bias, modes, name)
        self.padding_mode = padding_mode

    def _channel_shape(self) -> tuple[int, int]:
        return self.out_channels // self.groups, self.in_channels // self.groups

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.groups, *self._channel_shape(), *self.kernel_size)

    def _fan_in(self) -> int:
        return self.kernel_size[0] * self.kernel_size[1] * self.in_channels

    def get_pad_width(self) -> tuple[tuple[int, int], ...]:
        """Padding as `F.pad` takes it: (before, after) for every axis of the input."""
        return ((0, 0), (0, 0), *((p, p) for p in self.padding))

    def calc_conv(
        self, inp: Tensor, weight: Tensor, rin: Tensor, rout: Tensor, bias: Tensor | None
    ) -> Tensor:
        """The layer's convolution with another weight and bias."""
        spec = self._spec()
        if self.padding_mode != "zeros":
            widths = self.get_pad_width()
            inp = F.pad(inp, widths, self.padding_mode)
            rin = F.pad(rin, widths[1:], self.padding_mode)
            spec = spec._replace(padding=(0, 0))
        out: Tensor = F.region_restricted_conv(inp, weight, rin, rout, bias, *spec)
        return out

    def forward(self, inp: Tensor, rin: Tensor, rout: Tensor) -> Tensor:
        return self.calc_conv(inp, self.weight, rin, rout, self.bias)
