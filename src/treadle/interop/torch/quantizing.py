"""Roundings of graphs that PyTorch's quantization made (PT2E), as ours: integers where they pay.

The engine finds products between such roundings and computes them on the integers. PyTorch
multiplies with the reciprocal of a scale where ours divides: next to a tie levels may be one apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.arrays import DTYPES
from treadle.interop.torch.shaping import extents
from treadle.interop.torch.table import OperatorCall, axis_of, lowers, name_of
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce
from treadle.ops.matmul import IntMatmul, Matmul
from treadle.ops.quant import Dequantize, Quantize
from treadle.ops.select import Clip, Where
from treadle.ops.unary import RoundEven

V = GraphOperand
_SPACE = "quantized_decomposed"
_ZERO = 2
"""Position of the zero point among an operator's arguments."""


def _grid(x: V, scale: Any, zero: Any, axis: int | None) -> tuple[V, V]:
    """Scales and zero points as ours: float32 and int32, without axes or along one."""
    shape = () if axis is None else (-1,)
    if not isinstance(scale, GraphOperand):
        scale = x.constant(np.float32(scale), dt.float32)
    if zero is None:
        zero = x.constant(0, dt.int32).broadcast_to(scale.type.shape)
    elif not isinstance(zero, GraphOperand):
        zero = x.constant(zero, dt.int32)
    made = scale.astype(dt.float32), zero.astype(dt.int32)
    return made if shape else (made[0].reshape(()), made[1].reshape(()))


def _quantized(
    x: V, scale: Any, zero: Any, low: int, high: int, kind: torch.dtype, axis: int | None
) -> V:
    grid = _grid(x, scale, zero, axis)
    made: V = Quantize(DTYPES[kind], low, high, axis, even=True)(x.astype(dt.float32), *grid)
    return made


def _restored(call: OperatorCall, x: V, scale: Any, zero: Any, axis: int | None) -> V:
    made: V = Dequantize(axis)(x, *_grid(x, scale, zero, axis))
    return made.astype(call.dtype)


@lowers(f"{_SPACE}.quantize_per_tensor.default", f"{_SPACE}.quantize_per_tensor.tensor")
def _quantize(
    call: OperatorCall, x: V, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype
) -> V:
    return _quantized(x, scale, zero, low, high, dtype, None)


@lowers(f"{_SPACE}.quantize_per_channel.default")
def _quantize_each(
    call: OperatorCall, x: V, scale: V, zero: V, axis: int, low: int, high: int, dtype: torch.dtype
) -> V:
    return _quantized(x, scale, zero, low, high, dtype, axis_of(axis, x))


@lowers(f"{_SPACE}.dequantize_per_tensor.default", f"{_SPACE}.dequantize_per_tensor.tensor")
def _dequantize(call: OperatorCall, x: V, scale: Any, zero: Any, *limits: Any, **options: Any) -> V:
    return _restored(call, x, scale, zero, None)


@lowers(f"{_SPACE}.dequantize_per_channel.default")
def _dequantize_each(
    call: OperatorCall, x: V, scale: V, zero: V | None, axis: int, *limits: Any, **options: Any
) -> V:
    return _restored(call, x, scale, zero, axis_of(axis, x))


@lowers(f"{_SPACE}.choose_qparams.tensor")
def _choose(
    call: OperatorCall, x: V, low: int, high: int, least: float, dtype: torch.dtype
) -> tuple[V, V]:
    """The scale and the zero point that a tensor's extrema, and 0, need."""
    axes = tuple(range(x.type.ndim))
    first, last = (op(axes, False)(x.astype(dt.float32)) for op in (reduce.Min, reduce.Max))
    nothing = first.constant(0.0)
    first, last = ew.Minimum()(first, nothing), ew.Maximum()(last, nothing)
    scale = ew.Maximum()((last - first) / float(high - low), first.constant(least))
    zero = Clip(float(low), float(high))(low - RoundEven()(first / scale))
    found: tuple[V, V] = call.shaped((scale.astype(dt.float64), zero.astype(dt.int64)))
    return found


@lowers("fake_quantize_per_tensor_affine_cachemask.default")
def _faked(call: OperatorCall, x: V, scale: Any, zero: Any, low: int, high: int) -> tuple[V, V]:
    return _rounded(x, *_grid(x, scale, zero, None), low, high)


@lowers("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def _faked_if(
    call: OperatorCall, x: V, scale: V, zero: V, enabled: V, low: int, high: int
) -> tuple[V, V]:
    made, inside = _rounded(x, *_grid(x, scale, zero, None), low, high)
    off = logic.Equal()(enabled, enabled.constant(0)).reshape(())
    return Where()(off, x, made), logic.LogicalOr()(inside, off)


@lowers("fake_quantize_per_channel_affine_cachemask.default")
def _faked_each(
    call: OperatorCall, x: V, scale: V, zero: V, axis: int, low: int, high: int
) -> tuple[V, V]:
    lined = tuple(d if i == axis_of(axis, x) else 1 for i, d in enumerate(extents(x)))
    scales, zeros = _grid(x, scale, zero, axis)
    return _rounded(x, scales.reshape(lined), zeros.reshape(lined), low, high)


def _rounded(x: V, scale: V, zero: V, low: int, high: int) -> tuple[V, V]:
    """Values on a grid, and which were within its limits: their gradients pass."""
    shift = zero.astype(dt.float32)
    level = RoundEven()(x.astype(dt.float32) * (1.0 / scale) + shift)
    least, most = level.constant(float(low)), level.constant(float(high))
    inside = logic.LogicalAnd()(logic.GreaterEqual()(level, least), logic.LessEqual()(level, most))
    made = (Clip(float(low), float(high))(level) - shift) * scale
    return made.astype(x.type.dtype), inside


# -- products ----------------------------------------------------------------------------------


@lowers("_int_mm.default")
def _product_of_integers(call: OperatorCall, x: V, y: V) -> V:
    made: V = IntMatmul()(x, y)
    return made


@lowers("_weight_int8pack_mm.default")
def _product_with_bytes(call: OperatorCall, x: V, weight: V, scale: V) -> V:
    """Rows of weights with a scale each, as torchao's `int8_weight_only` has them."""
    wide = Matmul(False, True)(x, weight.astype(x.type.dtype))
    made: V = wide * scale.astype(x.type.dtype)
    return made


def zero_points(graph: fx.Graph) -> set[str]:
    """Placeholders that are zero points and nothing else: integers need to know their values."""
    return {
        str(node.target)
        for node in graph.find_nodes(op="placeholder")
        if node.users and all(_is_zero_point(node, user) for user in node.users)
    }


def _is_zero_point(node: fx.Node, user: fx.Node) -> bool:
    places = [i for i, given in enumerate(user.args) if given is node]
    return name_of(user.target).startswith(_SPACE) and places == [_ZERO]
