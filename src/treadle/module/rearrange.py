"""Layers that only move elements: pixel shuffle, concatenation and sliding windows."""

from __future__ import annotations

from collections.abc import Sequence

import treadle.functional as F
from treadle.module.module import Module
from treadle.module.window import Extents
from treadle.tensor import Tensor


class PixelShuffle(Module):
    """(N, C * r * r, H, W) to (N, C, H * r, W * r), r being `upscale_factor` (Shi et al., 2016)."""

    def __init__(self, upscale_factor: int, name: str | None = None) -> None:
        super().__init__(name)
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, self.upscale_factor)

    def _module_info_string(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class Flatten(Module):
    """Axes from `start_axis` to `end_axis` merged into one: (N, C, H, W) to (N, C * H * W)."""

    def __init__(self, start_axis: int = 1, end_axis: int = -1, name: str | None = None) -> None:
        super().__init__(name)
        self.start_axis = start_axis
        self.end_axis = end_axis

    def forward(self, x: Tensor) -> Tensor:
        return F.flatten(x, self.start_axis, self.end_axis)

    def _module_info_string(self) -> str:
        return f"start_axis={self.start_axis}, end_axis={self.end_axis}"


class Concat(Module):
    """`F.concat` as a layer, so that quantization finds it."""

    def forward(self, inps: Sequence[Tensor], axis: int = 0) -> Tensor:
        return F.concat(inps, axis)


class SlidingWindow(Module):
    """All windows of (N, C, H, W), as (N, C, OH, OW, kh, kw).

    Args:
        kernel_size: extents of the window along (H, W); an int stands for both.
        padding, stride, dilation: as in a convolution.
        name: a name for messages and graphs.
    """

    def __init__(
        self,
        kernel_size: Extents,
        padding: Extents = 0,
        stride: Extents = 1,
        dilation: Extents = 1,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.kernel_size = kernel_size
        self.padding = padding
        self.stride = stride
        self.dilation = dilation

    def forward(self, inp: Tensor) -> Tensor:
        sizes = self.kernel_size, self.padding, self.stride, self.dilation
        return F.sliding_window(inp, *sizes)

    def _module_info_string(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, padding={self.padding}, "
            f"stride={self.stride}, dilation={self.dilation}"
        )


class SlidingWindowTranspose(Module):
    """Adds windows (N, C, OH, OW, kh, kw) up where they overlap in (N, C, *output_size).

    Args:
        output_size: extents (H, W) of the result; an int stands for both.
        kernel_size: extents of the window; an int stands for both.
        padding, stride, dilation: as in a convolution.
        name: a name for messages and graphs.
    """

    def __init__(
        self,
        output_size: Extents,
        kernel_size: Extents,
        padding: Extents = 0,
        stride: Extents = 1,
        dilation: Extents = 1,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.padding = padding
        self.stride = stride
        self.dilation = dilation

    def forward(self, inp: Tensor) -> Tensor:
        sizes = self.kernel_size, self.padding, self.stride, self.dilation
        return F.sliding_window_transpose(inp, self.output_size, *sizes)

    def _module_info_string(self) -> str:
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, "
            f"padding={self.padding}, stride={self.stride}, dilation={self.dilation}"
        )
