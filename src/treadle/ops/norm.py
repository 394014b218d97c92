"""Normalization: values less their mean, over their standard deviation.

Statistics of 16-bit floats are taken in float32; weights, biases and statistics may then be
float32 themselves, and statistics that are results always are.
Sources: Ioffe and Szegedy 2015 (arXiv:1502.03167), Ba et al. 2016 (arXiv:1607.06450), Wu and He
2018 (arXiv:1803.08494), Zhang and Sennrich 2019 (arXiv:1910.07467).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import Shape, format_shape, require_equal, size_of
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, op
from treadle.ops.precision import compute_type, widen, widen_array
from treadle.ops.reduce import Mean
from treadle.ops.unary import Sqrt, Square

Axes = tuple[int, ...]


def check_parameters(op: Op, types: tuple[TensorType, ...], shape: Shape) -> None:
    """Raise unless every operand after x has `shape` and a type that goes with x's."""
    x = types[0]
    allowed = (x.dtype, compute_type(x.dtype))
    for t in types[1:]:
        if t.dtype not in allowed:
            raise DTypeError(
                op.name,
                f"a parameter is {t.dtype.name} beside {x.dtype.name} values",
                saw=op.saw(types),
                hint=f"cast it to {allowed[1].name}",
            )

        def mismatch() -> ShapeError:
            return op.error(f"parameters must have shape {format_shape(shape)}", types, "reshape")

        if t.ndim != len(shape):
            raise mismatch()
        for mine, wanted in zip(t.shape, shape, strict=True):
            require_equal(mine, wanted, mismatch)


def check_affine(op: Op, types: tuple[TensorType, ...], shape: Shape) -> None:
    """Raise unless x stands alone or with a weight and a bias of `shape`."""
    if len(types) not in (1, 3):
        raise op.error("takes x alone, or x, weight and bias", types, "pass ones or zeros")
    check_parameters(op, types, shape)


def channel_shape(x: TensorType) -> tuple[Dim, ...]:
    """[1, C, 1, ...]: how parameters per channel broadcast against x."""
    return tuple(d if i == 1 else 1 for i, d in enumerate(x.shape))


def affine_operand(y: Any, affine: tuple[Any, ...], shape: Any) -> Any:
    """y * weight + bias, where there are any; operands."""
    for_each = [widen(p).reshape(shape) for p in affine]
    return y * for_each[0] + for_each[1] if for_each else y


def affine_array(y: Array, affine: tuple[Array, ...], shape: Any) -> Array:
    """y * weight + bias in y's memory."""
    if affine:
        y *= widen_array(affine[0]).reshape(shape)
        y += widen_array(affine[1]).reshape(shape)
    return y


def _mean_array(x: Array, axes: Axes) -> Array:
    count = size_of([x.shape[a] for a in axes])
    return np.asarray(np.sum(x, axis=axes, keepdims=True) / x.dtype.type(count))


def center_array(x: Array, axes: Axes, eps: float) -> tuple[Array, Array, Array, Array]:
    """x - mean, mean, variance and 1 / sqrt(variance + eps); axes kept, in the compute type."""
    wide = widen_array(x)
    mean = _mean_array(wide, axes)
    centered = np.asarray(wide - mean)
    variance = _mean_array(np.square(centered), axes)
    scale = np.reciprocal(np.sqrt(variance + variance.dtype.type(eps)))
    return centered, mean, variance, np.asarray(scale)


def standardize_array(x: Array, axes: Axes, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps), in the compute type and fresh memory."""
    centered, _, _, scale = center_array(x, axes, eps)
    centered *= scale
    return centered


def standardize(x: V, axes: Axes, eps: float) -> tuple[V, V]:
    """(x - mean) / std and std, in the compute type."""
    wide = widen(x)
    centered = wide - Mean(axes, keepdims=True)(wide)
    std = Sqrt()(Mean(axes, keepdims=True)(Square()(centered)) + eps)
    return centered / std, std


def _check_axes(op: Op, x: TensorType, axes: Axes) -> None:
    if tuple(sorted(set(axes))) != axes or any(not 0 <= a < x.ndim for a in axes):
        raise op.error(f"{axes} are not sorted axes of x", (x,), "name each axis once, in order")


@op
class Standardize(Composite):
    """(x - mean) / sqrt(variance + eps), mean and biased variance taken over `axes`."""

    axes: Axes
    eps: float = 1e-5

    work = "reduction"
    name = "standardize"
    dtypes = dt.FLOATS
    amp = "high"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        _check_axes(self, types[0], self.axes)
        return (TensorType(types[0].dtype, types[0].shape),)

    def body(self, x: Any) -> Any:
        return standardize(x, self.axes, self.eps)[0].astype(x.type.dtype)

    def reference(self, x: Array) -> Array:
        return standardize_array(x, self.axes, self.eps).astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (StandardizeGrad(self.axes, self.eps)(at.inputs[0], at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((1,)), (Arg((3, 4)),)),
            Sample(cls((0, 2), 1e-3), (Arg((2, 3, 2)),)),
            Sample(cls((0,)), (Arg((1, 1)),)),
            Sample(cls((1,)), (Arg((0, 3)),)),
            Sample(cls((1,)), (Arg((2, 0)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls((2,)), (Arg((2, 3)),), ShapeError, "not sorted axes"),
            BadSample(lambda: cls((1, 0)), (Arg((2, 3)),), ShapeError, "not sorted axes"),
        )


@op
class StandardizeGrad(Composite):
    """The cotangent of x in `Standardize`, from x and the cotangent dy of its result.

    With y the standardized x: (dy - mean(dy) - y * mean(dy * y)) / sqrt(variance + eps).
    """

    axes: Axes
    eps: float = 1e-5

    work = "reduction"
    name = "standardize_grad"
    operands = ("x", "dy")
    dtypes = dt.FLOATS

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        self.check_same_dtype(types)
        x, dy = types
        _check_axes(self, x, self.axes)
        if x.shape != dy.shape:
            raise self.error("x and dy differ in shape", types, "pass the result's cotangent")
        return (TensorType(x.dtype, x.shape),)

    def body(self, x: Any, dy: Any) -> Any:
        y, std = standardize(x, self.axes, self.eps)
        wide, mean = widen(dy), Mean(self.axes, keepdims=True)
        return ((wide - mean(wide) - y * mean(wide * y)) / std).astype(x.type.dtype)

    def reference(self, x: Array, dy: Array) -> Array:
        centered, _, _, scale = center_array(x, self.axes, self.eps)
        wide = widen_array(dy)
        # The two places where y would stand each hold one factor of the scale.
        dx = np.asarray(wide * centered)
        centered *= _mean_array(dx, self.axes) * np.square(scale)
        np.subtract(wide, centered, out=dx)
        dx -= _mean_array(wide, self.axes)
        dx *= scale
        return dx.astype(x.dtype, copy=False)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(cls(s.op.axes, s.op.eps), s.args * 2)
            for s in Standardize.samples()
            if isinstance(s.op, Standardize)
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls((0,)), (Arg((2,)), Arg((3,))), ShapeError, "differ in shape"),
        )


@op
class LayerNorm(Composite):
    """x standardized over its last `n_axes` axes, times weight plus bias, where they are given.

    Weight and bias have the shape of those axes.
    """

    n_axes: int = 1
    eps: float = 1e-5

    work = "reduction"
    name = "layer_norm"
    operands = ("x", "*affine")
    dtypes = dt.FLOATS
    torch = "F.layer_norm(x, x.shape[x.ndim - op.n_axes:], *affine, eps=op.eps)"
    amp = "high"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        check_affine(self, types, _last(self, types, self.n_axes))
        return (TensorType(types[0].dtype, types[0].shape),)

    def axes(self, ndim: int) -> Axes:
        """The normalized axes of an operand with `ndim` axes."""
        return tuple(range(ndim - self.n_axes, ndim))

    def body(self, x: Any, *affine: Any) -> Any:
        y = standardize(x, self.axes(x.type.ndim), self.eps)[0]
        shape = affine[0].shape if affine else ()
        return affine_operand(y, affine, shape).astype(x.type.dtype)

    def reference(self, x: Array, *affine: Array) -> Array:
        y = standardize_array(x, self.axes(x.ndim), self.eps)
        shape = affine[0].shape if affine else ()
        return affine_array(y, affine, shape).astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x = at.inputs[0]
        return affine_vjp(at, at.dy, self.axes(x.type.ndim), self.eps, x.shape[-self.n_axes :])

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        row, plane = Arg((4,)), Arg((3, 4))
        return (
            Sample(cls(), (Arg((3, 4)), row, row)),
            Sample(cls(2, 1e-3), (Arg((2, 3, 4)), plane, plane)),
            Sample(cls(), (Arg((2, 3, 4)),)),
            Sample(cls(), (Arg((0, 4)), row, row)),
            Sample(cls(), (Arg((1, 1)), Arg((1,)), Arg((1,)))),
            Sample(
                cls(),
                (Arg((3, 4)), Arg((4,), dt.float32), Arg((4,), dt.float32)),
                dtypes=(dt.float16, dt.bfloat16),
            ),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, row = Arg((3, 4)), Arg((4,))
        return (
            BadSample(cls, (x, row), ShapeError, "x alone, or x, weight and bias"),
            BadSample(cls, (x, Arg((3,)), row), ShapeError, "must have shape [4]"),
            BadSample(cls, (x, Arg((4,), dt.float64), row), DTypeError, "float64 beside float32"),
            BadSample(lambda: cls(3), (x,), ShapeError, "3 normalized axes"),
        )


def _last(op: Op, types: tuple[TensorType, ...], n_axes: int) -> Shape:
    """The last `n_axes` extents of x."""
    ndim = types[0].ndim
    if not 1 <= n_axes <= ndim:
        raise op.error(f"x cannot have {n_axes} normalized axes", types, f"use 1 to {ndim}")
    return types[0].shape[ndim - n_axes :]


def affine_vjp(
    at: Pullback[V], dy: V, axes: Axes, eps: float, shape: Shape
) -> tuple[V | None, ...]:
    """Cotangents of `Standardize(axes, eps)(x) * weight + bias`.

    `shape` is how weight and bias are reshaped to broadcast against x.
    """
    x, *affine = at.inputs
    dx = dweight = dbias = None
    wide = widen(dy)
    if at.needs[0]:
        weighted = wide * widen(affine[0]).reshape(shape) if affine else wide
        dx = StandardizeGrad(axes, eps)(x, weighted.astype(x.type.dtype))
    if not affine:
        return (dx,)
    weight, bias = affine
    if at.needs[1]:
        y = Standardize(axes, eps)(widen(x))
        dweight = (wide * y).sum_to(shape).reshape(weight.shape).astype(weight.type.dtype)
    if at.needs[2]:
        dbias = wide.sum_to(shape).reshape(bias.shape).astype(bias.type.dtype)
    return dx, dweight, dbias


@op
class RmsNorm(Composite):
    """x over its root mean square along the last `n_axes` axes, times weight where it is given.

    The root is sqrt(mean(x^2) + eps).
    """

    n_axes: int = 1
    eps: float = 1e-6

    work = "reduction"
    name = "rms_norm"
    operands = ("x", "*weight")
    dtypes = dt.FLOATS
    torch = "F.rms_norm(x, x.shape[x.ndim - op.n_axes:], *weight, eps=op.eps)"
    amp = "high"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        shape = _last(self, types, self.n_axes)
        if len(types) > 2:
            raise self.error("takes x, or x and weight", types, "add a bias afterwards")
        check_parameters(self, types, shape)
        return (TensorType(types[0].dtype, types[0].shape),)

    def _axes(self, ndim: int) -> Axes:
        return tuple(range(ndim - self.n_axes, ndim))

    def body(self, x: Any, *weight: Any) -> Any:
        wide = widen(x)
        mean = Mean(self._axes(x.type.ndim), keepdims=True)
        y = wide / Sqrt()(mean(Square()(wide)) + self.eps)
        return (y * widen(weight[0]) if weight else y).astype(x.type.dtype)

    def reference(self, x: Array, *weight: Array) -> Array:
        wide = widen_array(x)
        square = _mean_array(np.square(wide), self._axes(x.ndim))
        y = np.asarray(wide / np.sqrt(square + square.dtype.type(self.eps)))
        if weight:
            y *= widen_array(weight[0])
        return y.astype(x.dtype, copy=False)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(), (Arg((3, 4)), Arg((4,)))),
            Sample(cls(2, 1e-3), (Arg((2, 3, 4)), Arg((3, 4)))),
            Sample(cls(), (Arg((2, 3)),)),
            Sample(cls(), (Arg((0, 4)), Arg((4,)))),
            Sample(cls(), (Arg((1, 1), low=0.5), Arg((1,)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, row = Arg((3, 4)), Arg((4,))
        return (
            BadSample(cls, (x, row, row), ShapeError, "takes x, or x and weight"),
            BadSample(cls, (x, Arg((3,))), ShapeError, "must have shape [4]"),
        )


@op
class GroupNorm(Composite):
    """x [N, C, *] standardized over each of `groups` groups of channels and all later axes.

    Weight and bias [C], where they are given, apply per channel. One group per channel is
    instance normalization.
    """

    groups: int
    eps: float = 1e-5

    work = "reduction"
    name = "group_norm"
    operands = ("x", "*affine")
    dtypes = dt.FLOATS
    torch = "F.group_norm(x, op.groups, *affine, eps=op.eps)"
    amp = "high"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype(types)
        x = types[0]
        check_channels(self, types)
        require_equal(
            x.shape[1] % max(self.groups, 1) if self.groups > 0 else 1,
            0,
            lambda: self.error(
                f"{x.shape[1]} channels do not form {self.groups} equal groups",
                types,
                "use a number of groups that divides the channels",
            ),
        )
        check_affine(self, types, (x.shape[1],))
        return (TensorType(x.dtype, x.shape),)

    def _grouped(self, shape: Shape) -> Shape:
        n, c, *rest = shape
        return (n, self.groups, c // self.groups, *rest)

    def body(self, x: Any, *affine: Any) -> Any:
        grouped = widen(x).reshape(self._grouped(x.shape))
        axes = tuple(range(2, x.type.ndim + 1))
        y = Standardize(axes, self.eps)(grouped).reshape(x.shape)
        return affine_operand(y, affine, channel_shape(x.type)).astype(x.type.dtype)

    def reference(self, x: Array, *affine: Array) -> Array:
        fixed: Any = self._grouped(x.shape)
        axes = tuple(range(2, x.ndim + 1))
        y = standardize_array(x.reshape(fixed), axes, self.eps).reshape(x.shape)
        per_channel = (1, -1, *(1,) * (x.ndim - 2))
        return affine_array(y, affine, per_channel).astype(x.dtype, copy=False)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        row = Arg((4,))
        return (
            Sample(cls(2), (Arg((2, 4, 3)), row, row)),
            Sample(cls(4, 1e-3), (Arg((2, 4, 2, 2)), row, row)),
            Sample(cls(1), (Arg((2, 4, 2)),)),
            Sample(cls(1), (Arg((1, 1, 2)), Arg((1,)), Arg((1,)))),
            Sample(cls(2), (Arg((2, 4)), row, row)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, row = Arg((2, 4, 3)), Arg((4,))
        return (
            BadSample(lambda: cls(3), (x,), ShapeError, "do not form 3 equal groups"),
            BadSample(lambda: cls(0), (x,), ShapeError, "do not form 0 equal groups"),
            BadSample(lambda: cls(2), (Arg((4,)),), ShapeError, "has no channel axis"),
            BadSample(lambda: cls(2), (x, row, Arg((3,))), ShapeError, "must have shape [4]"),
        )


def check_channels(op: Op, types: tuple[TensorType, ...]) -> None:
    """Raise unless x has at least the axes N and C."""
    if types[0].ndim < 2:
        raise op.error("x has no channel axis", types, "pass x as [N, C, ...]")
