"""Ops that change where a value lives or what gradients see, and never its elements."""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.families import Elementwise
from treadle.ops.op import Onnx, Op, Pullback, Sample, V, op
from treadle.ops.scalar import Scalar

_SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (), (0, 3), (1, 1))


@op
class Transfer(Op):
    """x copied to the logical device `device`; the gradient is copied back.

    The name "" leaves the copy wherever the program is placed.
    """

    device: str

    work = "collective"
    name = "transfer"
    dtypes = dt.ALL
    shape_free = True
    selects = "first"
    rearranges = True
    keeps_axes = True

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (TensorType(x.dtype, x.shape, self.device),)

    def reference(self, x: Array) -> Array:
        return np.array(x)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        source = at.inputs[0].type.device
        # A program that has not been placed has nowhere to copy back to.
        return (Transfer(source)(at.dy) if source else at.dy,)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(""), (Arg(shape),)) for shape in _SHAPES)


@op
class Identity(Elementwise):
    """x itself, as a value of its own."""

    work = "data"
    name = "identity"
    strided = True
    rearranges = True
    incidental = True
    dtypes = dt.ALL
    onnx = Onnx("Identity", since=1)
    torch = "x.clone()"
    selects = "first"
    keeps_axes = True
    is_view = True

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def reference(self, x: Array) -> Array:
        return np.array(x)

    def scalar(self, x: Scalar) -> Scalar:
        return x

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (at.dy,)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(), (Arg(shape),)) for shape in _SHAPES)


@op
class StopGradient(Elementwise):
    """x, held constant by differentiation: nothing flows back to it."""

    name = "stop_gradient"
    strided = True
    rearranges = True
    dtypes = dt.ALL
    torch = "x.detach()"
    no_gradient = "holds its operand constant"
    selects = "first"
    keeps_axes = True
    is_view = True

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def reference(self, x: Array) -> Array:
        return np.array(x)

    def scalar(self, x: Scalar) -> Scalar:
        return x

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (None,)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(), (Arg(shape),)) for shape in _SHAPES)


@op
class After(Op):
    """x itself, not before `token` is known, so that what is made of it is made late.

    What is computed again for the backward pass starts here: its operands are values of their own,
    which nobody takes for those of the forward pass.
    """

    work = "data"
    operands = ("x", "token")

    name = "after"
    dtypes = dt.ALL
    shape_free = True
    is_view = True

    def infer(self, x: TensorType, token: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def reference(self, x: Array, token: Array) -> Array:
        return np.array(x)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (at.dy if at.needs[0] else None, None)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(), (Arg(shape), Arg((2,)))) for shape in _SHAPES)
