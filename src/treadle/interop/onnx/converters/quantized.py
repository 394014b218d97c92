"""Numbers to integers and back: `QuantizeLinear` and its relatives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.interop.onnx.converters.arithmetic import target_type
from treadle.interop.onnx.converters.shapes import extents, part, reshaped
from treadle.interop.onnx.nodes import (
    OnnxNode,
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
from treadle.ops import logic, reduce
from treadle.ops.quant import STORED, Dequantize, Quantize
from treadle.ops.select import Clip, Where
from treadle.ops.unary import RoundEven


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
def _quantize(node: OnnxNode, x: Value, scale: Value, zero: Value = None) -> Value:
    target = _target(node, zero)
    if not supported(target):
        return known(_quantize_on_host(node, x, scale, zero, target))
    zero = known(np.zeros((), target)) if zero is None else zero
    axis, block = node.attr("axis", 1) % max(len(extents(x)), 1), node.attr("block_size", 0)
    found = None if block else levels(x, scale, zero, axis)
    if found is not None:
        return found
    x, scale, zero = alike(x, scale, zero)
    kind = dtype_of(scale)
    wide = dt.float32 if kind.itemsize < 4 else kind
    ratio = x.astype(wide) / _per_axis(scale, x, axis, block).astype(wide)
    info = np.iinfo(target)
    shifted = RoundEven()(ratio) + _per_axis(zero, x, axis, block).astype(wide)
    return Clip(float(info.min), float(info.max))(shifted).astype(as_dtype(target))


def levels(x: Value, scale: Value, zero: Value, axis: int = 0) -> Value:
    """Numbers as integers of the zero point's type, by the op for it; None if it does not fit."""
    grid = _grid(x, scale, zero, axis)
    if grid is None:
        return None
    info = np.iinfo(numpy_type(zero))
    op = Quantize(as_dtype(numpy_type(zero)), int(info.min), int(info.max), grid[2], True)
    return op(*alike(x if dtype_of(x).is_float else x.astype(dt.float32), *grid[:2]))


def numbers(x: Value, scale: Value, zero: Value, axis: int = 0) -> Value:
    """Return the numbers of integers at a scale, by the op for it; None if it does not fit."""
    if as_dtype(numpy_type(x)) not in STORED or not dtype_of(scale).is_float:
        return None
    zero = known(np.zeros(extents(scale), numpy_type(x))) if zero is None else zero
    grid = _grid(x, scale, zero, axis)
    return None if grid is None else Dequantize(grid[2])(*alike(x, *grid[:2]))


def _grid(x: Value, scale: Value, zero: Value, axis: int) -> tuple[Value, Value, int | None] | None:
    """Scale, zero point and axis as the ops take them; None where those do not fit."""
    shape = extents(scale)
    if not supported(numpy_type(zero)) or as_dtype(numpy_type(zero)) not in STORED:
        return None
    if shape not in ((), (1,)) and (len(shape) != 1 or shape[0] != extents(x)[axis]):
        return None
    whole = shape in ((), (1,))
    where = () if whole else shape
    if extents(zero) != shape:
        return None
    return reshaped(scale, where), reshaped(zero, where).astype(dt.int32), None if whole else axis


@converts("DynamicQuantizeLinear")
def _dynamic(node: OnnxNode, x: Value) -> tuple[Value, ...]:
    return dynamic_bytes(x)


def dynamic_bytes(x: Value) -> tuple[Value, Value, Value]:
    """Return x as uint8 on 256 steps that cover it and 0, the step, and the byte for 0."""
    scale, offset = _covering(x)
    steps = Clip(0.0, 255.0)(RoundEven()(x / scale) + offset)
    return steps.astype(dt.uint8), scale.astype(dt.float32), offset.astype(dt.uint8)


def _covering(x: Value) -> tuple[Value, Value]:
    """Scale and zero point (a whole float) of 256 steps that cover x and 0; 1 and 0 for zeros."""
    zero = x.constant(0.0)
    axes = tuple(range(len(extents(x))))
    low, high = ew.Minimum()(reduce.Min(axes)(x), zero), ew.Maximum()(reduce.Max(axes)(x), zero)
    apart = high - low
    scale = Where()(logic.Equal()(apart, zero), x.constant(1.0), apart / 255.0)
    return scale, RoundEven()(-low / scale)


def numpy_type(value: Value) -> np.dtype[Any]:
    """Element type of a value, arrays of types that tensors do not have included."""
    found: np.dtype[Any] = value.array.dtype if is_known(value) else value.type.dtype.numpy
    return found


def _target(node: OnnxNode, zero: Value) -> np.dtype[Any]:
    if zero is not None:
        return numpy_type(zero)
    code = node.attr("output_dtype", 0)
    found: np.dtype[Any] = target_type(code, node) if code else np.dtype(np.uint8)
    return found


def alike(*values: Value) -> tuple[Value, ...]:
    """Arrays as constants of the first operand that is none."""
    return tuple(together(values))


def _quantize_on_host(
    node: OnnxNode, x: Value, scale: Value, zero: Value, target: np.dtype[Any]
) -> Array:
    """Return x in types that tensors do not have: floats of 8 bits, integers of fewer."""
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
def _dequantize(node: OnnxNode, x: Value, scale: Value, zero: Value = None) -> Value:
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
    axis, block = node.attr("axis", 1) % max(len(extents(x)), 1), node.attr("block_size", 0)
    code = node.attr("output_dtype", 0)
    found = None if block or code else numbers(x, scale, zero, axis)
    if found is not None:
        return found
    x, scale = alike(x, scale)
    zero = None if zero is None else alike(x, zero)[1]
    kind = dtype_of(scale)
    wide = dt.float32 if kind.itemsize < 4 else kind
    centered = x.astype(dt.int32) if dtype_of(x).is_integer else x
    if zero is not None:
        centered = centered - _per_axis(zero, x, axis, block).astype(dtype_of(centered))
    result = centered.astype(wide) * _per_axis(scale, x, axis, block).astype(wide)
    return result.astype(as_dtype(target_type(code, node)) if code else kind)
