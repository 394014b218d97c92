"""Products, convolutions, pooling and norms of ATen, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.shaping import extents
from treadle.interop.torch.table import Call, lowers
from treadle.ops import reduce, unary
from treadle.ops.adaptive_pool import (
    AdaptiveAvgPool,
    AdaptiveAvgPoolGrad,
    AdaptiveMaxPool,
    AdaptiveMaxPoolGrad,
)
from treadle.ops.batch_norm import BatchNormInfer
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight
from treadle.ops.gather import Take
from treadle.ops.matmul import Matmul
from treadle.ops.norm import GroupNorm, LayerNorm
from treadle.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad
from treadle.ops.resample import Resize
from treadle.ops.softmax import LogSoftmax, Softmax

V = GraphOperand
Ints = Sequence[int]

# -- products ----------------------------------------------------------------------------------


@lowers("mm.default", "bmm.default")
def _mm(call: Call, x: V, y: V) -> V:
    return Matmul()(x, y)


@lowers("matmul.default", "mv.default", "dot.default")
def _matmul(call: Call, x: V, y: V) -> V:
    return x @ y


@lowers("addmm.default", "baddbmm.default")
def _addmm(call: Call, bias: V, x: V, y: V, *, beta: Any = 1, alpha: Any = 1) -> V:
    product = Matmul()(x, y)
    product = product if alpha == 1 else product * alpha
    return product + (bias if beta == 1 else bias * beta)


@lowers("linear.default")
def _linear(call: Call, x: V, weight: V, bias: V | None = None) -> V:
    product = Matmul(False, True)(x, weight)
    return product if bias is None else product + bias


# -- convolution -------------------------------------------------------------------------------


def _spread(values: Ints, rank: int) -> tuple[int, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def _pairs(padding: Ints, rank: int) -> tuple[tuple[int, int], ...]:
    return tuple((p, p) for p in _spread(padding, rank))


@lowers("convolution.default")
def _convolution(
    call: Call,
    x: V,
    weight: V,
    bias: V | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> V:
    rank = x.type.ndim - 2
    geometry = _spread(stride, rank), _pairs(padding, rank), _spread(dilation, rank), groups
    if transposed:
        y = ConvGradInput(*geometry, call.shape[2:])(x, weight)
    else:
        y = Conv(*geometry)(x, weight)
    return y if bias is None else y + _per_channel(bias, rank + 2)


@lowers("convolution_backward.default")
def _convolution_backward(
    call: Call,
    dy: V,
    x: V,
    weight: V,
    bias_sizes: Any,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    mask: Sequence[bool],
) -> tuple[V | None, ...]:
    rank = x.type.ndim - 2
    geometry = _spread(stride, rank), _pairs(padding, rank), _spread(dilation, rank), groups
    dx = dw = db = None
    if mask[0]:
        if transposed:
            dx = Conv(*geometry)(dy, weight)
        else:
            dx = ConvGradInput(*geometry, extents(x)[2:])(dy, weight)
    if mask[1]:
        first, second = (dy, x) if transposed else (x, dy)
        dw = ConvGradWeight(*geometry, extents(weight)[2:])(first, second)
    if mask[2]:
        db = reduce.Sum((0, *range(2, 2 + rank)))(dy)
    return dx, dw, db


# -- pooling -----------------------------------------------------------------------------------


Window = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]


def _window(kernel: Ints, stride: Ints, padding: Ints) -> Window:
    rank = len(kernel)
    steps = tuple(stride) or tuple(kernel)
    return tuple(kernel), _spread(steps, rank), _pairs(padding, rank)


@lowers("max_pool2d.default")
def _max_pool(
    call: Call, x: V, kernel: Ints, stride: Ints = (), padding: Ints = (0,), *rest: Any
) -> V:
    dilation = rest[0] if rest else (1,)
    ceil = bool(rest[1]) if len(rest) > 1 else False
    kernel = _spread(kernel, 2)
    return MaxPool(*_window(kernel, stride, padding), _spread(dilation, 2), ceil)(x)


@lowers("avg_pool2d.default")
def _avg_pool(
    call: Call,
    x: V,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> V:
    if divisor_override is not None:
        raise NotImplementedError("divisor_override")
    window = _window(_spread(kernel, 2), stride, padding)
    return AvgPool(*window, count_include_pad, ceil_mode)(x)


@lowers("avg_pool2d_backward.default")
def _avg_pool_backward(
    call: Call,
    dy: V,
    x: V,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: Any,
) -> V:
    if divisor_override is not None:
        raise NotImplementedError("divisor_override")
    window = _window(_spread(kernel, 2), stride, padding)
    return AvgPoolGrad(*window, count_include_pad, ceil_mode, extents(x)[2:])(dy)


@lowers("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive(call: Call, x: V, output: Ints) -> V:
    if set(output) == {1}:
        return reduce.Mean(tuple(range(x.type.ndim - len(output), x.type.ndim)), True)(x)
    single = x.type.ndim == len(output) + 1
    batched = x.reshape((1, *extents(x))) if single else x
    return AdaptiveAvgPool(tuple(output))(batched).reshape(call.shape)


@lowers("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def _adaptive_backward(call: Call, dy: V, x: V) -> V:
    if x.type.ndim == 3:
        raise NotImplementedError("the gradient of adaptive pooling without a batch axis")
    return AdaptiveAvgPoolGrad(extents(dy)[2:], extents(x)[2:])(dy)


@lowers("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _adaptive_max(call: Call, x: V, output: Ints) -> tuple[V, V]:
    """The places are asked for by the gradient alone, as those of `max_pool2d_with_indices`."""
    if x.type.ndim != len(output) + 2:
        raise NotImplementedError("adaptive pooling without a batch axis")
    y = AdaptiveMaxPool(tuple(output))(x)
    nothing = call.builder.constant(np.zeros((1,) * len(call.shape), np.int64))
    return y, nothing.broadcast_to(call.shape)


@lowers("adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default")
def _adaptive_max_backward(call: Call, dy: V, x: V, places: V) -> V:
    return AdaptiveMaxPoolGrad(extents(dy)[2:])(x, dy)


@lowers("upsample_bilinear2d.vec", "upsample_bilinear2d.default")
def _upsample(call: Call, x: V, size: Any, align_corners: bool, *rest: Any) -> V:
    scales = next((r for r in rest if isinstance(r, (list, tuple))), [r for r in rest if r])
    exact = zip(call.shape[2:], extents(x)[2:], scales, strict=False)
    if not align_corners and any(m != n * s for m, n, s in exact):
        raise NotImplementedError("a scale that is not the ratio of the extents")
    places = "align_corners" if align_corners else "half_pixel"
    return Resize("linear", places, call.shape[2:])(x)


@lowers("upsample_nearest2d.vec", "upsample_nearest2d.default")
def _upsample_nearest(call: Call, x: V, size: Any, *scales: Any) -> V:
    given = scales[0] if scales and isinstance(scales[0], (list, tuple)) else scales
    steps = [None] * 2 if not any(given) else list(given)
    for axis, step in enumerate(steps, 2):
        count, wide = extents(x)[axis], call.shape[axis]
        # As PyTorch: the step is one of float32, from the scale where there is one.
        ratio = np.float32(1 / step if step else count / wide)
        cells = np.floor(np.arange(wide, dtype=np.float32) * ratio).astype(np.int64)
        x = Take(axis)(x, call.builder.constant(np.minimum(cells, count - 1)))
    return x


@lowers("max_pool2d_with_indices.default")
def _max_pool_places(
    call: Call, x: V, kernel: Ints, stride: Ints = (), padding: Ints = (0,), *rest: Any
) -> tuple[V, V]:
    """The places are asked for by the gradient alone, which finds them again from x."""
    y = _max_pool(call, x, kernel, stride, padding, *rest)
    dilation, ceil = (rest[0] if rest else (1,)), bool(rest[1]) if len(rest) > 1 else False
    window = _window(_spread(kernel, 2), stride, padding)
    MaxPoolGrad(*window, _spread(dilation, 2), ceil).infer(x.type, y.type)  # it has to be ours, too
    nothing = call.builder.constant(np.zeros((1,) * x.type.ndim, np.int64))
    return y, nothing.broadcast_to(call.shape)


@lowers("max_pool2d_with_indices_backward.default")
def _max_pool_backward(
    call: Call,
    dy: V,
    x: V,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    places: V,
) -> V:
    window = _window(_spread(kernel, 2), stride, padding)
    return MaxPoolGrad(*window, _spread(dilation, 2), ceil_mode)(x, dy)


# -- norms -------------------------------------------------------------------------------------


@lowers("native_layer_norm.default")
def _layer_norm(
    call: Call, x: V, shape: Ints, weight: V | None, bias: V | None, eps: float
) -> tuple[V, ...]:
    count = len(shape)
    axes = tuple(range(x.type.ndim - count, x.type.ndim))
    wide = x.astype(dt.float32) if x.type.dtype.itemsize < 4 else x
    mean = reduce.Mean(axes, True)(wide)
    centered = wide - mean
    inverse = unary.Rsqrt()(reduce.Mean(axes, True)(centered * centered) + eps)
    if weight is not None and bias is not None:
        y = LayerNorm(count, eps)(x, weight, bias)
    else:
        y = (centered * inverse).astype(x.type.dtype)
        y = y if weight is None else y * weight
        y = y if bias is None else y + bias
    return y, mean, inverse


def _per_channel(v: V, rank: int) -> V:
    return v.reshape((1, *extents(v), *[1] * (rank - 2)))


@lowers("_native_batch_norm_legit_no_training.default")
def _batch_norm_inference(
    call: Call,
    x: V,
    weight: V | None,
    bias: V | None,
    mean: V,
    var: V,
    momentum: float,
    eps: float,
) -> tuple[V, ...]:
    kind = x.type.dtype
    ones = mean.constant(np.ones(extents(mean)), mean.type.dtype) if weight is None else weight
    zeros = mean.constant(np.zeros(extents(mean)), mean.type.dtype) if bias is None else bias
    empty = call.builder.constant(np.zeros((0,), mean.type.dtype.numpy))
    if x.type.ndim > 2 and all(v.type.dtype is kind for v in (ones, zeros, mean, var)):
        return BatchNormInfer(eps)(x, ones, zeros, mean, var), empty, empty
    factor = ones / unary.Sqrt()(var + eps)
    rank = x.type.ndim
    shift = zeros - mean * factor
    return x * _per_channel(factor, rank) + _per_channel(shift, rank), empty, empty


@lowers("native_group_norm.default")
def _group_norm(
    call: Call,
    x: V,
    weight: V | None,
    bias: V | None,
    batch: int,
    channels: int,
    cells: int,
    groups: int,
    eps: float,
) -> tuple[V, V, V]:
    """Results: y, and per group its mean and inverse deviation."""
    kind = x.type.dtype
    affine = () if weight is None or bias is None else (weight, bias)
    y = GroupNorm(groups, eps)(x, *affine)
    if not affine:
        y = y if weight is None else y * _per_channel(weight, x.type.ndim)
        y = y if bias is None else y + _per_channel(bias, x.type.ndim)
    wide = x.astype(dt.float32) if kind.itemsize < 4 else x
    grouped = wide.reshape((batch, groups, channels // groups * cells))
    mean = reduce.Mean((2,), True)(grouped)
    centered = grouped - mean
    inverse = unary.Rsqrt()(reduce.Mean((2,))(centered * centered) + eps)
    return y, mean.reshape((batch, groups)).astype(kind), inverse.astype(kind)


@lowers("_native_batch_norm_legit.no_stats")
def _batch_norm_without_statistics(
    call: Call,
    x: V,
    weight: V | None,
    bias: V | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[V, V, V]:
    axes = tuple(i for i in range(x.type.ndim) if i != 1)
    mean = reduce.Mean(axes, True)(x)
    centered = x - mean
    inverse = unary.Rsqrt()(reduce.Mean(axes, True)(centered * centered) + eps)
    y = centered * inverse
    y = y if weight is None else y * _per_channel(weight, x.type.ndim)
    y = y if bias is None else y + _per_channel(bias, x.type.ndim)
    return y, mean.reshape((extents(x)[1],)), inverse.reshape((extents(x)[1],))


@lowers("_native_batch_norm_legit_functional.default")
def _batch_norm_training(
    call: Call,
    x: V,
    weight: V | None,
    bias: V | None,
    running_mean: V,
    running_var: V,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[V, ...]:
    """Results: y, mean, inverse deviation, and the running statistics after this batch."""
    if not training:
        raise NotImplementedError("statistics that are not updated")
    rank, shape = x.type.ndim, extents(x)
    axes = tuple(i for i in range(rank) if i != 1)
    count = math.prod(shape) // shape[1]
    mean = reduce.Mean(axes)(x)
    centered = x - _per_channel(mean, rank)
    var = reduce.Mean(axes)(centered * centered)
    inverse = unary.Rsqrt()(var + eps)
    y = centered * _per_channel(inverse, rank)
    y = y if weight is None else y * _per_channel(weight, rank)
    y = y if bias is None else y + _per_channel(bias, rank)
    unbiased = var * (count / max(count - 1, 1))
    new_mean = running_mean * (1 - momentum) + mean.astype(running_mean.type.dtype) * momentum
    new_var = running_var * (1 - momentum) + unbiased.astype(running_var.type.dtype) * momentum
    return y, mean, inverse, new_mean, new_var


# -- softmax ----------------------------------------------------------------------------------


@lowers("_softmax.default", "softmax.int")
def _softmax(call: Call, x: V, dim: int, *rest: Any) -> V:
    return Softmax(dim % x.type.ndim)(x.astype(call.dtype))


@lowers("_log_softmax.default", "log_softmax.int")
def _log_softmax(call: Call, x: V, dim: int, *rest: Any) -> V:
    return LogSoftmax(dim % x.type.ndim)(x.astype(call.dtype))
