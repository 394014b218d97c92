"""Elementwise ops without an operator of their own, casts, reductions, products."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.types import TensorType
from treadle.interop.onnx.writer import GraphWriter, OnnxOperand, element_type, exports
from treadle.ops import elementwise as ew
from treadle.ops import logic, unary
from treadle.ops.op import Op
from treadle.ops.select import Where

X = OnnxOperand


def _of(x: X, dtype: DType) -> TensorType:
    return TensorType(dtype, x.type.shape)


def _plain(w: GraphWriter, op_type: str, op: Op, *xs: X) -> X:
    return w.one(op_type, xs, op.infer(*(x.type for x in xs))[0])


def cast(w: GraphWriter, x: X, dtype: DType) -> X:
    """x in another element type."""
    if x.type.dtype is dtype:
        return x
    return w.one("Cast", [x], _of(x, dtype), to=element_type(dtype))


@exports("cast")
def _cast(w: GraphWriter, op: Any, x: X) -> X:
    return w.one("Cast", [x], _of(x, op.dtype), to=element_type(op.dtype))


@exports("identity", "stop_gradient", "transfer", "end", "placeholder", "in_range")
def _same(w: GraphWriter, op: Op, x: X) -> X:
    return w.one("Identity", [x], x.type)


@exports("after")
def _after(w: GraphWriter, op: Op, x: X, token: X) -> X:
    return w.one("Identity", [x], x.type)


@exports("assert_equal")
def _unchecked(w: GraphWriter, op: Op, expect: X, actual: X) -> X:
    return w.one("Identity", [expect], expect.type)


# -- arithmetic --------------------------------------------------------------------------------


@exports("round")
def _round(w: GraphWriter, op: Op, x: X) -> X:
    """Halves away from zero; ONNX's Round goes to even ones."""
    return _rounded(w, x) if x.type.dtype.is_float else w.one("Identity", [x], x.type)


def _rounded(w: GraphWriter, x: X) -> X:
    size = unary.Abs()(x)
    whole = unary.Floor()(size)
    up = logic.LogicalNot()(logic.Less()(size - whole, x.constant(0.5)))
    return unary.Sign()(x) * (whole + cast(w, up, x.type.dtype))


_HIGHEST = 63
"""Powers of integers beside 0, 1 and -1 with larger exponents are beyond 64 bits."""


@exports("pow")
def _pow(w: GraphWriter, op: Op, x: X, y: X) -> X:
    """Powers of integers by products of squares: runtimes compute their Pow in floats."""
    if x.type.dtype.is_float:
        return _plain(w, "Pow", op, x, y)
    one, none = x.constant(1), y.constant(0)
    # What larger exponents leave of 64 bits is not kept; 0, 1 and -1 need whether they are odd.
    beyond = logic.Less()(y.constant(_HIGHEST), y)
    bits = Where()(beyond, logic.BitAnd()(y, y.constant(1)) + (_HIGHEST + 1), y)
    result, square = one, x
    for bit in range(_HIGHEST.bit_length() + 1):
        square = square * square if bit else square
        taken = logic.NotEqual()(logic.BitAnd()(bits, y.constant(1 << bit)), none)
        result = result * Where()(taken, square, one)
    if x.type.dtype.kind == "uint":
        return result
    fraction = logic.LogicalAnd()(logic.Less()(y, none), logic.NotEqual()(x * x, one))
    return Where()(fraction, x.constant(0), result)


@exports("trunc")
def _trunc(w: GraphWriter, op: Op, x: X) -> X:
    if not x.type.dtype.is_float:
        return w.one("Identity", [x], x.type)
    return unary.Sign()(x) * unary.Floor()(unary.Abs()(x))


@exports("expm1")
def _expm1(w: GraphWriter, op: Op, x: X) -> X:
    return unary.Exp()(x) - 1.0


@exports("log1p")
def _log1p(w: GraphWriter, op: Op, x: X) -> X:
    return unary.Log()(x + 1.0)


@exports("square")
def _square(w: GraphWriter, op: Op, x: X) -> X:
    return x * x


@exports("rsqrt")
def _rsqrt(w: GraphWriter, op: Op, x: X) -> X:
    return unary.Reciprocal()(unary.Sqrt()(x))


@exports("floor_div")
def _floor_div(w: GraphWriter, op: Op, x: X, y: X) -> X:
    quotient = _plain(w, "Div", op, x, y)
    if x.type.dtype.is_float:
        return unary.Floor()(quotient)
    if x.type.dtype.kind == "uint":
        return quotient
    zero = x.constant(0)
    inexact = logic.NotEqual()(quotient * y, x)
    apart = logic.LogicalXor()(logic.Less()(x, zero), logic.Less()(y, zero))
    return quotient - cast(w, logic.LogicalAnd()(inexact, apart), x.type.dtype)


@exports("mod")
def _mod(w: GraphWriter, op: Op, x: X, y: X) -> X:
    kind = op.infer(x.type, y.type)[0]
    return w.one("Mod", [x, y], kind, fmod=int(x.type.dtype.is_float))


@exports("bit_not")
def _bit_not(w: GraphWriter, op: Op, x: X) -> X:
    return w.one("Not" if x.type.dtype is dt.bool_ else "BitwiseNot", [x], x.type)


@exports("not_equal")
def _not_equal(w: GraphWriter, op: Op, x: X, y: X) -> X:
    return logic.LogicalNot()(logic.Equal()(x, y))


@exports("is_finite")
def _is_finite(w: GraphWriter, op: Op, x: X) -> X:
    return logic.LogicalNot()(logic.LogicalOr()(logic.IsNan()(x), logic.IsInf()(x)))


@exports("shift_left", "shift_right")
def _shift(w: GraphWriter, op: Op, x: X, y: X) -> X:
    """Signed integers by products and divisions by powers of two, which ONNX does not shift."""
    left = op.name == "shift_left"
    if x.type.dtype.kind == "uint":
        kind = op.infer(x.type, y.type)[0]
        return w.one("BitShift", [x, y], kind, direction="LEFT" if left else "RIGHT")
    power = cast(
        w, ew.Pow()(cast(w, y.constant(2), dt.float64), cast(w, y, dt.float64)), x.type.dtype
    )
    return x * power if left else ew.FloorDiv()(x, power)


@exports("atan2")
def _atan2(w: GraphWriter, op: Op, y: X, x: X) -> X:
    zero = x.constant(0.0)
    angle = unary.Atan()(y / x)
    behind = logic.Less()(x, zero)
    half = cast(w, logic.LogicalNot()(logic.Less()(y, zero)), x.type.dtype) * 2.0 - 1.0
    turned = angle + cast(w, behind, x.type.dtype) * half * np.pi
    nothing = logic.LogicalAnd()(logic.Equal()(x, zero), logic.Equal()(y, zero))
    return w.one("Where", [nothing, zero.broadcast_to(turned.type.shape), turned], turned.type)


@exports("clip")
def _clip(w: GraphWriter, op: Any, x: X) -> X:
    low, high = (None if v is None else x.constant(v, x.type.dtype) for v in (op.low, op.high))
    return w.one("Clip", [x, low, high], x.type)


@exports("saturate")
def _saturate(w: GraphWriter, op: Any, x: X) -> X:
    low, high = x.constant(float(op.low)), x.constant(float(op.high))
    if x.type.dtype.is_float:  # NaN becomes the lower limit
        x = w.one("Where", [logic.IsNan()(x), low.broadcast_to(x.type.shape), x], x.type)
    cut = w.one("Clip", [x, low, high], x.type)
    return cast(w, cut, op.dtype)


@exports("elu", "leaky_relu")
def _with_alpha(w: GraphWriter, op: Any, x: X) -> X:
    return w.one({"elu": "Elu", "leaky_relu": "LeakyRelu"}[op.name], [x], x.type, alpha=op.alpha)


# -- reductions --------------------------------------------------------------------------------

_REDUCTIONS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "prod": "ReduceProd",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "log_sum_exp": "ReduceLogSumExp",
}


@exports(*_REDUCTIONS)
def _reduce(w: GraphWriter, op: Any, x: X) -> X:
    kind = op.infer(x.type)[0]
    if not op.axes:
        return w.one("Identity", [x], x.type)
    keep = int(op.keepdims)
    if kind.dtype is not x.type.dtype:
        x = cast(w, x, kind.dtype)
    return w.one(_REDUCTIONS[op.name], [x, w.ints(*op.axes)], kind, keepdims=keep)


@exports("any", "all")
def _quantifier(w: GraphWriter, op: Any, x: X) -> X:
    kind = op.infer(x.type)[0]
    truth = x if x.type.dtype is dt.bool_ else logic.NotEqual()(x, x.constant(0))
    if not op.axes:
        return w.one("Identity", [truth], truth.type)
    if 0 in x.type.shape:
        value = op.name == "all"
        return w.constant(np.full(tuple(d for d in kind.shape if isinstance(d, int)), value))
    number = cast(w, truth, dt.int32)
    name = "ReduceMax" if op.name == "any" else "ReduceMin"
    found = w.one(
        name, [number, w.ints(*op.axes)], _of_type(kind, dt.int32), keepdims=int(op.keepdims)
    )
    return cast(w, found, dt.bool_)


def _of_type(type_: TensorType, dtype: DType) -> TensorType:
    return TensorType(dtype, type_.shape)


@exports("argmax", "argmin")
def _arg(w: GraphWriter, op: Any, x: X) -> X:
    kind = op.infer(x.type)[0]
    name = "ArgMax" if op.name == "argmax" else "ArgMin"
    attributes = {"axis": op.axis, "keepdims": int(op.keepdims)}
    return cast(w, w.one(name, [x], _of_type(kind, dt.int64), **attributes), kind.dtype)


@exports("softmax", "log_softmax")
def _softmax(w: GraphWriter, op: Any, x: X) -> X:
    name = "Softmax" if op.name == "softmax" else "LogSoftmax"
    return w.one(name, [x], x.type, axis=op.axis)


@exports("cum_sum")
def _cum_sum(w: GraphWriter, op: Any, x: X) -> X:
    axis = w.constant(np.array(op.axis, np.int64))
    flags = {"exclusive": int(op.exclusive), "reverse": int(op.reverse)}
    return w.one("CumSum", [x, axis], x.type, **flags)


@exports("sort", "top_k")
def _top_k(w: GraphWriter, op: Any, x: X) -> tuple[X, ...]:
    values, places = op.infer(x.type)
    k = op.k if op.name == "top_k" else x.extents[op.axis]
    largest = op.largest if op.name == "top_k" else op.descending
    attributes = {"axis": op.axis, "largest": int(largest), "sorted": 1}
    made = w.node("TopK", [x, w.ints(k)], values, _of_type(places, dt.int64), **attributes)
    return made[0], cast(w, made[1], places.dtype)


# -- products ----------------------------------------------------------------------------------


def _turned(x: X, turn: bool) -> X:
    rank = x.type.ndim
    return x.transpose((*range(rank - 2), rank - 1, rank - 2)) if turn else x


@exports("matmul", "exact_matmul")
def _matmul(w: GraphWriter, op: Any, x: X, y: X) -> X:
    kind = op.infer(x.type, y.type)[0]
    return w.one("MatMul", [_turned(x, op.transpose_x), _turned(y, op.transpose_y)], kind)


@exports("wide_matmul")
def _wide_matmul(w: GraphWriter, op: Any, x: X, y: X) -> X:
    kind = op.infer(x.type, y.type)[0]
    left, right = _turned(x, op.transpose_x), _turned(y, op.transpose_y)
    return w.one("MatMul", [cast(w, left, kind.dtype), cast(w, right, kind.dtype)], kind)


@exports("int_matmul")
def _int_matmul(w: GraphWriter, op: Any, x: X, y: X) -> X:
    kind = op.infer(x.type, y.type)[0]
    left, right = _turned(x, op.transpose_x), _turned(y, op.transpose_y)
    # MatMulInteger loses sums of two products of bytes on some processors; this is exact anywhere.
    return w.one("MatMul", [cast(w, left, dt.int32), cast(w, right, dt.int32)], kind)


@exports("layer_norm")
def _layer_norm(w: GraphWriter, op: Any, x: X, *affine: X) -> X:
    shape = x.type.shape[x.type.ndim - op.n_axes :]
    ones = affine[0] if affine else w.constant(np.ones(tuple(shape), x.type.dtype.numpy))
    bias = affine[1] if len(affine) > 1 else None
    inputs = [ones, *([bias] if bias is not None else [])]
    return w.one("LayerNormalization", [x, *inputs], x.type, axis=-op.n_axes, epsilon=op.eps)
