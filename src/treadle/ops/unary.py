"""Functions of one number.

Formulas of gradients: NIST Digital Library of Mathematical Functions, chapters 4 and 7.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.ops import special
from treadle.ops.arg import Arg
from treadle.ops.families import NUMBERS, Unary, UnaryFloat, oracle
from treadle.ops.op import Onnx, Pullback, Sample, V, op
from treadle.ops.precision import widen_array
from treadle.ops.scalar import Scalar, call, const, maximum, select
from treadle.ops.select import Where

_POSITIVE = Arg((3, 4), low=0.2, high=3.0)
_INSIDE_ONE = Arg((3, 4), low=-0.9, high=0.9)
_KINK_AT_ZERO = Arg((3, 4), avoid=(0.0,))


class Smooth(UnaryFloat):
    """A differentiable function whose scalar code is the intrinsic of the same name."""

    def scalar(self, x: Scalar) -> Scalar:
        return call(self.name, x)


class PiecewiseConstant(Unary):
    """A step function: zero gradient almost everywhere, so no cotangent is passed on."""

    no_gradient = "is piecewise constant: nothing flows back through it"
    rounded_once = True

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (None,)


# ── signs and powers ──────────────────────────────────────────────────────────────────────────


@op
class Abs(Unary):
    """Absolute value; the smallest integer wraps to itself. The gradient at 0 is -1."""

    name = "abs"
    domain = _KINK_AT_ZERO
    onnx = Onnx("Abs", since=6)
    torch = "torch.abs(x)"
    reference = oracle(np.abs)
    rounded_once = True
    homogeneous = True
    by_sign = True

    def scalar(self, x: Scalar) -> Scalar:
        return call("abs", x)

    def grad(self, dy: V, x: V, y: V) -> V:
        return Where()(x > 0, dy, -dy)


@op
class Sign(PiecewiseConstant):
    """-1, 0 or 1 by the sign of x; 0 for -0, NaN for NaN."""

    name = "sign"
    domain = _KINK_AT_ZERO
    onnx = Onnx("Sign", since=9)
    torch = "torch.sign(x)"

    def reference(self, x: Array) -> Array:
        found = np.sign(x)
        # The sign of a bfloat16 zero is that zero.
        return np.asarray(found + x.dtype.type(0) if x.dtype == dt.bfloat16.numpy else found)

    def scalar(self, x: Scalar) -> Scalar:
        # A zero has no sign left, and NaN stays.
        return select(x > 0, 1, select(x < 0, -const(1), x + 0))


@op
class Square(Unary):
    """x * x; integers wrap."""

    name = "square"
    torch = "torch.square(x)"
    reference = oracle(np.square)
    rounded_once = True

    def scalar(self, x: Scalar) -> Scalar:
        return x * x

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * (x * 2.0)


@op
class Sqrt(Smooth):
    """Square root; NaN below 0, and an infinite gradient at 0."""

    name = "sqrt"
    domain = _POSITIVE
    onnx = Onnx("Sqrt", since=6)
    torch = "torch.sqrt(x)"
    reference = oracle(np.sqrt)
    rounded_once = True
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * 0.5 / y


@op
class Rsqrt(UnaryFloat):
    """1 / sqrt(x); infinite at 0, NaN below."""

    name = "rsqrt"
    domain = _POSITIVE
    torch = "torch.rsqrt(x)"
    amp = "high"

    def reference(self, x: Array) -> Array:
        return np.asarray(np.reciprocal(np.sqrt(widen_array(x)))).astype(x.dtype, copy=False)

    def scalar(self, x: Scalar) -> Scalar:
        return 1 / call("sqrt", x)

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * -0.5 * (y * y * y)


@op
class Reciprocal(UnaryFloat):
    """1 / x; infinite at 0."""

    name = "reciprocal"
    domain = Arg((3, 4), avoid=(0.0,))
    onnx = Onnx("Reciprocal", since=6)
    torch = "torch.reciprocal(x)"
    reference = oracle(np.reciprocal)
    amp = "high"

    def scalar(self, x: Scalar) -> Scalar:
        return 1 / x

    def grad(self, dy: V, x: V, y: V) -> V:
        return -(dy * y * y)


# ── exponentials and logarithms ───────────────────────────────────────────────────────────────


@op
class Exp(Smooth):
    """e to the power x."""

    name = "exp"
    onnx = Onnx("Exp", since=6)
    torch = "torch.exp(x)"
    reference = oracle(np.exp)
    amp = "high"
    costly = True

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * y


@op
class Expm1(Smooth):
    """exp(x) - 1, accurate near 0."""

    name = "expm1"
    torch = "torch.expm1(x)"
    reference = oracle(np.expm1)
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * (y + 1.0)


@op
class Log(Smooth):
    """Natural logarithm; minus infinity at 0, NaN below."""

    name = "log"
    domain = _POSITIVE
    onnx = Onnx("Log", since=6)
    torch = "torch.log(x)"
    reference = oracle(np.log)
    amp = "high"
    costly = True

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy / x


@op
class Log1p(Smooth):
    """log(1 + x), accurate near 0; minus infinity at -1, NaN below."""

    name = "log1p"
    domain = Arg((3, 4), low=-0.8, high=3.0)
    torch = "torch.log1p(x)"
    reference = oracle(np.log1p)
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy / (x + 1.0)


# ── circular functions (angles in radians) ────────────────────────────────────────────────────


@op
class Sin(Smooth):
    """Sine; NaN for infinities."""

    name = "sin"
    onnx = Onnx("Sin")
    torch = "torch.sin(x)"
    reference = oracle(np.sin)
    amp = "high"
    costly = True

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * Cos()(x)


@op
class Cos(Smooth):
    """Cosine; NaN for infinities."""

    name = "cos"
    onnx = Onnx("Cos")
    torch = "torch.cos(x)"
    reference = oracle(np.cos)
    amp = "high"
    costly = True

    def grad(self, dy: V, x: V, y: V) -> V:
        return -(dy * Sin()(x))


@op
class Tan(Smooth):
    """Tangent; NaN for infinities."""

    name = "tan"
    domain = Arg((3, 4), low=-1.2, high=1.2)
    onnx = Onnx("Tan")
    torch = "torch.tan(x)"
    reference = oracle(np.tan)
    amp = "high"
    costly = True

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * (y * y + 1.0)


@op
class Asin(Smooth):
    """Inverse sine in [-pi/2, pi/2]; NaN outside [-1, 1]."""

    name = "asin"
    domain = _INSIDE_ONE
    onnx = Onnx("Asin")
    torch = "torch.asin(x)"
    reference = oracle(np.arcsin)
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * Rsqrt()(1.0 - x * x)


@op
class Acos(Smooth):
    """Inverse cosine in [0, pi]; NaN outside [-1, 1]."""

    name = "acos"
    domain = _INSIDE_ONE
    onnx = Onnx("Acos")
    torch = "torch.acos(x)"
    reference = oracle(np.arccos)
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return -(dy * Rsqrt()(1.0 - x * x))


@op
class Atan(Smooth):
    """Inverse tangent in [-pi/2, pi/2]."""

    name = "atan"
    onnx = Onnx("Atan")
    torch = "torch.atan(x)"
    reference = oracle(np.arctan)
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy / (x * x + 1.0)


# ── hyperbolic functions ──────────────────────────────────────────────────────────────────────


@op
class Sinh(Smooth):
    """Hyperbolic sine."""

    name = "sinh"
    onnx = Onnx("Sinh", since=9)
    torch = "torch.sinh(x)"
    reference = oracle(np.sinh)
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * Cosh()(x)


@op
class Cosh(Smooth):
    """Hyperbolic cosine."""

    name = "cosh"
    onnx = Onnx("Cosh", since=9)
    torch = "torch.cosh(x)"
    reference = oracle(np.cosh)
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * Sinh()(x)


@op
class Tanh(Smooth):
    """Hyperbolic tangent."""

    name = "tanh"
    onnx = Onnx("Tanh", since=6)
    torch = "torch.tanh(x)"
    reference = oracle(np.tanh)
    costly = True

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * (1.0 - y * y)


@op
class Asinh(Smooth):
    """Inverse hyperbolic sine."""

    name = "asinh"
    onnx = Onnx("Asinh", since=9)
    torch = "torch.asinh(x)"
    reference = oracle(np.arcsinh)
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * Rsqrt()(x * x + 1.0)


@op
class Acosh(Smooth):
    """Inverse hyperbolic cosine, not negative; NaN below 1."""

    name = "acosh"
    domain = Arg((3, 4), low=1.2, high=4.0)
    onnx = Onnx("Acosh", since=9)
    torch = "torch.acosh(x)"
    reference = oracle(np.arccosh)
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * Rsqrt()(x * x - 1.0)


@op
class Atanh(Smooth):
    """Inverse hyperbolic tangent; infinite at -1 and 1, NaN outside."""

    name = "atanh"
    domain = _INSIDE_ONE
    onnx = Onnx("Atanh", since=9)
    torch = "torch.atanh(x)"
    reference = oracle(np.arctanh)
    amp = "high"

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy / (1.0 - x * x)


# ── activations and the error function ────────────────────────────────────────────────────────


@op
class Erf(Smooth):
    """Error function: 2/sqrt(pi) times the integral of exp(-t*t) from 0 to x."""

    name = "erf"
    onnx = Onnx("Erf", since=9)
    torch = "torch.erf(x)"
    reference = oracle(special.erf)
    costly = True

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * (Exp()(-(x * x)) * (2.0 / math.sqrt(math.pi)))


@op
class Sigmoid(UnaryFloat):
    """Logistic function 1 / (1 + exp(-x))."""

    name = "sigmoid"
    onnx = Onnx("Sigmoid", since=6)
    torch = "torch.sigmoid(x)"

    def reference(self, x: Array) -> Array:
        # exp overflows to infinity for very negative x, and 1 / inf is the right limit.
        wide = widen_array(x)
        made = np.reciprocal(np.exp(-wide) + wide.dtype.type(1))
        return np.asarray(made).astype(x.dtype, copy=False)

    def scalar(self, x: Scalar) -> Scalar:
        return 1 / (call("exp", -x) + 1)

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * (y * (1.0 - y))


_ZEROS = {d.numpy: np.zeros((), d.numpy) for d in NUMBERS}


@op
class Relu(Unary):
    """max(x, 0); NaN stays NaN, -0 becomes 0. The gradient at 0 is 0."""

    name = "relu"
    domain = _KINK_AT_ZERO
    onnx = Onnx("Relu", since=6)
    torch = "F.relu(x)"
    rounded_once = True
    homogeneous = True
    by_sign = True

    def reference(self, x: Array) -> Array:
        # A 0-d array is taken up twice as fast as a scalar.
        return maximum(x, _ZEROS[x.dtype])

    def scalar(self, x: Scalar) -> Scalar:
        return call("max", x, 0)

    def grad(self, dy: V, x: V, y: V) -> V:
        return Where()(y > 0, dy, dy.constant(0.0))


@op
class Softplus(UnaryFloat):
    """log(1 + exp(x)), computed as max(x, 0) + log1p(exp(-|x|)), which cannot overflow."""

    name = "softplus"
    onnx = Onnx("Softplus", since=1)
    torch = "F.softplus(x)"
    amp = "high"

    def reference(self, x: Array) -> Array:
        wide = widen_array(x)
        made = np.maximum(wide, wide.dtype.type(0)) + np.log1p(np.exp(-np.abs(wide)))
        return np.asarray(made).astype(x.dtype, copy=False)

    def scalar(self, x: Scalar) -> Scalar:
        return call("max", x, 0) + call("log1p", call("exp", -call("abs", x)))

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * Sigmoid()(x)


# ── rounding ──────────────────────────────────────────────────────────────────────────────────


class Rounding(PiecewiseConstant):
    """Rounding to a whole number; integers are already whole."""

    _halves: ClassVar[Arg] = Arg((6,), values=(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (*super().samples(), Sample(cls(), (cls._halves,), dtypes=dt.FLOATS))


@op
class Floor(Rounding):
    """The largest whole number not above x."""

    name = "floor"
    onnx = Onnx("Floor", since=6)
    torch = "torch.floor(x)"

    def reference(self, x: Array) -> Array:
        return x if x.dtype.kind in "iu" else np.floor(x)

    def scalar(self, x: Scalar) -> Scalar:
        return call("floor", x)


@op
class Ceil(Rounding):
    """The smallest whole number not below x."""

    name = "ceil"
    onnx = Onnx("Ceil", since=6)
    torch = "torch.ceil(x)"

    def reference(self, x: Array) -> Array:
        return x if x.dtype.kind in "iu" else np.ceil(x)

    def scalar(self, x: Scalar) -> Scalar:
        return call("ceil", x)


@op
class Trunc(Rounding):
    """x without its fraction: rounding toward 0."""

    name = "trunc"
    torch = "torch.trunc(x)"

    def reference(self, x: Array) -> Array:
        return x if x.dtype.kind in "iu" else np.trunc(x)

    def scalar(self, x: Scalar) -> Scalar:
        return call("trunc", x)


@op
class Round(Rounding):
    """The nearest whole number; halves are rounded away from 0."""

    name = "round"

    def reference(self, x: Array) -> Array:
        if x.dtype.kind in "iu":
            return x
        whole = np.trunc(x)
        # x - whole is exact, unlike x + 0.5 just below a half.
        away = np.abs(x - whole) >= x.dtype.type(0.5)
        return np.where(away, whole + np.copysign(x.dtype.type(1), x), whole)

    def scalar(self, x: Scalar) -> Scalar:
        return call("round", x)


@op
class RoundEven(Rounding):
    """The nearest whole number; halves are rounded to the even one, as IEEE 754 prefers."""

    name = "round_even"
    onnx = Onnx("Round", since=11)
    torch = "torch.round(x)"

    def reference(self, x: Array) -> Array:
        return x if x.dtype.kind in "iu" else np.asarray(np.rint(x))

    def scalar(self, x: Scalar) -> Scalar:
        return call("rint", x)
