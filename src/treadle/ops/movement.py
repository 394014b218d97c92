"""Ops that move elements without computing: reshape, transpose, broadcast."""

from __future__ import annotations

import numpy as np

from treadle.base.errors import ShapeError
from treadle.base.shape import Shape, can_broadcast, format_shape, product, require_equal
from treadle.base.types import TensorType
from treadle.ops.families import Movement
from treadle.ops.op import Array, Onnx, Pullback, op
from treadle.ops.operand import V
from treadle.ops.sample import Arg, BadSample, Sample


@op
class Reshape(Movement):
    """The same elements, in row-major order, under another shape."""

    shape: Shape

    name = "reshape"
    torch = "torch.reshape(x, op.shape)"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
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
        return np.reshape(x, self.shape)  # type: ignore[arg-type]

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
        return (BadSample(lambda: cls((4,)), (Arg((2, 3)),), ShapeError, "[2,3] to [4]"),)


@op
class Transpose(Movement):
    """Axes in the order of `permutation`: result axis i is axis `permutation[i]` of x."""

    permutation: tuple[int, ...]

    name = "transpose"
    onnx = Onnx("Transpose", since=1, attributes=(("permutation", "perm"),))
    torch = "torch.permute(x, op.permutation)"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if sorted(self.permutation) != list(range(x.ndim)):
            raise self.error(
                f"{self.permutation} is no permutation of {x.ndim} axes",
                (x,),
                "name every axis once",
            )
        return (x.with_shape(tuple(x.shape[p] for p in self.permutation)),)

    def reference(self, x: Array) -> Array:
        return np.transpose(x, self.permutation)

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
        return (BadSample(lambda: cls((0, 0)), (Arg((2, 3)),), ShapeError, "no permutation"),)


@op
class Broadcast(Movement):
    """x repeated along new and size-1 axes to exactly `shape` (NumPy's rule)."""

    shape: Shape

    name = "broadcast"
    torch = "torch.broadcast_to(x, op.shape)"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if not can_broadcast(x.shape, self.shape):
            raise self.error(
                f"cannot broadcast {format_shape(x.shape)} to {format_shape(self.shape)}",
                (x,),
                "every axis must be equal or 1, counted from the last",
            )
        return (x.with_shape(self.shape),)

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
        return (BadSample(lambda: cls((4,)), (Arg((3,)),), ShapeError, "[3] to [4]"),)
