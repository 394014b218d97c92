"""Optimizer updates: one op per parameter and step.

Operands `lr`, `weight_decay` and `step` are 0-d floats of any floating type, so that a schedule
changes data and recompiles nothing. 16-bit parameters are updated in float32 and rounded once;
their state may be kept in float32.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import require_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite
from treadle.ops.op import BadSample, Sample, family, op
from treadle.ops.precision import compute_type, widen, widen_array
from treadle.ops.unary import Expm1, Sqrt, Square

_SCALARS = ("lr", "weight_decay", "step")
_LR, _DECAY = Arg((), dt.float32, values=0.1), Arg((), dt.float32, values=0.25)
_STEP = Arg((), dt.float32, values=3.0)
_SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (), (0, 3), (1, 1))


@family
class Update(Composite):
    """New values of a parameter and its state, in operand order; the gradient is not returned."""

    work = "update"
    dtypes = dt.FLOATS
    no_gradient = "is an optimizer's step, which is not differentiated"
    keeps_axes = True

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        if len(types) != len(self.operands):
            wanted = ", ".join(self.operands)
            raise self.error(f"takes {wanted}", types, "pass every operand")
        param = types[0]
        allowed = (param.dtype, compute_type(param.dtype))
        for name, t in zip(self.operands, types, strict=True):
            if name in _SCALARS:
                self._check_scalar(name, t, types)
            else:
                self._check_like_param(name, t, types, allowed)
        state = types[2 : 1 + self.n_outputs]
        return tuple(TensorType(t.dtype, t.shape) for t in (param, *state))

    def _check_scalar(self, name: str, t: TensorType, types: tuple[TensorType, ...]) -> None:
        if not t.dtype.is_float:
            raise DTypeError(
                self.name,
                f"{name} is {t.dtype.name}, not a float",
                saw=self.saw(types),
                hint="cast it with astype('float32')",
            )
        if t.ndim:
            raise self.error(f"{name} is one number, not an array", types, "reshape it to ()")

    def _check_like_param(
        self, name: str, t: TensorType, types: tuple[TensorType, ...], allowed: tuple[Any, ...]
    ) -> None:
        if t.dtype not in allowed:
            raise DTypeError(
                self.name,
                f"{name} is {t.dtype.name} beside a {types[0].dtype.name} parameter",
                saw=self.saw(types),
                hint=f"cast it to {allowed[1].name}",
            )

        def mismatch() -> ShapeError:
            return self.error(f"{name} and the parameter differ in shape", types, "reshape it")

        if t.ndim != types[0].ndim:
            raise mismatch()
        for x, y in zip(t.shape, types[0].shape, strict=True):
            require_equal(x, y, mismatch)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        """State is non-negative, as sums of squares are."""
        given = {"lr": _LR, "weight_decay": _DECAY, "step": _STEP}

        def arg(name: str, shape: tuple[int, ...]) -> Arg:
            low = 0.1 if name in ("exp_avg_sq", "square_avg", "acc_delta") else -2.0
            return given.get(name, Arg(shape, low=low))

        return tuple(
            Sample(o, tuple(arg(n, s) for n in cls.operands), gradient=False)
            for o in cls.variants()
            for s in _SHAPES
        )

    @classmethod
    def variants(cls) -> tuple[Update, ...]:
        """The attributes that samples are made with."""
        return (cls(),)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        good = next(s.args for s in cls.samples())
        grad = (good[0], Arg((3, 2)), *good[2:])
        mixed = (good[0], Arg((2, 3), dt.float64), *good[2:])
        at = cls.operands.index("lr")
        rates = (*good[:at], Arg((2,), dt.float32), *good[at + 1 :])
        whole = (*good[:at], Arg((), dt.int32), *good[at + 1 :])
        return (
            BadSample(cls, grad, ShapeError, "grad and the parameter differ in shape"),
            BadSample(cls, mixed, DTypeError, "grad is float64 beside a float32 parameter"),
            BadSample(cls, rates, ShapeError, "lr is one number"),
            BadSample(cls, whole, DTypeError, "lr is int32, not a float"),
        )


def _as(x: Any, like: Any) -> Any:
    """An operand in the type of another."""
    return x.astype(like.type.dtype)


def _number(x: Array, like: Array) -> Any:
    """A 0-d array as a number of the type of another array."""
    return like.dtype.type(x)


def _decayed(param: Array, grad: Array, weight_decay: Array) -> Array:
    """grad + weight_decay * param, in fresh memory; both arrays are wide."""
    decay = _number(weight_decay, param)
    if decay == 0:
        return np.array(grad)
    result = np.asarray(param * decay)
    result += grad
    return result


@op
class SgdUpdate(Update):
    """param - lr * (grad + weight_decay * param)."""

    name = "sgd_update"
    operands = ("param", "grad", "lr", "weight_decay")

    def body(self, param: Any, grad: Any, lr: Any, weight_decay: Any) -> Any:
        p = widen(param)
        step = widen(grad) + p * _as(weight_decay, p)
        return _as(p - step * _as(lr, p), param)

    def reference(self, param: Array, grad: Array, lr: Array, weight_decay: Array) -> Array:
        p = widen_array(param)
        step = _decayed(p, widen_array(grad), weight_decay)
        step *= _number(lr, p)
        return np.subtract(p, step, out=step).astype(param.dtype, copy=False)


@op
class MomentumUpdate(Update):
    """Stochastic gradient descent with momentum: results are param and velocity.

    g = grad + weight_decay * param; v = momentum * velocity + (1 - dampening) * g;
    param - lr * v, or with `nesterov` param - lr * (g + momentum * v)
    (Sutskever et al. 2013, On the importance of initialization and momentum in deep learning).
    """

    momentum: float = 0.9
    nesterov: bool = False
    dampening: float = 0.0

    name = "momentum_update"
    operands = ("param", "grad", "velocity", "lr", "weight_decay")
    n_outputs = 2

    def body(self, param: Any, grad: Any, velocity: Any, lr: Any, weight_decay: Any) -> Any:
        p = widen(param)
        g = widen(grad) + p * _as(weight_decay, p)
        v = widen(velocity) * self.momentum + g * (1.0 - self.dampening)
        step = g + v * self.momentum if self.nesterov else v
        return _as(p - step * _as(lr, p), param), _as(v, velocity)

    def reference(
        self, param: Array, grad: Array, velocity: Array, lr: Array, weight_decay: Array
    ) -> tuple[Array, Array]:
        p, number = widen_array(param), widen_array(param).dtype.type
        g = _decayed(p, widen_array(grad), weight_decay)
        v = np.asarray(widen_array(velocity) * number(self.momentum))
        v += g if not self.dampening else g * number(1.0 - self.dampening)
        if self.nesterov:
            g += v * number(self.momentum)
            g *= _number(lr, p)
        else:
            np.multiply(v, _number(lr, p), out=g)
        new = np.subtract(p, g, out=g)
        return new.astype(param.dtype, copy=False), v.astype(velocity.dtype, copy=False)

    @classmethod
    def variants(cls) -> tuple[Update, ...]:
        return cls(), cls(0.5, True), cls(0.9, False, 0.25)


@family
class AdamFamily(Update):
    """Adaptive moments, bias-corrected (Kingma and Ba 2015, arXiv:1412.6980).

    m = beta1 * exp_avg + (1 - beta1) * g; v = beta2 * exp_avg_sq + (1 - beta2) * g^2;
    the direction is (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps), where `step`
    counts this one: it is 1 at first. Results: param, exp_avg, exp_avg_sq.
    """

    operands = ("param", "grad", "exp_avg", "exp_avg_sq", "step", "lr", "weight_decay")
    n_outputs = 3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def moments(self, g: Any, exp_avg: Any, exp_avg_sq: Any, step: Any) -> tuple[Any, Any, Any]:
        """The two moments and the direction; operands of one type."""
        m = exp_avg * self.beta1 + g * (1.0 - self.beta1)
        v = exp_avg_sq * self.beta2 + Square()(g) * (1.0 - self.beta2)
        direction = (m / _correction(self.beta1, step)) / (
            Sqrt()(v / _correction(self.beta2, step)) + self.eps
        )
        return m, v, direction

    def moment_arrays(
        self, g: Array, exp_avg: Array, exp_avg_sq: Array, step: Array
    ) -> tuple[Array, Array, Array]:
        """Compute `moments` for arrays; g is overwritten and becomes the direction."""
        number = g.dtype.type
        m = np.asarray(exp_avg * number(self.beta1))
        m += g * number(1.0 - self.beta1)
        v = np.asarray(exp_avg_sq * number(self.beta2))
        np.square(g, out=g)
        g *= number(1.0 - self.beta2)
        v += g
        first, second = (-math.expm1(float(step) * _log(b)) for b in (self.beta1, self.beta2))
        np.multiply(v, number(1.0 / second), out=g)
        np.sqrt(g, out=g)
        g += number(self.eps)
        np.divide(m, g, out=g)
        g *= number(1.0 / first)
        return m, v, g


def _correction(beta: float, step: Any) -> Any:
    """1 - beta^step; expm1 keeps the digits that the subtraction would lose in float32."""
    return -Expm1()(step * _log(beta))


def _log(beta: float) -> float:
    """log(beta), and for 0 a number so low that its expm1 is -1."""
    return math.log(beta or sys.float_info.min)


@op
class AdamUpdate(AdamFamily):
    """Adam with weight decay added to the gradient: param - lr * direction.

    m = beta1 * exp_avg + (1 - beta1) * g; v = beta2 * exp_avg_sq + (1 - beta2) * g^2, with
    g = grad + weight_decay * param; the direction is (m / (1 - beta1^step)) / (sqrt(v / (1 -
    beta2^step)) + eps), where `step` counts this one: it is 1 at first. Results: param, exp_avg,
    exp_avg_sq (Kingma and Ba 2015, arXiv:1412.6980).
    """

    name = "adam_update"

    def body(
        self,
        param: Any,
        grad: Any,
        exp_avg: Any,
        exp_avg_sq: Any,
        step: Any,
        lr: Any,
        weight_decay: Any,
    ) -> Any:
        p = widen(param)
        g = widen(grad) + p * _as(weight_decay, p)
        m, v, direction = self.moments(g, widen(exp_avg), widen(exp_avg_sq), _as(step, p))
        return _as(p - direction * _as(lr, p), param), _as(m, exp_avg), _as(v, exp_avg_sq)

    def reference(
        self,
        param: Array,
        grad: Array,
        exp_avg: Array,
        exp_avg_sq: Array,
        step: Array,
        lr: Array,
        weight_decay: Array,
    ) -> tuple[Array, ...]:
        p = widen_array(param)
        g = _decayed(p, widen_array(grad), weight_decay)
        m, v, change = self.moment_arrays(g, widen_array(exp_avg), widen_array(exp_avg_sq), step)
        change *= _number(lr, p)
        new = np.subtract(p, change, out=change)
        return (
            new.astype(param.dtype, copy=False),
            m.astype(exp_avg.dtype, copy=False),
            v.astype(exp_avg_sq.dtype, copy=False),
        )

    @classmethod
    def variants(cls) -> tuple[Update, ...]:
        return cls(), cls(0.5, 0.75, 1e-3)


@op
class AdamWUpdate(AdamFamily):
    """Adam with decoupled weight decay: param - lr * (direction + weight_decay * param).

    The direction is that of `AdamUpdate` with g = grad. Results: param, exp_avg, exp_avg_sq
    (Loshchilov and Hutter 2019, arXiv:1711.05101).
    """

    name = "adam_w_update"

    def body(
        self,
        param: Any,
        grad: Any,
        exp_avg: Any,
        exp_avg_sq: Any,
        step: Any,
        lr: Any,
        weight_decay: Any,
    ) -> Any:
        p = widen(param)
        m, v, direction = self.moments(widen(grad), widen(exp_avg), widen(exp_avg_sq), _as(step, p))
        change = direction + p * _as(weight_decay, p)
        return _as(p - change * _as(lr, p), param), _as(m, exp_avg), _as(v, exp_avg_sq)

    def reference(
        self,
        param: Array,
        grad: Array,
        exp_avg: Array,
        exp_avg_sq: Array,
        step: Array,
        lr: Array,
        weight_decay: Array,
    ) -> tuple[Array, ...]:
        p = widen_array(param)
        g = np.array(grad, dtype=p.dtype)
        m, v, change = self.moment_arrays(g, widen_array(exp_avg), widen_array(exp_avg_sq), step)
        decay = _number(weight_decay, p)
        if decay:
            change += p * decay
        change *= _number(lr, p)
        new = np.subtract(p, change, out=change)
        return (
            new.astype(param.dtype, copy=False),
            m.astype(exp_avg.dtype, copy=False),
            v.astype(exp_avg_sq.dtype, copy=False),
        )

    @classmethod
    def variants(cls) -> tuple[Update, ...]:
        return cls(), cls(0.5, 0.75, 1e-3)
