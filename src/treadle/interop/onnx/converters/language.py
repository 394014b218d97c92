"""Operators of ONNX Runtime in language models: packed weights, rotation, grouped attention."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.blocks.bits import unpack
from treadle.interop.onnx.converters.quantized_ops import RUNTIME
from treadle.interop.onnx.converters.shapes import extents, joined, part, reshaped
from treadle.interop.onnx.nodes import OnnxNode, Value, concrete, dtype_of, is_concrete
from treadle.interop.onnx.registry import converts
from treadle.ops.cache import CachedAttention, CacheUpdate
from treadle.ops.gather import Take
from treadle.ops.logic import Equal
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Transpose
from treadle.ops.select import Where


@converts("MatMulNBits", domain=RUNTIME)
def _packed_product(
    node: OnnxNode,
    x: Value,
    packed: Value,
    scales: Value,
    zeros: Value = None,
    order: Value = None,
    bias: Value = None,
) -> Value:
    """x W^T with W [n, k] in blocks along k; W is widened when the model is read."""
    weight = _widened(node, packed, scales, zeros, order)
    product = Matmul(False, True)(x, x.constant(weight, dtype_of(x)))
    return product if bias is None else product + bias


def _widened(node: OnnxNode, packed: Value, scales: Value, zeros: Value, order: Value) -> Any:
    """float32 [n, k] of levels of 2, 4 or 8 bits, low first."""
    bits = int(node.attributes.get("bits", 4))
    k, n = int(node.attributes["K"]), int(node.attributes["N"])
    size = int(node.attributes["block_size"])
    if bits not in (2, 4, 8) or size < 16 or k < 1 or n < 1:
        raise node.refuse(f"{bits} bits in blocks of {size} are not converted")
    if order is not None:
        raise node.refuse("columns in an order of their own are not converted")
    blocks = -(-k // size)
    raw = concrete(packed, node, "the packed weight").astype(np.uint8)
    scale = concrete(scales, node, "the scales").astype(np.float32)
    if raw.size != n * blocks * size * bits // 8 or scale.size != n * blocks:
        raise node.refuse(f"the weight is not one of {n} rows and {blocks} blocks")
    levels = unpack(raw.reshape(n * blocks, -1), bits, groups=raw.size // (n * blocks))
    middle: Any = np.float32(1 << (bits - 1))
    if zeros is not None:
        middle = _zeros(node, concrete(zeros, node, "the zero points"), n, blocks, bits)
    wide = levels.reshape(n, blocks, size).astype(np.float32) - middle
    return (wide * scale.reshape(n, blocks, 1)).reshape(n, -1)[:, :k]


def _zeros(node: OnnxNode, zeros: Any, n: int, blocks: int, bits: int) -> Any:
    """Zero points [n, blocks, 1]: packed as levels are, or numbers as scales are."""
    if zeros.dtype != np.uint8:
        if zeros.size != n * blocks:
            raise node.refuse(f"there is no zero point for each of {n} x {blocks} blocks")
        return zeros.astype(np.float32).reshape(n, blocks, 1)
    width = -(-blocks * bits // 8)
    if zeros.size != n * width:
        raise node.refuse(f"there is no zero point for each of {n} x {blocks} blocks")
    levels = unpack(zeros.reshape(n, width), bits, groups=width)[:, :blocks]
    return levels.astype(np.float32)[..., None]


# -- rotation ------------------------------------------------------------------------------------


@converts("RotaryEmbedding", domain=RUNTIME)
def _rotary(node: OnnxNode, x: Value, positions: Value, cos: Value, sin: Value) -> Value:
    """x [batch, length, heads · size] or [batch, heads, length, size]."""
    if node.attr("is_packed_batching", 0) or node.attr("scale", 1.0) != 1.0:
        raise node.refuse("packed batches and scaled positions are not converted")
    shape, count = extents(x), int(node.attr("num_heads", 0))
    heads = x
    if len(shape) == 3:
        count = count or shape[2] // (2 * extents(cos)[1])
        apart = reshaped(x, (shape[0], shape[1], count, shape[2] // count))
        heads = Transpose((0, 2, 1, 3))(apart)
    length = extents(heads)[2]
    if math.prod(extents(positions)) == 1 and len(extents(positions)) == 1:
        steps = positions.constant(np.arange(length), dtype_of(positions))
        positions = reshaped(positions + steps, (1, length))
    turned = _turned(node, heads, positions, cos, sin, bool(node.attr("interleaved", 0)))
    return reshaped(Transpose((0, 2, 1, 3))(turned), shape) if len(shape) == 3 else turned


def _turned(
    node: OnnxNode, x: Value, positions: Value, cos: Value, sin: Value, interleaved: bool
) -> Value:
    """Heads [batch, heads, length, size] rotated by positions [batch or 1, length]."""
    half = extents(cos)[1]
    batch, heads, length, size = extents(x)
    if 2 * half > size:
        raise node.refuse(f"angles of {half} pairs do not fit heads of {size}")
    rows, _ = extents(positions)
    c, s = (reshaped(Take(0)(table, positions), (rows, 1, length, half)) for table in (cos, sin))
    whole = x if 2 * half == size else part(x, 3, 0, 2 * half)
    if interleaved:
        pairs = reshaped(whole, (batch, heads, length, half, 2))
        first, second = (
            reshaped(part(pairs, 4, i, i + 1), (batch, heads, length, half)) for i in (0, 1)
        )
        turned = [first * c - second * s, second * c + first * s]
        made = joined([reshaped(t, (batch, heads, length, half, 1)) for t in turned], 4)
        made = reshaped(made, (batch, heads, length, 2 * half))
    else:
        first, second = part(x, 3, 0, half), part(x, 3, half, 2 * half)
        made = joined([first * c - second * s, second * c + first * s], 3)
    return made if 2 * half == size else joined([made, part(x, 3, 2 * half, size)], 3)


# -- attention -----------------------------------------------------------------------------------


@converts("GroupQueryAttention", domain=RUNTIME)
def _grouped(
    node: OnnxNode,
    q: Value,
    k: Value,
    v: Value,
    past_k: Value,
    past_v: Value,
    lengths: Value,
    total: Value,
    cos: Value = None,
    sin: Value = None,
    *rest: Value,
) -> tuple[Value, ...]:
    """Attention of several heads of queries to one of keys, with caches [batch, heads, room, size].

    `lengths` are those with the new tokens, less 1, and may be known when the model runs. Then the
    caches that are given have room for all tokens, and what fills short texts is written nowhere.
    """
    given = [*rest, None, None, None][:3]
    if given[0] is not None or given[1] is not None or node.attr("smooth_softmax", 0) > 0:
        raise node.refuse("given positions and biases, and smooth softmax, are not converted")
    sinks = [] if given[2] is None else [given[2]]
    heads, groups = int(node.attributes["num_heads"]), int(node.attributes["kv_num_heads"])
    if k is None:
        size = extents(q)[2] // (heads + 2 * groups)
        bounds = (0, heads * size, (heads + groups) * size, (heads + 2 * groups) * size)
        q, k, v = (part(q, 2, a, b) for a, b in pairwise(bounds))
    (batch, length, _), there = extents(q), extents(past_k)[2]
    q, k, v = (_apart(t, n) for t, n in ((q, heads), (k, groups), (v, groups)))
    fixed = is_concrete(lengths) and is_concrete(total)
    if fixed:
        last: Any = concrete(lengths, node, "seqlens_k").reshape(-1).astype(int) + 1
        most = int(concrete(total, node, "total_sequence_length").reshape(-1)[0])
        # A first call has all tokens, those that fill short texts included.
        first = np.zeros_like(last) if most == length else last - length
        room = max(most, there)
        if first.min() < 0 or first.max() + length > room:
            raise node.refuse(f"texts of {last.tolist()} tokens do not fit caches of {room}")
        starts, ends = (q.constant(x, dt.int32) for x in (first, first + length))
    else:
        if there < length:
            raise node.refuse("lengths that a program computes need caches with room for all")
        ends = reshaped(lengths.astype(dt.int32), (batch,)) + 1
        begins = Equal()(reshaped(total.astype(dt.int32), (1,)), ends.constant(length))
        starts = Where()(begins, ends.constant(0), ends - length)
    if node.attr("do_rotary", 0):
        steps = q.constant(np.arange(length)[None], dt.int32)
        places = reshaped(starts, (batch, 1)) + steps
        turn = bool(node.attr("rotary_interleaved", 0))
        q, k = (_turned(node, t, places, cos, sin, turn) for t in (q, k))
    at = (starts, ends, q.constant(np.arange(batch), dt.int32))
    if fixed:
        k, v = _placed(past_k, k, first, room), _placed(past_v, v, first, room)
    else:
        k, v = CacheUpdate()(past_k, k, *at), CacheUpdate()(past_v, v, *at)
    window, cap = int(node.attr("local_window_size", -1)), float(node.attr("softcap", 0.0))
    scale = float(node.attr("scale", 0.0)) or None
    attend = CachedAttention(scale, window if window > 0 else None, cap or None)
    made = Transpose((0, 2, 1, 3))(attend(q, k, v, *at, *sinks))
    return reshaped(made, (batch, length, heads * extents(v)[3])), k, v


def _apart(x: Value, heads: int) -> Value:
    """[batch, length, heads · size] as [batch, heads, length, size]."""
    batch, length, width = extents(x)
    return Transpose((0, 2, 1, 3))(reshaped(x, (batch, length, heads, width // heads)))


def _placed(past: Value, new: Value, starts: Any, room: int) -> Value:
    """Caches with new rows from `starts` on; what lies behind them is what lay there, or zeros."""
    batch, heads, length, size = extents(new)
    there = extents(past)[2]
    rows = []
    for b, start in enumerate(starts.tolist()):
        old = part(past, 0, b, b + 1) if batch > 1 else past
        parts = [part(old, 2, 0, start)] if start else []
        parts.append(part(new, 0, b, b + 1) if batch > 1 else new)
        if start + length < there:
            parts.append(part(old, 2, start + length, there))
        left = room - max(start + length, there)
        if left:
            parts.append(new.constant(np.zeros((1, heads, left, size)), dtype_of(new)))
        rows.append(joined(parts, 2) if len(parts) > 1 else parts[0])
    return joined(rows, 0) if batch > 1 else rows[0]
