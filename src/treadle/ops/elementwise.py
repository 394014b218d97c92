"""Arithmetic on elements: the binary operators and casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.types import TensorType
from treadle.ops.families import Binary, Compare, Elementwise, Unary
from treadle.ops.op import Array, Onnx, Pullback, op
from treadle.ops.operand import V
from treadle.ops.sample import Arg, Sample
from treadle.ops.scalar import Scalar, call, cast


@op
class Add(Binary):
    """x + y."""

    name = "add"
    onnx = Onnx("Add")
    torch = "x + y"
    reference = staticmethod(np.add)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x + y

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return dy


@op
class Sub(Binary):
    """x - y."""

    name = "sub"
    onnx = Onnx("Sub")
    torch = "x - y"
    reference = staticmethod(np.subtract)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x - y

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return -dy


@op
class Mul(Binary):
    """x * y."""

    name = "mul"
    onnx = Onnx("Mul")
    torch = "x * y"
    reference = staticmethod(np.multiply)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x * y

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy * y

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return dy * x


@op
class Div(Binary):
    """x / y, real division; integers are cast to float32 before they get here."""

    name = "div"
    dtypes = dt.FLOATS
    domains = (Arg((3, 4)), Arg((3, 4), low=-3.0, high=3.0, avoid=(0.0,)))
    onnx = Onnx("Div")
    torch = "x / y"
    reference = staticmethod(np.divide)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x / y

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy / y

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return -(dy * out) / y


@op
class Neg(Unary):
    """-x; integers wrap, as in NumPy."""

    name = "neg"
    onnx = Onnx("Neg")
    torch = "-x"
    reference = staticmethod(np.negative)

    def scalar(self, x: Scalar) -> Scalar:
        return -x

    def grad(self, dy: V, x: V, y: V) -> V:
        return -dy


@op
class Less(Compare):
    """x < y."""

    name = "less"
    onnx = Onnx("Less")
    torch = "x < y"
    reference = staticmethod(np.less)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x < y


@op
class LessEqual(Compare):
    """x <= y."""

    name = "less_equal"
    onnx = Onnx("LessOrEqual", since=12)
    torch = "x <= y"
    reference = staticmethod(np.less_equal)

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return x <= y


@op
class Exp(Unary):
    """e to the power x."""

    name = "exp"
    dtypes = dt.FLOATS
    onnx = Onnx("Exp")
    torch = "torch.exp(x)"
    reference = staticmethod(np.exp)

    def scalar(self, x: Scalar) -> Scalar:
        return call("exp", x)

    def grad(self, dy: V, x: V, y: V) -> V:
        return dy * y


@op
class Cast(Elementwise):
    """x converted to another element type.

    Floats become integers by truncation, NaN becomes the smallest integer; anything non-zero
    becomes True.
    """

    dtype: DType

    name = "cast"
    dtypes = dt.ALL

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (TensorType(self.dtype, x.shape),)

    def reference(self, x: Array) -> Array:
        return np.asarray(x).astype(self.dtype.numpy)

    def scalar(self, x: Scalar) -> Scalar:
        return cast(x, self.dtype)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        source = at.inputs[0].type.dtype
        if not (source.is_float and self.dtype.is_float):
            return (None,)
        return (at.dy.astype(source),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        targets: tuple[Any, ...] = (dt.float32, dt.int32, dt.float64, dt.bool_, dt.bfloat16)
        real = tuple(d for d in dt.ALL if d.kind != "complex" and d.kind != "uint")
        every = tuple(Sample(cls(t), (Arg((2, 3)),), dtypes=real) for t in targets)
        shapes: tuple[tuple[int, ...], ...] = ((), (0, 3), (1, 1))
        return (*every, *(Sample(cls(dt.float32), (Arg(s),), dtypes=real) for s in shapes))
