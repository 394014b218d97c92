"""Pooling layers over (N, C, H, W)."""

from __future__ import annotations

from typing import Any

import treadle.functional as F
from treadle.module.module import Module
from treadle.module.window import Extents, extents
from treadle.tensor import Tensor


def _check_window(
    layer: str, kernel_size: Extents, stride: Extents | None, padding: Extents
) -> None:
    """Raise unless the sizes of a window are well-formed; layers keep them as they were given."""
    extents(kernel_size, 2, f"{layer}: kernel_size")
    if stride is not None:
        extents(stride, 2, f"{layer}: stride")
    extents(padding, 2, f"{layer}: padding", least=0)


class _PoolNd(Module):
    """Base of both poolings with windows, for programs that ask for it."""


class MaxPool2d(_PoolNd):
    """The largest element of each window; padding cells never win.

    Args:
        kernel_size: extents of the window along (H, W); an int stands for both.
        stride: distance between windows; `kernel_size` if left out.
        padding: cells added on both sides.
        name: a name for messages and graphs.

    Raises:
        ShapeError: a size is malformed.
    """

    def __init__(
        self,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        _check_window(type(self).__name__, kernel_size, stride, padding)
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding

    def forward(self, inp: Tensor) -> Tensor:
        return F.max_pool2d(inp, self.kernel_size, self.stride, self.padding)

    def _module_info_string(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_PoolNd):
    """The mean of each window.

    Args:
        kernel_size: extents of the window along (H, W); an int stands for both.
        stride: distance between windows; `kernel_size` if left out.
        padding: cells of zeros added on both sides.
        mode: "average_count_exclude_padding" divides by the number of cells that are not padding,
            "average" by the window's size.
        name: a name for messages and graphs.

    Raises:
        ShapeError: a size is malformed.
    """

    def __init__(
        self,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        mode: str = "average_count_exclude_padding",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        _check_window(type(self).__name__, kernel_size, stride, padding)
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.mode = mode

    def forward(self, inp: Tensor) -> Tensor:
        return F.avg_pool2d(inp, self.kernel_size, self.stride, self.padding, self.mode)

    def _module_info_string(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"mode={self.mode}"
        )


class AdaptiveMaxPool2d(Module):
    """Max pooling with windows chosen so that the output is (N, C, *oshp).

    Args:
        oshp: output extents along (H, W); an int stands for both, None for that of the input.
        name: a name for messages and graphs.

    Raises:
        ShapeError: a size is malformed.
    """

    def __init__(self, oshp: Any, name: str | None = None) -> None:
        super().__init__(name)
        extents(_known(oshp), 2, f"{type(self).__name__}: oshp")
        self.oshp = oshp

    def forward(self, inp: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(inp, self.oshp)

    def _module_info_string(self) -> str:
        return f"oshp={self.oshp}"


class AdaptiveAvgPool2d(Module):
    """Average pooling with windows chosen so that the output is (N, C, *oshp).

    Args:
        oshp: output extents along (H, W); an int stands for both, None for that of the input.
        name: a name for messages and graphs.

    Raises:
        ShapeError: a size is malformed.
    """

    def __init__(self, oshp: Any, name: str | None = None) -> None:
        super().__init__(name)
        extents(_known(oshp), 2, f"{type(self).__name__}: oshp")
        self.oshp = oshp

    def forward(self, inp: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(inp, self.oshp)

    def _module_info_string(self) -> str:
        return f"oshp={self.oshp}"


def _known(oshp: Any) -> Any:
    """Output extents with 1 in place of None, which are checked like any other."""
    if oshp is None:
        return 1
    return tuple(1 if d is None else d for d in oshp) if isinstance(oshp, (tuple, list)) else oshp
