"""Functions of windows that slide over an image: pooling, patches, and padding around it."""

from __future__ import annotations

from typing import Any

from treadle.functional.arguments import as_tensor, both_sides, pair, unary, unary_float
from treadle.ops import adaptive_pool, pool, slicing, sliding
from treadle.tensor import Tensor

__all__ = [
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "avg_pool2d",
    "max_pool2d",
    "pad",
    "sliding_window",
    "sliding_window_transpose",
]


def pad(src: Tensor, pad_width: Any, mode: str = "constant", constant_value: float = 0.0) -> Tensor:
    """NumPy-style padding: a (before, after) pair per axis; missing trailing axes get none.

    `mode` is "constant", "edge" (or "replicate") or "reflect".
    """
    x = as_tensor(src)
    widths = [tuple(int(v) for v in w) for w in pad_width]
    if len(widths) > x.ndim or any(len(w) != 2 for w in widths):
        raise ValueError(f"pad_width {pad_width} does not fit {x.ndim} axes")
    if mode not in ("constant", "edge", "replicate", "reflect"):
        raise ValueError(f"pad: unknown mode {mode!r}")
    every = tuple((w[0], w[1]) for w in widths) + ((0, 0),) * (x.ndim - len(widths))
    known = "edge" if mode == "replicate" else mode
    return unary(slicing.Pad(every, known, float(constant_value)), x)  # type: ignore[arg-type]


def sliding_window(
    inp: Tensor, kernel_size: Any, padding: Any = 0, stride: Any = 1, dilation: Any = 1
) -> Tensor:
    """Patches of x (N, C, H, W) as (N, C, OH, OW, KH, KW)."""
    op = sliding.SlidingWindow(
        pair(kernel_size), pair(stride), both_sides(padding, 2), pair(dilation)
    )
    return unary(op, inp)


def sliding_window_transpose(
    inp: Tensor,
    output_size: Any,
    kernel_size: Any,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
) -> Tensor:
    """Patches (N, C, OH, OW, KH, KW) added up where they came from: (N, C, *output_size)."""
    op = sliding.SlidingWindowTranspose(
        pair(kernel_size),
        pair(stride),
        both_sides(padding, 2),
        pair(dilation),
        pair(output_size),
    )
    return unary(op, inp)


def max_pool2d(inp: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """Largest element of every window of x (N, C, H, W); padding never wins.

    `stride` is the window's size if left out; windows that do not fit are dropped.
    """
    kernel = pair(kernel_size)
    strides = kernel if stride is None else pair(stride)
    op = pool.MaxPool(kernel, strides, both_sides(padding, 2), (1, 1), False)
    return unary(op, inp)


def avg_pool2d(
    inp: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    mode: str = "average_count_exclude_padding",
) -> Tensor:
    """Mean of every window of x (N, C, H, W); `mode` "average" counts padding as zeros.

    Raises:
        ValueError: the mode is neither of the two.
    """
    if mode not in ("average", "average_count_exclude_padding"):
        raise ValueError(f"avg_pool2d: unknown mode {mode!r}")
    kernel = pair(kernel_size)
    strides = kernel if stride is None else pair(stride)
    op = pool.AvgPool(kernel, strides, both_sides(padding, 2), mode == "average", False)
    return unary_float(op, inp)


def adaptive_avg_pool2d(inp: Tensor, oshp: Any) -> Tensor:
    """Average pooling of x (N, C, H, W) to a fixed output size."""
    return unary_float(adaptive_pool.AdaptiveAvgPool(pair(oshp)), inp)


def adaptive_max_pool2d(inp: Tensor, oshp: Any) -> Tensor:
    """Max pooling of x (N, C, H, W) to a fixed output size."""
    return unary(adaptive_pool.AdaptiveMaxPool(pair(oshp)), inp)
