"""Translations of elementwise ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openvino import opset15 as opset

from treadle.backends.api import Support, no, yes
from treadle.backends.openvino.table import (
    MOVED,
    TYPES,
    Output,
    both,
    floats,
    moved,
    of_types,
    scalar,
    translates,
)
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops import activation as act
from treadle.ops import elementwise as el
from treadle.ops import logic, select, transfer, unary
from treadle.ops.op import Op

_ONE: dict[type[Op], Any] = {
    unary.Abs: opset.absolute,
    unary.Acos: opset.acos,
    unary.Acosh: opset.acosh,
    unary.Asin: opset.asin,
    unary.Asinh: opset.asinh,
    unary.Atan: opset.atan,
    unary.Atanh: opset.atanh,
    unary.Ceil: opset.ceiling,
    unary.Cos: opset.cos,
    unary.Cosh: opset.cosh,
    unary.Erf: opset.erf,
    unary.Exp: opset.exp,
    unary.Floor: opset.floor,
    unary.Log: opset.log,
    unary.Relu: opset.relu,
    unary.Sigmoid: opset.sigmoid,
    unary.Sign: opset.sign,
    unary.Sin: opset.sin,
    unary.Sinh: opset.sinh,
    unary.Softplus: opset.softplus,
    unary.Sqrt: opset.sqrt,
    unary.Tan: opset.tan,
    unary.Tanh: opset.tanh,
    el.Neg: opset.negative,
    act.HSigmoid: opset.hsigmoid,
    act.HSwish: opset.hswish,
    act.Silu: opset.swish,
    act.Softsign: opset.softsign,
}
_TWO: dict[type[Op], Any] = {
    el.Div: opset.divide,
    el.Pow: opset.power,
}
_WHOLE: dict[type[Op], Any] = {
    el.Add: opset.add,
    el.Sub: opset.subtract,
    el.Mul: opset.multiply,
    el.Maximum: opset.maximum,
    el.Minimum: opset.minimum,
}
"""Those that are exact for int32, too."""
_COMPARE: dict[type[Op], Any] = {
    logic.Equal: opset.equal,
    logic.NotEqual: opset.not_equal,
    logic.Less: opset.less,
    logic.LessEqual: opset.less_equal,
    logic.Greater: opset.greater,
    logic.GreaterEqual: opset.greater_equal,
}
_LOGICAL: dict[type[Op], Any] = {
    logic.LogicalAnd: opset.logical_and,
    logic.LogicalOr: opset.logical_or,
    logic.LogicalXor: opset.logical_xor,
}


@translates(*_ONE)
def _one(op: Op, x: Output) -> Output:
    return _ONE[type(op)](x)


@translates(*_TWO)
def _two(op: Op, x: Output, y: Output) -> Output:
    return _TWO[type(op)](x, y)


@translates(*_WHOLE, when=of_types(dt.float32, dt.int32))
def _whole(op: Op, x: Output, y: Output) -> Output:
    return _WHOLE[type(op)](x, y)


@translates(*_COMPARE, when=moved)
def _compare(op: Op, x: Output, y: Output) -> Output:
    return _COMPARE[type(op)](x, y)


@translates(*_LOGICAL, when=of_types(dt.bool_))
def _logical(op: Op, x: Output, y: Output) -> Output:
    return _LOGICAL[type(op)](x, y)


@translates(logic.LogicalNot, when=of_types(dt.bool_))
def _not(op: Op, x: Output) -> Output:
    return opset.logical_not(x)


_TEST: dict[type[Op], Any] = {
    logic.IsFinite: opset.is_finite,
    logic.IsNan: opset.is_nan,
}


@translates(*_TEST)
def _test(op: Op, x: Output) -> Output:
    return _TEST[type(op)](x)


@translates(unary.Round)
def _round(op: Op, x: Output) -> Output:
    return opset.round(x, "half_away_from_zero")


@translates(unary.RoundEven)
def _round_even(op: Op, x: Output) -> Output:
    return opset.round(x, "half_to_even")


@translates(unary.Square)
def _square(op: Op, x: Output) -> Output:
    return opset.multiply(x, x)


@translates(unary.Rsqrt)
def _rsqrt(op: Op, x: Output) -> Output:
    return opset.divide(scalar(1.0), opset.sqrt(x))


@translates(unary.Reciprocal)
def _reciprocal(op: Op, x: Output) -> Output:
    return opset.divide(scalar(1.0), x)


@translates(act.Gelu)
def _gelu(op: act.Gelu, x: Output) -> Output:
    return opset.gelu(x, "tanh" if op.approximate == "tanh" else "erf")


@translates(act.LeakyRelu)
def _leaky_relu(op: act.LeakyRelu, x: Output) -> Output:
    return opset.prelu(x, scalar(op.alpha))


@translates(act.Elu)
def _elu(op: act.Elu, x: Output) -> Output:
    return opset.elu(x, op.alpha)


@translates(act.Relu6)
def _relu6(op: Op, x: Output) -> Output:
    return opset.clamp(x, 0.0, 6.0)


def _ordered(op: Any, types: Sequence[TensorType]) -> Support:
    if op.low is not None and op.high is not None and not op.low <= op.high:
        return no("attribute", "clip with a low bound above the high one")
    return yes()


@translates(select.Clip, when=both(floats, _ordered))
def _clip(op: select.Clip, x: Output) -> Output:
    if op.low is not None and op.high is not None:
        return opset.clamp(x, op.low, op.high)
    if op.low is not None:
        return opset.maximum(x, scalar(op.low))
    return x if op.high is None else opset.minimum(x, scalar(op.high))


@translates(select.Where, when=of_types(*MOVED))
def _where(op: Op, mask: Output, x: Output, y: Output) -> Output:
    return opset.select(mask, x, y)


@translates(transfer.Identity, when=moved)
def _identity(op: Op, x: Output) -> Output:
    return x


def _castable(op: Any, types: Sequence[TensorType]) -> Support:
    source, target = types[0].dtype, op.dtype
    if target not in MOVED:
        return no("dtype", f"a cast to {target.name}")
    if source.is_float and target.is_integer:
        return no("precision", "a cast from float to integer saturates there, and wraps here")
    if source is dt.int32 and target in (dt.int8, dt.uint8):
        return no(
            "precision", f"a cast from int32 to {target.name} saturates there, and wraps here"
        )
    return yes()


@translates(el.Cast, when=both(moved, _castable))
def _cast(op: el.Cast, x: Output) -> Output:
    if op.dtype is dt.bool_ and x.get_element_type() != TYPES[dt.bool_]:
        zero = opset.convert(scalar(0.0), x.get_element_type())
        return opset.not_equal(x, zero)
    return opset.convert(x, TYPES[op.dtype])
