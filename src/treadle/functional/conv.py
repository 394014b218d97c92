"""Linear maps and convolution."""

from __future__ import annotations

from typing import Any

from treadle.base.errors import ShapeError
from treadle.functional.arguments import as_float, as_tensor, both_sides, pair, promote_all
from treadle.functional.math import matmul
from treadle.functional.windows import sliding_window
from treadle.ops import conv
from treadle.tensor import Tensor

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "conv_transpose3d",
    "linear",
]


def linear(
    inp: Tensor, weight: Tensor, bias: Tensor | None = None, compute_mode: str = "default"
) -> Tensor:
    """x W^T + b for x (..., in), weight (out, in), bias (out,)."""
    x = as_tensor(inp)
    out = fm.matmul(x, weight, transpose_b=True, compute_mode=compute_mode)
    return out if bias is None else out + bias


def conv1d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """1-d cross-correlation of x (N, C, L) with weight (O, C, K) or (groups, O/g, C/g, K).

    See `conv2d` for the arguments.
    """
    return _conv(1, inp, weight, bias, stride, padding, dilation, groups, conv_mode)


def conv2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """2-d cross-correlation, zero-padded.

    Args:
        inp: (N, C, H, W).
        weight: (O, C, KH, KW); with groups (groups, O/groups, C/groups, KH, KW).
        bias: added by broadcasting, usually (1, O, 1, 1).
        stride, padding, dilation: ints or pairs for height and width.
        groups: independent parts of the channels.
        conv_mode: only "cross_correlation".
        compute_mode: accepted for MegEngine's signature; 16-bit types accumulate in float32.

    Returns:
        (N, O, OH, OW) with OH = floor((H + 2 padding - dilation (KH - 1) - 1) / stride) + 1.

    Raises:
        ShapeError: channels, groups or sizes do not fit.
    """
    return _conv(2, inp, weight, bias, stride, padding, dilation, groups, conv_mode)


def conv3d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
) -> Tensor:
    """3-d cross-correlation of x (N, C, D, H, W); see `conv2d` for the arguments."""
    return _conv(3, inp, weight, bias, stride, padding, dilation, groups, conv_mode)


def _conv(
    n: int,
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    conv_mode: str,
) -> Tensor:
    if conv_mode != "cross_correlation":
        raise AssertionError(f"conv_mode must be 'cross_correlation', got {conv_mode!r}")
    x, w = promote_all([as_tensor(inp), _ungrouped(weight, n, groups, f"conv{n}d")])
    op = conv.Conv(pair(stride, n), both_sides(padding, n), pair(dilation, n), groups)
    out = op(x, w)
    return out if bias is None else out + bias


def _ungrouped(weight: Tensor, n: int, groups: int, op: str) -> Tensor:
    """Weights with MegEngine's leading group axis, as the (O, C/groups, ...) that ops take."""
    if groups == 1 and weight.ndim == n + 2:
        return weight
    if weight.ndim != n + 3 or weight.shape[0] != groups:
        raise ShapeError(
            op,
            f"the weight of {groups} groups has {n + 3} axes, the first of size {groups}",
            saw=str(weight.type),
            hint="shape it (groups, out/groups, in/groups, ...)",
        )
    return weight.reshape((groups * weight.shape[1], *weight.shape[2:]))


def conv_transpose2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """The gradient of `conv2d` with respect to its input, as a layer.

    Args:
        inp: (N, C, H, W).
        weight: (C, O, KH, KW); with groups (groups, C/groups, O/groups, KH, KW).
        bias: added by broadcasting, usually (1, O, 1, 1).
        output_padding: extra rows and columns at the end of the result.

    Returns:
        (N, O, OH, OW) with OH = (H - 1) stride - 2 padding + dilation (KH - 1) + 1 + extra.
    """
    if conv_mode != "cross_correlation":
        raise AssertionError(f"conv_mode must be 'cross_correlation', got {conv_mode!r}")
    return _conv_transpose(
        2, inp, weight, bias, stride, padding, output_padding, dilation, groups
    )


def conv_transpose3d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The gradient of `conv3d` with respect to its input; see `conv_transpose2d`."""
    return _conv_transpose(
        3, inp, weight, bias, stride, padding, output_padding, dilation, groups
    )


def _conv_transpose(
    n: int,
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    x, w = promote_all([as_tensor(inp), _ungrouped(weight, n, groups, f"conv_transpose{n}d")])
    strides, pads, spread = pair(stride, n), pair(padding, n), pair(dilation, n)
    extra = pair(output_padding, n)
    spatial = tuple(
        (x.shape[2 + i] - 1) * strides[i]
        - 2 * pads[i]
        + spread[i] * (w.shape[2 + i] - 1)
        + 1
        + extra[i]
        for i in range(n)
    )
    op = conv.ConvGradInput(strides, both_sides(padding, n), spread, groups, spatial)
    out = op(x, w)
    return out if bias is None else out + bias
