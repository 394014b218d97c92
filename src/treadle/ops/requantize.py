"""Conversions between real numbers and quantized element types, as ops over any kind of operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base.dtype import DType, float32, float64, int32
from treadle.base.errors import ShapeError
from treadle.base.quantized import QuantizedType
from treadle.base.shape import product
from treadle.ops.elementwise import Cast
from treadle.ops.op import Op
from treadle.ops.quant import Dequantize, Quantize


def requantized(
    x: Any, source: QuantizedType | None, target: QuantizedType | None, dtype: DType
) -> Any:
    """The values of x as another element type; the result is never x itself.

    Args:
        x: an operand; integers of `source` where that is given.
        source, target: what the integers before and after stand for; None for plain numbers.
        dtype: the element type of the result.

    Raises:
        ShapeError: scales per channel do not fit the shape of x.
    """
    if source is target and source is not None:
        return x.reshape(x.type.shape)
    real = x if source is None else dequantized(x, source)
    if target is not None:
        return quantized(real, target)
    return real if real.type.dtype is dtype else Cast(dtype)(real)


def quantized(x: Any, kind: QuantizedType) -> Any:
    """Plain numbers as the nearest stored integers of a quantized type."""
    if not x.type.dtype.is_float:
        x = Cast(float64 if x.type.dtype.itemsize > 2 else float32)(x)

    def op(axis: int | None) -> Op:
        return Quantize(kind.stored, kind.meta.qmin, kind.meta.qmax, axis)

    return _along_scales(op, x, kind)


def dequantized(x: Any, kind: QuantizedType) -> Any:
    """The float32 numbers that stored integers of a quantized type stand for."""
    return _along_scales(Dequantize, x, kind)


def _along_scales(op: Any, x: Any, kind: QuantizedType) -> Any:
    """Apply an op of (x, scale, zero point) to a tensor of the type's shape of scales."""
    scale, zero = kind.scale, kind.zero_point
    if scale.ndim == 0:
        return op(None)(x, x.constant(float(scale), float32), x.constant(zero, int32))
    shape = x.type.shape
    first, last = _span(scale, shape)
    merged = (*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :])
    scales = x.constant(scale.reshape(-1), float32)
    zeros = x.constant(np.full(scale.size, zero, np.int32), int32)
    return op(first)(x.reshape(merged), scales, zeros).reshape(shape)


def _span(scale: Any, shape: Any) -> tuple[int, int]:
    """The first and the last of the axes with scales of their own, which are neighbors."""
    own = [i for i, n in enumerate(scale.shape) if n > 1]
    span = range(own[0], own[-1] + 1)
    if scale.ndim != len(shape) or any(scale.shape[i] != shape[i] for i in span):
        raise ShapeError(
            "quantize",
            "scales per channel do not fit the tensor",
            saw=f"scales {scale.shape}, tensor {tuple(shape)}",
            hint="give scales an extent of 1 on every axis but neighboring channel axes",
        )
    return own[0], own[-1]
