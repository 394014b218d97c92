"""Quantized operators: true integers in, exact integer sums, one rounding at the end."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from treadle.base import dtype as dt
from treadle.base.dtype import as_dtype
from treadle.interop.conventions import rounded_to_even
from treadle.interop.onnx.converters.arithmetic import target_type
from treadle.interop.onnx.converters.shapes import extents, part, reshaped
from treadle.interop.onnx.converters.windows import Geometry
from treadle.interop.onnx.nodes import (
    Array,
    Node,
    Value,
    concrete,
    dtype_of,
    is_known,
    known,
    supported,
    together,
)
from treadle.interop.onnx.registry import converts
from treadle.ops import elementwise as ew
from treadle.ops import reduce
from treadle.ops.conv import IntConv
from treadle.ops.matmul import IntMatmul
from treadle.ops.select import Clip


def _per_axis(v: Value, x: Value, axis: int, block: int) -> Value:
    """Scales or zero points of a tensor, an axis, or blocks along one, ready to be broadcast."""
    shape, rank = extents(v), len(extents(x))
    if not shape or shape == (1,):
        return reshaped(v, (1,) * rank)
    if block and len(shape) == rank:
        apart = [n for i, d in enumerate(shape) for n in ((d, 1) if i == axis else (d,))]
        wide = [n for i, d in enumerate(shape) for n in ((d, block) if i == axis else (d,))]
        whole = [d * block if i == axis else d for i, d in enumerate(shape)]
        spread = reshaped(reshaped(v, apart).broadcast_to(tuple(wide)), whole)
        extent = extents(x)[axis]
        return spread if whole[axis] == extent else _first(spread, axis, extent)
    if len(shape) == rank:
        return v
    return reshaped(v, [-1 if i == axis else 1 for i in range(rank)])


def _first(x: Value, axis: int, count: int) -> Value:
    return part(x, axis, 0, count)


@converts("QuantizeLinear", separate=True)
def _quantize(node: Node, x: Value, scale: Value, zero: Value = None) -> Value:
    target = _target(node, zero)
    if not supported(target):
        return known(_quantize_on_host(node, x, scale, zero, target))
    zero = known(np.zeros((), target)) if zero is None else zero
    x, scale, zero = _alike(x, scale, zero)
    axis, block = node.attr("axis", 1) % max(len(extents(x)), 1), node.attr("block_size", 0)
    kind = dtype_of(scale)
    wide = dt.float32 if kind.itemsize < 4 else kind
    ratio = x.astype(wide) / _per_axis(scale, x, axis, block).astype(wide)
    info = np.iinfo(target)
    shifted = rounded_to_even(ratio) + _per_axis(zero, x, axis, block).astype(wide)
    return Clip(float(info.min), float(info.max))(shifted).astype(as_dtype(target))


def _target(node: Node, zero: Value) -> np.dtype[Any]:
    if zero is not None:
        given: np.dtype[Any] = zero.array.dtype if is_known(zero) else zero.type.dtype.numpy
        return given
    code = node.attr("output_dtype", 0)
    found: np.dtype[Any] = target_type(code, node) if code else np.dtype(np.uint8)
    return found


def _alike(*values: Value) -> tuple[Value, ...]:
    """Arrays as constants of the first operand that is none."""
    return tuple(together(values))


def _quantize_on_host(
    node: Node, x: Value, scale: Value, zero: Value, target: np.dtype[Any]
) -> Array:
    """To types that tensors do not have: floats of 8 bits, integers of fewer."""
    import_x = known(concrete(x, node, "the input").astype(np.float32))
    axis, block = node.attr("axis", 1) % max(len(extents(x)), 1), node.attr("block_size", 0)
    share = _per_axis(known(concrete(scale, node, "the scale")), import_x, axis, block)
    ratio = import_x.array / np.asarray(share.array, np.float32)
    if "float" in target.name:
        from_range = _largest(target)
        limited: Array = np.clip(ratio, -from_range, from_range)
        return limited.astype(target)
    shift: Any = 0.0
    if zero is not None:
        point = known(concrete(zero, node, "the zero point").astype(np.float32))
        shift = _per_axis(point, import_x, axis, block).array
    low, high = _limits(target)
    whole: Array = np.clip(np.rint(ratio) + shift, low, high).astype(np.int8)
    return whole.astype(target)


_finfo: Any = ml_dtypes.finfo


def _largest(target: np.dtype[Any]) -> float:
    return float(_finfo(target).max)


def _limits(target: np.dtype[Any]) -> tuple[int, int]:
    bits = int(target.name.lstrip("uint"))
    return (
        (0, (1 << bits) - 1)
        if target.name.startswith("u")
        else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    )


@converts("DequantizeLinear", separate=True)
def _dequantize(node: Node, x: Value, scale: Value, zero: Value = None) -> Value:
    if is_known(x) and not supported(x.array.dtype):
        x = known(x.array.astype(np.float32))
        zero = (
            None
            if zero is None
            else known(concrete(zero, node, "the zero point").astype(np.float32))
        )
        if not is_known(scale):
            x = scale.constant(x.array, dt.float32)
            zero = None if zero is None else scale.constant(zero.array, dt.float32)
    x, scale = _alike(x, scale)
    zero = None if zero is None else _alike(x, zero)[1]
    axis, block = node.attr("axis", 1) % max(len(extents(x)), 1), node.attr("block_size", 0)
    kind = dtype_of(scale)
    wide = dt.float32 if kind.itemsize < 4 else kind
    centered = x.astype(dt.int32) if dtype_of(x).is_integer else x
    if zero is not None:
        centered = centered - _per_axis(zero, x, axis, block).astype(dtype_of(centered))
    result = centered.astype(wide) * _per_axis(scale, x, axis, block).astype(wide)
    code = node.attr("output_dtype", 0)
    return result.astype(as_dtype(target_type(code, node)) if code else kind)


@converts("DynamicQuantizeLinear")
def _dynamic_quantize(node: Node, x: Value) -> tuple[Value, ...]:
    from_ops = _extrema(x)
    low, high = ew.Minimum()(from_ops[0], x.constant(0)), ew.Maximum()(from_ops[1], x.constant(0))
    scale = (high - low) / 255.0
    zero = Clip(0.0, 255.0)(rounded_to_even(0.0 - low / scale))
    y = Clip(0.0, 255.0)(rounded_to_even(x / scale) + zero)
    return y.astype(dt.uint8), scale, zero.astype(dt.uint8)


def _extrema(x: Value) -> tuple[Value, Value]:
    axes = tuple(range(len(extents(x))))
    return reduce.Min(axes)(x), reduce.Max(axes)(x)


# -- products ----------------------------------------------------------------------------------


def _centered(x: Value, zero: Value, axis: int | None = None) -> Value:
    """Integers less their zero point, as 16-bit ones, which hold all differences of bytes."""
    wide = x.astype(dt.int16)
    if zero is not None:
        wide, zero = _alike(wide, zero)
    if zero is None:
        return wide
    shape = extents(zero)
    if shape and shape != (1,):
        where = -1 if axis is None else axis
        zero = reshaped(
            zero, [-1 if i == where % len(extents(x)) else 1 for i in range(len(extents(x)))]
        )
    else:
        zero = reshaped(zero, ())
    return wide - zero.astype(dt.int16)


@converts("MatMulInteger")
def _matmul_integer(node: Node, a: Value, b: Value, za: Value = None, zb: Value = None) -> Value:
    return IntMatmul()(_centered(a, za, -2), _centered(b, zb, -1)).astype(dt.int32)


@converts("QLinearMatMul")
def _qlinear_matmul(
    node: Node,
    a: Value,
    sa: Value,
    za: Value,
    b: Value,
    sb: Value,
    zb: Value,
    sy: Value,
    zy: Value,
) -> Value:
    product = IntMatmul()(_centered(a, za, -2), _centered(b, zb, -1))
    rows = _column(sa, len(extents(a)), -2)
    columns = _column(sb, len(extents(b)), -1)
    return _requantized(product, rows * columns, sy, zy)


def _column(scale: Value, rank: int, axis: int) -> Value:
    shape = extents(scale)
    if not shape or shape == (1,):
        return reshaped(scale, ())
    if len(shape) > 1:
        return scale
    return reshaped(scale, [-1 if i == axis % rank else 1 for i in range(rank)])


def _requantized(total: Value, scale: Value, sy: Value, zy: Value) -> Value:
    target = dtype_of(zy)
    info = np.iinfo(target.numpy)
    ratio = total.astype(dt.float32) * scale.astype(dt.float32) / _scalar(sy).astype(dt.float32)
    shifted = rounded_to_even(ratio) + _scalar(zy).astype(dt.float32)
    return Clip(float(info.min), float(info.max))(shifted).astype(target)


def _scalar(v: Value) -> Value:
    return reshaped(v, ()) if extents(v) in ((), (1,)) else v


@converts("ConvInteger", separate=True)
def _conv_integer(node: Node, x: Value, w: Value, zx: Value = None, zw: Value = None) -> Value:
    return _integer_conv(node, x, w, zx, zw).astype(dt.int32)


def _integer_conv(node: Node, x: Value, w: Value, zx: Value, zw: Value) -> Value:
    """The exact sums of products of integers less their zero points.

    The kernels take weights of 8 bits. Where those less their zero point have 9, twice the sum over
    their halves and the sum over what is left are added.
    """
    weight = _centered(w, zw, 0)
    at = Geometry(node, extents(x)[2:], extents(w)[2:])
    op = IntConv(at.strides, at.padding, at.dilation, node.attr("group", 1))
    # Padding is 0 after the zero point is taken off, which is what the standard asks for.
    centered = _centered(*_alike(x, zx)) if zx is not None else _centered(x, None)
    if is_known(weight):
        found = weight.array
        if not found.size or (found.min() >= -128 and found.max() <= 127):
            centered, narrow = _alike(centered, known(found.astype(np.int8)))
            return op(centered, narrow)
    centered, weight = _alike(centered, weight)
    half = ew.FloorDiv()(weight, weight.constant(2))
    rest = weight - half * 2
    return op(centered, half.astype(dt.int8)) * 2 + op(centered, rest.astype(dt.int8))


@converts("QLinearConv", separate=True)
def _qlinear_conv(
    node: Node,
    x: Value,
    sx: Value,
    zx: Value,
    w: Value,
    sw: Value,
    zw: Value,
    sy: Value,
    zy: Value,
    bias: Value = None,
) -> Value:
    total = _integer_conv(node, x, w, zx, zw)
    rank = len(extents(x))
    total, bias, sx, sw, sy, zy = _alike(total, bias, sx, sw, sy, zy)
    if bias is not None:
        total = total + reshaped(bias, (1, -1, *[1] * (rank - 2))).astype(dtype_of(total))
    scale = _column(sw, rank, 1) if extents(sw) not in ((), (1,)) else reshaped(sw, ())
    return _requantized(total, scale * _scalar(sx), sy, zy)
