"""Translations of integer arithmetic, as far as float32 does it exactly.

OpenVINO's products of integers are found by patterns of `FakeQuantize`, whose halves go to the even
neighbor; Treadle's go away from zero. What is translated here gives the same integers as Treadle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import openvino as ov
from openvino import opset15 as opset

from treadle.backends.api import Support, no, yes
from treadle.backends.openvino.table import TYPES, Output, both, floats, of_types, translates
from treadle.backends.openvino.windows import convolve
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops import conv, matmul, quant

EXACT = 1 << 24
"""Whole numbers below are exact in float32."""


def _fits(kinds: Sequence[TensorType], terms: int) -> Support:
    """Return whether all sums of so many products are exact."""
    largest = math.prod(max(map(abs, quant.limits_of(t.dtype))) for t in kinds)
    if largest * terms > EXACT:
        return no("precision", f"sums of {terms} products of integers need more than float32")
    return yes()


def _conv_fits(op: Any, types: Sequence[TensorType]) -> Support:
    return _fits(types, math.prod(int(d) for d in types[1].shape[1:]))


def _product_fits(op: Any, types: Sequence[TensorType]) -> Support:
    return _fits(types, int(types[0].shape[-2 if op.transpose_x else -1]))


_bytes = of_types(dt.int8, dt.uint8)


@translates(conv.IntConv, when=both(_bytes, _conv_fits))
def _int_conv(op: conv.IntConv, x: Output, weight: Output) -> Output:
    sums = convolve(op, _real(x), _real(weight).output(0))
    return opset.convert(sums, ov.Type.i32)


@translates(matmul.IntMatmul, when=both(_bytes, _product_fits))
def _int_matmul(op: matmul.IntMatmul, x: Output, y: Output) -> Output:
    sums = opset.matmul(_real(x), _real(y), op.transpose_x, op.transpose_y)
    return opset.convert(sums, ov.Type.i32)


def _real(x: Output) -> Output:
    return opset.convert(x, ov.Type.f32)


def _narrow(op: quant.Saturate, types: Sequence[TensorType]) -> Support:
    if op.dtype not in (dt.int8, dt.uint8):
        return no("precision", f"saturation to {op.dtype.name} needs more than float32")
    return yes()


@translates(quant.Saturate, when=both(floats, _narrow))
def _saturate(op: quant.Saturate, x: Output) -> Output:
    return opset.convert(opset.clamp(x, float(op.low), float(op.high)), TYPES[op.dtype])
