"""Matrix products of stacks of matrices."""

from __future__ import annotations

import math

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import Shape, broadcast_shapes, format_shape, product, require_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, family, op
from treadle.ops.precision import compute_type, widen_array

_VECTOR = "reshape a vector to a matrix of one row or column"
_PLAIN = frozenset("fd")
"""Characters of the NumPy types that BLAS multiplies in their own precision."""


@family
class MatrixProduct(Op):
    """Attributes and type rule of a product x [..., M, K] times y [..., K, N].

    The leading axes broadcast by NumPy's rule. `transpose_x` and `transpose_y` swap the last two
    axes of an operand first. ONNX's MatMul has no such flags, so the mapping is not one to one.
    """

    work = "product"
    contraction = True
    operands = ("x", "y")
    transpose_x: bool = False
    transpose_y: bool = False

    def result_shape(self, x: TensorType, y: TensorType) -> Shape:
        """Shape of the product."""
        types = (x, y)
        for index in (0, 1):
            if types[index].ndim < 2:
                raise self.error(
                    f"expects at least 2 axes for {self.operands[index]}",
                    types,
                    _VECTOR,
                )
        rows, inner = x.shape[-2:][:: -1 if self.transpose_x else 1]
        other, columns = y.shape[-2:][:: -1 if self.transpose_y else 1]
        require_equal(
            inner,
            other,
            lambda: self.error(
                f"the inner extents {inner} and {other} differ",
                types,
                f"axis {-2 if self.transpose_x else -1} of x must be as long as "
                f"axis {-1 if self.transpose_y else -2} of y; transpose one of them",
            ),
        )
        return (*self._batch_shape(types), rows, columns)

    def _batch_shape(self, types: tuple[TensorType, ...]) -> Shape:
        try:
            return broadcast_shapes(self.name, *(t.shape[:-2] for t in types))
        except ShapeError as error:
            raise ShapeError(
                self.name, error.problem, saw=self.saw(types), hint=error.hint
            ) from None

    def multiply(self, x: Array, y: Array) -> Array:
        """The product of two arrays of one type."""
        if x.ndim < 2 or y.ndim < 2:
            raise ShapeError(
                self.name,
                "expects at least 2 axes for both operands",
                saw=f"x {format_shape(x.shape)}, y {format_shape(y.shape)}",
                hint=_VECTOR,
            )
        x = x.swapaxes(-1, -2) if self.transpose_x else x
        y = y.swapaxes(-1, -2) if self.transpose_y else y
        if y.ndim == 2 and x.ndim > 2 and x.flags.c_contiguous:
            # One large product instead of many small ones.
            rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
            product: Array = rows.dot(y).reshape(*x.shape[:-1], y.shape[1])
        else:
            product = np.matmul(x, y)
        return product


@op
class Matmul(MatrixProduct):
    """Matrix product x [..., M, K] times y [..., K, N], leading axes broadcast as in NumPy.

    float16 and bfloat16 accumulate in float32. Vectors are reshaped before they get here.
    """

    name = "matmul"
    dtypes = dt.FLOATS
    shape_free = True
    torch = "torch.matmul(x.mT if op.transpose_x else x, y.mT if op.transpose_y else y)"
    amp = "low"

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x, y))
        self.check_same_dtype((x, y))
        return (x.with_shape(self.result_shape(x, y)),)

    def reference(self, x: Array, y: Array) -> Array:
        if x.dtype.char in _PLAIN:
            if x.ndim == 2 and y.ndim == 2:
                # The method is 0.3 us faster than np.dot and 0.8 us faster than np.matmul.
                product: Array = (x.T if self.transpose_x else x).dot(
                    y.T if self.transpose_y else y
                )
                return product
            return self.multiply(x, y)
        wide = self.multiply(x.astype(np.float32), y.astype(np.float32))
        return wide.astype(x.dtype)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return _gradients(self, at, at.dy)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        flagged = (
            Sample(cls(tx, ty), (Arg((3, 2) if tx else (2, 3)), Arg((4, 3) if ty else (3, 4))))
            for tx in (False, True)
            for ty in (False, True)
        )
        return (
            *flagged,
            Sample(cls(), (Arg((2, 2, 3)), Arg((2, 3, 2)))),
            Sample(cls(), (Arg((2, 1, 2, 3)), Arg((3, 3, 1)))),
            Sample(cls(), (Arg((2, 2, 3)), Arg((3, 2)))),
            Sample(cls(False, True), (Arg((2, 2, 3)), Arg((2, 3)))),
            Sample(cls(True, True), (Arg((2, 3, 2)), Arg((1, 2, 3)))),
            Sample(cls(), (Arg((2, 3)), Arg((2, 3, 2)))),
            Sample(cls(), (Arg((2, 0)), Arg((0, 3)))),
            Sample(cls(), (Arg((0, 2, 3)), Arg((3, 2)))),
            Sample(cls(), (Arg((1, 1)), Arg((1, 1)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(cls, (Arg((2, 3)), Arg((4, 2))), ShapeError, "inner extents 3 and 4"),
            BadSample(cls, (Arg((2, 3)), Arg((3,))), ShapeError, "at least 2 axes"),
            BadSample(cls, (Arg((2, 2, 3)), Arg((3, 3, 2))), ShapeError, "axis -1: 2 against 3"),
            BadSample(cls, (Arg((2, 3)), Arg((3, 2), dt.int32)), DTypeError, "differ in"),
        )


def _gradients(op: MatrixProduct, at: Pullback[V], dz: V) -> tuple[V | None, ...]:
    """Return the gradients of both operands, which have the type of `dz`."""
    x, y = at.inputs
    dx = _grad_x(op, dz, y).sum_to(x.type.shape) if at.needs[0] else None
    dy = _grad_y(op, dz, x, y) if at.needs[1] else None
    return dx, dy


def _grad_x(op: MatrixProduct, dz: V, y: V) -> V:
    if op.transpose_x:
        return Matmul(op.transpose_y, True)(y, dz)
    return Matmul(False, not op.transpose_y)(dz, y)


def _grad_y(op: MatrixProduct, dz: V, x: V, y: V) -> V:
    if y.type.ndim == 2 and x.type.ndim > 2 and not op.transpose_x:
        # A matrix shared by the whole stack: the sum over the stack is part of the product.
        x, dz = _as_matrix(x), _as_matrix(dz)
    if op.transpose_y:
        found = Matmul(True, op.transpose_x)(dz, x)
    else:
        found = Matmul(not op.transpose_x, False)(x, dz)
    return found.sum_to(y.type.shape)


@op
class WideMatmul(MatrixProduct):
    """Matrix product whose result has the type of its sums: float32 for operands of 16 bits.

    What is added to it, a bias, is then rounded together with the product, once.
    """

    name = "wide_matmul"
    dtypes = dt.FLOATS
    shape_free = True
    torch = (
        "(lambda x, y: torch.matmul(x.mT if op.transpose_x else x, y.mT if op.transpose_y else y))"
        "(*(v.float() if v.itemsize == 2 else v for v in (x, y)))"
    )

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x, y))
        self.check_same_dtype((x, y))
        return (TensorType(compute_type(x.dtype), self.result_shape(x, y), x.device),)

    def reference(self, x: Array, y: Array) -> Array:
        return self.multiply(widen_array(x), widen_array(y))

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return _gradients(self, at, at.dy.astype(at.inputs[0].type.dtype))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(), (Arg((2, 3)), Arg((3, 4)))),
            Sample(cls(False, True), (Arg((2, 2, 3)), Arg((2, 3)))),
            Sample(cls(True, True), (Arg((2, 3, 2)), Arg((1, 2, 3)))),
            Sample(cls(), (Arg((2, 0)), Arg((0, 3)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(cls, (Arg((2, 3)), Arg((4, 2))), ShapeError, "inner extents 3 and 4"),
            BadSample(cls, (Arg((2, 3)), Arg((3, 2), dt.int32)), DTypeError, "differ in"),
        )


@op
class ExactMatmul(MatrixProduct):
    """Matrix product of integers of one type, in that type: sums wrap, as in NumPy."""

    name = "exact_matmul"
    contraction = False
    dtypes = dt.INTEGERS
    no_gradient = "is an integer contraction"
    torch = "torch.matmul(x.mT if op.transpose_x else x, y.mT if op.transpose_y else y)"

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x, y))
        self.check_same_dtype((x, y))
        return (x.with_shape(self.result_shape(x, y)),)

    def reference(self, x: Array, y: Array) -> Array:
        return self.multiply(x, y)

    def terms(self, x: V, y: V) -> V:
        """The product as ops of loop nests: sum over k of x[..., m, k, 1] * y[..., 1, k, n]."""
        x = _turned(x) if self.transpose_x else x
        y = _turned(y) if self.transpose_y else y
        columns = y.type.shape
        products = x.reshape((*x.type.shape, 1)) * y.reshape((*columns[:-2], 1, *columns[-2:]))
        return products.sum((products.type.ndim - 2,))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        wide = Arg((2, 3), low=-(2.0**20), high=2.0**20)
        return (
            Sample(cls(), (Arg((2, 3), low=-9, high=9), Arg((3, 4), low=-9, high=9))),
            Sample(cls(False, True), (wide, wide), dtypes=(dt.int32, dt.int64)),
            Sample(cls(True, True), (Arg((3, 2)), Arg((4, 3)))),
            Sample(cls(False, True), (Arg((2, 2, 3)), Arg((2, 3)))),
            Sample(cls(True, False), (Arg((2, 1, 3, 2)), Arg((4, 3, 1)))),
            Sample(cls(), (Arg((2, 0)), Arg((0, 3)))),
            Sample(cls(), (Arg((0, 2, 3)), Arg((3, 2)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(
                cls, (Arg((2, 3)), Arg((4, 2))), ShapeError, "inner extents 3 and 4", dt.int64
            ),
            BadSample(cls, (Arg((2, 3)), Arg((3, 2))), DTypeError, "does not take", dt.float32),
        )


@op
class IntMatmul(MatrixProduct):
    """Product of quantized matrices: operands int8, uint8 or int16, sums in int32.

    The two operands may differ in element type; zero points are the caller's. Sums are exact as
    long as int32 holds them, and wrap beyond.
    """

    name = "int_matmul"
    dtypes = (dt.int8, dt.uint8, dt.int16)
    no_gradient = "is an integer contraction"
    torch = (
        "torch.matmul((x.mT if op.transpose_x else x).int(), (y.mT if op.transpose_y else y).int())"
    )

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x, y))
        self.check_dtype((x, y), 1)
        return (TensorType(dt.int32, self.result_shape(x, y), x.device),)

    def reference(self, x: Array, y: Array) -> Array:
        # BLAS has no integers; sums of up to 2^24 / 255^2 products are exact in float32, and
        # all that fit in memory are exact in float64.
        terms = x.shape[-2 if self.transpose_x else -1] if x.ndim > 1 else 0
        narrow = x.dtype.itemsize == y.dtype.itemsize == 1
        kind = np.float32 if terms <= 256 and narrow else np.float64
        exact = self.multiply(x.astype(kind), y.astype(kind))
        return exact.astype(np.int64).astype(np.int32)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        signed, unsigned = Arg((2, 3), dt.int8, -128, 128), Arg((3, 2), dt.uint8, 0, 256)
        return (
            Sample(cls(), (signed, unsigned)),
            Sample(cls(True, True), (unsigned, signed)),
            Sample(cls(False, True), (signed, Arg((2, 4, 3), dt.int8, -128, 128))),
            Sample(cls(), (Arg((2, 0), dt.int8), Arg((0, 3), dt.int8))),
            Sample(cls(), (Arg((1, 300), dt.uint8, 255, 256), Arg((300, 1), dt.uint8, 255, 256))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(
                cls,
                (Arg((2, 3), dt.int8), Arg((2, 3), dt.int8)),
                ShapeError,
                "inner extents 3 and 2",
                dt.int8,
            ),
            BadSample(
                cls, (Arg((2, 3), dt.int8), Arg((3, 2))), DTypeError, "does not take", dt.float32
            ),
        )


def _as_matrix(x: V) -> V:
    """All leading axes of x as one."""
    shape = x.type.shape
    return x.reshape((product(shape[:-1]), shape[-1]))


def _turned(x: V) -> V:
    """The last two axes exchanged."""
    n = x.type.ndim
    return x.transpose((*range(n - 2), n - 1, n - 2))
