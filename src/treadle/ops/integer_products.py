"""Exact sums of products of integers less their zero points, for every kind of operand.

The zero point z of x enters as a correction: sum (x - z) w = sum x w - z sum w, with x padded by z.
So the operands of the products stay bytes, and the correction of a fixed weight is fixed.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from treadle.base import dtype as dt
from treadle.base.shape import product
from treadle.ops.conv import IntConv
from treadle.ops.elementwise import Maximum
from treadle.ops.matmul import IntMatmul
from treadle.ops.op import Operand
from treadle.ops.quant import Saturate
from treadle.ops.reduce import Max
from treadle.ops.slicing import Pad
from treadle.ops.unary import Abs, RoundEven

V = TypeVar("V", bound=Operand)

LEVELS = 127
"""The largest level of numbers whose step is found while they are there."""
MOST_TERMS = (2**31 - 1) // 128**2
"""Terms of a sum of products of any bytes with a sign that fit 32 bits."""
_LEAST = 2.0**-119
"""Magnitudes below count as this one, so that neither a step nor its reciprocal leaves float32."""


def conv_sums(op: IntConv, x: V, weight: V, zero: int = 0) -> V:
    """The convolution of x - zero with a weight: int32 (N, O, *P).

    Args:
        op: strides, padding, dilation and groups; what is padded stands for 0.
        x: int8 or uint8 (N, C, *S).
        weight: int8 (O, C/groups, *K).
        zero: what is subtracted from x; it fits the type of x.
    """
    if not zero:
        return op(x, weight)
    if any(before or after for before, after in op.padding):
        widths = ((0, 0), (0, 0), *op.padding)
        x = Pad(widths, "constant", float(zero))(x)
        op = op.replace(padding=((0, 0),) * len(op.padding))
    outputs = weight.type.shape[0]
    lines = weight.reshape((outputs, product(weight.type.shape[1:])))
    excess = _sums_of(lines, columns=False).reshape((1, outputs, *(1,) * (x.type.ndim - 2)))
    return op(x, weight) - excess * zero


def matmul_sums(op: IntMatmul, x: V, y: V, zero_x: Any = None, zero_y: Any = None) -> V:
    """The product of x - zero_x and y - zero_y: int32 (..., M, N).

    Args:
        op: which operands are transposed.
        x, y: int8 or uint8, at least two axes each.
        zero_x, zero_y: what is subtracted: a number, or an int32 operand that broadcasts against
            (..., M, 1) and (..., 1, N); None for 0.
    """
    sums = op(x, y)
    if zero_x is not None:
        columns = _sums_of(y, columns=not op.transpose_y)
        sums = sums - (_turned(columns) if op.transpose_y else columns) * zero_x
    if zero_y is not None:
        rows = _sums_of(x, columns=op.transpose_x)
        sums = sums - (_turned(rows) if op.transpose_x else rows) * zero_y
    if zero_x is not None and zero_y is not None:
        sums = sums + zero_x * zero_y * x.type.shape[-2 if op.transpose_x else -1]
    return sums


def _sums_of(x: V, *, columns: bool) -> V:
    """Sums of the columns (..., 1, N) or rows (..., M, 1) of a matrix, as a product with ones.

    A product takes bytes as they are; a sum would have them as int32 first.
    """
    terms = x.type.shape[-2 if columns else -1]
    if columns:
        return IntMatmul()(x.constant(np.ones((1, terms), np.int8), dt.int8), x)
    return IntMatmul()(x, x.constant(np.ones((terms, 1), np.int8), dt.int8))


def _turned(x: V) -> V:
    """The last two axes exchanged."""
    n = x.type.ndim
    return x.transpose((*range(n - 2), n - 1, n - 2))


def dynamic_sums(op: IntMatmul, x: V, weight: V, steps: V, *, whole: bool = False) -> V:
    """x times a weight of levels, on integers whose steps are found on x: float32 (..., M, N).

    Args:
        op: whether the weight is transposed; x is not.
        x: numbers (..., M, K).
        weight: int8, and `steps` what 1 stands for, which broadcasts against (..., M, N).
        whole: one step for all of x, in place of one for each row.
    """
    levels, step = dynamic_levels(x, whole=whole)
    made: V = op(levels, weight).astype(dt.float32) * steps * step
    return made


def dynamic_levels(x: V, *, whole: bool = False) -> tuple[V, V]:
    """x (..., K) as int8 from -127 to 127, and the steps that they are of, float32 (..., 1).

    Halves go to even levels. The step of what holds NaN or an infinity is NaN.
    """
    real = x.astype(dt.float32)
    axes = tuple(range(x.type.ndim)) if whole else (x.type.ndim - 1,)
    most = Max(axes, True)(Abs()(real))
    used = Maximum()(most, most.constant(_LEAST, dt.float32))
    levels = Saturate(dt.int8, -LEVELS, LEVELS)(RoundEven()(real * (float(LEVELS) / used)))
    # An infinity less itself is NaN, and any other number 0.
    return levels, used * (1.0 / LEVELS) + (most - most)
