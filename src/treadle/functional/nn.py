"""Layers as functions: linear maps, convolution, pooling, normalization, activations."""

from __future__ import annotations

from typing import Any

from treadle.base.dtype import as_dtype, int32
from treadle.base.errors import ShapeError
from treadle.functional import math as fm
from treadle.functional import tensor as ft
from treadle.functional.arguments import as_tensor, axis_of, ints, pair, promote_all, unary
from treadle.functional.loss import binary_cross_entropy as binary_cross_entropy
from treadle.functional.loss import cross_entropy as cross_entropy
from treadle.functional.loss import hinge_loss as hinge_loss
from treadle.functional.loss import l1_loss as l1_loss
from treadle.functional.loss import square_loss as square_loss
from treadle.ops import activation as act
from treadle.ops import adaptive_pool, conv, gather, norm, pool, slicing, sliding
from treadle.ops import batch_norm as bn
from treadle.ops import softmax as sm
from treadle.ops import unary as un
from treadle.random.generator import default_generator
from treadle.tensor import Tensor

__all__ = [
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "avg_pool2d",
    "batch_norm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "conv_transpose3d",
    "dropout",
    "embedding",
    "gelu",
    "general_norm",
    "group_norm",
    "hsigmoid",
    "hswish",
    "indexing_one_hot",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "logsigmoid",
    "logsoftmax",
    "logsumexp",
    "max_pool2d",
    "one_hot",
    "pad",
    "pixel_shuffle",
    "prelu",
    "relu",
    "relu6",
    "sigmoid",
    "silu",
    "sliding_window",
    "sliding_window_transpose",
    "softmax",
    "softplus",
]

# -- linear maps and convolution -----------------------------------------------------------


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
    op = conv.Conv(pair(stride, n), _both_sides(padding, n), pair(dilation, n), groups)
    out = op(x, w)
    return out if bias is None else out + bias


def _both_sides(padding: Any, n: int) -> tuple[tuple[int, int], ...]:
    return tuple((p, p) for p in pair(padding, n))


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
    op = conv.ConvGradInput(strides, _both_sides(padding, n), spread, groups, spatial)
    out = op(x, w)
    return out if bias is None else out + bias


def sliding_window(
    inp: Tensor, kernel_size: Any, padding: Any = 0, stride: Any = 1, dilation: Any = 1
) -> Tensor:
    """Patches of x (N, C, H, W) as (N, C, OH, OW, KH, KW)."""
    op = sliding.SlidingWindow(
        pair(kernel_size), pair(stride), _both_sides(padding, 2), pair(dilation)
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
        _both_sides(padding, 2),
        pair(dilation),
        pair(output_size),
    )
    return unary(op, inp)


# -- pooling -------------------------------------------------------------------------------


def max_pool2d(inp: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """Largest element of every window of x (N, C, H, W); padding never wins.

    `stride` is the window's size if left out; windows that do not fit are dropped.
    """
    kernel = pair(kernel_size)
    strides = kernel if stride is None else pair(stride)
    op = pool.MaxPool(kernel, strides, _both_sides(padding, 2), (1, 1), False)
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
    op = pool.AvgPool(kernel, strides, _both_sides(padding, 2), mode == "average", False)
    return unary(op, inp)


def adaptive_avg_pool2d(inp: Tensor, oshp: Any) -> Tensor:
    """Average pooling of x (N, C, H, W) to a fixed output size."""
    return unary(adaptive_pool.AdaptiveAvgPool(pair(oshp)), inp)


def adaptive_max_pool2d(inp: Tensor, oshp: Any) -> Tensor:
    """Max pooling of x (N, C, H, W) to a fixed output size."""
    return unary(adaptive_pool.AdaptiveMaxPool(pair(oshp)), inp)


# -- normalization -------------------------------------------------------------------------


def batch_norm(
    inp: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    training: bool = False,
    momentum: float = 0.9,
    eps: float = 1e-5,
    inplace: bool = True,
) -> Any:
    """Standardize each channel of x (N, C, *) over the batch, then scale and shift.

    Args:
        running_mean, running_var: statistics of any shape with C elements, used when not
            training and updated when training: new = momentum old + (1 - momentum) batch, with
            the unbiased variance.
        weight, bias: any shape with C elements.
        momentum: share of the old running value that is kept.
        inplace: False returns (out, new_mean, new_var) and leaves the statistics alone.

    Raises:
        AssertionError: not training and no statistics are given.
    """
    x = as_tensor(inp)
    channels = x.shape[1] if x.ndim > 1 else 0
    if not training:
        if running_mean is None or running_var is None:
            raise AssertionError("batch_norm without training needs running_mean and running_var")
        out = _infer_norm(x, running_mean, running_var, weight, bias, eps)
        return out if inplace else (out, running_mean, running_var)
    affine = _affine(x, weight, bias, (channels,))
    out, mean, var = bn.BatchNormTrain(eps).outputs(x, *affine)
    means = _running(running_mean, mean, momentum)
    variances = _running(running_var, var, momentum)
    if not inplace:
        return out, means, variances
    for old, new in ((running_mean, means), (running_var, variances)):
        if old is not None and new is not None:
            old._reset(new)
    return out


def _infer_norm(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    channels = (x.shape[1],)
    scale, shift = _affine(x, weight, bias, channels) or (
        x.constant([1.0] * channels[0], x._kind.dtype),
        x.constant([0.0] * channels[0], x._kind.dtype),
    )
    statistics = (t.astype(scale.dtype).reshape(channels) for t in (mean, var))
    return bn.BatchNormInfer(eps)(x, scale, shift, *statistics)


def _running(old: Tensor | None, batch: Tensor, momentum: float) -> Tensor | None:
    """The updated running statistic, outside any gradient."""
    if old is None:
        return None
    new = batch.detach().reshape(old.shape).astype(old.dtype)
    return old.detach() * momentum + new * (1 - momentum)


def _affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """(weight, bias) in the shape ops take, or nothing where neither is given."""
    if weight is None and bias is None:
        return ()
    dtype = (weight if weight is not None else bias)._kind.dtype  # type: ignore[union-attr]
    first = ft.ones(shape, dtype=dtype, device=x.device) if weight is None else weight
    second = ft.zeros(shape, dtype=dtype, device=x.device) if bias is None else bias
    return first.reshape(shape), second.reshape(shape)


def layer_norm(
    inp: Tensor,
    normalized_shape: Any,
    affine: bool,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardize the last axes, which must have `normalized_shape`, then scale and shift."""
    x = as_tensor(inp)
    shape = ints(normalized_shape)
    if x.shape[x.ndim - len(shape) :] != shape:
        raise ShapeError("layer_norm", f"the last axes are not {shape}", saw=str(x.type))
    given = _affine(x, weight, bias, shape) if affine else ()
    return norm.LayerNorm(len(shape), eps)(x, *given)


def general_norm(
    inp: Tensor,
    normalized_axis: Any,
    affine: bool = True,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardize over chosen axes; weight and bias have their extents, in axis order."""
    x = as_tensor(inp)
    axes = sorted(axis_of(a, x, "general_norm") for a in ints(normalized_axis))
    out = norm.Standardize(tuple(axes), eps)(x)
    if not affine or (weight is None and bias is None):
        return out
    shape = tuple(x.shape[i] if i in axes else 1 for i in range(x.ndim))
    scale, shift = _affine(x, weight, bias, tuple(x.shape[i] for i in axes))
    return out * scale.reshape(shape) + shift.reshape(shape)


def group_norm(
    inp: Tensor,
    num_groups: int,
    affine: bool,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardize each group of channels of x (N, C, *) with all positions, then scale, shift."""
    x = as_tensor(inp)
    given = _affine(x, weight, bias, (x.shape[1],)) if affine else ()
    return norm.GroupNorm(num_groups, eps)(x, *given)


def instance_norm(
    inp: Tensor,
    affine: bool,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardize every channel of every sample of x (N, C, *), then scale and shift."""
    return group_norm(inp, as_tensor(inp).shape[1], affine, weight, bias, eps)


def local_response_norm(
    inp: Tensor, kernel_size: int = 5, k: float = 2.0, alpha: float = 1e-4, beta: float = 0.75
) -> Tensor:
    """x / (k + alpha sum of squares over `kernel_size` neighbouring channels)^beta.

    Source: Krizhevsky, Sutskever and Hinton, ImageNet classification, NIPS 2012, section 3.3.
    """
    x = as_tensor(inp)
    half = kernel_size // 2
    squares = pad(x * x, ((0, 0), (half, kernel_size - 1 - half), (0, 0), (0, 0)))
    channels = x.shape[1]
    total = squares[:, 0:channels]
    for shift in range(1, kernel_size):
        total = total + squares[:, shift : shift + channels]
    return x / (k + alpha * total) ** beta


# -- activations ---------------------------------------------------------------------------


def relu(x: Tensor) -> Tensor:
    """max(x, 0); its gradient at 0 is 0."""
    return unary(un.Relu(), x)


def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return unary(act.Relu6(), x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)); floating tensors only."""
    return unary(un.Sigmoid(), x)


def hsigmoid(x: Tensor) -> Tensor:
    """relu6(x + 3) / 6."""
    return unary(act.HSigmoid(), x)


def hswish(x: Tensor) -> Tensor:
    """x relu6(x + 3) / 6."""
    return unary(act.HSwish(), x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return unary(act.Silu(), x)


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution function at x (Hendrycks and Gimpel, 2016), exact form."""
    return unary(act.Gelu(), x)


def leaky_relu(inp: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where x >= 0, else negative_slope x."""
    return unary(act.LeakyRelu(float(negative_slope)), inp)


def prelu(x: Tensor, y: Tensor) -> Tensor:
    """x where x > 0, else y x, with a slope tensor y that broadcasts to x."""
    x = as_tensor(x)
    return relu(x) - relu(-x) * y


def softplus(inp: Tensor) -> Tensor:
    """log(1 + exp(x)) without overflow."""
    return unary(un.Softplus(), inp)


def logsigmoid(inp: Tensor) -> Tensor:
    """log(sigmoid(x)) without overflow."""
    return unary(act.LogSigmoid(), inp)


def softmax(inp: Tensor, axis: Any = None) -> Tensor:
    """exp(x) over its sum along an axis; without one, axis 0 for 0, 1 and 3 axes, else 1.

    A list of axes normalizes over all of them.
    """
    x = as_tensor(inp)
    if axis is None:
        axis = 0 if x.ndim in (0, 1, 3) else 1
    if isinstance(axis, (list, tuple)):
        return fm.ew.exp(x - logsumexp(x, axis, keepdims=True))
    if x.ndim == 0:
        return softmax(x.reshape(1), 0).reshape(())
    return unary(sm.Softmax(axis_of(axis, x, "softmax")), x)


def logsoftmax(inp: Tensor, axis: Any) -> Tensor:
    """log(softmax(x)) without overflow."""
    x = as_tensor(inp)
    if isinstance(axis, (list, tuple)):
        return x - logsumexp(x, axis, keepdims=True)
    return unary(sm.LogSoftmax(axis_of(axis, x, "logsoftmax")), x)


def logsumexp(inp: Tensor, axis: Any, keepdims: bool = False) -> Tensor:
    """log of the sum of exp(x) over axes, without overflow."""
    x = as_tensor(inp)
    axes = tuple(sorted(axis_of(a, x, "logsumexp") for a in ints(axis)))
    return unary(sm.LogSumExp(axes, keepdims), x)


# -- picking, padding, chance --------------------------------------------------------------


def embedding(
    inp: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float | None = None,
) -> Tensor:
    """Rows of weight (rows, dim) by integer indices of any shape: (*shape, dim).

    Raises:
        IndexRangeError: an index lies outside the rows.
        ValueError: padding_idx, max_norm or norm_type is given.
    """
    if padding_idx is not None or max_norm is not None or norm_type is not None:
        raise ValueError("padding_idx, max_norm and norm_type are not supported")
    index = as_tensor(inp)
    if not index._kind.dtype.is_integer or index._kind.dtype.itemsize < 4:
        index = index.astype(int32)
    return gather.Take(0)(weight, index)


def one_hot(inp: Tensor, num_classes: int) -> Tensor:
    """A new last axis with 1 at the index that `inp` holds; the element type is kept."""
    return unary(gather.OneHot(int(num_classes)), inp)


def indexing_one_hot(
    src: Tensor, index: Tensor, axis: int = 1, keepdims: bool = False
) -> Tensor:
    """One entry of `src` along an axis per position, chosen by an index without that axis."""
    x = as_tensor(src)
    at = axis_of(axis, x, "indexing_one_hot")
    picked = ft.gather(x, at, ft.expand_dims(as_tensor(index, x), at))
    return picked if keepdims else ft.squeeze(picked, at)


def pad(
    src: Tensor, pad_width: Any, mode: str = "constant", constant_value: float = 0.0
) -> Tensor:
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


def dropout(inp: Tensor, drop_prob: float, training: bool = True) -> Tensor:
    """Zero elements with a probability in [0, 1) and scale the others by 1 / (1 - drop_prob).

    Raises:
        ValueError: the probability is outside [0, 1).
    """
    if not 0 <= drop_prob < 1:
        raise ValueError(f"drop_prob must be in [0, 1), got {drop_prob}")
    x = as_tensor(inp)
    if not training or drop_prob == 0:
        return x
    draws = default_generator().uniform(size=x.shape).to(x.device)
    kept = (draws >= drop_prob).astype(as_dtype(x.dtype))
    return x * (kept * (1 / (1 - drop_prob)))


def pixel_shuffle(inp: Tensor, upscale_factor: int) -> Tensor:
    """x (..., C r^2, H, W) rearranged to (..., C, H r, W r).

    Source: Shi et al., Real-time single image and video super-resolution, CVPR 2016.
    """
    x = as_tensor(inp)
    r = int(upscale_factor)
    *lead, channels, height, width = x.shape
    if channels % (r * r):
        raise ShapeError("pixel_shuffle", f"{channels} channels are no multiple of {r * r}")
    parts = x.reshape((-1, channels // (r * r), r, r, height, width))
    moved = parts.transpose(0, 1, 4, 2, 5, 3)
    return moved.reshape((*lead, channels // (r * r), height * r, width * r))
