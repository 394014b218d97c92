"""Products, normalizations and losses."""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.interop.onnx.converters.shapes import extents, reshaped
from treadle.interop.onnx.nodes import OnnxNode, Value, dtype_of
from treadle.interop.onnx.registry import converts
from treadle.ops import elementwise as ew
from treadle.ops import reduce, unary
from treadle.ops.batch_norm import BatchNormInfer, BatchNormTrain
from treadle.ops.matmul import Matmul
from treadle.ops.norm import LayerNorm, RmsNorm, Standardize
from treadle.ops.operators import product_of


@converts("MatMul")
def _matmul(node: OnnxNode, x: Value, y: Value) -> Value:
    return x @ y


@converts("Gemm")
def gemm(node: OnnxNode, a: Value, b: Value, c: Value = None) -> Value:
    """The product of two matrices, turned, scaled and added to as the node says."""
    kind = dtype_of(a)
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    exact = kind.is_integer and float(alpha).is_integer() and float(beta).is_integer()
    alpha, beta = (int(alpha), int(beta)) if exact else (alpha, beta)
    wide = kind if exact or kind.is_float else dt.float64
    op = product_of(wide, bool(node.attr("transA", 0)), bool(node.attr("transB", 0)))
    result = op(a.astype(wide), b.astype(wide))
    result = result if alpha == 1 else result * alpha
    if c is not None:
        addend = c.astype(wide)
        result = result + (addend if beta == 1 else addend * beta)
    return result.astype(kind)


def _per_channel(x: Value, rank: int) -> Value:
    return reshaped(x, (1, -1, *[1] * (rank - 2)))


@converts("BatchNormalization")
def _batch_norm(
    node: OnnxNode, x: Value, scale: Value, bias: Value, mean: Value, var: Value
) -> Value:
    eps = node.attr("epsilon", 1e-5)
    if not node.attr("spatial", 1):
        raise node.refuse("statistics of every place of a map (before opset 9) are not converted")
    if not node.attr("training_mode", 0):
        return _batch_norm_inference(x, scale, bias, mean, var, eps)
    momentum, kind = node.attr("momentum", 0.9), dtype_of(x)
    y, batch_mean, _ = BatchNormTrain(eps).outputs(x, scale.astype(kind), bias.astype(kind))
    axes = tuple(i for i in range(len(extents(x))) if i != 1)
    centered = x - _per_channel(batch_mean.astype(kind), len(extents(x)))
    spread = reduce.Mean(axes)(centered * centered)
    new_mean = mean * momentum + batch_mean.astype(dtype_of(mean)) * (1 - momentum)
    new_var = var * momentum + spread.astype(dtype_of(var)) * (1 - momentum)
    return y, new_mean, new_var


def _batch_norm_inference(
    x: Value, scale: Value, bias: Value, mean: Value, var: Value, eps: float
) -> Value:
    kind, rank = dtype_of(x), len(extents(x))
    if rank > 2 and all(dtype_of(v) is kind for v in (scale, bias, mean, var)):
        return BatchNormInfer(eps)(x, scale, bias, mean, var)
    wide = kind if kind is dt.float64 else dt.float32
    factor = scale.astype(wide) / unary.Sqrt()(var.astype(wide) + eps)
    shift = bias.astype(wide) - mean.astype(wide) * factor
    return (x.astype(wide) * _per_channel(factor, rank) + _per_channel(shift, rank)).astype(kind)


@converts("InstanceNormalization")
def _instance_norm(node: OnnxNode, x: Value, scale: Value, bias: Value) -> Value:
    rank = len(extents(x))
    y = Standardize(tuple(range(2, rank)), node.attr("epsilon", 1e-5))(x)
    return y * _per_channel(scale, rank) + _per_channel(bias, rank)


@converts("LayerNormalization")
def _layer_norm(node: OnnxNode, x: Value, scale: Value, bias: Value = None) -> Value:
    rank = len(extents(x))
    axis = node.place(node.attr("axis", -1), rank)
    eps, count = node.attr("epsilon", 1e-5), rank - axis
    axes = tuple(range(axis, rank))
    plain = bias is not None and not any(map(node.wants, (1, 2)))
    if plain and extents(scale) == extents(bias) == extents(x)[axis:]:
        return LayerNorm(count, eps)(x, scale, bias)
    kind = dtype_of(x)
    wide = x.astype(dt.float32) if kind.itemsize < 4 else x
    mean = reduce.Mean(axes, True)(wide)
    centered = wide - mean
    inverse = unary.Rsqrt()(reduce.Mean(axes, True)(centered * centered) + eps)
    y = (centered * inverse).astype(kind) * scale
    return (y if bias is None else y + bias), mean, inverse


@converts("RMSNormalization")
def _rms_norm(node: OnnxNode, x: Value, scale: Value) -> Value:
    rank = len(extents(x))
    axis = node.place(node.attr("axis", -1), rank)
    if extents(scale) == extents(x)[axis:]:
        return RmsNorm(rank - axis, node.attr("epsilon", 1e-5))(x, scale)
    return RmsNorm(rank - axis, node.attr("epsilon", 1e-5))(x) * scale


@converts("LRN")
def _local_response_norm(node: OnnxNode, x: Value) -> Value:
    size = int(node.attributes["size"])
    alpha, beta, bias = node.attr("alpha", 1e-4), node.attr("beta", 0.75), node.attr("bias", 1.0)
    channels = extents(x)[1]
    before = (size - 1) // 2
    # The sum over neighboring channels as a product with a band matrix.
    c = np.arange(channels)
    apart = c[None, :] - c[:, None]
    band = ((apart >= -before) & (apart <= size - 1 - before)).astype(dtype_of(x).numpy)
    flat = reshaped(x * x, (extents(x)[0], channels, -1))
    sums = Matmul()(flat.constant(band[None], dtype_of(x)), flat)
    squares = reshaped(sums, extents(x))
    return x / ew.Pow()(squares * (alpha / size) + bias, x.constant(beta))


@converts("Shrink")
def _shrink(node: OnnxNode, x: Value) -> Value:
    lambd, bias = node.attr("lambd", 0.5), node.attr("bias", 0.0)
    kind = dtype_of(x)
    wide = x if kind.is_float else x.astype(dt.float64)
    above = (wide > lambd).astype(dtype_of(wide)) * (wide - bias)
    below = (wide < -lambd).astype(dtype_of(wide)) * (wide + bias)
    return (above + below).astype(kind)


@converts("Celu")
def _celu(node: OnnxNode, x: Value) -> Value:
    alpha = node.attr("alpha", 1.0)
    zero = x.constant(0)
    low = (unary.Exp()(ew.Minimum()(x, zero) / alpha) - 1) * alpha
    return ew.Maximum()(x, zero) + low
