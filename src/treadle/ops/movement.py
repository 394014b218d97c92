"""Ops that move whole axes without computing: reshape, transpose, broadcast, concat, flip, roll."""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import (
    Shape,
    format_shape,
    normalize_axes,
    normalize_axis,
    product,
    require_equal,
)
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.bounds import Range, Ranges, hull
from treadle.ops.families import Movement
from treadle.ops.op import BadSample, Onnx, Op, Permuted, Pullback, Sample, Types, V, op
from treadle.ops.orders import Orders, inverse, placed
from treadle.ops.slicing import along


@op
class Reshape(Movement):
    """The same elements, in row-major order, under another shape."""

    shape: Shape

    name = "reshape"
    strided = True
    rearranges = True
    incidental = True
    torch = "torch.reshape(x, op.shape)"
    keeps_axes = True
    is_view = True

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        # Other axes of space behind the same batch and channels.
        before, after = types[0].shape, self.shape
        if before[:2] != after[:2]:
            return None
        return Permuted(Reshape(placed(after, orders(len(after)))), (len(before),))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        require_not_negative(self, self.shape, (x,))
        require_equal(
            product(x.shape),
            product(self.shape),
            lambda: self.error(
                f"cannot reshape {format_shape(x.shape)} to {format_shape(self.shape)}",
                (x,),
                "both shapes must hold the same number of elements",
            ),
        )
        return (x.with_shape(self.shape),)

    def reference(self, x: Array) -> Array:
        return x.reshape(self.shape)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (at.dy.reshape(at.inputs[0].type.shape),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((3, 2)), (Arg((2, 3)),)),
            Sample(cls(()), (Arg((1, 1)),)),
            Sample(cls((1,)), (Arg(()),)),
            Sample(cls((0, 4)), (Arg((2, 0)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls((4,)), (Arg((2, 3)),), ShapeError, "[2,3] to [4]"),
            BadSample(lambda: cls((-2, -3)), (Arg((2, 3)),), ShapeError, "negative extent"),
        )


@op
class Transpose(Movement):
    """Axes in the order of `permutation`: result axis i is axis `permutation[i]` of x."""

    permutation: tuple[int, ...]

    name = "transpose"
    strided = True
    rearranges = True
    onnx = Onnx("Transpose", since=1, attributes=(("permutation", "perm"),))
    torch = "torch.permute(x, op.permutation)"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if sorted(self.permutation) != list(range(x.ndim)):
            raise self.error(
                f"{self.permutation} is not a permutation of {x.ndim} axes",
                (x,),
                "name every axis once; F.swapaxes(x, i, j) exchanges two",
            )
        return (x.with_shape(tuple(x.shape[p] for p in self.permutation)),)

    def reference(self, x: Array) -> Array:
        return x.transpose(self.permutation)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        inverse = tuple(int(i) for i in np.argsort(self.permutation))
        return (at.dy.transpose(inverse),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((2, 0, 1)), (Arg((2, 3, 4)),)),
            Sample(cls(()), (Arg(()),)),
            Sample(cls((1, 0)), (Arg((0, 3)),)),
            Sample(cls((1, 0)), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls((0, 0)), (Arg((2, 3)),), ShapeError, "not a permutation"),)


@op
class Broadcast(Movement):
    """x repeated along new and size-1 axes to exactly `shape` (NumPy's rule)."""

    shape: Shape

    name = "broadcast"
    strided = True
    incidental = True
    torch = "torch.broadcast_to(x, op.shape)"
    keeps_axes = True

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        rank = len(self.shape)
        made = self.replace(shape=placed(self.shape, orders(rank)))
        return Permuted(made, tuple(rank if t.ndim else 0 for t in types))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        require_not_negative(self, self.shape, (x,))
        lead = len(self.shape) - x.ndim
        if lead < 0:
            raise self._mismatch(x)
        for mine, wanted in zip(x.shape, self.shape[lead:], strict=True):
            if mine != 1:
                require_equal(mine, wanted, lambda: self._mismatch(x))
        return (x.with_shape(self.shape),)

    def _mismatch(self, x: TensorType) -> ShapeError:
        return self.error(
            f"cannot broadcast {format_shape(x.shape)} to {format_shape(self.shape)}",
            (x,),
            "every axis must be equal or 1, counted from the last",
        )

    def reference(self, x: Array) -> Array:
        return np.broadcast_to(x, self.shape)  # type: ignore[arg-type]

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (at.dy.sum_to(at.inputs[0].type.shape),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((2, 3)), (Arg((3,)),)),
            Sample(cls((2, 4, 3)), (Arg((2, 1, 3)),)),
            Sample(cls((2,)), (Arg(()),)),
            Sample(cls((0, 3)), (Arg((1, 3)),)),
            Sample(cls(()), (Arg(()),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls((4,)), (Arg((3,)),), ShapeError, "[3] to [4]"),
            BadSample(lambda: cls((3,)), (Arg((2, 3)),), ShapeError, "[2,3] to [3]"),
            BadSample(lambda: cls((-1,)), (Arg((1,)),), ShapeError, "negative extent"),
        )


def require_not_negative(op: Op, shape: Shape, types: tuple[TensorType, ...] = ()) -> None:
    """Raise `ShapeError` where an extent of a wanted shape is negative."""
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise op.error(
            f"the shape {format_shape(shape)} has a negative extent",
            types,
            "extents are 0 or more",
        )


@op
class Concat(Movement):
    """The inputs one after another along `axis`; their other extents are equal."""

    axis: int

    name = "concat"
    operands = ("*xs",)
    onnx = Onnx("Concat", since=4, attributes=(("axis", "axis"),))
    selects = "any"
    torch = "torch.cat(xs, op.axis)"
    keeps_axes = True

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        return hull(of)

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        rank = types[0].ndim
        made = self.replace(axis=inverse(orders(rank))[self.axis])
        return Permuted(made, (rank,) * len(types))

    def infer(self, *xs: TensorType) -> tuple[TensorType, ...]:
        self.check_same_dtype(xs)
        first = xs[0]
        axis = normalize_axis(self.axis, first.ndim, self.name)
        total: Dim = 0
        for x in xs:
            if x.ndim != first.ndim:
                raise self._mismatch(xs)
            for i, (mine, theirs) in enumerate(zip(first.shape, x.shape, strict=True)):
                if i != axis:
                    require_equal(mine, theirs, lambda: self._mismatch(xs))
            total = total + x.shape[axis]
        return (first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :])),)

    def _mismatch(self, xs: tuple[TensorType, ...]) -> ShapeError:
        return self.error(
            f"inputs differ besides axis {self.axis}",
            xs,
            "reshape them so that all other extents are equal",
        )

    def reference(self, *xs: Array) -> Array:
        return np.concatenate(xs, self.axis)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        parts: list[V | None] = []
        start: Dim = 0
        for x, need in zip(at.inputs, at.needs, strict=True):
            stop = start + x.type.shape[self.axis]
            parts.append(along(at.dy, self.axis, start, stop) if need else None)
            start = stop
        return tuple(parts)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(1), (Arg((2, 3)), Arg((2, 1)))),
            Sample(cls(0), (Arg((2, 3)), Arg((0, 3)), Arg((1, 3)))),
            Sample(cls(0), (Arg((4,)),)),
            Sample(cls(1), (Arg((0, 2)), Arg((0, 1)))),
            Sample(cls(0), (Arg((1, 1)), Arg((1, 1)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(0), (Arg((2, 3)), Arg((2, 4))), ShapeError, "besides axis 0"),
            BadSample(lambda: cls(0), (Arg((2, 3)), Arg((3,))), ShapeError, "besides axis 0"),
            BadSample(lambda: cls(0), (Arg(()), Arg(())), ShapeError, "axis 0 is out of range"),
            BadSample(lambda: cls(0), (Arg((2,)), Arg((2,), dt.int32)), DTypeError, "differ in"),
        )


@op
class Flip(Movement):
    """The elements in reverse order along `axes`."""

    axes: tuple[int, ...]

    name = "flip"
    strided = True
    rearranges = True
    torch = "torch.flip(x, op.axes)"

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        place = inverse(orders(types[0].ndim))
        made = self.replace(axes=tuple(sorted(place[a] for a in self.axes)))
        return Permuted(made, (len(place),))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        normalize_axes(self.axes, x.ndim, self.name)
        return (x.with_shape(x.shape),)

    def reference(self, x: Array) -> Array:
        return np.flip(x, self.axes)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (self(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((1,)), (Arg((2, 3)),)),
            Sample(cls((0, 2)), (Arg((2, 1, 3)),)),
            Sample(cls(()), (Arg(()),)),
            Sample(cls((0,)), (Arg((0, 3)),)),
            Sample(cls((0, 1)), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls((1,)), (Arg((3,)),), ShapeError, "axis 1 is out of range"),)


@op
class Roll(Movement):
    """Elements moved `shifts[i]` places along `axes[i]`; those moved past the end come in first."""

    shifts: tuple[int, ...]
    axes: tuple[int, ...]

    name = "roll"
    rearranges = True
    torch = "torch.roll(x, op.shifts, op.axes) if op.axes else x"

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        place = inverse(orders(types[0].ndim))
        return Permuted(self.replace(axes=tuple(place[a] for a in self.axes)), (len(place),))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if len(self.shifts) != len(self.axes):
            raise self.error(
                f"has {len(self.shifts)} shifts for {len(self.axes)} axes",
                (x,),
                "give one shift per axis",
            )
        for axis in self.axes:
            normalize_axis(axis, x.ndim, self.name)
        return (x.with_shape(x.shape),)

    def reference(self, x: Array) -> Array:
        return np.roll(x, self.shifts, self.axes) if self.axes else np.array(x)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (Roll(tuple(-s for s in self.shifts), self.axes)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((1,), (1,)), (Arg((2, 3)),)),
            Sample(cls((-1, 5), (0, 1)), (Arg((2, 3)),)),
            Sample(cls((), ()), (Arg(()),)),
            Sample(cls((2,), (0,)), (Arg((0, 3)),)),
            Sample(cls((1,), (0,)), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls((1,), (1,)), (Arg((3,)),), ShapeError, "axis 1 is out of range"),
            BadSample(lambda: cls((1, 2), (0,)), (Arg((3,)),), ShapeError, "2 shifts for 1 axes"),
        )
