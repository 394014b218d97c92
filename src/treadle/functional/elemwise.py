"""Elementwise functions: arithmetic, comparisons, logic, elementary functions.

Operands are tensors, numbers or arrays; they broadcast and promote as the Python operators do.
Results have the broadcast shape.
"""

from __future__ import annotations

import builtins
from typing import Any

from treadle.functional.arguments import (
    as_float,
    as_tensor,
    binary,
    promote_all,
    unary,
    unary_float,
)
from treadle.ops import elementwise as ew
from treadle.ops import logic as lg
from treadle.ops import select as sl
from treadle.ops import unary as un
from treadle.tensor import Tensor

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "ceil",
    "clip",
    "cos",
    "cosh",
    "div",
    "equal",
    "erf",
    "exp",
    "expm1",
    "floor",
    "floor_div",
    "greater",
    "greater_equal",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "log1p",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "neg",
    "not_equal",
    "pow",
    "right_shift",
    "round",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "sub",
    "tan",
    "tanh",
]


def neg(x: Any) -> Tensor:
    """-x."""
    return unary(ew.Neg(), x)


def abs(x: Any) -> Tensor:
    """Absolute value."""
    return unary(un.Abs(), x)


def exp(x: Any) -> Tensor:
    """e to the power x."""
    return unary_float(un.Exp(), x)


def expm1(x: Any) -> Tensor:
    """exp(x) - 1, exact near 0."""
    return unary_float(un.Expm1(), x)


def erf(x: Any) -> Tensor:
    """Error function."""
    return unary_float(un.Erf(), x)


def log(x: Any) -> Tensor:
    """Natural logarithm."""
    return unary_float(un.Log(), x)


def log1p(x: Any) -> Tensor:
    """log(1 + x), exact near 0."""
    return unary_float(un.Log1p(), x)


def sqrt(x: Any) -> Tensor:
    """Square root."""
    return unary_float(un.Sqrt(), x)


def square(x: Any) -> Tensor:
    """x * x."""
    return unary(un.Square(), x)


def round(x: Any) -> Tensor:
    """Nearest integer, halves away from zero."""
    return unary(un.Round(), x)


def ceil(x: Any) -> Tensor:
    """Smallest integer not below x."""
    return unary(un.Ceil(), x)


def floor(x: Any) -> Tensor:
    """Largest integer not above x."""
    return unary(un.Floor(), x)


def cos(x: Any) -> Tensor:
    """Cosine, x in radians."""
    return unary_float(un.Cos(), x)


def sin(x: Any) -> Tensor:
    """Sine, x in radians."""
    return unary_float(un.Sin(), x)


def tan(x: Any) -> Tensor:
    """Tangent, x in radians."""
    return unary_float(un.Tan(), x)


def acos(x: Any) -> Tensor:
    """Inverse cosine, in radians."""
    return unary_float(un.Acos(), x)


def asin(x: Any) -> Tensor:
    """Inverse sine, in radians."""
    return unary_float(un.Asin(), x)


def atan(x: Any) -> Tensor:
    """Inverse tangent, in radians."""
    return unary_float(un.Atan(), x)


def cosh(x: Any) -> Tensor:
    """Hyperbolic cosine."""
    return unary_float(un.Cosh(), x)


def sinh(x: Any) -> Tensor:
    """Hyperbolic sine."""
    return unary_float(un.Sinh(), x)


def tanh(x: Any) -> Tensor:
    """Hyperbolic tangent."""
    return unary_float(un.Tanh(), x)


def acosh(x: Any) -> Tensor:
    """Inverse hyperbolic cosine."""
    return unary_float(un.Acosh(), x)


def asinh(x: Any) -> Tensor:
    """Inverse hyperbolic sine."""
    return unary_float(un.Asinh(), x)


def atanh(x: Any) -> Tensor:
    """Inverse hyperbolic tangent."""
    return unary_float(un.Atanh(), x)


def logical_not(x: Any) -> Tensor:
    """NOT of a bool tensor."""
    return unary(lg.LogicalNot(), x)


def add(x: Any, y: Any) -> Tensor:
    """x + y."""
    return binary(ew.Add(), x, y)


def sub(x: Any, y: Any) -> Tensor:
    """x - y."""
    return binary(ew.Sub(), x, y)


def mul(x: Any, y: Any) -> Tensor:
    """x * y."""
    return binary(ew.Mul(), x, y)


def div(x: Any, y: Any) -> Tensor:
    """x / y; integers give float32."""
    return binary(ew.Div(), x, y)


def floor_div(x: Any, y: Any) -> Tensor:
    """x / y rounded towards minus infinity."""
    return binary(ew.FloorDiv(), x, y)


def mod(x: Any, y: Any) -> Tensor:
    """Remainder: integers take the sign of y, floats that of x."""
    return binary(ew.Mod(), x, y)


def pow(x: Any, y: Any) -> Tensor:
    """x to the power y; integers give float32."""
    return binary(ew.Pow(), x, y)


def maximum(x: Any, y: Any) -> Tensor:
    """The larger of x and y; a tie's gradient goes to x."""
    return binary(ew.Maximum(), x, y)


def minimum(x: Any, y: Any) -> Tensor:
    """The smaller of x and y; a tie's gradient goes to x."""
    return binary(ew.Minimum(), x, y)


def atan2(y: Any, x: Any) -> Tensor:
    """Angle of the point (y, x), in radians."""
    return binary(ew.Atan2(), y, x)


def left_shift(x: Any, y: Any) -> Tensor:
    """x shifted left by y bits, integers only."""
    return binary(lg.ShiftLeft(), x, y)


def right_shift(x: Any, y: Any) -> Tensor:
    """x shifted right by y bits, integers only."""
    return binary(lg.ShiftRight(), x, y)


def logical_and(x: Any, y: Any) -> Tensor:
    """AND of bool tensors."""
    return binary(lg.LogicalAnd(), x, y)


def logical_or(x: Any, y: Any) -> Tensor:
    """OR of bool tensors."""
    return binary(lg.LogicalOr(), x, y)


def logical_xor(x: Any, y: Any) -> Tensor:
    """XOR of bool tensors."""
    return binary(lg.LogicalXor(), x, y)


def equal(x: Any, y: Any) -> Tensor:
    """x == y."""
    return binary(lg.Equal(), x, y)


def not_equal(x: Any, y: Any) -> Tensor:
    """x != y."""
    return binary(lg.NotEqual(), x, y)


def less(x: Any, y: Any) -> Tensor:
    """x < y."""
    return binary(lg.Less(), x, y)


def less_equal(x: Any, y: Any) -> Tensor:
    """x <= y."""
    return binary(lg.LessEqual(), x, y)


def greater(x: Any, y: Any) -> Tensor:
    """x > y."""
    return binary(lg.Greater(), x, y)


def greater_equal(x: Any, y: Any) -> Tensor:
    """x >= y."""
    return binary(lg.GreaterEqual(), x, y)


def logaddexp(x: Any, y: Any) -> Tensor:
    """log(exp(x) + exp(y)) without overflow."""
    like = as_tensor(x, y if isinstance(y, Tensor) else None)
    first, second = (as_float(t) for t in promote_all([like, as_tensor(y, like)]))
    # Not with maximum and abs, whose gradients at a tie do not add up to one half each.
    larger = first >= second
    high, low = sl.Where()(larger, first, second), sl.Where()(larger, second, first)
    gap = low - high
    equal_infinities = lg.LogicalAnd()(lg.IsInf()(high), low == high)
    return high + un.Softplus()(sl.Where()(equal_infinities, gap.constant(0.0), gap))


def clip(x: Any, lower: Any = None, upper: Any = None) -> Tensor:
    """x limited to [lower, upper]; gradients pass at number bounds.

    Args:
        x: any shape.
        lower, upper: numbers or tensors; at least one must be given. Float bounds promote
            integers.

    Raises:
        ValueError: neither bound is given.
    """
    if lower is None and upper is None:
        raise ValueError("clip needs at least one of lower and upper")
    x = as_tensor(x)
    numbers = (builtins.int, builtins.float)
    if x._kind.dtype.is_float and all(b is None or isinstance(b, numbers) for b in (lower, upper)):
        bounds = [None if b is None else builtins.float(b) for b in (lower, upper)]
        return unary(sl.Clip(*bounds), x)
    if lower is not None:
        x = maximum(x, lower)
    return x if upper is None else minimum(x, upper)
