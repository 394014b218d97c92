"""Ops that carry a running value along one axis: cumulative sums, products, linear recurrences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import format_shape, normalize_axis, require_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.families import NUMBERS
from treadle.ops.op import BadSample, Op, Permuted, Pullback, Sample, Types, V, family, op
from treadle.ops.orders import Orders, inverse
from treadle.ops.slicing import Pad, Slice

_TORCH_INPUT = (
    "torch.flip(x, op.flipped).roll(1, op.axis).index_fill(op.axis, torch.tensor([0]), {unit})"
    " if op.exclusive else torch.flip(x, op.flipped)"
)
_TORCH = "torch.flip(torch.{function}(" + _TORCH_INPUT + ", op.axis, dtype=x.dtype), op.flipped)"


@family
class Cumulative(Op):
    """A running total along `axis`.

    `exclusive` leaves an element out of its own total; `reverse` runs from the last element.
    """

    work = "reduction"
    dtypes = NUMBERS
    axis: int
    exclusive: bool = False
    reverse: bool = False

    @property
    def flipped(self) -> tuple[int, ...]:
        """Axes to flip so that the total runs forward."""
        return (self.axis,) if self.reverse else ()

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        rank = types[0].ndim
        made = self.replace(axis=inverse(orders(rank))[self.axis])
        return Permuted(made, (rank,) * len(types))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        normalize_axis(self.axis, x.ndim, self.name)
        return (x.with_shape(x.shape),)

    def run(self, x: Array, total: Callable[..., Array], unit: int) -> Array:
        """The oracle, given NumPy's function and what it gives for no elements."""
        half = x.dtype.itemsize == 2 and x.dtype.kind not in "iu"
        forward = np.moveaxis(np.flip(x, self.flipped), self.axis, 0)
        totals = total(forward, axis=0, dtype=np.float32 if half else x.dtype)
        if self.exclusive:
            inclusive, totals = totals, np.full_like(totals, unit)
            totals[1:] = inclusive[:-1]
        back = np.flip(np.moveaxis(totals, 0, self.axis), self.flipped)
        return np.asarray(back).astype(x.dtype, copy=False)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(1), (Arg((3, 4)),)),
            Sample(cls(0, exclusive=True), (Arg((4, 2)),)),
            Sample(cls(1, reverse=True), (Arg((2, 3, 2)),)),
            Sample(cls(0, exclusive=True, reverse=True), (Arg((4,)),)),
            Sample(cls(1), (Arg((3, 4), values=((0, 1, 2, 1), (1, 0, 2, 0), (2, 1, 1, 0))),)),
            Sample(cls(0), (Arg((0, 3)),)),
            Sample(cls(1), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(0), (Arg(()),), ShapeError, "axis 0 is out of range"),
            BadSample(lambda: cls(0), (Arg((2,)),), DTypeError, "does not take bool", dt.bool_),
        )


@op
class CumSum(Cumulative):
    """Sum of the elements up to each one along `axis`; integers wrap."""

    name = "cum_sum"
    torch = _TORCH.format(function="cumsum", unit=0)

    def reference(self, x: Array) -> Array:
        return self.run(x, np.cumsum, 0)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (CumSum(self.axis, self.exclusive, not self.reverse)(at.dy),)


@op
class CumProd(Cumulative):
    """Product of the elements up to each one along `axis`; integers wrap.

    The gradient at element k is the product of the elements before it, times a linear recurrence
    over those after it; nothing is divided, so zeros are exact.
    """

    name = "cum_prod"
    torch = _TORCH.format(function="cumprod", unit=1)

    def reference(self, x: Array) -> Array:
        return self.run(x, np.cumprod, 1)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, back = at.inputs[0], not self.reverse
        before = CumProd(self.axis, exclusive=True, reverse=self.reverse)(x)
        if self.exclusive:
            after = LinearRecurrence(self.axis, back)(x, at.dy)
            return (before * delayed(after, self.axis, back),)
        return (before * LinearRecurrence(self.axis, back)(delayed(x, self.axis, back), at.dy),)


@op
class LinearRecurrence(Op):
    """y[k] = b[k] + a[k] y[k-1] along `axis`, with y[-1] = 0; from the last element if `reverse`.

    The running state of linear state-space models and of gradients of cumulative products; its
    own gradient is the recurrence in the other direction.
    """

    axis: int
    reverse: bool = False

    name = "linear_recurrence"
    operands = ("a", "b")
    dtypes = dt.FLOATS

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((a, b))
        self.check_same_dtype((a, b))
        self.check_ndim((a, b), 1, a.ndim)
        normalize_axis(self.axis, a.ndim, self.name)
        for mine, theirs in zip(a.shape, b.shape, strict=True):
            require_equal(mine, theirs, lambda: self._mismatch(a, b))
        return (a.with_shape(a.shape),)

    def _mismatch(self, a: TensorType, b: TensorType) -> ShapeError:
        return self.error(
            f"shapes differ: {format_shape(a.shape)} and {format_shape(b.shape)}",
            (a, b),
            "broadcast the operands to one shape",
        )

    def reference(self, a: Array, b: Array) -> Array:
        wide = np.float32 if a.dtype.itemsize == 2 else a.dtype
        flipped = (self.axis,) if self.reverse else ()
        factors = np.moveaxis(np.flip(a, flipped), self.axis, 0).astype(wide)
        states = np.moveaxis(np.flip(b, flipped), self.axis, 0).astype(wide)
        for k in range(1, len(states)):
            states[k] += factors[k] * states[k - 1]
        back = np.flip(np.moveaxis(states, 0, self.axis), flipped)
        return back.astype(a.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        back = not self.reverse
        db = LinearRecurrence(self.axis, back)(delayed(at.inputs[0], self.axis, back), at.dy)
        da = db * delayed(at.outputs[0], self.axis, self.reverse) if at.needs[0] else None
        return da, db if at.needs[1] else None

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(1), (Arg((2, 4)), Arg((2, 4)))),
            Sample(cls(0, True), (Arg((3, 2)), Arg((3, 2)))),
            Sample(cls(0), (Arg((3,), values=(1.0, 0.0, 2.0)), Arg((3,)))),
            Sample(cls(1), (Arg((3, 0)), Arg((3, 0)))),
            Sample(cls(0), (Arg((1, 1)), Arg((1, 1)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(0), (Arg((2,)), Arg((3,))), ShapeError, "shapes differ"),
            BadSample(lambda: cls(2), (Arg((2,)), Arg((2,))), ShapeError, "out of range"),
        )


def delayed(x: V, axis: int, reverse: bool) -> V:
    """x one step later along `axis` (one step earlier if `reverse`); a zero enters."""
    ndim, shape = x.type.ndim, x.type.shape
    widths = tuple(((0, 1) if reverse else (1, 0)) if i == axis else (0, 0) for i in range(ndim))
    first = tuple(1 if reverse and i == axis else 0 for i in range(ndim))
    stops = tuple(d + s for d, s in zip(shape, first, strict=True))
    return Slice(first, stops, (1,) * ndim)(Pad(widths)(x))
