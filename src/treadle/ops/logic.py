"""Ops about truth and bits: comparisons, boolean algebra, bitwise operators, tests of floats."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from treadle.base import dtype as dt
from treadle.ops.arg import Arg
from treadle.ops.families import Binary, Compare, Predicate, Unary, oracle
from treadle.ops.op import Onnx, Sample, op
from treadle.ops.scalar import Scalar, call

_INTEGERS_ONLY = "works on integers and bool, which have no gradient"


@op
class Equal(Compare):
    """x == y; NaN equals nothing."""

    name = "equal"
    dtypes = dt.ALL
    onnx = Onnx("Equal", since=11)
    torch = "x == y"
    reference = oracle(np.equal)
    commutative = True

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x.equals(y)


@op
class NotEqual(Compare):
    """x != y; NaN differs from everything, itself included."""

    name = "not_equal"
    dtypes = dt.ALL
    torch = "x != y"
    reference = oracle(np.not_equal)
    commutative = True

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return call("ne", x, y)


@op
class Less(Compare):
    """x < y; False where either is NaN."""

    name = "less"
    onnx = Onnx("Less", since=9)
    torch = "x < y"
    reference = oracle(np.less)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x < y


@op
class LessEqual(Compare):
    """x <= y; False where either is NaN."""

    name = "less_equal"
    onnx = Onnx("LessOrEqual", since=12)
    torch = "x <= y"
    reference = oracle(np.less_equal)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x <= y


@op
class Greater(Compare):
    """x > y; False where either is NaN."""

    name = "greater"
    onnx = Onnx("Greater", since=9)
    torch = "x > y"
    reference = oracle(np.greater)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x > y


@op
class GreaterEqual(Compare):
    """x >= y; False where either is NaN."""

    name = "greater_equal"
    onnx = Onnx("GreaterOrEqual", since=12)
    torch = "x >= y"
    reference = oracle(np.greater_equal)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x >= y


class Logical(Binary):
    """A truth function of two truth values."""

    dtypes = (dt.bool_,)
    no_gradient = "works on bool, which has no gradient"


@op
class LogicalAnd(Logical):
    """True if both are True."""

    name = "logical_and"
    onnx = Onnx("And")
    torch = "torch.logical_and(x, y)"
    reference = oracle(np.logical_and)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x & y


@op
class LogicalOr(Logical):
    """True if at least one is True."""

    name = "logical_or"
    onnx = Onnx("Or")
    torch = "torch.logical_or(x, y)"
    reference = oracle(np.logical_or)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x | y


@op
class LogicalXor(Logical):
    """True if exactly one is True."""

    name = "logical_xor"
    onnx = Onnx("Xor")
    torch = "torch.logical_xor(x, y)"
    reference = oracle(np.logical_xor)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x ^ y


@op
class LogicalNot(Unary):
    """True where x is False."""

    name = "logical_not"
    dtypes = (dt.bool_,)
    no_gradient = "works on bool, which has no gradient"
    onnx = Onnx("Not", since=1)
    torch = "torch.logical_not(x)"
    reference = oracle(np.logical_not)

    def scalar(self, x: Scalar) -> Scalar:
        return ~x


class Bitwise(Binary):
    """An operator on every bit of two integers; on bool it is the logical one."""

    dtypes = (dt.bool_, *dt.INTEGERS)
    no_gradient = _INTEGERS_ONLY
    commutative = True
    rounded_once = True


@op
class BitAnd(Bitwise):
    """Bits that are set in both."""

    name = "bit_and"
    onnx = Onnx("BitwiseAnd", since=18)
    torch = "torch.bitwise_and(x, y)"
    reference = oracle(np.bitwise_and)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x & y


@op
class BitOr(Bitwise):
    """Bits that are set in at least one."""

    name = "bit_or"
    onnx = Onnx("BitwiseOr", since=18)
    torch = "torch.bitwise_or(x, y)"
    reference = oracle(np.bitwise_or)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x | y


@op
class BitXor(Bitwise):
    """Bits that are set in exactly one."""

    name = "bit_xor"
    onnx = Onnx("BitwiseXor", since=18)
    torch = "torch.bitwise_xor(x, y)"
    reference = oracle(np.bitwise_xor)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x ^ y


@op
class BitNot(Unary):
    """Every bit flipped; on bool the logical not."""

    name = "bit_not"
    dtypes = (dt.bool_, *dt.INTEGERS)
    no_gradient = _INTEGERS_ONLY
    onnx = Onnx("BitwiseNot", since=18)
    torch = "torch.bitwise_not(x)"
    reference = oracle(np.invert)
    rounded_once = True

    def scalar(self, x: Scalar) -> Scalar:
        return ~x


class Shift(Binary):
    """x shifted by y bits; a count that is negative or not below the width shifts all bits out."""

    dtypes = dt.INTEGERS
    domains: ClassVar[tuple[Arg, Arg]] = (Arg((3, 4), low=-9, high=9), Arg((3, 4), low=0, high=5))
    no_gradient = _INTEGERS_ONLY


@op
class ShiftLeft(Shift):
    """x << y: zeros enter on the right; 0 for a count that is negative or not below the width."""

    name = "shift_left"
    torch = "torch.bitwise_left_shift(x, y)"
    reference = oracle(np.left_shift)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return call("shl", x, y)


@op
class ShiftRight(Shift):
    """x >> y: copies of the sign enter on the left.

    For a count that is negative or not below the width only the sign remains: 0 or -1.
    """

    name = "shift_right"
    torch = "torch.bitwise_right_shift(x, y)"
    reference = oracle(np.right_shift)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return call("shr", x, y)


class FloatTest(Predicate):
    """A test of special floating values; what it says of integers follows from having none."""

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        special = Arg((5,), values=(0.0, 1.0, float("inf"), -float("inf"), float("nan")))
        return (*super().samples(), Sample(cls(), (special,), dtypes=dt.FLOATS))


@op
class IsNan(FloatTest):
    """True if x is not a number; False for integers."""

    name = "is_nan"
    onnx = Onnx("IsNaN", since=9)
    torch = "torch.isnan(x)"
    reference = oracle(np.isnan)

    def scalar(self, x: Scalar) -> Scalar:
        return call("isnan", x)


@op
class IsInf(FloatTest):
    """True if x is positive or negative infinity; False for integers."""

    name = "is_inf"
    onnx = Onnx("IsInf", since=10)
    torch = "torch.isinf(x)"
    reference = oracle(np.isinf)

    def scalar(self, x: Scalar) -> Scalar:
        return call("isinf", x)


@op
class IsFinite(FloatTest):
    """True if x is neither infinite nor NaN; True for integers."""

    name = "is_finite"
    torch = "torch.isfinite(x)"
    reference = oracle(np.isfinite)

    def scalar(self, x: Scalar) -> Scalar:
        return ~(call("isnan", x) | call("isinf", x))
