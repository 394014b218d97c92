"""Operators of ONNX Runtime that its optimizer and PyTorch's exporters write into models."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from treadle.base import dtype as dt
from treadle.interop.onnx.converters.layers import gemm
from treadle.interop.onnx.converters.quantized import alike
from treadle.interop.onnx.converters.quantized_ops import (
    RUNTIME,
    dynamic_product,
    integer_product,
)
from treadle.interop.onnx.converters.shapes import extents, filled, joined, part, reshaped
from treadle.interop.onnx.converters.windows import convolved
from treadle.interop.onnx.nodes import OnnxNode, Value, dtype_of
from treadle.interop.onnx.registry import converts
from treadle.ops import activation, logic, reduce, unary
from treadle.ops.gather import Take
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Transpose
from treadle.ops.norm import LayerNorm, RmsNorm
from treadle.ops.select import Clip, Where
from treadle.ops.softmax import Softmax

# -- activations and products ------------------------------------------------------------------


@converts("Gelu", domain=RUNTIME)
def _gelu(node: OnnxNode, x: Value) -> Value:
    return activation.Gelu("none")(x)


@converts("BiasGelu", domain=RUNTIME)
def _bias_gelu(node: OnnxNode, x: Value, bias: Value) -> Value:
    return activation.Gelu("none")(x + bias)


@converts("FastGelu", domain=RUNTIME)
def _fast_gelu(node: OnnxNode, x: Value, bias: Value = None) -> Value:
    return activation.Gelu("tanh")(x if bias is None else x + bias)


@converts("QuickGelu", domain=RUNTIME)
def _quick_gelu(node: OnnxNode, x: Value) -> Value:
    return x * unary.Sigmoid()(x * node.attr("alpha", 1.702))


@converts("BiasSplitGelu", domain=RUNTIME)
def _bias_split_gelu(node: OnnxNode, x: Value, bias: Value) -> Value:
    x = x + bias
    axis, half = len(extents(x)) - 1, extents(x)[-1] // 2
    return part(x, axis, 0, half) * activation.Gelu("none")(part(x, axis, half, 2 * half))


@converts("FusedMatMul", domain=RUNTIME)
def _fused_matmul(node: OnnxNode, x: Value, y: Value) -> Value:
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        raise node.refuse("axes of batches that are turned are not converted")
    ranks = len(extents(x)), len(extents(y))
    turned = bool(node.attr("transA", 0)), bool(node.attr("transB", 0))
    made = Matmul(*turned)(x, y) if min(ranks) > 1 else x @ y
    alpha = node.attr("alpha", 1.0)
    return made if alpha == 1.0 else made * alpha


def _activated(node: OnnxNode, x: Value, first: float | None, second: float | None) -> Value:
    """The activation that a node does at its end; None for numbers that it does not give."""
    name = str(node.attr("activation", ""))
    simple = {"": None, "Relu": unary.Relu(), "Tanh": unary.Tanh(), "Sigmoid": unary.Sigmoid()}
    if name in simple:
        op = simple[name]
        return x if op is None else op(x)
    if name == "LeakyRelu":
        return activation.LeakyRelu(0.01 if first is None else first)(x)
    if name == "Clip":
        return Clip(first, second)(x)
    if name == "HardSigmoid":
        slope, shift = 0.2 if first is None else first, 0.5 if second is None else second
        return Clip(0.0, 1.0)(x * slope + shift)
    raise node.refuse(f"activation {name!r} is unknown")


@converts("FusedConv", domain=RUNTIME)
def _fused_conv(node: OnnxNode, x: Value, w: Value, bias: Value = None, z: Value = None) -> Value:
    y = convolved(node, x, w, bias)
    numbers: list[float | None] = [*node.attr("activation_params", []), None, None]
    return _activated(node, y if z is None else y + z, *numbers[:2])


@converts("FusedGemm", domain=RUNTIME)
def _fused_gemm(node: OnnxNode, a: Value, b: Value, c: Value = None) -> Value:
    numbers = [node.attributes.get(f"activation_{n}") for n in ("alpha", "beta")]
    return _activated(node, gemm(node, a, b, c), *numbers)


@converts("MatMulIntegerToFloat", domain=RUNTIME, separate=True)
def _integer_to_float(
    node: OnnxNode,
    a: Value,
    b: Value,
    sa: Value,
    sb: Value,
    za: Value = None,
    zb: Value = None,
    bias: Value = None,
) -> Value:
    total = integer_product(a, b, za, zb)
    total, sa, sb, bias = alike(total, sa, sb, bias)
    made = total.astype(dtype_of(sa)) * (sa * sb)
    return made if bias is None else made + bias


@converts("DynamicQuantizeMatMul", domain=RUNTIME)
def _dynamic_matmul(
    node: OnnxNode, a: Value, b: Value, sb: Value, zb: Value = None, bias: Value = None
) -> Value:
    made = dynamic_product(a, b, sb, zb)
    return made if bias is None else made + bias


# -- normalizations ----------------------------------------------------------------------------


@converts("SkipLayerNormalization", domain=RUNTIME)
def _skip_norm(
    node: OnnxNode, x: Value, skip: Value, gamma: Value, beta: Value = None, bias: Value = None
) -> tuple[Value, ...]:
    total = x + skip if bias is None else x + skip + bias
    return _normalized(node, total, gamma, beta)


def _normalized(node: OnnxNode, x: Value, gamma: Value, beta: Value) -> tuple[Value, ...]:
    eps = node.attr("epsilon", 1e-12)
    shift = beta if beta is not None else gamma * 0
    mean = inverse = None
    if node.wants(1) or node.wants(2):
        last = (len(extents(x)) - 1,)
        mean = reduce.Mean(last, True)(x)
        apart = x - mean
        inverse = unary.Rsqrt()(reduce.Mean(last, True)(apart * apart) + eps)
    return LayerNorm(1, eps)(x, gamma, shift), mean, inverse, x


@converts("SkipSimplifiedLayerNormalization", domain=RUNTIME)
def _skip_simplified(
    node: OnnxNode, x: Value, skip: Value, gamma: Value, bias: Value = None
) -> tuple[Value, ...]:
    total = x + skip if bias is None else x + skip + bias
    eps = node.attr("epsilon", 1e-12)
    squares = reduce.Mean((len(extents(total)) - 1,), True)(total * total)
    return RmsNorm(1, eps)(total, gamma), None, unary.Rsqrt()(squares + eps), total


@converts("EmbedLayerNormalization", domain=RUNTIME)
def _embed(
    node: OnnxNode,
    ids: Value,
    segments: Value,
    words: Value,
    places: Value,
    kinds: Value,
    gamma: Value,
    beta: Value,
    mask: Value = None,
    position: Value = None,
) -> tuple[Value, ...]:
    batch, length = extents(ids)
    at = part(places, 0, 0, length) if position is None else Take(0)(places, position)
    total = Take(0)(words, ids) + at
    if segments is not None:
        total = total + Take(0)(kinds, segments)
    y = _normalized(node, total, gamma, beta)[0]
    if mask is None:
        count = filled(total, 0, (batch,), dt.int32)
    else:
        count = reduce.Sum((1,))(mask.astype(dt.int32))
    return y, count, total


# -- attention ---------------------------------------------------------------------------------


@converts("Attention", domain=RUNTIME)
def _attention(
    node: OnnxNode,
    x: Value,
    weights: Value,
    bias: Value = None,
    mask: Value = None,
    past: Value = None,
    addend: Value = None,
    past_length: Value = None,
) -> tuple[Value, ...]:
    if node.attr("do_rotary", 0) or node.attr("past_present_share_buffer", 0):
        raise node.refuse("rotary positions and shared buffers are not converted")
    both = x @ weights
    both = both if bias is None else both + bias
    third = extents(both)[-1] // 3
    sizes = node.ints("qkv_hidden_sizes", (third, third, third))
    ends = np.cumsum([0, *sizes]).tolist()
    heads = int(node.attributes["num_heads"])
    q, k, v = (_by_heads(part(both, 2, a, b), heads) for a, b in pairwise(ends))
    present = None
    if past is not None:
        old = [reshaped(part(past, 0, i, i + 1), extents(past)[1:]) for i in (0, 1)]
        k, v = (joined([o, n], 2) for o, n in zip(old, (k, v), strict=True))
    if node.wants(1):
        present = joined([reshaped(t, (1, *extents(t))) for t in (k, v)], 0)
    return _attended(node, q, k, v, mask, addend), present


@converts("MultiHeadAttention", domain=RUNTIME)
def _multi_head(
    node: OnnxNode,
    q: Value,
    k: Value = None,
    v: Value = None,
    bias: Value = None,
    mask: Value = None,
    addend: Value = None,
    past_k: Value = None,
    past_v: Value = None,
    *rest: Value,
) -> tuple[Value, ...]:
    if k is None or v is None or any(r is not None for r in rest):
        raise node.refuse("packed operands and shared buffers are not converted")
    heads, given = int(node.attributes["num_heads"]), [q, k, v]
    if bias is not None:
        ends = np.cumsum([0, *(extents(t)[-1] for t in (q, q, v))]).tolist()
        parts = [part(bias, 0, a, b) for a, b in pairwise(ends)]
        given = [
            t + (b if len(extents(t)) == 3 else reshaped(b, (1, heads, 1, -1)))
            for t, b in zip(given, parts, strict=True)
        ]
    q, k, v = (_by_heads(t, heads) if len(extents(t)) == 3 else t for t in given)
    if past_k is not None:
        k, v = joined([past_k, k], 2), joined([past_v, v], 2)
    return _attended(node, q, k, v, mask, addend), k, v


def _by_heads(x: Value, heads: int) -> Value:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, width = extents(x)
    return Transpose((0, 2, 1, 3))(reshaped(x, (batch, length, heads, width // heads)))


def _attended(node: OnnxNode, q: Value, k: Value, v: Value, mask: Value, addend: Value) -> Value:
    """Heads [batch, heads, length, size] as [batch, length, heads * size]."""
    batch, heads, length, size = extents(q)
    total = extents(k)[2]
    scale = node.attr("scale", 0.0) or float(size) ** -0.5
    scores = Matmul(False, True)(q, k) * scale
    hidden = float(node.attr("mask_filter_value", -10000.0))
    if mask is not None:
        kept = _kept(node, mask, batch, length, total)
        scores = scores + (1 - kept.astype(dtype_of(q))) * hidden
    if addend is not None:
        scores = scores + addend
    if node.attr("unidirectional", 0):
        seen = np.tril(np.ones((length, total), bool), total - length)
        least = float(np.finfo(np.float32).min)
        scores = Where()(scores.constant(seen, dt.bool_), scores, scores.constant(least))
    made = Transpose((0, 2, 1, 3))(Matmul()(Softmax(3)(scores), v))
    return reshaped(made, (batch, length, heads * extents(v)[3]))


def _kept(node: OnnxNode, mask: Value, batch: int, length: int, total: int) -> Value:
    """A mask of any of its forms as bool [batch, 1, 1 or length, total]."""
    shape = extents(mask)
    if len(shape) == 1 and shape[0] in (batch, 2 * batch):
        places = mask.constant(np.arange(total).reshape(1, -1), dtype_of(mask))
        ends = reshaped(part(mask, 0, 0, batch), (batch, 1))
        kept = places < ends
        if shape[0] == 2 * batch:
            kept = kept & (places >= reshaped(part(mask, 0, batch, 2 * batch), (batch, 1)))
        return reshaped(kept, (batch, 1, 1, total))
    truth = mask if dtype_of(mask) is dt.bool_ else logic.NotEqual()(mask, mask.constant(0))
    if len(shape) == 2:
        return reshaped(truth, (shape[0], 1, 1, shape[1]))
    if len(shape) == 3:
        return reshaped(truth, (shape[0], 1, *shape[1:]))
    raise node.refuse(f"a mask of shape {list(shape)} is not converted")
