"""Batch normalization: statistics per channel, over the batch and all later axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import is_static, product, size_of
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite, differentiate_body
from treadle.ops.creation import Extent
from treadle.ops.elementwise import Maximum
from treadle.ops.norm import (
    center_array,
    channel_shape,
    check_affine,
    check_channels,
    check_parameters,
)
from treadle.ops.op import BadSample, Onnx, Pullback, Sample, V, op
from treadle.ops.precision import compute_type, widen, widen_array
from treadle.ops.reduce import Mean, Sum
from treadle.ops.unary import Sqrt, Square


def _axes(ndim: int) -> tuple[int, ...]:
    """All axes but the channels'."""
    return (0, *range(2, ndim))


def _count(x: Any, axes: tuple[int, ...]) -> Any:
    """Elements per channel: a number, or an operand where it is symbolic."""
    counted = tuple(x.shape[a] for a in axes)
    if is_static(counted):
        return float(size_of(counted))
    return x.apply(Extent(product(counted), x.type.dtype), ())[0]


def _unbiased(variance: Any, count: Any) -> Any:
    """The variance over n - 1 in place of n; that of a single value, which is 0, stays."""
    if isinstance(count, float):
        return variance * (count / max(count - 1.0, 1.0))
    return variance * (count / Maximum()(count - 1.0, count.constant(1.0)))


def _centered(x: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any, Any, Any]:
    """x - mean, mean, biased variance and standard deviation, in the compute type; axes kept.

    Everything after `x - mean` is per channel, so that each element takes one multiply-add.
    """
    wide, mean_of = widen(x), Mean(axes, keepdims=True)
    mean = mean_of(wide)
    centered = wide - mean
    variance = mean_of(Square()(centered))
    return centered, mean, variance, Sqrt()(variance + eps)


@op
class BatchNormTrain(Composite):
    """x [N, C, *] standardized per channel over the batch, times weight plus bias if given.

    Results: y; the mean [C]; the unbiased variance [C] (sum of squares over n - 1, 0 for a single
    value), which running statistics are updated with. y itself uses the biased variance.
    Statistics are float32 where x has 16 bits. Weight and bias are [C].
    """

    eps: float = 1e-5

    work = "reduction"
    name = "batch_norm_train"
    operands = ("x", "*affine")
    n_outputs = 3
    dtypes = dt.FLOATS
    torch = (
        "(F.batch_norm(x, None, None, *affine, training=True, eps=op.eps),"
        " x.mean([0, *range(2, x.ndim)]), x.var([0, *range(2, x.ndim)], correction=1))"
    )
    keeps_axes = True
    amp = "statistics"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        check_channels(self, types)
        x = types[0]
        check_affine(self, types, (x.shape[1],))
        statistic = TensorType(compute_type(x.dtype), (x.shape[1],))
        return TensorType(x.dtype, x.shape), statistic, statistic

    def body(self, x: Any, *affine: Any) -> Any:
        axes, channels = _axes(x.type.ndim), (x.shape[1],)
        centered, mean, variance, std = _centered(x, axes, self.eps)
        if affine:
            weight, bias = (widen(p).reshape(channel_shape(x.type)) for p in affine)
            y = centered * (weight / std) + bias
        else:
            y = centered / std
        unbiased = _unbiased(variance, _count(x, axes))
        return y.astype(x.type.dtype), mean.reshape(channels), unbiased.reshape(channels)

    def reference(self, x: Array, *affine: Array) -> tuple[Array, ...]:
        axes, channels = _axes(x.ndim), x.shape[1]
        y, mean, variance, scale = center_array(x, axes, self.eps)
        per_channel = (1, channels, *(1,) * (x.ndim - 2))
        y *= scale * widen_array(affine[0]).reshape(per_channel) if affine else scale
        if affine:
            y += widen_array(affine[1]).reshape(per_channel)
        n = size_of([x.shape[a] for a in axes])
        unbiased = variance * variance.dtype.type(n / max(n - 1, 1))
        return y.astype(x.dtype, copy=False), mean.reshape(channels), unbiased.reshape(channels)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        if at.dys[1] is not None or at.dys[2] is not None:
            return differentiate_body(self, at)
        x, *affine = at.inputs
        dx, *rest = BatchNormGrad(self.eps).outputs(x, at.dy, *affine[:1])
        grads = (g.astype(p.type.dtype) for g, p in zip(rest, affine, strict=False))
        return tuple(g if n else None for g, n in zip((dx, *grads), at.needs, strict=True))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        row = Arg((3,))
        return (
            Sample(cls(), (Arg((4, 3)), row, row)),
            Sample(cls(1e-3), (Arg((2, 3, 2, 2)), row, row)),
            Sample(cls(), (Arg((2, 3, 4)),)),
            Sample(cls(), (Arg((2, 1, 1)), Arg((1,)), Arg((1,)))),
            Sample(
                cls(),
                (Arg((4, 3)), Arg((3,), dt.float32), Arg((3,), dt.float32)),
                dtypes=(dt.float16, dt.bfloat16),
            ),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, row = Arg((2, 3, 4)), Arg((3,))
        return (
            BadSample(cls, (Arg((3,)),), ShapeError, "no channel axis"),
            BadSample(cls, (x, row), ShapeError, "x alone, or x, weight and bias"),
            BadSample(cls, (x, row, Arg((4,))), ShapeError, "must have shape [3]"),
        )


@op
class BatchNormGrad(Composite):
    """Cotangents of x, weight and bias in `BatchNormTrain`, from that of y.

    With c = x - mean and s its standard deviation: dbias = sum(dy), dweight = sum(dy * c) / s and
    dx = (dy - mean(dy) - c * mean(dy * c) / s^2) * weight / s. So there are two passes over x and
    dy, one that sums and one that writes. The last two results have the compute type; weight
    counts as 1 where it is not given.
    """

    eps: float = 1e-5

    work = "reduction"
    name = "batch_norm_grad"
    operands = ("x", "dy", "*weight")
    n_outputs = 3
    dtypes = dt.FLOATS
    keeps_axes = True

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        check_channels(self, types)
        self.check_same_dtype(types[:2])
        x = types[0]
        if types[1].shape != x.shape:
            raise self.error("x and dy differ in shape", types, "pass the result's cotangent")
        if len(types) > 3:
            raise self.error("takes x, dy and at most a weight", types, "leave out the bias")
        check_parameters(self, (x, *types[2:]), (x.shape[1],))
        sums = TensorType(compute_type(x.dtype), (x.shape[1],))
        return TensorType(x.dtype, x.shape), sums, sums

    def body(self, x: Any, dy: Any, *weight: Any) -> Any:
        axes, channels = _axes(x.type.ndim), (x.shape[1],)
        centered, _, _, std = _centered(x, axes, self.eps)
        wide, sum_of, count = widen(dy), Sum(axes, keepdims=True), _count(x, axes)
        total, product = sum_of(wide), sum_of(wide * centered)
        dweight = product / std
        gain = widen(weight[0]).reshape(channel_shape(x.type)) / std if weight else 1.0 / std
        dx = (wide - total / count - centered * (dweight / (std * count))) * gain
        return dx.astype(x.type.dtype), dweight.reshape(channels), total.reshape(channels)

    def reference(self, x: Array, dy: Array, *weight: Array) -> tuple[Array, ...]:
        axes, channels = _axes(x.ndim), x.shape[1]
        centered, _, _, inverse = center_array(x, axes, self.eps)
        wide, count = widen_array(dy), size_of([x.shape[a] for a in axes])
        total = np.asarray(np.sum(wide, axis=axes, keepdims=True))
        dx = np.asarray(wide * centered)
        dweight = np.asarray(np.sum(dx, axis=axes, keepdims=True) * inverse)
        number = dx.dtype.type(count)
        np.multiply(centered, dweight * inverse / number, out=centered)
        np.subtract(wide, centered, out=dx)
        dx -= total / number
        dx *= inverse * widen_array(weight[0]).reshape(inverse.shape) if weight else inverse
        return (
            dx.astype(x.dtype, copy=False),
            dweight.reshape(channels),
            total.reshape(channels),
        )

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        found = []
        for sample in BatchNormTrain.samples():
            if isinstance(sample.op, BatchNormTrain):
                x, *affine = sample.args
                args = (x, x, *affine[:1])
                found.append(Sample(cls(sample.op.eps), args, dtypes=sample.dtypes))
        return tuple(found)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, row = Arg((2, 3, 4)), Arg((3,))
        return (
            BadSample(cls, (Arg((3,)), Arg((3,))), ShapeError, "no channel axis"),
            BadSample(cls, (x, Arg((2, 3, 5))), ShapeError, "differ in shape"),
            BadSample(cls, (x, x, Arg((4,))), ShapeError, "must have shape [3]"),
            BadSample(cls, (x, x, row, row), ShapeError, "at most a weight"),
        )


@op
class BatchNormInfer(Composite):
    """(x - mean) / sqrt(var + eps) * weight + bias, per channel of x [N, C, *].

    All four parameters are [C]; the gradient treats mean and variance as any other operand.
    """

    eps: float = 1e-5

    work = "reduction"
    name = "batch_norm_infer"
    operands = ("x", "weight", "bias", "mean", "var")
    dtypes = dt.FLOATS
    onnx = Onnx("BatchNormalization", since=9, attributes=(("eps", "epsilon"),))
    torch = "F.batch_norm(x, mean, var, weight, bias, eps=op.eps)"
    keeps_axes = True
    amp = "statistics"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        check_channels(self, types)
        check_parameters(self, types, (types[0].shape[1],))
        return (TensorType(types[0].dtype, types[0].shape),)

    def body(self, x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> Any:
        shape = channel_shape(x.type)
        scale = widen(weight) / Sqrt()(widen(var) + self.eps)
        shift = widen(bias) - widen(mean) * scale
        return (widen(x) * scale.reshape(shape) + shift.reshape(shape)).astype(x.type.dtype)

    def reference(self, x: Array, weight: Array, bias: Array, mean: Array, var: Array) -> Array:
        shape = (1, x.shape[1], *(1,) * (x.ndim - 2))
        wide = widen_array(var)
        scale = np.asarray(widen_array(weight) / np.sqrt(wide + wide.dtype.type(self.eps)))
        shift = np.asarray(widen_array(bias) - widen_array(mean) * scale)
        y = np.asarray(widen_array(x) * scale.reshape(shape))
        y += shift.reshape(shape)
        return y.astype(x.dtype, copy=False)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        row, positive = Arg((3,)), Arg((3,), low=0.5, high=2.0)
        one, some = Arg((1,)), Arg((1,), low=0.5, high=2.0)
        return (
            Sample(cls(), (Arg((4, 3)), row, row, row, positive)),
            Sample(cls(1e-3), (Arg((2, 3, 2, 2)), row, row, row, positive)),
            Sample(cls(), (Arg((0, 3, 4)), row, row, row, positive)),
            Sample(cls(), (Arg((1, 1)), one, one, one, some)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, row = Arg((2, 3, 4)), Arg((3,))
        double = Arg((3,), dt.float64)
        return (
            BadSample(cls, (x, row, row, row, Arg((4,))), ShapeError, "must have shape [3]"),
            BadSample(cls, (x, row, row, row, double), DTypeError, "float64 beside float32"),
        )
