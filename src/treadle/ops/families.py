"""Abstract families: what groups of ops share, so that a declaration says only what is its own."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.errors import DTypeError, NoGradient, ShapeError
from treadle.base.shape import Shape, broadcast_shapes, normalize_axes
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import (
    BadSample,
    Op,
    Permuted,
    Pullback,
    Sample,
    Selects,
    Types,
    V,
    Work,
    family,
)
from treadle.ops.orders import Orders, inverse
from treadle.ops.scalar import Scalar

NUMBERS: tuple[DType, ...] = dt.REALS
Combine = Literal["add", "mul", "max", "min", "or", "and"]
"""The operation that makes one of two elements, or partial results, of a reduction."""


def identity(combine: Combine, dtype: DType) -> bool | int | float:
    """Return the number that changes no element of a type that it is combined with."""
    if combine in ("or", "and"):
        return combine == "and"
    if combine in ("add", "mul"):
        one = int(combine == "mul")
        return float(one) if dtype.is_float else one
    if dtype.is_float:
        return float("-inf" if combine == "max" else "inf")
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if combine == "max" else limits.max)


def oracle(function: Any) -> Any:
    """A NumPy function as the `reference` of a declaration.

    Typed loosely: the overloads of NumPy's stubs fit no method signature.
    """
    return staticmethod(function)


class Elementwise(Op):
    """Each result element depends on the elements at the same (broadcast) position only."""

    work: ClassVar[Work] = "elementwise"
    shape_free = True

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        if type(self).scalar is Elementwise.scalar or self.n_outputs != 1:
            return None
        return Permuted(self, tuple(result.ndim if t.ndim else 0 for t in types))

    def scalar(self, *xs: Any) -> Scalar:
        """Return the expression of one element, from which kernels are generated."""
        raise NotImplementedError(f"{self.name} declares no scalar code")

    def broadcast(self, types: tuple[TensorType, ...]) -> Shape:
        """The shape all operands broadcast to; a `ShapeError` that shows them where none is."""
        try:
            return broadcast_shapes(self.name, *(t.shape for t in types))
        except ShapeError as error:
            raise ShapeError(
                self.name, error.problem, saw=self.saw(types), hint=error.hint
            ) from None


class Unary(Elementwise):
    """One operand; same shape and, unless the declaration says otherwise, same element type."""

    dtypes = NUMBERS
    domain: ClassVar[Arg] = Arg((3, 4))
    """Interval on which the function and its gradient are defined; samples are drawn from it."""

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        return (TensorType(self.result_dtype(x.dtype), x.shape),)

    def result_dtype(self, dtype: DType) -> DType:
        """Element type of the result."""
        return dtype

    def grad(self, dy: V, x: V, y: V) -> V:
        """Cotangent of x; y is the op's result."""
        raise NoGradient(self.name, self.no_gradient or "has no gradient rule")

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (self.grad(at.dy, at.inputs[0], at.outputs[0]),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(), (_resized(cls.domain, s),)) for s in UNARY_SHAPES)


UNARY_SHAPES: tuple[tuple[int, ...], ...] = ((3, 4), (), (0, 3), (1, 1, 5))


class UnaryFloat(Unary):
    """A unary function of real numbers: floating types only."""

    dtypes = dt.FLOATS


class Predicate(Unary):
    """A unary test: the result is bool and has no gradient."""

    no_gradient = "is a test: its result is bool"

    def result_dtype(self, dtype: DType) -> DType:
        return dt.bool_


class Binary(Elementwise):
    """Two operands of one element type, broadcast against one another."""

    operands = ("x", "y")
    dtypes = NUMBERS
    domains: ClassVar[tuple[Arg, Arg]] = (Arg((3, 4)), Arg((3, 4)))

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x, y))
        self.check_same_dtype((x, y))
        shape = x.shape if x.shape == y.shape else self.broadcast((x, y))
        return (TensorType(self.result_dtype(x.dtype), shape),)

    def result_dtype(self, dtype: DType) -> DType:
        """Element type of the result."""
        return dtype

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        """Cotangent of x before it is summed to the shape of x."""
        raise NoGradient(self.name, self.no_gradient or "has no gradient rule")

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        """Cotangent of y before it is summed to the shape of y."""
        raise NoGradient(self.name, self.no_gradient or "has no gradient rule")

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        (x, y), (out,) = at.inputs, at.outputs
        dx = self.grad_x(at.dy, x, y, out).sum_to(x.type.shape) if at.needs[0] else None
        dy = self.grad_y(at.dy, x, y, out).sum_to(y.type.shape) if at.needs[1] else None
        return dx, dy

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        first, second = cls.domains
        return tuple(
            Sample(cls(), (_resized(first, a), _resized(second, b))) for a, b in BINARY_SHAPES
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        kind = cls.dtypes[-1]
        other = next(d for d in dt.ALL if d is not kind)
        return (
            BadSample(cls, (Arg((2, 3)), Arg((4,))), ShapeError, "axis -1: 3 against 4", kind),
            BadSample(cls, (Arg((2,)), Arg((2,), dtype=other)), DTypeError, "differ in", kind),
        )


BINARY_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 4), (3, 4)),
    ((), ()),
    ((0, 3), (1, 3)),
    ((2, 1, 4), (3, 1)),
    ((1, 1), ()),
)


class Compare(Binary):
    """A binary test: bool result, no gradient. Every element type can be compared."""

    dtypes = (dt.bool_, *NUMBERS)
    no_gradient = "is a comparison: its result is bool"
    rounded_once = True

    def result_dtype(self, dtype: DType) -> DType:
        return dt.bool_


@family
class Reduce(Op):
    """Combine the elements along axes. `axes` is sorted and non-negative; see `reduce_axes`.

    `combine` is the operation that they are combined by, if it is one of those on two elements.
    """

    work = "reduction"
    dtypes = NUMBERS
    combine: ClassVar[Combine | None] = None
    axes: tuple[int, ...]
    keepdims: bool = False

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        return (TensorType(self.result_dtype(x.dtype), self.result_shape(x)),)

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        order = orders(types[0].ndim)
        left = [axis for axis in order if axis not in self.axes]
        if not self.keepdims and left != sorted(left):
            return None
        place = inverse(order)
        made = self.replace(axes=tuple(sorted(place[a] for a in self.axes)))
        return Permuted(made, (len(order),), held=self.keepdims)

    def result_dtype(self, dtype: DType) -> DType:
        """Element type of the result."""
        return dtype

    def result_shape(self, x: TensorType) -> Shape:
        """Shape of the result; axes out of range raise `ShapeError`."""
        axes = normalize_axes(self.axes, x.ndim, self.name)
        if self.keepdims:
            return tuple(1 if i in axes else d for i, d in enumerate(x.shape))
        return tuple(d for i, d in enumerate(x.shape) if i not in axes)

    def kept_shape(self, x: TensorType) -> Shape:
        """Shape of the result with every reduced axis kept as 1."""
        return tuple(1 if i in self.axes else d for i, d in enumerate(x.shape))


class Movement(Op):
    """Elements move, none is computed: any element type, and the gradient moves them back."""

    work = "data"
    dtypes = dt.ALL
    selects: ClassVar[Selects] = "first"


def _resized(arg: Arg, shape: tuple[int, ...]) -> Arg:
    """The same value range under another shape."""
    return Arg(shape, arg.dtype, arg.low, arg.high, arg.avoid, arg.distinct, arg.values)
