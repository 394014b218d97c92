"""Activations: elementwise composites, whose scalar code is derived from their body."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import ShapeError
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite
from treadle.ops.families import Elementwise, UnaryFloat
from treadle.ops.logic import LogicalAnd
from treadle.ops.op import BadSample, Onnx, Op, Sample, V, op
from treadle.ops.operators import Operators
from treadle.ops.precision import widen_array
from treadle.ops.scalar import Scalar, const, maximum, minimum
from treadle.ops.select import Clip, Where
from treadle.ops.special import erf
from treadle.ops.unary import Abs, Erf, Exp, Expm1, Log1p, Sigmoid, Tanh


class ScalarOperand(Operators):
    """One element of an operand: applying an elementwise op extends its scalar code."""

    __slots__ = ("code",)

    def __init__(self, code: Scalar) -> None:
        self.code = code

    @property
    def type(self) -> TensorType:
        # Scalar code is generic in its element type; a body of real functions never casts.
        return TensorType(dt.float32, ())

    def apply(self, op: Op, inputs: tuple[ScalarOperand, ...], /) -> tuple[ScalarOperand, ...]:
        if not isinstance(op, Elementwise):
            raise TypeError(f"{op.name} is not elementwise")
        return (ScalarOperand(op.scalar(*(x.code for x in inputs))),)

    def constant(self, value: Any, dtype: DType | None = None) -> ScalarOperand:
        return ScalarOperand(const(value))


def body_scalar(body: Callable[..., Any], *inputs: Scalar) -> Scalar:
    """The scalar code of a body made of elementwise ops."""
    result: ScalarOperand = body(*(ScalarOperand(x) for x in inputs))
    return result.code


def in_wide(compute: Callable[[Array], Array], x: Array) -> Array:
    """`compute` applied in the compute type of x and rounded back."""
    return np.asarray(compute(widen_array(x))).astype(x.dtype, copy=False)


class Activation(UnaryFloat, Composite):
    """A real function of one real number, made of elementwise ops."""

    def scalar(self, x: Scalar) -> Scalar:
        return body_scalar(self.body, x)


def _between(x: V, low: float, high: float) -> V:
    """Return whether low < x < high."""
    return LogicalAnd()(x > low, x < high)


@op
class Relu6(Activation):
    """min(max(x, 0), 6); the gradient is 0 at 0 and at 6."""

    name = "relu6"
    domain = Arg((3, 4), low=-3, high=9, avoid=(0.0, 6.0))
    torch = "F.relu6(x)"

    def body(self, x: Any) -> Any:
        return Clip(0.0, 6.0)(x)

    def reference(self, x: Array) -> Array:
        return minimum(maximum(x, x.dtype.type(0)), x.dtype.type(6))

    def grad(self, dy: V, x: V, y: V) -> V:
        return Where()(_between(x, 0.0, 6.0), dy, dy.constant(0.0))


@op
class HSigmoid(Activation):
    """relu6(x + 3) / 6 (Howard et al. 2019, arXiv:1905.02244)."""

    name = "h_sigmoid"
    domain = Arg((3, 4), low=-5, high=5, avoid=(-3.0, 3.0))
    torch = "F.hardsigmoid(x)"
    amp = "high"

    def body(self, x: Any) -> Any:
        return Clip(0.0, 6.0)(x + 3.0) * (1 / 6)

    def reference(self, x: Array) -> Array:
        return in_wide(lambda w: np.clip(w + w.dtype.type(3), 0, 6) * w.dtype.type(1 / 6), x)

    def grad(self, dy: V, x: V, y: V) -> V:
        return Where()(_between(x, -3.0, 3.0), dy * (1 / 6), dy.constant(0.0))


@op
class HSwish(Activation):
    """x * relu6(x + 3) / 6; the gradient is -0.5 at -3 and 1.5 at 3 (arXiv:1905.02244)."""

    name = "h_swish"
    domain = Arg((3, 4), low=-5, high=5, avoid=(-3.0, 3.0))
    onnx = Onnx("HardSwish", since=14)
    torch = "F.hardswish(x)"

    def body(self, x: Any) -> Any:
        return x * (Clip(0.0, 6.0)(x + 3.0) * (1 / 6))

    def reference(self, x: Array) -> Array:
        return in_wide(lambda w: w * (np.clip(w + w.dtype.type(3), 0, 6) * w.dtype.type(1 / 6)), x)

    def grad(self, dy: V, x: V, y: V) -> V:
        slope = x * (1 / 3) + 0.5
        above = Where()(x > 3.0, dy, dy * slope)
        return Where()(x < -3.0, dy.constant(0.0), above)


@op
class LeakyRelu(Activation):
    """x where x >= 0, else alpha * x; the slope at 0 is 1."""

    alpha: float = 0.01

    name = "leaky_relu"
    domain = Arg((3, 4), avoid=(0.0,))
    onnx = Onnx("LeakyRelu", since=6, attributes=(("alpha", "alpha"),))
    torch = "F.leaky_relu(x, op.alpha)"

    def body(self, x: Any) -> Any:
        return Where()(x >= 0.0, x, x * self.alpha)

    def reference(self, x: Array) -> Array:
        return in_wide(lambda w: np.where(w >= 0, w, w * w.dtype.type(self.alpha)), x)

    def grad(self, dy: V, x: V, y: V) -> V:
        return Where()(x >= 0.0, dy, dy * self.alpha)


@op
class Elu(Activation):
    """x where x > 0, else alpha * (exp(x) - 1) (Clevert et al. 2016, arXiv:1511.07289)."""

    alpha: float = 1.0

    name = "elu"
    domain = Arg((3, 4), avoid=(0.0,))
    onnx = Onnx("Elu", since=6, attributes=(("alpha", "alpha"),))
    torch = "F.elu(x, op.alpha)"

    def body(self, x: Any) -> Any:
        return Where()(x > 0.0, x, Expm1()(x) * self.alpha)

    def reference(self, x: Array) -> Array:
        return in_wide(lambda w: np.where(w > 0, w, np.expm1(w) * w.dtype.type(self.alpha)), x)

    def grad(self, dy: V, x: V, y: V) -> V:
        return Where()(x > 0.0, dy, dy * (y + self.alpha))


@op
class Silu(Activation):
    """x * sigmoid(x), also called Swish (arXiv:1702.03118)."""

    name = "silu"
    torch = "F.silu(x)"

    def body(self, x: Any) -> Any:
        return x * Sigmoid()(x)

    def reference(self, x: Array) -> Array:
        return in_wide(lambda w: w / (1 + np.exp(-w)), x)

    def grad(self, dy: V, x: V, y: V) -> V:
        s = Sigmoid()(x)
        return dy * (s + y - y * s)


@op
class Gelu(Activation):
    """x times the normal distribution's probability below x (arXiv:1606.08415).

    `approximate` is "none" for the error function, or "tanh" for 0.5 x (1 + tanh(sqrt(2 / pi)
    (x + 0.044715 x^3))).
    """

    approximate: str = "none"

    name = "gelu"
    onnx = Onnx("Gelu", since=20, attributes=(("approximate", "approximate"),))
    torch = "F.gelu(x, approximate=op.approximate)"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if self.approximate not in ("none", "tanh"):
            raise self.error(
                f"there is no approximation {self.approximate!r}", (x,), 'use "none" or "tanh"'
            )
        return super().infer(x)

    def _inner(self, x: Any) -> Any:
        """The argument of tanh."""
        return (x + x * x * x * 0.044715) * _SQRT_2_OVER_PI

    def body(self, x: Any) -> Any:
        if self.approximate == "tanh":
            return x * 0.5 * (Tanh()(self._inner(x)) + 1.0)
        return x * 0.5 * (Erf()(x * _SQRT_HALF) + 1.0)

    def reference(self, x: Array) -> Array:
        if self.approximate == "tanh":
            return in_wide(lambda w: w * 0.5 * (np.tanh(self._inner(w)) + 1), x)
        return in_wide(lambda w: w * 0.5 * (erf(w * w.dtype.type(_SQRT_HALF)) + 1), x)

    def grad(self, dy: V, x: V, y: V) -> V:
        if self.approximate == "tanh":
            t: V = Tanh()(self._inner(x))
            slope = (x * x * (3 * 0.044715) + 1.0) * _SQRT_2_OVER_PI
            return dy * ((t + 1.0) * 0.5 + x * 0.5 * (-(t * t) + 1.0) * slope)
        density = Exp()(x * x * -0.5) * _DENSITY_AT_0
        return dy * ((Erf()(x * _SQRT_HALF) + 1.0) * 0.5 + x * density)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        exact: tuple[Sample, ...] = super().samples()
        return (*exact, *(Sample(cls("tanh"), s.args) for s in exact))

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls("fast"), (Arg((2,)),), ShapeError, "approximation 'fast'"),)


_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)


@op
class LogSigmoid(Activation):
    """log(sigmoid(x)), as min(x, 0) - log(1 + exp(-|x|)), which never overflows."""

    name = "log_sigmoid"
    torch = "F.logsigmoid(x)"
    amp = "high"

    def body(self, x: Any) -> Any:
        return Clip(None, 0.0)(x) - Log1p()(Exp()(-Abs()(x)))

    def reference(self, x: Array) -> Array:
        return in_wide(lambda w: np.minimum(w, 0) - np.log1p(np.exp(-np.abs(w))), x)

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * Sigmoid()(-x)


@op
class Softsign(Activation):
    """x / (1 + |x|)."""

    name = "softsign"
    domain = Arg((3, 4), avoid=(0.0,))
    onnx = Onnx("Softsign", since=1)
    torch = "F.softsign(x)"

    def body(self, x: Any) -> Any:
        return x / (Abs()(x) + 1.0)

    def reference(self, x: Array) -> Array:
        return in_wide(lambda w: w / (1 + np.abs(w)), x)

    def grad(self, dy: V, x: V, y: V) -> V:
        scale = Abs()(x) + 1.0
        return dy / (scale * scale)
