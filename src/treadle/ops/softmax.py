"""Softmax and its relatives, shifted by the largest element so that nothing overflows."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite
from treadle.ops.families import Reduce
from treadle.ops.logic import IsFinite
from treadle.ops.op import BadSample, Onnx, Pullback, Sample, V, op
from treadle.ops.precision import widen, widen_array
from treadle.ops.reduce import Max
from treadle.ops.select import Where
from treadle.ops.transfer import StopGradient
from treadle.ops.unary import Exp, Log


def shifted(x: V, axes: tuple[int, ...]) -> V:
    """x less its largest element along the axes, which is held constant.

    Where that is infinite there is NaN, which makes all of a softmax NaN: what share infinity has
    is not known.
    """
    return x - Max(axes, keepdims=True)(StopGradient()(x))


def shifted_array(x: Array, axes: tuple[int, ...]) -> Array:
    """Compute `shifted` for an array."""
    # The ufuncs' own methods: np.max and np.sum do the same 2 us later.
    return np.asarray(x - np.maximum.reduce(x, axes, keepdims=True, initial=-np.inf))


def _finite(largest: V) -> V:
    """The largest element; an infinite one is replaced by 0: the logarithm of its sum is known."""
    return Where()(IsFinite()(largest), largest, largest.constant(0.0))


class AlongAxis(Composite):
    """A function of each row along one axis."""

    work = "reduction"
    dtypes = dt.FLOATS
    axis: int

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        (x,) = types
        self.check_dtype(types)
        if not 0 <= self.axis < x.ndim:
            raise self.error(
                f"axis {self.axis} is out of range for {x.ndim} axes", types, "name an axis of x"
            )
        return (TensorType(x.dtype, x.shape),)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(2), (Arg((2, 3)),), ShapeError, "axis 2 is out of range"),)  # type: ignore[call-arg]


_CASES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (1, (3, 4)),
    (0, (3, 4)),
    (1, (2, 3, 2)),
    (0, (1,)),
    (1, (0, 3)),
    (1, (2, 0)),
)


@op
class Softmax(AlongAxis):
    """exp(x) divided by its sum along `axis`.

    NaN throughout a row that holds inf, NaN, or nothing but -inf.
    """

    axis: int

    name = "softmax"
    onnx = Onnx("Softmax", since=13, attributes=(("axis", "axis"),))
    torch = "torch.softmax(x, op.axis)"

    def body(self, x: Any) -> Any:
        if x.shape[self.axis] == 0:
            return x
        wide = widen(x)
        powers = Exp()(shifted(wide, (self.axis,)))
        return (powers / powers.sum((self.axis,), keepdims=True)).astype(x.type.dtype)

    def reference(self, x: Array) -> Array:
        powers = shifted_array(widen_array(x), (self.axis,))
        np.exp(powers, out=powers)
        powers /= np.add.reduce(powers, self.axis, keepdims=True)
        return powers.astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        y, dy = widen(at.outputs[0]), widen(at.dy)
        weighted = dy * y
        dx = weighted - y * weighted.sum((self.axis,), keepdims=True)
        return (dx.astype(at.dy.type.dtype),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(axis), (Arg(shape),)) for axis, shape in _CASES)


@op
class LogSoftmax(AlongAxis):
    """The logarithm of softmax: x less the log-sum-exp along `axis`; NaN where that is."""

    axis: int

    name = "log_softmax"
    onnx = Onnx("LogSoftmax", since=13, attributes=(("axis", "axis"),))
    torch = "torch.log_softmax(x, op.axis)"
    amp = "high"

    def body(self, x: Any) -> Any:
        if x.shape[self.axis] == 0:
            return x
        wide = widen(x)
        less = shifted(wide, (self.axis,))
        total = Exp()(less).sum((self.axis,), keepdims=True)
        return (less - Log()(total)).astype(x.type.dtype)

    def reference(self, x: Array) -> Array:
        less = shifted_array(widen_array(x), (self.axis,))
        less -= np.log(np.sum(np.exp(less), axis=self.axis, keepdims=True))
        return less.astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        y, dy = widen(at.outputs[0]), widen(at.dy)
        dx = dy - Exp()(y) * dy.sum((self.axis,), keepdims=True)
        return (dx.astype(at.dy.type.dtype),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(axis), (Arg(shape),)) for axis, shape in _CASES)


@op
class LogSumExp(Reduce, Composite):
    """log(sum(exp(x))) over `axes`; -inf over no elements, and where all are -inf."""

    name = "log_sum_exp"
    dtypes = dt.FLOATS
    torch = "torch.logsumexp(x, op.axes, op.keepdims) if op.axes else x"
    amp = "high"

    def body(self, x: Any) -> Any:
        if not self.axes:
            return x
        if any(x.shape[a] == 0 for a in self.axes):
            # Nothing to take the largest of: the logarithm of an empty sum.
            return Log()(x.sum(self.axes, self.keepdims))
        wide = widen(x)
        shift = _finite(Max(self.axes, keepdims=True)(StopGradient()(wide)))
        total = Log()(Exp()(wide - shift).sum(self.axes, keepdims=True)) + shift
        return total.reshape(self.result_shape(x.type)).astype(x.type.dtype)

    def reference(self, x: Array) -> Array:
        wide = widen_array(x)
        largest = np.max(wide, axis=self.axes, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(largest), largest, wide.dtype.type(0))
        total = np.log(np.sum(np.exp(wide - shift), axis=self.axes, keepdims=True)) + shift
        if not self.keepdims:
            total = np.squeeze(total, axis=self.axes)
        return np.asarray(total).astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, kept = at.inputs[0], self.kept_shape(at.inputs[0].type)
        share = Exp()(widen(x) - widen(at.outputs[0]).reshape(kept))
        return ((share * widen(at.dy).reshape(kept)).astype(x.type.dtype),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((1,)), (Arg((3, 4)),)),
            Sample(cls((0, 2), True), (Arg((2, 3, 2)),)),
            Sample(cls(()), (Arg(()),)),
            Sample(cls((0,)), (Arg((0, 3)),), gradient=False, label="no elements: -inf"),
            Sample(cls((1,)), (Arg((0, 3)),)),
            Sample(cls((0, 1)), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls((2,)), (Arg((2, 3)),), ShapeError, "out of range"),)
