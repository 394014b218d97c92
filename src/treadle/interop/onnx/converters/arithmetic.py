"""Elementwise operators that differ from the ops of the same meaning, casts, and random numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.modes import capturing
from treadle.interop.conventions import remainder, truncated_quotient
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
from treadle.ops import activation, logic, unary
from treadle.ops import elementwise as ew
from treadle.ops.op import Op
from treadle.ops.select import Clip, Where
from treadle.random import default_generator

# -- arithmetic --------------------------------------------------------------------------------


@converts("Div")
def _div(node: OnnxNode, x: Value, y: Value) -> Value:
    return ew.Div()(x, y) if dtype_of(x).is_float else truncated_quotient(x, y)


@converts("Mod")
def _mod(node: OnnxNode, x: Value, y: Value) -> Value:
    return remainder(x, y, truncated=bool(node.attr("fmod", 0)))


@converts("Pow")
def _pow(node: OnnxNode, x: Value, y: Value) -> Value:
    base, exponent = dtype_of(x), dtype_of(y)
    if base.is_float:
        return ew.Pow()(x, y.astype(base))
    wide = dt.uint64 if dt.uint64 in (base, exponent) and base.kind != "int" else dt.int64
    exact = ew.Pow()(x.astype(wide), y.astype(wide)).astype(base)
    if exponent.is_integer:
        return exact
    whole = logic.Equal()(y, unary.Round()(y))
    real = ew.Pow()(x.astype(dt.float64), y.astype(dt.float64))
    return Where()(whole, exact, real.astype(base))


def _folding(op: Op) -> Callable[..., Value]:
    def fold(node: OnnxNode, *xs: Value) -> Value:
        return functools.reduce(op, xs)

    return fold


converts("Max")(_folding(ew.Maximum()))
converts("Min")(_folding(ew.Minimum()))
converts("Sum")(_folding(ew.Add()))


@converts("Mean")
def _mean(node: OnnxNode, *xs: Value) -> Value:
    return functools.reduce(ew.Add(), xs) / len(xs)


@converts("Sqrt", "Reciprocal", "Exp", "Log", "Floor", "Ceil")
def _of_floats(node: OnnxNode, x: Value) -> Value:
    ops: dict[str, Op] = {
        "Sqrt": unary.Sqrt(),
        "Reciprocal": unary.Reciprocal(),
        "Exp": unary.Exp(),
        "Log": unary.Log(),
        "Floor": unary.Floor(),
        "Ceil": unary.Ceil(),
    }
    return ops[node.op_type](x)


@converts("BitShift")
def _bit_shift(node: OnnxNode, x: Value, y: Value) -> Value:
    left = node.attr("direction", "LEFT") == "LEFT"
    return (logic.ShiftLeft() if left else logic.ShiftRight())(x, y)


@converts("IsInf")
def _is_inf(node: OnnxNode, x: Value) -> Value:
    found = logic.IsInf()(x)
    if not node.attr("detect_positive", 1):
        found = found & logic.Less()(x, x.constant(0))
    if not node.attr("detect_negative", 1):
        found = found & logic.Less()(x.constant(0), x)
    return found


@converts("Equal")
def _equal(node: OnnxNode, x: Value, y: Value) -> Value:
    return _compared(logic.Equal(), np.equal, x, y)


def _compared(op: Op, on_host: Callable[..., Array], x: Value, y: Value) -> Value:
    if is_known(x) and is_known(y) and not (supported(x.array.dtype) and supported(y.array.dtype)):
        return known(on_host(x.array, y.array).astype(bool))
    return op(x, y)


# -- activations -------------------------------------------------------------------------------


@converts("PRelu")
def _prelu(node: OnnxNode, x: Value, slope: Value) -> Value:
    return Where()(logic.Less()(x, x.constant(0)), x * slope, x)


@converts("HardSigmoid")
def _hard_sigmoid(node: OnnxNode, x: Value) -> Value:
    return Clip(0.0, 1.0)(x * node.attr("alpha", 0.2) + node.attr("beta", 0.5))


@converts("Gelu", since=20)
def _gelu(node: OnnxNode, x: Value) -> Value:
    return activation.Gelu(node.attr("approximate", "none"))(x)


@converts("Clip")
def _clip_attributes(node: OnnxNode, x: Value) -> Value:
    return Clip(node.attributes.get("min"), node.attributes.get("max"))(x)


@converts("Clip", since=11, separate=True)
def _clip(node: OnnxNode, x: Value, low: Value = None, high: Value = None) -> Value:
    if is_known(low) and is_known(high) and not is_known(x):
        bounds = [None if v is None else v.array.item() for v in (low, high)]
        return Clip(*bounds)(x)
    # The upper bound wins where the two cross.
    for op, bound in ((ew.Maximum(), low), (ew.Minimum(), high)):
        if bound is not None:
            x = op(*together([x, bound]))
    return x


@converts("Dropout", host=(1, 2), separate=True)
def _dropout(
    node: OnnxNode, x: Value, ratio: Array | None = None, training: Array | None = None
) -> Value:
    rate = 0.5 if ratio is None else float(ratio)
    if training is not None and bool(training) and rate != 0.0:
        draws = _drawn(node, tuple(x.shape), np.dtype(np.float32), "Uniform")
        kept = logic.LessEqual()(*together([known(np.array(rate, np.float32)), draws]))
        x, scale = together([x, ew.Cast(dtype_of(x))(kept)])
        return x * scale * (1.0 / (1.0 - rate)), kept
    mask = known(np.ones(tuple(x.shape), bool)) if node.wants(1) else None
    return x, mask


# -- casts -------------------------------------------------------------------------------------

_FINFO: Any = ml_dtypes.finfo


def target_type(code: int, node: OnnxNode) -> np.dtype[Any]:
    """The NumPy type of a number in ONNX's list."""
    try:
        found: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))
        return found
    except (KeyError, TypeError) as error:
        raise node.refuse(f"element type {code} is unknown") from error


@converts("Cast")
def _cast(node: OnnxNode, x: Value) -> Value:
    code = int(node.attributes["to"])
    return _cast_to(node, x, target_type(code, node), code)


@converts("CastLike", separate=True)
def _cast_like(node: OnnxNode, x: Value, like: Value) -> Value:
    target = like.array.dtype if is_known(like) else like.type.dtype.numpy
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target)) if target.kind != "O" else 8
    return _cast_to(node, x, np.dtype(target), int(code))


def _cast_to(node: OnnxNode, x: Value, target: np.dtype[Any], code: int) -> Value:
    if is_known(x) or not supported(target):
        return known(_cast_on_host(node, concrete(x, node, "the input"), target, code))
    return _cast_operand(x, as_dtype(target))


def _cast_operand(x: Value, wanted: DType) -> Value:
    if wanted is dt.bool_ and dtype_of(x) is not dt.bool_:
        return logic.NotEqual()(x, x.constant(0))
    return x.astype(wanted)


def _cast_on_host(node: OnnxNode, x: Array, target: np.dtype[Any], code: int) -> Array:
    if target.kind in "OUS" or code == onnx.TensorProto.STRING:
        return _as_text(x)
    if x.dtype.kind in "OUS":
        return np.array([_number(t, target) for t in x.reshape(-1)]).reshape(x.shape).astype(target)
    name = onnx.TensorProto.DataType.Name(code)
    if name.startswith(("FLOAT8", "FLOAT4")):
        return _cast_narrow(x, target, name, bool(node.attr("saturate", 1)), node)
    if name in ("INT4", "UINT4", "INT2", "UINT2"):
        return _wrapped(x, target, name)
    wide = x.astype(np.float32) if not supported(x.dtype) else x
    return wide.astype(target)


def _wrapped(x: Array, target: np.dtype[Any], name: str) -> Array:
    """Return integers of few bits, which keep the low bits of x."""
    bits, signed = int(name[-1]), not name.startswith("U")
    low = x.astype(np.float32).astype(np.int64) & ((1 << bits) - 1)
    if signed:
        low = np.where(low >= 1 << (bits - 1), low - (1 << bits), low)
    return low.astype(np.int8 if signed else np.uint8).astype(target)


def _cast_narrow(
    x: Array, target: np.dtype[Any], name: str, saturate: bool, node: OnnxNode
) -> Array:
    """Return x as a float of 8 bits; `saturate` limits values to the largest one."""
    if name == "FLOAT8E8M0":
        return _cast_scale(x, target, saturate, str(node.attr("round_mode", "up")))
    wide = x.astype(np.float32)
    if name.startswith("FLOAT4"):
        limit = float(_FINFO(target).max)
        return np.clip(wide, -limit, limit).astype(target)
    result = wide.astype(target)
    if saturate:
        limit = float(_FINFO(target).max)
        largest = np.array(limit, np.float32)
        beyond = np.isinf(wide) | (np.abs(wide) > limit)
        result = np.where(beyond & ~np.isnan(wide), np.copysign(largest, wide), wide).astype(target)
    return result


def _cast_scale(x: Array, target: np.dtype[Any], saturate: bool, mode: str) -> Array:
    """Return x as powers of two (no sign, no fraction)."""
    wide = x.astype(np.float32)
    bits = wide.view(np.uint32)
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    if mode == "up":
        exponent = exponent + (fraction > 0)
    elif mode == "nearest":
        exponent = exponent + (fraction >= 0x400000)
    most = 254 if saturate else 255
    found = np.where(np.isnan(wide), 255, np.minimum(exponent, most)).astype(np.uint8)
    return found.view(target)


def _as_text(x: Array) -> Array:
    if x.dtype.kind in "OUS":
        return x.astype(object)
    texts = [_text(v) for v in x.reshape(-1)]
    return np.array(texts, dtype=object).reshape(x.shape)


def _text(value: Any) -> str:
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, float):
        return str(number)
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "INF" if number > 0 else "-INF"
    digits = 9 if value.dtype == np.float32 else 17
    return np.format_float_positional(value, trim="-", precision=digits) if number else "0"


def _number(text: Any, target: np.dtype[Any]) -> Any:
    plain = text.decode() if isinstance(text, bytes) else str(text)
    return float(plain) if target.kind not in "iub" else int(float(plain))


@converts("BitCast")
def _bit_cast(node: OnnxNode, x: Value) -> Value:
    array = concrete(x, node, "the input")
    return known(array.view(target_type(int(node.attributes["to"]), node)))


# -- random numbers ----------------------------------------------------------------------------


@converts("RandomUniform", "RandomNormal")
def _random(node: OnnxNode) -> Value:
    shape = node.ints("shape", ())
    target = target_type(int(node.attr("dtype", 1)), node)
    return _drawn(node, shape, target, node.op_type)


@converts("RandomUniformLike", "RandomNormalLike", separate=True)
def _random_like(node: OnnxNode, x: Value) -> Value:
    like = x.array.dtype if is_known(x) else x.type.dtype.numpy
    code = node.attributes.get("dtype")
    target = like if code is None else target_type(int(code), node)
    return _drawn(node, tuple(x.shape), np.dtype(target), node.op_type)


def _drawn(node: OnnxNode, shape: Any, target: np.dtype[Any], kind: str) -> Value:
    """Numbers of `treadle.random`; the same ones at each call where there is a seed, or a file."""
    seed, capture = node.attributes.get("seed"), capturing()
    low, high = node.attr("low", 0.0), node.attr("high", 1.0)
    mean, scale = node.attr("mean", 0.0), node.attr("scale", 1.0)
    fixed = capture is not None and capture.for_file
    if seed is None and not fixed:
        stream, dtype = default_generator(), as_dtype(target)
        if "Uniform" in kind:
            return stream.uniform(size=shape, dtype=dtype) * (high - low) + low
        return stream.normal(mean, scale, shape, dtype)
    generator = np.random.default_rng(None if seed is None else int(abs(seed) * 2**20))
    size = tuple(map(int, shape))
    if "Uniform" in kind:
        return known(generator.uniform(low, high, size).astype(target))
    return known(generator.normal(mean, scale, size).astype(target))
