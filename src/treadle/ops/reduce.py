"""Ops that combine the elements along axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.guards import require
from treadle.base.shape import is_static, normalize_axis, product, size_of
from treadle.base.symbol import less_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.bounds import Range, Ranges
from treadle.ops.creation import Extent
from treadle.ops.cumulative import CumProd
from treadle.ops.families import NUMBERS, Reduce
from treadle.ops.op import BadSample, Op, Permuted, Pullback, Sample, Types, V, family, op
from treadle.ops.orders import Orders, inverse


def accumulator(x: Array) -> np.dtype[np.generic]:
    """The type sums of x are kept in: float32 for float16 and bfloat16, else x's own."""
    half = x.dtype.itemsize == 2 and x.dtype.kind not in "iu"
    return _FLOAT32 if half else x.dtype


_FLOAT32 = np.dtype(np.float32)
_add_up: Callable[..., Array] = np.add.reduce
"""The ufunc's own method: np.sum does the same 2 us later."""


def _total(op: Reduce, x: Array) -> Array:
    return np.asarray(_add_up(x, op.axes, accumulator(x), None, op.keepdims))


def _samples(cls: type[Reduce]) -> tuple[Sample, ...]:
    """Return samples of reductions without kinks that know a result for no elements."""
    return (
        Sample(cls((1,)), (Arg((3, 4)),)),
        Sample(cls((0, 2), True), (Arg((2, 3, 2)),)),
        Sample(cls(()), (Arg(()),)),
        Sample(cls((0,)), (Arg((0, 3)),)),
        Sample(cls((0, 1)), (Arg((1, 1)),)),
    )


@op
class Sum(Reduce):
    """Sum over `axes`; integers wrap, float16 and bfloat16 accumulate in float32."""

    name = "sum"
    combine = "add"
    torch = "torch.sum(x, op.axes, op.keepdims, dtype=x.dtype) if op.axes else x"

    def reference(self, x: Array) -> Array:
        return np.asarray(_add_up(x, self.axes, accumulator(x), None, self.keepdims), x.dtype)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x = at.inputs[0].type
        return (at.dy.reshape(self.kept_shape(x)).broadcast_to(x.shape),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return _samples(cls)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls((2,)), (Arg((2, 3)),), ShapeError, "axis 2 is out of"),)


@op
class Mean(Reduce):
    """Sum over `axes` divided by the number of elements summed; NaN where there are none.

    float16 and bfloat16 accumulate in float32.
    """

    name = "mean"
    combine = "add"
    dtypes = dt.FLOATS
    torch = "torch.mean(x, op.axes, op.keepdims) if op.axes else x"

    def reference(self, x: Array) -> Array:
        total = _total(self, x)
        count = size_of([x.shape[a] for a in self.axes])
        mean = total / total.dtype.type(count) if count else np.full_like(total, np.nan)
        return np.asarray(mean).astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x = at.inputs[0].type
        counted = tuple(x.shape[a] for a in self.axes)
        if is_static(counted):
            share = at.dy / max(size_of(counted), 1)
        else:
            # A symbolic count is no constant: in float32, as float16 is narrow.
            wide = dt.float64 if x.dtype is dt.float64 else dt.float32
            (count,) = at.dy.apply(Extent(product(counted), wide), ())
            share = (at.dy.astype(wide) / count).astype(x.dtype)
        return (share.reshape(self.kept_shape(x)).broadcast_to(x.shape),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return _samples(cls)


@op
class Prod(Reduce):
    """Product over `axes`; integers wrap, float16 and bfloat16 multiply in float32.

    The gradient multiplies the elements before and after each one, so it is exact where
    elements are zero.
    """

    name = "prod"
    combine = "mul"

    def reference(self, x: Array) -> Array:
        done = np.prod(x, axis=self.axes, keepdims=self.keepdims, dtype=accumulator(x))
        return np.asarray(done).astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x = at.inputs[0]
        dy = at.dy.reshape(self.kept_shape(x.type)).broadcast_to(x.type.shape)
        return (dy * _product_of_others(x, self.axes) if self.axes else dy,)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        zeros = ((0.0, 2.0, 3.0), (0.0, 1.5, 0.0), (-1.0, 1.0, 2.0))
        return (
            Sample(cls((1,)), (Arg((3, 4)),)),
            Sample(cls((1,)), (Arg((3, 3), values=zeros),)),
            Sample(cls((0, 2), True), (Arg((2, 3, 2)),)),
            Sample(cls(()), (Arg(()),)),
            Sample(cls((0,)), (Arg((0, 3)),)),
            Sample(cls((0, 1)), (Arg((1, 1)),)),
        )


def _product_of_others(x: V, axes: tuple[int, ...]) -> V:
    """Return for each element the product of all others along `axes`."""
    shape, last = x.type.shape, x.type.ndim - len(axes)
    kept = tuple(i for i in range(x.type.ndim) if i not in axes)
    order = (*kept, *axes)
    moved = x.transpose(order)
    flat = moved.reshape((*(shape[i] for i in kept), product(shape[i] for i in axes)))
    before = CumProd(last, exclusive=True)(flat)
    after = CumProd(last, exclusive=True, reverse=True)(flat)
    back = tuple(order.index(i) for i in range(len(order)))
    return (before * after).reshape(moved.type.shape).transpose(back)


@family
class Extremum(Reduce):
    """Maximum or minimum; every element that attains it gets the whole cotangent."""

    selects = "first"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        result = super().infer(x)
        require_elements(self, x, self.axes)
        return result

    def attains(self, x: V, extremum: V) -> V:
        """Return whether elements attain the extremum; False where either is NaN."""
        raise NotImplementedError(f"{self.name} does not say which elements attain it")

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x = at.inputs[0]
        kept = self.kept_shape(x.type)
        chosen = self.attains(x, at.outputs[0].reshape(kept)).astype(x.type.dtype)
        return (at.dy.reshape(kept) * chosen,)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((1,)), (Arg((3, 4), distinct=True),)),
            Sample(cls((0, 2), True), (Arg((2, 3, 2), distinct=True),)),
            Sample(cls(()), (Arg(()),)),
            Sample(cls((1,)), (Arg((0, 3)),)),
            Sample(cls((0, 1)), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls((0,)), (Arg((0, 3)),), ShapeError, "axis 0 has no elements"),)


def require_elements(op: Op, x: TensorType, axes: tuple[int, ...]) -> None:
    """Raise `ShapeError` where an axis of extent 0 is reduced, as NumPy does."""
    for axis in axes:
        require(
            less_equal(1, x.shape[axis]),
            lambda axis=axis: op.error(  # type: ignore[misc]
                f"axis {axis} has no elements, and the op has no value for none of them",
                (x,),
                "leave out empty inputs",
            ),
        )


@op
class Max(Extremum):
    """The greatest element over `axes`; NaN where one is NaN. Ties: each gets the gradient."""

    name = "max"
    combine = "max"
    torch = "torch.amax(x, op.axes, op.keepdims) if op.axes else x"

    def reference(self, x: Array) -> Array:
        return np.asarray(np.max(x, axis=self.axes, keepdims=self.keepdims))

    def attains(self, x: V, extremum: V) -> V:
        return x >= extremum


@op
class Min(Extremum):
    """The least element over `axes`; NaN where one is NaN. Ties: each gets the gradient."""

    name = "min"
    combine = "min"
    torch = "torch.amin(x, op.axes, op.keepdims) if op.axes else x"

    def reference(self, x: Array) -> Array:
        return np.asarray(np.min(x, axis=self.axes, keepdims=self.keepdims))

    def attains(self, x: V, extremum: V) -> V:
        return x <= extremum


@family
class Quantifier(Reduce):
    """True if any or all elements are True."""

    dtypes = (dt.bool_,)
    no_gradient = "is a test: its result is bool"

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return _samples(cls)


@op
class Any(Quantifier):
    """True where an element along `axes` is; False where there are none."""

    name = "any"
    combine = "or"
    torch = "torch.any(x, op.axes, op.keepdims) if op.axes else x"

    def reference(self, x: Array) -> Array:
        return np.asarray(np.any(x, axis=self.axes, keepdims=self.keepdims))


@op
class All(Quantifier):
    """True where no element along `axes` is False; True where there are none."""

    name = "all"
    combine = "and"
    torch = "torch.all(x, op.axes, op.keepdims) if op.axes else x"

    def reference(self, x: Array) -> Array:
        return np.asarray(np.all(x, axis=self.axes, keepdims=self.keepdims))


@family
class ArgExtremum(Op):
    """Index of the extremum along one axis: int32, the first of ties, NaN before all numbers."""

    dtypes = NUMBERS
    no_gradient = "gives a position: its result is an integer"
    axis: int
    keepdims: bool = False

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        return 0, types[0].shape[self.axis]

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        order = orders(types[0].ndim)
        left = [axis for axis in order if axis != self.axis]
        if not self.keepdims and left != sorted(left):
            return None
        made = self.replace(axis=inverse(order)[self.axis])
        return Permuted(made, (len(order),), held=self.keepdims)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        axis = normalize_axis(self.axis, x.ndim, self.name)
        require_elements(self, x, (axis,))
        self.check_positions(x, (axis,))
        middle = (1,) if self.keepdims else ()
        return (
            x.with_shape((*x.shape[:axis], *middle, *x.shape[axis + 1 :])).with_dtype(dt.int32),
        )

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(1), (Arg((3, 4)),)),
            Sample(cls(0, True), (Arg((3, 2)),)),
            Sample(cls(1), (Arg((2, 4), values=((1, 2, 2, 1), (0, 0, 0, 0))),)),
            Sample(cls(1), (Arg((0, 3)),)),
            Sample(cls(0), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(0), (Arg((0, 3)),), ShapeError, "axis 0 has no elements"),
            BadSample(lambda: cls(0), (Arg((0, 0)),), ShapeError, "axis 0 has no elements"),
            BadSample(lambda: cls(0), (Arg(()),), ShapeError, "out of range"),
            BadSample(lambda: cls(0), (Arg((2,)),), DTypeError, "does not take bool", dt.bool_),
        )


@op
class Argmax(ArgExtremum):
    """Position of the greatest element along `axis`, the first one of equals."""

    name = "argmax"
    torch = "torch.argmax(x, op.axis, op.keepdims).int()"

    def reference(self, x: Array) -> Array:
        found = np.argmax(x, axis=self.axis, keepdims=self.keepdims)
        return np.asarray(found).astype(np.int32)


@op
class Argmin(ArgExtremum):
    """Position of the least element along `axis`, the first one of equals."""

    name = "argmin"
    torch = "torch.argmin(x, op.axis, op.keepdims).int()"

    def reference(self, x: Array) -> Array:
        found = np.argmin(x, axis=self.axis, keepdims=self.keepdims)
        return np.asarray(found).astype(np.int32)
