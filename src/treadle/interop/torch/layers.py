"""Products, convolutions and norms of ATen, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.arrays import DTYPES
from treadle.interop.torch.shaping import extents
from treadle.interop.torch.table import OperatorCall, along_axes, amount, axis_of, lowers
from treadle.ops import reduce, unary
from treadle.ops.batch_norm import BatchNormInfer
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, WideConv
from treadle.ops.matmul import ExactMatmul, Matmul, WideMatmul
from treadle.ops.norm import GroupNorm, LayerNorm
from treadle.ops.softmax import LogSoftmax, Softmax

V = GraphOperand
Ints = Sequence[int]

# -- products ----------------------------------------------------------------------------------


@lowers("mm.default", "bmm.default")
def _mm(call: OperatorCall, x: V, y: V) -> V:
    return product_of(x, y)


def product_of(x: V, y: V) -> V:
    """A matrix product in the operands' type, integers in theirs."""
    return (ExactMatmul if x.type.dtype.is_integer else Matmul)()(x, y)


def _sums_of(x: V, y: V) -> V:
    """Return a product whose 16-bit operands give 32 bits: PyTorch adds a bias and rounds once."""
    return WideMatmul()(x, y) if _is_short(x) else product_of(x, y)


def _is_short(x: V) -> bool:
    return x.type.dtype.is_float and x.type.dtype.itemsize == 2


@lowers("matmul.default", "mv.default", "dot.default")
def _matmul(call: OperatorCall, x: V, y: V) -> V:
    return x @ y


@lowers("addmm.default", "baddbmm.default")
def _addmm(call: OperatorCall, bias: V, x: V, y: V, *, beta: Any = 1, alpha: Any = 1) -> V:
    made: V = _weighted(call, bias, _sums_of(x, y), beta, alpha)
    return made.astype(x.type.dtype)


@lowers("addmv.default")
def _addmv(call: OperatorCall, bias: V, x: V, y: V, *, beta: Any = 1, alpha: Any = 1) -> V:
    made: V = _weighted(call, bias, x @ y, beta, alpha)
    return made


@lowers("addbmm.default")
def _addbmm(call: OperatorCall, bias: V, x: V, y: V, *, beta: Any = 1, alpha: Any = 1) -> V:
    made: V = _weighted(call, bias, reduce.Sum((0,), False)(product_of(x, y)), beta, alpha)
    return made


def _weighted(call: OperatorCall, bias: V, product: V, beta: Any, alpha: Any) -> V:
    """beta * bias + alpha * product; a beta of 0 leaves out even what is not a number."""
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product.broadcast_to(call.shape)
    bias = bias.astype(product.type.dtype)
    return product + (bias if beta == 1 else bias * beta)


@lowers("linear.default")
def _linear(call: OperatorCall, x: V, weight: V, bias: V | None = None) -> V:
    if bias is None:
        return Matmul(False, True)(x, weight)
    sums = (WideMatmul if _is_short(x) else Matmul)(False, True)(x, weight)
    return (sums + bias.astype(sums.type.dtype)).astype(x.type.dtype)


# -- convolution -------------------------------------------------------------------------------


def spread(values: Ints, rank: int) -> tuple[int, ...]:
    """One number for each axis, where one stands for all."""
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def pairs(padding: Ints, rank: int) -> tuple[tuple[int, int], ...]:
    """The padding before and after each axis."""
    return tuple((p, p) for p in spread(padding, rank))


@lowers("convolution.default")
def _convolution(
    call: OperatorCall,
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
    geometry = spread(stride, rank), pairs(padding, rank), spread(dilation, rank), groups
    dtype = x.type.dtype
    if transposed:
        if bias is not None:
            x, weight = _wide(x), _wide(weight)
        y = ConvGradInput(*geometry, call.shape[2:])(x, weight)
    else:
        y = (WideConv if bias is not None and _is_short(x) else Conv)(*geometry)(x, weight)
    if bias is None:
        return y
    return (y + _per_channel(bias, rank + 2).astype(y.type.dtype)).astype(dtype)


@lowers("convolution_backward.default")
def _convolution_backward(
    call: OperatorCall,
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
    geometry = spread(stride, rank), pairs(padding, rank), spread(dilation, rank), groups
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


# -- norms -------------------------------------------------------------------------------------


def _wide(x: V) -> V:
    """Numbers of 16 bits in 32, in which PyTorch computes with them."""
    return x.astype(dt.float32) if x.type.dtype.itemsize < 4 else x


def _type(call: OperatorCall, number: int) -> DType:
    """The element type that PyTorch states for a result."""
    return DTYPES[call.values[number].dtype]


@lowers("native_layer_norm.default")
def _layer_norm(
    call: OperatorCall, x: V, shape: Ints, weight: V | None, bias: V | None, eps: float
) -> tuple[V, ...]:
    count = len(shape)
    axes = tuple(range(x.type.ndim - count, x.type.ndim))
    wide = _wide(x)
    mean = reduce.Mean(axes, True)(wide)
    centered = wide - mean
    inverse = unary.Rsqrt()(reduce.Mean(axes, True)(centered * centered) + eps)
    if weight is not None and bias is not None:
        y = LayerNorm(count, eps)(x, weight, bias)
    else:
        y = (centered * inverse).astype(x.type.dtype)
        y = y if weight is None else y * weight
        y = y if bias is None else y + bias
    # In 16 bits where the weights are, too, or there are none.
    kind = x.type.dtype if weight is None else weight.type.dtype
    return y, mean.astype(kind), inverse.astype(kind)


def _per_channel(v: V, rank: int) -> V:
    return v.reshape((1, *extents(v), *[1] * (rank - 2)))


@lowers("_native_batch_norm_legit_no_training.default")
def _batch_norm_inference(
    call: OperatorCall,
    x: V,
    weight: V | None,
    bias: V | None,
    mean: V,
    var: V,
    momentum: float,
    eps: float,
) -> tuple[V, ...]:
    kind, rank = x.type.dtype, x.type.ndim
    ones = mean.constant(np.ones(extents(mean)), mean.type.dtype) if weight is None else weight
    zeros = mean.constant(np.zeros(extents(mean)), mean.type.dtype) if bias is None else bias
    empty = (call.builder.constant(np.zeros((0,), _type(call, i).numpy)) for i in (1, 2))
    if rank > 2 and all(v.type.dtype is kind for v in (ones, zeros, mean, var)):
        return BatchNormInfer(eps)(x, ones, zeros, mean, var), *empty
    ones, zeros, mean, var = map(_wide, (ones, zeros, mean, var))
    factor = ones / unary.Sqrt()(var + eps)
    shift = zeros - mean * factor
    y = _wide(x) * _per_channel(factor, rank) + _per_channel(shift, rank)
    return y.astype(kind), *empty


@lowers("native_group_norm.default")
def _group_norm(
    call: OperatorCall,
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
    wide = _wide(x)
    grouped = wide.reshape((batch, groups, channels // groups * cells))
    mean = reduce.Mean((2,), True)(grouped)
    centered = grouped - mean
    inverse = unary.Rsqrt()(reduce.Mean((2,))(centered * centered) + eps)
    return y, mean.reshape((batch, groups)).astype(kind), inverse.astype(kind)


@lowers("_native_batch_norm_legit.no_stats")
def _batch_norm_without_statistics(
    call: OperatorCall,
    x: V,
    weight: V | None,
    bias: V | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[V, V, V]:
    y, mean, _, inverse = _normalized(call, x, weight, bias, eps)
    return y, mean.astype(_type(call, 1)), inverse.astype(_type(call, 2))


def _normalized(
    call: OperatorCall, x: V, weight: V | None, bias: V | None, eps: float
) -> tuple[V, V, V, V]:
    """The result, and mean, variance and inverse deviation of channels, in 32 bits at least."""
    rank, wide = x.type.ndim, _wide(x)
    axes = tuple(i for i in range(rank) if i != 1)
    mean = reduce.Mean(axes)(wide)
    centered = wide - _per_channel(mean, rank)
    var = reduce.Mean(axes)(centered * centered)
    inverse = unary.Rsqrt()(var + eps)
    kind = x.type.dtype if weight is None else weight.type.dtype
    if kind.itemsize < 4:  # PyTorch goes on with what it keeps for the gradient.
        inverse = _wide(inverse.astype(kind))
        centered = wide - _per_channel(_wide(mean.astype(kind)), rank)
    y = centered * _per_channel(inverse, rank)
    y = y if weight is None else y * _per_channel(_wide(weight), rank)
    y = y if bias is None else y + _per_channel(_wide(bias), rank)
    return y.astype(x.type.dtype), mean, var, inverse


@lowers("_native_batch_norm_legit_functional.default")
def _batch_norm_training(
    call: OperatorCall,
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
        given = (x, weight, bias, running_mean, running_var, momentum, eps)
        y, mean, inverse = _batch_norm_inference(call, *given)
        kept = [s.astype(_type(call, i)) for i, s in ((3, running_mean), (4, running_var))]
        return y, mean, inverse, *kept
    shape = extents(x)
    count = math.prod(shape) // shape[1]
    y, mean, var, inverse = _normalized(call, x, weight, bias, eps)
    if isinstance(count, int):
        unbiased = var * (count / max(count - 1, 1))
    else:
        unbiased = var * (amount(var, count) / amount(var, count - 1))
    kept = []
    for place, old, new in ((3, running_mean, mean), (4, running_var, unbiased)):
        wide = _wide(old)
        made = wide * (1 - momentum) + new.astype(wide.type.dtype) * momentum
        # PyTorch says 32 bits where its kernel gives what it takes; the buffer rounds in any case.
        kept.append(made.astype(_type(call, place)))
    return y, mean.astype(_type(call, 1)), inverse.astype(_type(call, 2)), *kept


# -- softmax ----------------------------------------------------------------------------------


@lowers("_softmax.default", "softmax.int")
@along_axes
def _softmax(call: OperatorCall, x: V, dim: int, *rest: Any) -> V:
    return Softmax(axis_of(dim, x))(x.astype(call.dtype))


@lowers("_log_softmax.default", "log_softmax.int")
@along_axes
def _log_softmax(call: OperatorCall, x: V, dim: int, *rest: Any) -> V:
    return LogSoftmax(axis_of(dim, x))(x.astype(call.dtype))
