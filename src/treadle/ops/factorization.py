"""Factors of stacks of matrices, triangular and orthogonal; leading axes are the stack's.

They run where NumPy runs. Solutions and determinants are written with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import NoGradient, NumericError, ShapeError
from treadle.base.guards import require
from treadle.base.shape import require_equal
from treadle.base.symbol import less_equal, minimum
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.creation import Iota
from treadle.ops.gather_along import TakeAlongAxis
from treadle.ops.index_numpy import typed
from treadle.ops.linalg import MatInv
from treadle.ops.logic import GreaterEqual
from treadle.ops.matmul import Matmul
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, op
from treadle.ops.select import Where
from treadle.ops.sort import Sort

_KINDS = (dt.float32, dt.float64)
_SQUARE = ((4.0, 1.0, -1.0), (0.5, 3.0, 1.0), (-6.0, 0.5, 2.5))
_TALL = ((2.0, 0.5), (-1.0, 1.5), (0.3, -0.7))


def _check(op: Op, x: TensorType) -> None:
    op.check_dtype((x,))
    if x.ndim < 2:
        raise op.error(
            f"expects at least 2 axes, got {x.ndim}", (x,), "reshape the operand to [..., m, n]"
        )


def _check_square(op: Op, x: TensorType) -> None:
    _check(op, x)
    m, n = x.shape[-2:]
    require_equal(m, n, lambda: op.error(f"{m} rows and {n} columns", (x,), "use a square matrix"))


def swapped(x: V) -> V:
    """x with its last two axes exchanged."""
    n = x.type.ndim
    return x.transpose((*range(n - 2), n - 1, n - 2))


def triangle(x: V, *, upper: bool, offset: int = 0) -> V:
    """The elements on and above (below) a diagonal of the last two axes, zeros elsewhere.

    Args:
        upper: those above.
        offset: of the diagonal, to the right.
    """
    rows, columns = (x.apply(Iota(0, 1, n, dt.int32), ())[0] for n in x.type.shape[-2:])
    down = rows.reshape((x.type.shape[-2], 1)) + offset
    right = columns.reshape((1, x.type.shape[-1]))
    kept = GreaterEqual()(right, down) if upper else GreaterEqual()(down, right)
    made: V = Where()(kept, x, x.constant(0.0))
    return made


@op
class Lu(Op):
    """Triangular factors of every matrix of a stack, x[order] = L U, by LAPACK's pivots.

    With k = min(m, n): packed [..., m, n], U on and above the diagonal, L without its ones below;
    pivots [..., k], int32, the row (from 1) that was exchanged with each; order [..., m], int32,
    the rows as they stand. The gradient is defined for square matrices.
    """

    name = "lu"
    n_outputs = 3
    dtypes = _KINDS

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        _check(self, x)
        *stack, m, n = x.shape
        places = x.with_dtype(dt.int32)
        return (
            x.with_shape(x.shape),
            places.with_shape((*stack, minimum(m, n))),
            places.with_shape((*stack, m)),
        )

    def reference(self, x: Array) -> tuple[Array, ...]:
        a = np.array(x)
        *stack, m, n = a.shape
        k = min(m, n)
        pivots = np.zeros((*stack, k), np.int32)
        order = np.broadcast_to(np.arange(m, dtype=np.int32), (*stack, m)).copy()
        for j in range(k):
            place = j + np.abs(a[..., j:, j]).argmax(-1)
            pivots[..., j] = place + 1
            _exchange(a, j, place)
            _exchange(order[..., None], j, place)
            first = a[..., j, j]
            with np.errstate(all="ignore"):
                a[..., j + 1 :, j] /= np.where(first == 0, 1, first)[..., None]
                a[..., j + 1 :, j + 1 :] -= a[..., j + 1 :, j, None] * a[..., None, j, j + 1 :]
        return a, pivots, order

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        dy, _, _ = at.dys
        packed, _, order = at.outputs
        m, n = packed.type.shape[-2:]
        if m != n:
            raise NoGradient(self.name, "the factors of a matrix that is not square")
        if dy is None:
            return (None,)
        lower = triangle(packed, upper=False, offset=-1) + _identity(packed)
        upper = triangle(packed, upper=True)
        strict = triangle(dy, upper=False, offset=-1)
        inside = triangle(Matmul(transpose_x=True)(lower, strict), upper=False, offset=-1)
        outside = Matmul(transpose_y=True)(triangle(dy, upper=True), upper)
        middle = inside + triangle(outside, upper=True)
        moved = Matmul(transpose_x=True)(MatInv()(lower), middle)
        rows = Matmul(transpose_y=True)(moved, MatInv()(upper))
        axis = packed.type.ndim - 2
        _, back = Sort(axis).outputs(order)
        index = back.reshape((*back.type.shape, 1)).broadcast_to(packed.type.shape)
        return (TakeAlongAxis(axis)(rows, index),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(), (Arg((3, 3), values=_SQUARE),)),
            Sample(cls(), (Arg((2, 2, 2), values=(((2, 1), (4, 1)), ((1, 3), (-2, 1)))),)),
            Sample(cls(), (Arg((3, 2), values=_TALL),), gradient=False),
            Sample(cls(), (Arg((0, 2, 2)),)),
            Sample(cls(), (Arg((1, 1), values=((2.0,),)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(cls, (Arg((3,)),), ShapeError, "at least 2 axes"),)


def _identity(x: V) -> V:
    ones = x.constant(1.0).broadcast_to(x.type.shape)
    return triangle(triangle(ones, upper=True), upper=False)


def _exchange(a: Array, row: int, place: Array) -> None:
    """Exchange a row of every matrix with that at its place."""
    index = place[..., None, None]
    found = np.take_along_axis(a, index, -2)
    held = a[..., row : row + 1, :].copy()
    np.put_along_axis(a, index, held, -2)
    a[..., row : row + 1, :] = found


@op
class Cholesky(Op):
    """The lower triangular L of every symmetric positive matrix of a stack, x = L L^T.

    Only what lies on and below the diagonal of x is read. A matrix that is not positive definite
    raises `NumericError`.
    """

    name = "cholesky"
    dtypes = _KINDS
    torch = "torch.linalg.cholesky(torch.tril(x) + torch.tril(x, -1).mT)"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        _check_square(self, x)
        return (x.with_shape(x.shape),)

    def reference(self, x: Array) -> Array:
        try:
            return np.asarray(np.linalg.cholesky(x))
        except np.linalg.LinAlgError:
            raise NumericError(
                self.name,
                "a matrix is not positive definite",
                saw=self.saw(typed((x,))),
                hint="add a small multiple of the identity",
            ) from None

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        """The gradient as if all of x were read, half of it on each side."""
        y = at.outputs[0]
        inner = triangle(Matmul(transpose_x=True)(y, at.dy), upper=False)
        halves = (inner + triangle(inner, upper=False, offset=-1)) * 0.5
        inverse = MatInv()(y)
        middle = (halves + swapped(halves)) * 0.5
        whole = Matmul()(Matmul(transpose_x=True)(inverse, middle), inverse)
        lower = triangle(whole, upper=False)
        return (lower + triangle(whole, upper=False, offset=-1),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(), (Arg((2, 2), values=((4.0, 1.0), (1.0, 3.0))),)),
            Sample(cls(), (Arg((2, 1, 1), values=(((2.0,),), ((5.0,),))),)),
            Sample(cls(), (Arg((0, 2, 2)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        negative = Arg((2, 2), values=((1.0, 2.0), (2.0, 1.0)))
        return (
            BadSample(cls, (negative,), NumericError, "not positive definite"),
            BadSample(cls, (Arg((2, 3)),), ShapeError, "2 rows and 3 columns"),
            BadSample(cls, (Arg((3,)),), ShapeError, "at least 2 axes"),
        )


@op
class Qr(Op):
    """Orthogonal and upper triangular factors of every matrix of a stack, x = Q R, LAPACK's signs.

    With k = min(m, n): Q [..., m, k], R [..., k, n]; with `complete` Q is square. The gradient is
    defined for m >= n without `complete`.
    """

    complete: bool = False

    name = "qr"
    n_outputs = 2
    dtypes = _KINDS
    torch = "torch.linalg.qr(x, 'complete' if op.complete else 'reduced')"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        _check(self, x)
        *stack, m, n = x.shape
        k = m if self.complete else minimum(m, n)
        return x.with_shape((*stack, m, k)), x.with_shape((*stack, k, n))

    def reference(self, x: Array) -> tuple[Array, ...]:
        if not x.size:
            *stack, m, n = x.shape
            k = m if self.complete else min(m, n)
            unit = np.broadcast_to(np.eye(m, k, dtype=x.dtype), (*stack, m, k))
            return np.array(unit), np.zeros((*stack, k, n), x.dtype)
        parts: Sequence[Array] = np.linalg.qr(x, "complete" if self.complete else "reduced")
        return tuple(np.asarray(part) for part in parts)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        dq, dr = at.dys
        q, r = at.outputs
        m, n = at.inputs[0].type.shape[-2:]

        def free() -> NoGradient:
            return NoGradient(self.name, "what completes Q is not unique")

        if self.complete:
            raise free()
        require(less_equal(n, m), free)
        parts = []
        if dr is not None:
            parts.append(Matmul(transpose_y=True)(r, dr))
        if dq is not None:
            parts.append(-Matmul(transpose_x=True)(dq, q))
        middle = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        lower = triangle(middle, upper=False)
        strict = triangle(middle, upper=False, offset=-1)
        total = Matmul()(q, lower + swapped(strict))
        total = total if dq is None else total + dq
        return (Matmul(transpose_y=True)(total, MatInv()(r)),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(), (Arg((3, 3), values=_SQUARE),)),
            Sample(cls(), (Arg((3, 2), values=_TALL),)),
            Sample(cls(True), (Arg((3, 2), values=_TALL),), gradient=False),
            Sample(cls(), (Arg((0, 3, 2)),)),
            Sample(cls(), (Arg((1, 1), values=((2.0,),)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(cls, (Arg((3,)),), ShapeError, "at least 2 axes"),)
