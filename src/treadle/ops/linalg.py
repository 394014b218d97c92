"""Decompositions and inverses of stacks of matrices; the leading axes are the stack's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import NoGradient, NumericError, ShapeError
from treadle.base.shape import require_equal
from treadle.base.symbol import Dim, minimum
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.creation import Eye
from treadle.ops.index_numpy import typed
from treadle.ops.matmul import Matmul
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, op
from treadle.ops.slicing import along

_INVERTIBLE = ((4.0, 1.0, -1.0), (0.5, 3.0, 1.0), (-1.0, 0.5, 2.5))


def _solved(op: Op, x: Array, function: Callable[[Array], Any], problem: str, hint: str) -> Any:
    """LAPACK's answer, in float32 for half types; `problem` where it has none."""
    try:
        return function(x.astype(np.float32) if x.dtype.itemsize == 2 else x)
    except np.linalg.LinAlgError:
        raise NumericError(op.name, problem, saw=op.saw(typed((x,))), hint=hint) from None


def _require_matrices(op: Op, x: TensorType) -> None:
    if x.ndim < 2:
        raise op.error(
            f"expects at least 2 axes, got {x.ndim}", (x,), "reshape the operand to [..., m, n]"
        )


def _swapped(x: V) -> V:
    """x with its last two axes exchanged."""
    n = x.type.ndim
    return x.transpose((*range(n - 2), n - 1, n - 2))


def _column(x: V) -> V:
    """A stack of vectors as one of columns: multiplies rows."""
    return x.reshape((*x.type.shape, 1))


def _row(x: V) -> V:
    """A stack of vectors as one of rows: multiplies columns."""
    return x.reshape((*x.type.shape[:-1], 1, x.type.shape[-1]))


@op
class MatInv(Op):
    """The inverse of every matrix of a stack [..., n, n]; a singular one raises `NumericError`.

    float16 and bfloat16 are inverted in float32.
    """

    name = "mat_inv"
    dtypes = dt.FLOATS
    torch = "torch.linalg.inv(x)"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        _require_matrices(self, x)
        m, n = x.shape[-2:]
        require_equal(
            m,
            n,
            lambda: self.error(
                f"a matrix of {m} rows and {n} columns has no inverse",
                (x,),
                "use a square matrix, or svd for a pseudo-inverse",
            ),
        )
        return (x.with_shape(x.shape),)

    def reference(self, x: Array) -> Array:
        problem, hint = "a matrix is singular", "add a small multiple of the identity"
        return np.asarray(_solved(self, x, np.linalg.inv, problem, hint)).astype(x.dtype)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        y = at.outputs[0]
        inner = Matmul(transpose_x=True)(y, at.dy)
        return (-Matmul(transpose_y=True)(inner, y),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(), (Arg((3, 3), values=_INVERTIBLE),)),
            Sample(cls(), (Arg((2, 2, 2), values=(((2, 1), (0, 1)), ((1, 3), (-1, 1)))),)),
            Sample(cls(), (Arg((0, 2, 2)),)),
            Sample(cls(), (Arg((1, 1), values=((2.0,),)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        singular = Arg((2, 2), values=((1, 2), (2, 4)))
        return (
            BadSample(cls, (singular,), NumericError, "a matrix is singular"),
            BadSample(cls, (Arg((2, 3)),), ShapeError, "2 rows and 3 columns"),
            BadSample(cls, (Arg((3,)),), ShapeError, "at least 2 axes"),
        )


@op
class Svd(Op):
    """Singular value decomposition x = u diag(s) vh of every matrix of a stack [..., m, n].

    With k = min(m, n): u [..., m, k], s [..., k] descending, vh [..., k, n]; with `full_matrices`
    u and vh are square. The gradient is that of Townsend, "Differentiating the Singular Value
    Decomposition", 2016; it is infinite where singular values are equal, and defined for the
    vectors of `full_matrices` only if x is square.
    """

    full_matrices: bool = False

    name = "svd"
    n_outputs = 3
    dtypes = dt.FLOATS
    # PyTorch has it, but the sign of every pair of vectors is free, so values do not compare.

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        _require_matrices(self, x)
        *stack, m, n = x.shape
        k = minimum(m, n)
        left, right = (m, n) if self.full_matrices else (k, k)
        shapes: tuple[tuple[Dim, ...], ...] = (m, left), (k,), (right, n)
        return tuple(x.with_shape((*stack, *shape)) for shape in shapes)

    def reference(self, x: Array) -> tuple[Array, ...]:
        problem, hint = "did not converge", "look for NaN and infinities in x"
        parts = _solved(self, x, lambda a: np.linalg.svd(a, self.full_matrices), problem, hint)
        return tuple(np.asarray(part).astype(x.dtype, copy=False) for part in parts)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        du, ds, dvh = at.dys
        u, s, vh = at.outputs
        m, n = at.inputs[0].type.shape[-2:]
        k = s.type.shape[-1]
        if self.full_matrices and not m == n == k:
            if du is not None or dvh is not None:
                raise NoGradient(
                    self.name,
                    "vectors that full_matrices adds are not unique",
                    hint="use full_matrices=False",
                )
            u, vh = along(u, u.type.ndim - 1, 0, k), along(vh, vh.type.ndim - 2, 0, k)
        parts: list[V] = []
        if ds is not None:
            parts.append(Matmul()(u * _row(ds), vh))
        if du is not None:
            parts.append(_pull_left(du, u, s, vh))
        if dvh is not None:
            # The decomposition of the transpose has u and v exchanged.
            parts.append(_swapped(_pull_left(_swapped(dvh), _swapped(vh), s, _swapped(u))))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return (total,)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        tall = ((2.0, 0.5), (-1.0, 1.5), (0.3, -0.7))
        wide = ((2.0, 0.5, 1.0), (-1.0, 1.5, 0.2))
        return (
            Sample(cls(), (Arg((3, 2), values=tall),)),
            Sample(cls(), (Arg((2, 3), values=wide),)),
            Sample(cls(True), (Arg((3, 3), values=_INVERTIBLE),)),
            Sample(cls(True), (Arg((3, 2), values=tall),), gradient=False),
            Sample(cls(), (Arg((0, 3, 2)),)),
            Sample(cls(), (Arg((1, 1), values=((2.0,),)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        nan = Arg((2, 2), values=((np.nan, 1), (1, 2)))
        return (
            BadSample(cls, (nan,), NumericError, "did not converge"),
            BadSample(cls, (Arg((3,)),), ShapeError, "at least 2 axes"),
        )


def _pull_left(du: V, u: V, s: V, vh: V) -> V:
    """Return the share of the cotangent of u in that of x."""
    k = s.type.shape[-1]
    (unit,) = s.apply(Eye(k, k, 0, s.type.dtype), ())
    # The diagonal of the skew part is zero; a one in its denominator keeps it so.
    gaps = _row(s * s) - _column(s * s) + unit
    turned = Matmul(transpose_x=True)(u, du)
    inside = (turned - _swapped(turned)) / gaps * _row(s)
    within = Matmul()(u, inside)
    if u.type.shape[-2] != k:
        scaled = du / _row(s)
        outside = scaled - Matmul()(u, Matmul(transpose_x=True)(u, scaled))
        within = within + outside
    return Matmul()(within, vh)
