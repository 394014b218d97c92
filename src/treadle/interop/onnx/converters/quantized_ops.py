"""Operators on integers and their scales: ONNX's own, and those that ONNX Runtime's tools write.

Where zero points are known and weights symmetric, such an operator is what it stands for: numbers
from integers, the operator on numbers, integers again. The engine computes that on the integers.
Otherwise sums of integers less their zero points are taken, which are exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from treadle.base import dtype as dt
from treadle.interop.onnx.converters.quantized import (
    alike,
    dynamic_bytes,
    levels,
    numbers,
    numpy_type,
)
from treadle.interop.onnx.converters.shapes import extents, reshaped
from treadle.interop.onnx.converters.windows import WindowGeometry
from treadle.interop.onnx.nodes import OnnxNode, Value, dtype_of, is_known, known
from treadle.interop.onnx.registry import converts, find
from treadle.ops import elementwise as ew
from treadle.ops import reduce
from treadle.ops.conv import Conv, IntConv
from treadle.ops.integer_products import conv_sums, matmul_sums
from treadle.ops.matmul import IntMatmul, Matmul
from treadle.ops.movement import Concat
from treadle.ops.select import Clip
from treadle.ops.unary import RoundEven

RUNTIME = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
ONE_OPERAND = {"AveragePool": 11, "LeakyRelu": 6, "Sigmoid": 6, "Softmax": 13}
"""Operators of one operand that have a counterpart on integers, and the version it is of."""


def _known_zero(zero: Value) -> int | None:
    """The one number that a zero point is, None if that is not known."""
    if zero is None:
        return 0
    if not is_known(zero) or not zero.array.size or (zero.array != zero.array.flat[0]).any():
        return None
    return int(zero.array.flat[0])


def _is_symmetric(w: Value, zero: Value) -> bool:
    return numpy_type(w) == np.int8 and _known_zero(zero) == 0


def _column(scale: Value, rank: int, axis: int) -> Value:
    shape = extents(scale)
    if not shape or shape == (1,):
        return reshaped(scale, ())
    if len(shape) > 1:
        return scale
    return reshaped(scale, [-1 if i == axis % rank else 1 for i in range(rank)])


# -- matrix products ---------------------------------------------------------------------------


def integer_product(a: Value, b: Value, za: Value, zb: Value) -> Value:
    """Exact sums of products of integers less their zero points; vectors as NumPy has them."""
    plain = [_known_zero(z) == 0 for z in (za, zb)]
    a, b, za, zb = alike(a, b, za, zb)
    if 1 in (len(extents(a)), len(extents(b))):
        first, second = len(extents(a)) == 1, len(extents(b)) == 1
        wide = reshaped(a, (1, -1)) if first else a, reshaped(b, (-1, 1)) if second else b
        made = integer_product(*wide, None if plain[0] else za, None if plain[1] else zb)
        shape = extents(made)
        return reshaped(made, shape[:-2] + shape[-2:-1] * (not first) + shape[-1:] * (not second))
    zeros: list[Value] = []
    for zero, axis, x, skipped in ((za, -2, a, plain[0]), (zb, -1, b, plain[1])):
        zeros.append(None if skipped else _column(zero, len(extents(x)), axis).astype(dt.int32))
    return matmul_sums(IntMatmul(), a, b, *zeros)


def dynamic_product(x: Value, w: Value, scale: Value, zero: Value) -> Value:
    """Multiply numbers with a weight [..., K, N] of steps, whose scale is for all or each column.

    The numbers become bytes on steps that are found on all of them, as ONNX Runtime does it.
    """
    steps, own, offset = dynamic_bytes(x)
    sums, own, scale = alike(integer_product(steps, w, offset, zero), own, scale)
    return sums.astype(dt.float32) * (own * scale)


@converts("MatMulInteger", separate=True)
def _matmul_integer(
    node: OnnxNode, a: Value, b: Value, za: Value = None, zb: Value = None
) -> Value:
    return integer_product(a, b, za, zb)


@converts("QLinearMatMul", separate=True)
def _qlinear_matmul(
    node: OnnxNode,
    a: Value,
    sa: Value,
    za: Value,
    b: Value,
    sb: Value,
    zb: Value,
    sy: Value,
    zy: Value,
) -> Value:
    x, y = numbers(a, sa, za), numbers(b, sb, zb, len(extents(b)) - 1)
    if x is not None and y is not None and _known_zero(za) is not None and _is_symmetric(b, zb):
        return levels(Matmul()(*alike(x, y)), sy, zy)
    total = integer_product(a, b, za, zb)
    rows, columns = _column(sa, len(extents(a)), -2), _column(sb, len(extents(b)), -1)
    total, rows, columns, sy, zy = alike(total, rows, columns, sy, zy)
    return _requantized(total, rows * columns, sy, zy)


@converts("QGemm", domain=RUNTIME, separate=True)
def _qgemm(
    node: OnnxNode,
    a: Value,
    sa: Value,
    za: Value,
    b: Value,
    sb: Value,
    zb: Value,
    c: Value = None,
    sy: Value = None,
    zy: Value = None,
) -> Value:
    transposed = bool(node.attr("transB", 0))
    x, y = numbers(a, sa, za), numbers(b, sb, zb, 0 if transposed else 1)
    if x is None or y is None:
        raise node.refuse("scales of a kind that the standard does not give it")
    result = Matmul(bool(node.attr("transA", 0)), transposed)(*alike(x, y))
    alpha = node.attr("alpha", 1.0)
    result = result if alpha == 1.0 else result * alpha
    if c is not None:
        result = result + alike(result, _real_bias(c, sa, sb))[1] * alpha
    return result if sy is None else levels(result, sy, zy)


def _real_bias(bias: Value, sx: Value, sw: Value) -> Value:
    """Return the numbers of a bias in steps of the sums."""
    if is_known(bias) and is_known(sx) and is_known(sw):
        step = sx.array.astype(np.float64) * sw.array.astype(np.float64)
        return known((bias.array * step).astype(np.float32))
    bias, sx, sw = alike(bias, sx, sw)
    return bias.astype(dt.float32) * (_column(sx, 1, 0) * _column(sw, 1, 0))


def _requantized(total: Value, scale: Value, sy: Value, zy: Value) -> Value:
    target = dtype_of(zy)
    info = np.iinfo(target.numpy)
    ratio = total.astype(dt.float32) * scale.astype(dt.float32) / _scalar(sy).astype(dt.float32)
    shifted = RoundEven()(ratio) + _scalar(zy).astype(dt.float32)
    return Clip(float(info.min), float(info.max))(shifted).astype(target)


def _scalar(v: Value) -> Value:
    return reshaped(v, ()) if extents(v) in ((), (1,)) else v


# -- convolutions ------------------------------------------------------------------------------


@converts("ConvInteger", separate=True)
def _conv_integer(node: OnnxNode, x: Value, w: Value, zx: Value = None, zw: Value = None) -> Value:
    return _integer_conv(node, x, w, zx, zw)


def _integer_conv(node: OnnxNode, x: Value, w: Value, zx: Value, zw: Value) -> Value:
    """The exact sums of products of integers less their zero points.

    The kernels take weights of 8 bits. Where those less their zero point have 9, twice the sum over
    their halves and the sum over what is left are added.
    """
    at = WindowGeometry(node, extents(x)[2:], extents(w)[2:])
    op = IntConv(at.strides, at.padding, at.dilation, node.attr("group", 1))
    zero = _known_zero(zx)
    if zero is not None and _is_symmetric(w, zw):
        image, weight = alike(x, w)
        return conv_sums(op, image, weight, zero)
    weight = _centered(w, zw)
    # Padding is 0 after the zero point is taken off, which is what the standard asks for.
    centered = _centered(x, zx)
    if is_known(weight):
        found = weight.array
        if not found.size or (found.min() >= -128 and found.max() <= 127):
            return op(*alike(centered, known(found.astype(np.int8))))
    centered, weight = alike(centered, weight)
    half = ew.FloorDiv()(weight, weight.constant(2))
    rest = weight - half * 2
    return op(centered, half.astype(dt.int8)) * 2 + op(centered, rest.astype(dt.int8))


def _centered(x: Value, zero: Value) -> Value:
    """Integers less their zero point, as 16-bit ones, which hold all differences of bytes."""
    wide = x.astype(dt.int16)
    if zero is None:
        return wide
    wide, zero = alike(wide, zero)
    return wide - _column(zero, len(extents(x)), 0).astype(dt.int16)


@converts("QLinearConv", separate=True)
def _qlinear_conv(
    node: OnnxNode,
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
    rank = len(extents(x))
    along = (1, -1, *[1] * (rank - 2))
    if _known_zero(zx) is not None and _is_symmetric(w, zw):
        image, weight = numbers(x, sx, zx), numbers(w, sw, zw, 0)
        at = WindowGeometry(node, extents(x)[2:], extents(w)[2:])
        op = Conv(at.strides, at.padding, at.dilation, node.attr("group", 1))
        result = op(*alike(image, weight))
        if bias is not None:
            result = result + alike(result, reshaped(_real_bias(bias, sx, sw), along))[1]
        return levels(result, sy, zy)
    total = _integer_conv(node, x, w, zx, zw)
    total, bias, sx, sw, sy, zy = alike(total, bias, sx, sw, sy, zy)
    if bias is not None:
        total = total + reshaped(bias, along).astype(dtype_of(total))
    return _requantized(total, _column(sw, rank, 1) * _scalar(sx), sy, zy)


# -- ops between products ----------------------------------------------------------------------


@converts("QLinearAdd", "QLinearMul", domain=RUNTIME, separate=True)
def _qlinear_binary(
    node: OnnxNode,
    a: Value,
    sa: Value,
    za: Value,
    b: Value,
    sb: Value,
    zb: Value,
    sy: Value,
    zy: Value = None,
) -> Value:
    x, y = alike(numbers(a, sa, za), numbers(b, sb, zb))
    return _levels_like(x + y if node.op_type == "QLinearAdd" else x * y, sy, zy, a)


def _levels_like(y: Value, scale: Value, zero: Value, like: Value) -> Value:
    """Integers with a zero point that may be left out: of the type of another operand then."""
    return levels(y, scale, known(np.zeros((), numpy_type(like))) if zero is None else zero)


@converts(*(f"QLinear{name}" for name in ONE_OPERAND), domain=RUNTIME, separate=True)
def _qlinear_unary(
    node: OnnxNode, x: Value, sx: Value, zx: Value, sy: Value, zy: Value = None
) -> Value:
    if node.attr("channels_last", 0):
        raise node.refuse("channels that come last are not converted")
    name = node.op_type.removeprefix("QLinear")
    plain = replace(node, op_type=name, domain="", opset=node.attr("opset", ONE_OPERAND[name]))
    entry = find(plain)
    if entry is None:
        raise node.refuse(f"{name} has no converter")
    return _levels_like(entry.convert(plain, numbers(x, sx, zx)), sy, zy, x)


@converts("QLinearGlobalAveragePool", domain=RUNTIME, separate=True)
def _qlinear_mean(node: OnnxNode, x: Value, sx: Value, zx: Value, sy: Value, zy: Value) -> Value:
    rank = len(extents(x))
    last = bool(node.attr("channels_last", 0))
    axes = tuple(range(1, rank - 1)) if last else tuple(range(2, rank))
    return levels(reduce.Mean(axes, True)(numbers(x, sx, zx)), sy, zy)


@converts("QLinearConcat", domain=RUNTIME, separate=True)
def _qlinear_concat(node: OnnxNode, sy: Value, zy: Value, *parts: Value) -> Value:
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    found = alike(*(numbers(*triple) for triple in triples))
    axis = node.place(node.attr("axis", 1), len(extents(found[0])))
    return levels(Concat(axis)(*found), sy, zy)
