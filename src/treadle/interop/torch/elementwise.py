"""Elementwise operators of ATen, and casts."""

from __future__ import annotations

import math
from typing import Any

import torch

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.symbol import Expr
from treadle.graph.builder import GraphOperand
from treadle.interop.conventions import remainder, truncated_quotient
from treadle.interop.torch.arrays import DTYPES
from treadle.interop.torch.symbols import LEAST, Described
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops import activation, logic, reduce, unary
from treadle.ops import elementwise as ew
from treadle.ops.op import Op
from treadle.ops.select import Clip, Where

V = GraphOperand

_UNARY: dict[str, Op] = {
    "abs": unary.Abs(),
    "acos": unary.Acos(),
    "acosh": unary.Acosh(),
    "asin": unary.Asin(),
    "asinh": unary.Asinh(),
    "atan": unary.Atan(),
    "atanh": unary.Atanh(),
    "ceil": unary.Ceil(),
    "cos": unary.Cos(),
    "cosh": unary.Cosh(),
    "erf": unary.Erf(),
    "exp": unary.Exp(),
    "expm1": unary.Expm1(),
    "floor": unary.Floor(),
    "log": unary.Log(),
    "log1p": unary.Log1p(),
    "neg": ew.Neg(),
    "reciprocal": unary.Reciprocal(),
    "relu": unary.Relu(),
    "rsqrt": unary.Rsqrt(),
    "sigmoid": unary.Sigmoid(),
    "sin": unary.Sin(),
    "sinh": unary.Sinh(),
    "sqrt": unary.Sqrt(),
    "tan": unary.Tan(),
    "tanh": unary.Tanh(),
    "trunc": unary.Trunc(),
    "silu": activation.Silu(),
}


def _register_unary() -> None:
    for name, op in _UNARY.items():

        def lower(call: OperatorCall, x: V, _op: Op = op, _name: str = name) -> V:
            if x.type.dtype.is_integer and _name in ("ceil", "floor", "trunc"):
                return x
            return _op(x.astype(call.dtype))

        lowers(f"{name}.default")(lower)


_register_unary()


@lowers("sign.default")
def _sign(call: OperatorCall, x: V) -> V:
    if x.type.dtype is dt.bool_:
        return x
    made = unary.Sign()(x)
    if not x.type.dtype.is_float:
        return made
    return Where()(logic.Equal()(x, x), made, made.constant(0))  # PyTorch's sign of NaN is 0


def _scaled_log(base: float) -> Any:
    def lower(call: OperatorCall, x: V) -> V:
        return unary.Log()(x.astype(call.dtype)) / math.log(base)

    return lower


lowers("log2.default")(_scaled_log(2))
lowers("log10.default")(_scaled_log(10))


@lowers("exp2.default")
def _exp2(call: OperatorCall, x: V) -> V:
    y = x.astype(call.dtype)
    return ew.Pow()(y.constant(2.0), y)


@lowers("round.default")
def _round(call: OperatorCall, x: V) -> V:
    made: V = unary.RoundEven()(x)
    return made


# -- two operands ------------------------------------------------------------------------------


def _both(call: OperatorCall, x: Any, y: Any, dtype: DType) -> tuple[V, V]:
    anchor = x if isinstance(x, GraphOperand) else y
    like = anchor if isinstance(anchor, GraphOperand) else None
    return call.operand(x, dtype, like), call.operand(y, dtype, like)


def _arithmetic(op: Op) -> Any:
    def lower(call: OperatorCall, x: Any, y: Any, alpha: Any = 1) -> V:
        first, second = _both(call, x, y, call.dtype)
        if alpha != 1:
            second = second * alpha
        return op(first, second)

    return lower


def _arithmetic_of_truths(op: Op, of_truths: Op) -> Any:
    """Return a lowering: bools are added as "or", multiplied as "and"; alpha 0 makes y False."""
    of_numbers = _arithmetic(op)

    def lower(call: OperatorCall, x: Any, y: Any, alpha: Any = 1) -> V:
        if call.dtype is dt.bool_:
            first, second = _both(call, x, y, dt.bool_)
            return of_truths(
                first, second if alpha else logic.LogicalAnd()(second, second.constant(False))
            )
        made: V = of_numbers(call, x, y, alpha=alpha)
        return made

    return lower


_BINARY_OF_TRUTHS: dict[str, tuple[Op, Op]] = {
    "add": (ew.Add(), logic.LogicalOr()),
    "mul": (ew.Mul(), logic.LogicalAnd()),
}
LARGER = _arithmetic_of_truths(ew.Maximum(), logic.LogicalOr())
SMALLER = _arithmetic_of_truths(ew.Minimum(), logic.LogicalAnd())
lowers("maximum.default")(LARGER)
lowers("minimum.default")(SMALLER)
for _name, _ops in _BINARY_OF_TRUTHS.items():
    _lower = _arithmetic_of_truths(*_ops)
    lowers(f"{_name}.default", f"{_name}.Tensor", f"{_name}.Scalar")(_lower)

_BINARY: dict[str, Op] = {
    "sub": ew.Sub(),
    "atan2": ew.Atan2(),
    "bitwise_and": logic.BitAnd(),
    "bitwise_or": logic.BitOr(),
    "bitwise_xor": logic.BitXor(),
}
for _name, _op in _BINARY.items():
    lowers(f"{_name}.default", f"{_name}.Tensor", f"{_name}.Scalar")(_arithmetic(_op))
for _side, _op in {"left": logic.ShiftLeft(), "right": logic.ShiftRight()}.items():
    _names = f"bitwise_{_side}_shift", f"__{_side[0]}shift__"
    _kinds = "Tensor", "Scalar", "Scalar_Tensor"
    lowers(*(f"{n}.{kind}" for n in _names for kind in _kinds))(_arithmetic(_op))


@lowers("fma.default")
def _multiply_add(call: OperatorCall, x: Any, y: Any, z: Any) -> V:
    """Compute x + y z as in PyTorch's parts of `addcmul` and `lerp`; the product is
    rounded here.
    """
    first, second = _both(call, x, y, call.dtype)
    return first * second + call.operand(z, call.dtype)


@lowers("lcm.default")
def _lcm(call: OperatorCall, x: V, y: V) -> V:
    first, second = (v.astype(call.dtype) for v in (x, y))
    common = _gcd(call, first, second)
    known = Where()(logic.Equal()(common, common.constant(0)), common.constant(1), common)
    made: V = unary.Abs()(truncated_quotient(first, known) * second)
    return made


@lowers("gcd.default")
def _gcd(call: OperatorCall, x: V, y: V) -> V:
    """Euclid's algorithm, until no element has a remainder."""
    first, second = (v.astype(call.dtype).broadcast_to(call.shape) for v in (x, y))

    def goes_on(first: V, second: V) -> V:
        left: V = reduce.Max(tuple(range(len(call.shape))), False)(
            logic.NotEqual()(second, second.constant(0)).astype(dt.uint8)
        )
        return logic.NotEqual()(left, left.constant(0))

    def turn(first: V, second: V) -> tuple[V, V]:
        ends = logic.Equal()(second, second.constant(0))
        rest = remainder(first, Where()(ends, second.constant(1), second), truncated=True)
        return Where()(ends, first, second), Where()(ends, second, rest)

    if 0 in call.shape:
        return first
    found, _ = call.builder.while_loop(goes_on, turn, (first, second))
    return unary.Abs()(found)


@lowers("rsub.Scalar", "rsub.Tensor")
def _rsub(call: OperatorCall, x: V, y: Any, alpha: Any = 1) -> V:
    first, second = _both(call, x, y, call.dtype)
    return second - (first if alpha == 1 else first * alpha)


@lowers("div.Tensor", "div.Scalar", "true_divide.Tensor", "true_divide.Scalar")
def _div(call: OperatorCall, x: Any, y: Any) -> V:
    return ew.Div()(*_both(call, x, y, call.dtype))


@lowers("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(call: OperatorCall, x: Any, y: Any, *, rounding_mode: str | None = None) -> V:
    first, second = _both(call, x, y, call.dtype)
    if rounding_mode is None:
        return ew.Div()(first, second)
    if rounding_mode == "floor":
        return ew.FloorDiv()(first, second)
    made: V = truncated_quotient(first, second)
    return made


@lowers("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(call: OperatorCall, x: Any, y: Any) -> V:
    made: V = remainder(*_both(call, x, y, call.dtype), truncated=False)
    return made


@lowers("fmod.Tensor", "fmod.Scalar")
def _fmod(call: OperatorCall, x: Any, y: Any) -> V:
    made: V = remainder(*_both(call, x, y, call.dtype), truncated=True)
    return made


@lowers("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(call: OperatorCall, x: Any, y: Any) -> V:
    if isinstance(x, GraphOperand) and isinstance(y, (int, float)) and call.dtype.is_float:
        return x.astype(call.dtype) ** y
    wide = call.dtype if call.dtype.is_float else dt.int64
    made: V = ew.Pow()(*_both(call, x, y, wide))
    return made.astype(call.dtype)


# -- comparisons and logic ---------------------------------------------------------------------


def _typed(value: Any) -> Any:
    """Return the value that PyTorch finds the common element type of."""
    if isinstance(value, Expr):
        return LEAST
    return value.example() if isinstance(value, Described) else value


def _compared_as(call: OperatorCall, x: Any, y: Any) -> DType:
    given = (i if i is not None else v for i, v in zip(call.inputs, (x, y), strict=False))
    parts = [_typed(v) for v in given]
    return DTYPES[torch.result_type(*parts)]


def _comparison(op: Op) -> Any:
    def lower(call: OperatorCall, x: Any, y: Any) -> V:
        return op(*_both(call, x, y, _compared_as(call, x, y)))

    return lower


_COMPARISONS: dict[str, Op] = {
    "eq": logic.Equal(),
    "ne": logic.NotEqual(),
    "lt": logic.Less(),
    "le": logic.LessEqual(),
    "gt": logic.Greater(),
    "ge": logic.GreaterEqual(),
}
for _name, _op in _COMPARISONS.items():
    lowers(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_op))


def truth(x: V) -> V:
    """Return whether elements are not 0."""
    return x if x.type.dtype is dt.bool_ else logic.NotEqual()(x, x.constant(0))


@lowers("logical_not.default")
def _logical_not(call: OperatorCall, x: V) -> V:
    return logic.LogicalNot()(truth(x))


@lowers("logical_and.default")
def _logical_and(call: OperatorCall, x: V, y: V) -> V:
    return logic.LogicalAnd()(truth(x), truth(y))


@lowers("logical_or.default")
def _logical_or(call: OperatorCall, x: V, y: V) -> V:
    return logic.LogicalOr()(truth(x), truth(y))


@lowers("logical_xor.default")
def _logical_xor(call: OperatorCall, x: V, y: V) -> V:
    return logic.LogicalXor()(truth(x), truth(y))


@lowers("bitwise_not.default")
def _bitwise_not(call: OperatorCall, x: V) -> V:
    return logic.LogicalNot()(x) if x.type.dtype is dt.bool_ else logic.BitNot()(x)


def _asked_of_numbers(op: Op) -> Any:
    """Return a lowering of a question that is False for bools, neither NaN nor infinite."""

    def lower(call: OperatorCall, x: V) -> V:
        if x.type.dtype is dt.bool_:
            return x.constant(False).broadcast_to(call.shape)
        return op(x)

    return lower


lowers("isnan.default")(_asked_of_numbers(logic.IsNan()))
lowers("isinf.default")(_asked_of_numbers(logic.IsInf()))


@lowers("where.self")
def _where(call: OperatorCall, mask: V, x: V, y: V) -> V:
    first, second = _both(call, x, y, call.dtype)
    return Where()(mask, first, second).broadcast_to(call.shape)


@lowers("masked_fill.Scalar")
def _masked_fill(call: OperatorCall, x: V, mask: V, value: Any) -> V:
    return Where()(mask, call.operand(value, x.type.dtype, x), x).broadcast_to(call.shape)


# -- activations -------------------------------------------------------------------------------


@lowers("gelu.default")
def _gelu(call: OperatorCall, x: V, *, approximate: str = "none") -> V:
    return activation.Gelu(approximate)(x)


@lowers("clamp.default", "hardtanh.default")
def _clamp(call: OperatorCall, x: V, low: Any = None, high: Any = None) -> V:
    if any(isinstance(v, GraphOperand) for v in (low, high)):  # numbers made of sizes
        made: V = _clamp_by_tensors(call, x, low, high)
        return made
    if call.dtype.is_float:
        low, high = (None if v is None else float(v) for v in (low, high))
    else:
        low, high = (None if v is None else int(v) for v in (low, high))
    return Clip(low, high)(x.astype(call.dtype))


@lowers("clamp_min.default")
def _clamp_min(call: OperatorCall, x: V, low: Any) -> V:
    made: V = _clamp(call, x, low)
    return made


@lowers("clamp.Tensor")
def _clamp_by_tensors(call: OperatorCall, x: V, low: Any = None, high: Any = None) -> V:
    y = x.astype(call.dtype)
    y = y if low is None else LARGER(call, y, low)
    return y if high is None else SMALLER(call, y, high)


@lowers("leaky_relu.default")
def _leaky_relu(call: OperatorCall, x: V, slope: Any = 0.01) -> V:
    if isinstance(slope, GraphOperand):
        return Where()(logic.Greater()(x, x.constant(0)), x, x * slope.astype(x.type.dtype))
    return activation.LeakyRelu(slope)(x)


@lowers("elu.default")
def _elu(
    call: OperatorCall, x: V, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> V:
    zero = x.constant(0)
    low = (unary.Expm1()(ew.Minimum()(x, zero) * input_scale)) * (alpha * scale)
    return ew.Maximum()(x, zero) * scale + low


@lowers("hardsigmoid.default")
def _hardsigmoid(call: OperatorCall, x: V) -> V:
    return Clip(0.0, 1.0)(x / 6.0 + 0.5)


@lowers("hardswish.default")
def _hardswish(call: OperatorCall, x: V) -> V:
    return x * Clip(0.0, 6.0)(x + 3.0) / 6.0


# -- casts and copies --------------------------------------------------------------------------


@lowers(
    "_to_copy.default",
    "convert_element_type.default",
    "to.dtype",
)
def _to_copy(call: OperatorCall, x: Any, *args: Any, **kwargs: Any) -> V:
    if call.dtype is dt.bool_ and isinstance(x, GraphOperand):
        return truth(x)
    return call.operand(x, call.dtype)


@lowers(
    "clone.default",
    "alias.default",
    "detach.default",
    "contiguous.default",
    "lift_fresh_copy.default",
    "copy.default",
)
def _same(call: OperatorCall, x: V, *args: Any, **kwargs: Any) -> V:
    if args and isinstance(args[0], GraphOperand):  # copy: the second argument's values
        given: V = args[0]
        return given.astype(call.dtype).broadcast_to(call.shape)
    return x
