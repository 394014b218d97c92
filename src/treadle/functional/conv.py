"""Linear maps and convolution."""

from __future__ import annotations

from typing import Any, NamedTuple

from treadle.base.errors import ShapeError
from treadle.base.modes import casting
from treadle.functional.arguments import (
    as_float,
    as_tensor,
    both_sides,
    call,
    check_conv_mode,
    pair,
    promote_all,
)
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
    "local_conv2d",
]


class ConvSpec(NamedTuple):
    """The arguments that convolutions take behind weight and bias, in MegEngine's order."""

    stride: Any
    padding: Any
    dilation: Any
    groups: int
    conv_mode: str = "cross_correlation"
    compute_mode: str = "default"


def linear(
    inp: Tensor, weight: Tensor, bias: Tensor | None = None, compute_mode: str = "default"
) -> Tensor:
    """x W^T + b for x (..., in), weight (out, in), bias (out,).

    Raises:
        ShapeError: the last axes of x and weight differ.

    Example:
        >>> w = mge.tensor([[1., 0.], [0., 2.], [1., 1.]])
        >>> F.linear(mge.tensor([3., 4.]), w, bias=mge.tensor([0., 0., 10.])).tolist()
        [3.0, 8.0, 17.0]
    """
    x = as_tensor(inp)
    weight = as_tensor(weight, x)
    if x.shape[-1:] != weight.shape[-1:]:
        raise ShapeError(
            "linear",
            "the last axes of x and weight, the features, differ",
            saw=f"x {x.type}, weight {weight.type}",
            hint="flatten or reshape x, or make the layer for as many in_features",
        )
    out = matmul(x, weight, transpose_b=True, compute_mode=compute_mode)
    return biased(out, bias)


def biased(product: Tensor, bias: Tensor | None) -> Tensor:
    """A product plus a bias; in mixed precision in the product's own type."""
    if bias is None:
        return product
    return product + (bias if casting() is None else bias.astype(product.dtype))


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

    The result is (N, O, OL); see `conv2d` for the arguments, the formula of OL and the errors.

    Example:
        >>> x, w = mge.tensor([[[1., 2., 3., 4.]]]), mge.tensor([[[1., 1.]]])
        >>> F.conv1d(x, w).tolist()
        [[[3.0, 5.0, 7.0]]]
    """
    return _conv(1, inp, weight, bias, ConvSpec(stride, padding, dilation, groups, conv_mode))


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

    out[n, o, i, j] = bias[o] + the sum over c, u, v of
    x[n, c, i stride + u dilation - padding, j stride + v dilation - padding] weight[o, c, u, v].

    Args:
        inp: (N, C, H, W).
        weight: (O, C, KH, KW); with groups (groups, O/groups, C/groups, KH, KW), or
            (O, C/groups, KH, KW) as in other frameworks.
        bias: added by broadcasting, usually (1, O, 1, 1).
        stride, padding, dilation: ints or pairs for height and width.
        groups: independent parts of the channels.
        conv_mode: only "cross_correlation".
        compute_mode: accepted for MegEngine's signature; 16-bit types accumulate in float32.

    Returns:
        (N, O, OH, OW) with OH = floor((H + 2 padding - dilation (KH - 1) - 1) / stride) + 1.

    Raises:
        ShapeError: channels, groups or sizes do not fit.

    Example:
        >>> x, w = F.ones((1, 3, 8, 8)), F.ones((4, 3, 3, 3))
        >>> y = F.conv2d(x, w, stride=2, padding=1)
        >>> y.shape, y[0, 0, 0, 0].item(), y[0, 0, 1, 1].item()
        ((1, 4, 4, 4), 12.0, 27.0)
    """
    return _conv(2, inp, weight, bias, ConvSpec(stride, padding, dilation, groups, conv_mode))


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
    """3-d cross-correlation of x (N, C, D, H, W); see `conv2d` for arguments, shapes and errors.

    Example:
        >>> F.conv3d(F.ones((1, 2, 4, 4, 4)), F.ones((3, 2, 3, 3, 3))).shape
        (1, 3, 2, 2, 2)
    """
    return _conv(3, inp, weight, bias, ConvSpec(stride, padding, dilation, groups, conv_mode))


def _conv(n: int, inp: Tensor, weight: Tensor, bias: Tensor | None, spec: ConvSpec) -> Tensor:
    x, w = _operands(n, inp, weight, spec)
    sizes = pair(spec.stride, n), both_sides(spec.padding, n), pair(spec.dilation, n)
    op = conv.Conv(*sizes, spec.groups)
    out = call(f"conv{n}d", op, x, w)
    return biased(out, bias)


def _operands(n: int, inp: Tensor, weight: Tensor, spec: ConvSpec) -> tuple[Tensor, Tensor]:
    """Both operands as ops take them."""
    check_conv_mode(spec.conv_mode)
    given = [as_tensor(inp), _ungrouped(as_tensor(weight), n, spec.groups)]
    x, w = map(as_float, promote_all(given))
    return x, w


def _ungrouped(weight: Tensor, n: int, groups: int) -> Tensor:
    """Weights with MegEngine's leading group axis, as the (O, C/groups, ...) that ops take.

    Weights without that axis, as other frameworks have them, are taken as they are.
    """
    if weight.ndim == n + 2:
        return weight
    if weight.ndim != n + 3 or weight.shape[0] != groups:
        raise ShapeError(
            "conv",
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

    Each x[n, c, i, j] adds x[n, c, i, j] weight[c, o] to the patch of the result that begins at
    row i stride - padding and column j stride - padding.

    Args:
        inp: (N, C, H, W).
        weight: (C, O, KH, KW); with groups (groups, C/groups, O/groups, KH, KW), or
            (C, O/groups, KH, KW) as in other frameworks.
        bias: added by broadcasting, usually (1, O, 1, 1).
        stride, padding, dilation: ints or pairs, as those of `conv2d`.
        output_padding: extra rows and columns at the end of the result.

    Returns:
        (N, O, OH, OW) with OH = (H - 1) stride - 2 padding + dilation (KH - 1) + 1 + extra.

    Raises:
        ShapeError: channels, groups or sizes do not fit.

    Example:
        >>> x, w = mge.tensor([[[[1., 2.]]]]), F.ones((1, 1, 1, 2))
        >>> F.conv_transpose2d(x, w, stride=(1, 2)).tolist()
        [[[[1.0, 1.0, 2.0, 2.0]]]]
    """
    spec = ConvSpec(stride, padding, dilation, groups, conv_mode)
    return _conv_transpose(2, inp, weight, bias, spec, output_padding)


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
    """The gradient of `conv3d` with respect to its input, as a layer.

    x is (N, C, D, H, W), the weight (C, O, KD, KH, KW); the rest is as for `conv_transpose2d`.

    Example:
        >>> F.conv_transpose3d(F.ones((1, 2, 2, 2, 2)), F.ones((2, 3, 2, 2, 2)), stride=2).shape
        (1, 3, 4, 4, 4)
    """
    spec = ConvSpec(stride, padding, dilation, groups)
    return _conv_transpose(3, inp, weight, bias, spec, output_padding)


def _conv_transpose(
    n: int, inp: Tensor, weight: Tensor, bias: Tensor | None, spec: ConvSpec, output_padding: Any
) -> Tensor:
    x, w = _operands(n, inp, weight, spec)
    if x.ndim != n + 2:
        raise ShapeError("conv_transpose", f"expects {n + 2} axes", saw=f"x {x.type}")
    strides, pads, spread = (pair(size, n) for size in spec[:3])
    extra = pair(output_padding, n)
    spatial = tuple(
        (x.shape[2 + i] - 1) * strides[i]
        - 2 * pads[i]
        + spread[i] * (w.shape[2 + i] - 1)
        + 1
        + extra[i]
        for i in range(n)
    )
    op = conv.ConvGradInput(strides, both_sides(pads, n), spread, spec.groups, spatial)
    out = call(f"conv_transpose{n}d", op, x, w)
    return biased(out, bias)


def local_conv2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    conv_mode: str = "cross_correlation",
) -> Tensor:
    """2-d cross-correlation with a separate kernel at every output position.

    Args:
        inp: (N, C, H, W).
        weight: (groups, OH, OW, C/groups, KH, KW, O/groups).
        bias: added by broadcasting, usually (1, O, OH, OW).
        stride, padding, dilation: ints or pairs, as those of `conv2d`.

    Returns:
        (N, O, OH, OW), with the extents of `conv2d`.

    Raises:
        ShapeError: the weight does not fit the patches.

    Example:
        >>> w = mge.tensor([1., 2., 3.]).reshape(1, 1, 3, 1, 1, 1, 1)
        >>> F.local_conv2d(F.ones((1, 1, 1, 3)), w).tolist()
        [[[[1.0, 2.0, 3.0]]]]
    """
    check_conv_mode(conv_mode)
    weight = as_tensor(weight)
    if weight.ndim != 7:
        raise ShapeError(
            "local_conv2d", "weight is [G,P,Q,C/G,K,K,O/G]", saw=f"weight {weight.type}"
        )
    groups, height, width, depth, *kernel, out = weight.shape
    patches = sliding_window(inp, kernel, padding, stride, dilation)
    n = patches.shape[0]
    if patches.shape[1:4] != (groups * depth, height, width):
        raise ShapeError(
            "local_conv2d",
            "the weight does not fit the output positions or the channels",
            saw=f"patches {patches.type}, weight {weight.type}",
        )
    size = depth * kernel[0] * kernel[1]
    rows = patches.reshape(n, groups, depth, height, width, *kernel)
    rows = rows.transpose(1, 3, 4, 0, 2, 5, 6).reshape(groups, height, width, n, size)
    product = matmul(rows, weight.reshape(groups, height, width, size, out))
    done = product.transpose(3, 0, 4, 1, 2).reshape(n, groups * out, height, width)
    return biased(done, bias)
