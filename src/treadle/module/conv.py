"""Convolution layers."""

from __future__ import annotations

import abc
import math
from typing import ClassVar

import numpy as np

import treadle.functional as F
from treadle.base.errors import ShapeError
from treadle.functional.conv import ConvSpec
from treadle.module import init
from treadle.module.module import Module
from treadle.module.window import Extents, extents, require_size
from treadle.tensor import Parameter, Tensor

_PADDING_MODES = ("zeros", "reflect", "replicate")


class ConvolutionLayer(Module):
    """Base of convolutions and transposed convolutions of every rank."""

    _spatial: ClassVar[int]

    def __init__(
        self,
        channels: tuple[int, int],
        window: dict[str, Extents],
        groups: int,
        bias: bool,
        modes: tuple[str, str],
        name: str | None,
    ) -> None:
        super().__init__(name)
        self.in_channels, self.out_channels = channels
        require_size(self.in_channels, f"{type(self).__name__}: in_channels", least=1)
        require_size(self.out_channels, f"{type(self).__name__}: out_channels", least=1)
        self.kernel_size = self._extents("kernel_size", window)
        self.stride = self._extents("stride", window)
        self.padding = self._extents("padding", window, least=0)
        self.dilation = self._extents("dilation", window)
        self.groups = groups
        self.conv_mode, self.compute_mode = modes
        self._check_groups()
        self.weight = Parameter(np.zeros(self._weight_shape(), np.float32))
        self.bias: Parameter | None = None
        if bias:
            shape = (1, self.out_channels) + (1,) * self._spatial
            self.bias = Parameter(np.zeros(shape, np.float32))
        self.reset_parameters()

    def _spec(self) -> ConvSpec:
        """Return the arguments that functions take behind weight and bias."""
        sizes = self.stride, self.padding, self.dilation
        return ConvSpec(*sizes, self.groups, self.conv_mode, self.compute_mode)

    def _extents(self, what: str, window: dict[str, Extents], least: int = 1) -> tuple[int, ...]:
        return extents(window[what], self._spatial, f"{type(self).__name__}: {what}", least)

    def _check_groups(self) -> None:
        for what, count in (("in", self.in_channels), ("out", self.out_channels)):
            if self.groups < 1 or count % self.groups:
                raise ShapeError(
                    type(self).__name__,
                    f"{what}_channels must be divisible by groups",
                    saw=f"{what}_channels={count}, groups={self.groups}",
                    hint="groups is 1 or more and divides both numbers of channels",
                )

    @abc.abstractmethod
    def _channel_shape(self) -> tuple[int, int]:
        """The weight's two channel extents within one group."""

    def _weight_shape(self) -> tuple[int, ...]:
        lead = () if self.groups == 1 else (self.groups,)
        return lead + self._channel_shape() + self.kernel_size

    @abc.abstractmethod
    def _fan_in(self) -> int:
        """Return the divisor of the variance of the first weights."""

    def reset_parameters(self) -> None:
        """Draw the weight anew and zero the bias."""
        init.normal_(self.weight, 0.0, math.sqrt(1 / max(self._fan_in(), 1)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def _module_info_string(self) -> str:
        ones = (1,) * self._spatial
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        parts += [f"stride={self.stride}"] if self.stride != ones else []
        parts += [f"padding={self.padding}"] if any(self.padding) else []
        parts += [f"dilation={self.dilation}"] if self.dilation != ones else []
        parts += [f"groups={self.groups}"] if self.groups != 1 else []
        parts += ["bias=False"] if self.bias is None else []
        return ", ".join(parts)


_ConvNd = ConvolutionLayer
"""MegEngine's name of it, which programs ask layers for."""


class _ForwardConv(ConvolutionLayer):
    """Convolutions that are not transposed; adds padding with other values than zeros."""

    def __init__(
        self,
        channels: tuple[int, int],
        window: dict[str, Extents],
        groups: int,
        bias: bool,
        modes: tuple[str, str],
        padding_mode: str,
        name: str | None,
    ) -> None:
        if padding_mode not in _PADDING_MODES:
            allowed = ", ".join(_PADDING_MODES)
            raise ValueError(f"padding_mode must be one of {allowed}; got {padding_mode!r}")
        super().__init__(channels, window, groups, bias, modes, name)
        self.padding_mode = padding_mode

    def _channel_shape(self) -> tuple[int, int]:
        return self.out_channels // self.groups, self.in_channels // self.groups

    def _fan_in(self) -> int:
        # All input channels, also where groups see only some of them: MegEngine's rule.
        return math.prod(self.kernel_size) * self.in_channels

    def get_pad_width(self) -> tuple[tuple[int, int], ...]:
        """Padding as `F.pad` takes it: (before, after) for every axis of the input."""
        return ((0, 0), (0, 0), *((p, p) for p in self.padding))

    def _padded(self, inp: Tensor) -> tuple[Tensor, ConvSpec]:
        """The input, and what is left for the convolution to do: to add zeros, or no padding."""
        spec = self._spec()
        if self.padding_mode == "zeros":
            return inp, spec
        padded = F.pad(inp, self.get_pad_width(), self.padding_mode)
        return padded, spec._replace(padding=(0,) * self._spatial)

    def _module_info_string(self) -> str:
        more = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}"
        return super()._module_info_string() + more


class Conv1d(_ForwardConv):
    """Cross-correlation over (N, C, L).

    Args:
        in_channels: channels C of the input.
        out_channels: channels of the output.
        kernel_size, stride, padding, dilation: extents along L, as one int.
        groups: channels are split into as many groups that do not see each other.
        bias: whether to add a trainable bias.
        conv_mode: "cross_correlation".
        compute_mode: "default", or "float32" to accumulate float16 products in float32.
        padding_mode: "zeros", "reflect" or "replicate".
        name: a name for messages and graphs.

    Parameters: `weight` (out, in, k), or (groups, out/groups, in/groups, k); normal with
    deviation sqrt(1 / (in * k)). `bias` (1, out, 1), zero.

    Raises:
        ShapeError: a size is malformed or channels are not divisible by `groups`.
    """

    _spatial = 1

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
        padding_mode: str = "zeros",
        name: str | None = None,
    ) -> None:
        super().__init__(
            (in_channels, out_channels),
            window_sizes(kernel_size, stride, padding, dilation),
            groups,
            bias,
            (conv_mode, compute_mode),
            padding_mode,
            name,
        )

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's convolution with another weight and bias, as quantization calls it."""
        padded, spec = self._padded(inp)
        return F.conv1d(padded, weight, bias, *spec)

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv(inp, self.weight, self.bias)


class Conv2d(_ForwardConv):
    """Cross-correlation over (N, C, H, W).

    Args:
        in_channels: channels C of the input.
        out_channels: channels of the output.
        kernel_size, stride, padding, dilation: extents along (H, W); an int stands for both.
        groups: channels are split into as many groups that do not see each other.
        bias: whether to add a trainable bias.
        conv_mode: "cross_correlation".
        compute_mode: "default", or "float32" to accumulate float16 products in float32.
        padding_mode: "zeros", "reflect" or "replicate".
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
        padding_mode: str = "zeros",
        name: str | None = None,
    ) -> None:
        super().__init__(
            (in_channels, out_channels),
            window_sizes(kernel_size, stride, padding, dilation),
            groups,
            bias,
            (conv_mode, compute_mode),
            padding_mode,
            name,
        )

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's convolution with another weight and bias, as quantization calls it."""
        padded, spec = self._padded(inp)
        return F.conv2d(padded, weight, bias, *spec)

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv(inp, self.weight, self.bias)


class Conv3d(_ForwardConv):
    """Cross-correlation over (N, C, D, H, W), padded with zeros.

    Args:
        in_channels: channels C of the input.
        out_channels: channels of the output.
        kernel_size, stride, padding, dilation: extents along (D, H, W); an int stands for all.
        groups: channels are split into as many groups that do not see each other.
        bias: whether to add a trainable bias.
        conv_mode: "cross_correlation".
        name: a name for messages and graphs.

    Parameters: `weight` (out, in, kd, kh, kw), or (groups, out/groups, in/groups, kd, kh, kw);
    normal with deviation sqrt(1 / (in * kd * kh * kw)). `bias` (1, out, 1, 1, 1), zero.

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
        dilation: Extents = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        name: str | None = None,
    ) -> None:
        window = window_sizes(kernel_size, stride, padding, dilation)
        channels = in_channels, out_channels
        modes = conv_mode, "default"
        super().__init__(channels, window, groups, bias, modes, "zeros", name)

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's convolution with another weight and bias."""
        return F.conv3d(inp, weight, bias, *self._spec()[:5])

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv(inp, self.weight, self.bias)


class ConvRelu2d(Conv2d):
    """relu(conv(x)), as one layer that quantization treats as a whole; built as `Conv2d` is."""

    def forward(self, inp: Tensor) -> Tensor:
        return F.relu(self.calc_conv(inp, self.weight, self.bias))


def window_sizes(
    kernel_size: Extents, stride: Extents, padding: Extents, dilation: Extents
) -> dict[str, Extents]:
    """The sizes of a window by name."""
    return {
        "kernel_size": kernel_size,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
    }
