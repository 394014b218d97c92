"""The extension `linalg`.

Inverses and singular values of real matrices are ops; factorizations and complex numbers are
written in ops, column by column, so that they compile and differentiate: meant for matrices of up
to some dozens of rows. Singular vectors and eigenvectors are those of real matrices.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from treadle.array_api import creation, dtypes, searching, statistics
from treadle.array_api import elementwise as ew
from treadle.array_api.array import Array, apply, as_array, promote, require
from treadle.array_api.manipulation import (
    astype,
    axes_of,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    positions,
    reshape,
    stack,
    taken,
)
from treadle.array_api.products import matmul
from treadle.array_api.products import matrix_transpose as matrix_transpose
from treadle.array_api.products import tensordot as tensordot
from treadle.array_api.products import vecdot as vecdot
from treadle.base.shape import broadcast_shapes
from treadle.ops.linalg import MatInv, Svd

__all__ = [
    *("cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul"),
    *("matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr"),
    *("slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm"),
]


class Eigh(NamedTuple):
    """Result of `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class Qr(NamedTuple):
    """Result of `qr`."""

    Q: Array
    R: Array


class Slogdet(NamedTuple):
    """Result of `slogdet`."""

    sign: Array
    logabsdet: Array


class SvdResult(NamedTuple):
    """Result of `svd`."""

    U: Array
    S: Array
    Vh: Array


def _matrices(name: str, x: Array, *, square: bool = False) -> Array:
    x = as_array(x, name)
    require(name, x, *ew.FLOATING)
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        raise ValueError(f"{name} takes stacks of {'square ' * square}matrices, not {x.shape}")
    return x


def _adjoint(x: Array) -> Array:
    return ew.conj(x.mT)


def _column(x: Array) -> Array:
    return expand_dims(x, -1)


def _real_only(name: str, x: Array) -> None:
    if x.imag_part is not None:
        raise TypeError(f"{name} does not take complex matrices: use their real embedding")


def _largest(x: Array) -> Array:
    """Return the largest real or imaginary part of each matrix; divided by it, no square overflows.

    1 where that is 0 or not finite.
    """
    size = ew.abs(x) if x.imag_part is None else ew.maximum(ew.abs(ew.real(x)), ew.abs(ew.imag(x)))
    if 0 in x.shape:
        return creation.ones((*x.shape[:-2], 1, 1), dtype=size.dtype, device=x.device)
    most = statistics.max(size, axis=(-2, -1), keepdims=True)
    return ew.where(ew.logical_and(ew.isfinite(most), ew.greater(most, 0.0)), most, 1.0)


def _embedded(x: Array) -> Array:
    """The real matrix [[a, -b], [b, a]] that stands for a + i b."""
    a, b = ew.real(x), ew.imag(x)
    upper = concat([a, ew.negative(b)], axis=-1)
    return concat([upper, concat([b, a], axis=-1)], axis=-2)


def _extracted(x: Array, like: Array) -> Array:
    """The complex matrix that an embedding stands for."""
    rows, columns = x.shape[-2] // 2, x.shape[-1] // 2
    return astype(
        Array(x[..., :rows, :columns].real_part, x[..., rows:, :columns].real_part), like.dtype
    )


# -- elimination -------------------------------------------------------------------------------


def _eliminated(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """(a^-1 b, the pivots, how often rows changed places) by Gauss and Jordan, largest pivots."""
    n = a.shape[-1]
    both = concat([a, b], axis=-1)
    rows = positions(n, a)
    pivots, swaps = [], creation.zeros(a.shape[:-2], dtype=dtypes.int64, device=a.device)
    for k in range(n):
        size = ew.where(ew.less(rows, k), -1.0, ew.abs(both[..., :, k]))
        best = searching.argmax(size, axis=-1)
        swaps = ew.add(swaps, astype(ew.not_equal(best, k), dtypes.int64))
        at = _column(best)
        order = ew.where(ew.equal(rows, k), at, ew.where(ew.equal(rows, at), k, rows))
        both = searching.take_along_axis(both, _column(order), axis=-2)
        pivot = both[..., k, k]
        pivots.append(pivot)
        row = ew.divide(both[..., k, :], _column(pivot))
        here = expand_dims(ew.equal(rows, k), 1)
        factors = ew.where(
            here, ew.subtract(_column(both[..., :, k]), 1.0), _column(both[..., :, k])
        )
        row = expand_dims(row, -2)
        scaled = ew.where(here, row, both)
        both = ew.where(here, scaled, ew.subtract(both, ew.multiply(factors, row)))
    found = stack(pivots, axis=-1) if pivots else creation.ones((*a.shape[:-2], 0), dtype=a.dtype)
    return both[..., :, n:], found, swaps


def det(x: Array, /) -> Array:
    """Determinants of square matrices (..., n, n), by Gaussian elimination: shape (...)."""
    x = _matrices("det", x, square=True)
    _, pivots, swaps = _eliminated(x, x[..., :, :0])
    turned = ew.subtract(1.0, astype(ew.multiply(ew.remainder(swaps, 2), 2), x.dtype))
    return ew.multiply(statistics.prod(pivots, axis=-1), turned)


def slogdet(x: Array, /) -> Slogdet:
    """Signs and logarithms of magnitudes of determinants."""
    x = _matrices("slogdet", x, square=True)
    _, pivots, swaps = _eliminated(x, x[..., :, :0])
    turned = ew.subtract(1.0, astype(ew.multiply(ew.remainder(swaps, 2), 2), x.dtype))
    sign = ew.multiply(statistics.prod(ew.sign(pivots), axis=-1), turned)
    return Slogdet(sign, statistics.sum(ew.log(ew.abs(pivots)), axis=-1))


def solve(x1: Array, x2: Array, /) -> Array:
    """The y with x1 y = x2; a vector x2 is one column."""
    a, b = promote(_matrices("solve", x1, square=True), as_array(x2, "solve"))
    right = _column(b) if b.ndim == 1 else b
    lead = broadcast_shapes("solve", a.shape[:-2], right.shape[:-2])
    shape = tuple(int(d) for d in lead)
    a, right = (
        broadcast_to(a, (*shape, *a.shape[-2:])),
        broadcast_to(right, (*shape, *right.shape[-2:])),
    )
    found = _eliminated(a, right)[0]
    return found[..., 0] if b.ndim == 1 else found


def inv(x: Array, /) -> Array:
    """Inverses.

    Raises:
        NumericError: a matrix is singular.
    """
    x = _matrices("inv", x, square=True)
    if x.imag_part is None:
        return Array(apply(MatInv(), x.real_part))
    return _extracted(inv(_embedded(x)), x)


def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """The lower triangle L with L L^H = x, or the upper one; NaN where x is not positive."""
    x = _matrices("cholesky", x, square=True)
    n = x.shape[-1]
    rows = positions(n, x)
    columns: list[Array] = []
    for k in range(n):
        column = x[..., :, k]
        if columns:
            known = stack(columns, axis=-1)
            used = matmul(known, _column(ew.conj(known[..., k, :])))
            column = ew.subtract(column, used[..., 0])
        size = ew.sqrt(ew.real(column[..., k]))
        column = ew.divide(column, _column(astype(size, x.dtype)))
        columns.append(ew.where(ew.less(rows, k), 0.0, column))
    lower = stack(columns, axis=-1) if columns else x
    return _adjoint(lower) if upper else lower


def qr(x: Array, /, *, mode: Literal["reduced", "complete"] = "reduced") -> Qr:
    """Q with orthonormal columns and the upper triangle R with Q R = x, by reflections."""
    if mode not in ("reduced", "complete"):
        raise ValueError(f'qr: mode is "reduced" or "complete", not {mode!r}')
    x = _matrices("qr", x)
    m, n = x.shape[-2:]
    scale = _largest(x)
    x = ew.divide(x, scale)
    eye = creation.eye(m, dtype=x.dtype, device=x.device)
    q, r, rows = broadcast_to(eye, (*x.shape[:-2], m, m)), x, positions(m, x)
    for k in range(min(m, n)):
        below = ew.where(ew.less(rows, k), 0.0, r[..., :, k])
        size = vector_norm(below, axis=-1)
        first = below[..., k]
        turn = ew.where(ew.equal(ew.abs(first), 0.0), 1.0, ew.sign(first))
        head = _column(ew.multiply(turn, astype(size, x.dtype)))
        mirror = ew.where(ew.equal(rows, k), ew.add(below, head), below)
        length = vector_norm(mirror, axis=-1, keepdims=True)
        length = ew.where(ew.equal(length, 0.0), 1.0, length)
        mirror = _column(ew.divide(mirror, astype(length, x.dtype)))
        r = ew.subtract(r, ew.multiply(matmul(mirror, matmul(_adjoint(mirror), r)), 2.0))
        q = ew.subtract(q, ew.multiply(matmul(matmul(q, mirror), _adjoint(mirror)), 2.0))
    kept = m if mode == "complete" else min(m, n)
    return Qr(q[..., :, :kept], creation.triu(ew.multiply(r[..., :kept, :], scale)))


# -- spectra -----------------------------------------------------------------------------------


def svd(x: Array, /, *, full_matrices: bool = True) -> SvdResult:
    """U diag(S) Vh = x for real matrices; S falls."""
    x = _matrices("svd", x)
    _real_only("svd", x)
    return SvdResult(*(Array(t) for t in Svd(full_matrices).outputs(x.real_part)))


def svdvals(x: Array, /) -> Array:
    """Singular values, falling."""
    x = _matrices("svdvals", x)
    if x.imag_part is None:
        return svd(x, full_matrices=False).S
    return svdvals(_embedded(x))[..., ::2]


def eigh(x: Array, /) -> Eigh:
    """Rising eigenvalues, and eigenvectors as columns, of real symmetric matrices."""
    x = _matrices("eigh", x, square=True)
    _real_only("eigh", x)
    shift = vector_norm(x, axis=(-2, -1), keepdims=True)
    eye = creation.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    # Shifted by more than any of them, eigenvalues are singular values.
    found = svd(ew.add(x, ew.multiply(eye, shift)))
    return Eigh(flip(ew.subtract(found.S, shift[..., 0]), axis=-1), flip(found.U, axis=-1))


def eigvalsh(x: Array, /) -> Array:
    """Rising eigenvalues of symmetric or Hermitian matrices."""
    x = _matrices("eigvalsh", x, square=True)
    if x.imag_part is None:
        return eigh(x).eigenvalues
    return eigh(_embedded(x)).eigenvalues[..., ::2]


def pinv(x: Array, /, *, rtol: Any = None) -> Array:
    """Pseudo-inverses, singular values of at most `rtol` times the largest counted as zero."""
    x = _matrices("pinv", x)
    if x.imag_part is not None:
        return _extracted(pinv(_embedded(x), rtol=rtol), x)
    found = svd(x, full_matrices=False)
    kept = ew.greater(found.S, _threshold(x, found.S, rtol))
    inverse = ew.where(kept, ew.divide(1.0, ew.where(kept, found.S, 1.0)), 0.0)
    return matmul(ew.multiply(found.Vh.mT, expand_dims(inverse, -2)), found.U.mT)


def _threshold(x: Array, values: Array, rtol: Any) -> Array:
    """The singular value up to which they count as zero, with one axis in place of theirs."""
    if rtol is None:
        rtol = max(x.shape[-2:]) * dtypes.finfo(x.dtype).eps
    elif isinstance(rtol, Array):
        rtol = _column(astype(rtol, values.dtype))
    if not values.shape[-1]:
        return creation.zeros((*values.shape[:-1], 1), dtype=values.dtype)
    return ew.multiply(statistics.max(values, axis=-1, keepdims=True), rtol)


def matrix_rank(x: Array, /, *, rtol: Any = None) -> Array:
    """Count the singular values that are not nearly zero."""
    x = _matrices("matrix_rank", x)
    values = svdvals(x)
    return statistics.count_nonzero(ew.greater(values, _threshold(x, values, rtol)), axis=-1)


# -- norms -------------------------------------------------------------------------------------


def matrix_norm(
    x: Array, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro"
) -> Array:
    """Norms of matrices: Frobenius, nuclear, of rows (inf), of columns (1), spectral (2)."""
    x = _matrices("matrix_norm", x)
    if ord in ("fro", None):
        made = vector_norm(x, axis=(-2, -1))
    elif ord in ("nuc", 2, -2):
        values = svdvals(x)
        reduce: Any = {"nuc": statistics.sum, 2: statistics.max, -2: statistics.min}[ord]
        made = reduce(values, axis=-1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = statistics.sum(ew.abs(x), axis=-2 if abs(ord) == 1 else -1)
        made = (statistics.max if ord > 0 else statistics.min)(sums, axis=-1)
    else:
        raise ValueError(f"matrix_norm: there is no norm {ord!r}")
    return expand_dims(made, (-2, -1)) if keepdims else made


def vector_norm(x: Array, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Array:
    """(sum |x|^ord)^(1/ord) over axes; the largest and smallest magnitude for inf and -inf."""
    x = as_array(x, "vector_norm")
    require("vector_norm", x, *ew.FLOATING)
    size, axes = ew.abs(x), axes_of(axis, x.ndim, "vector_norm")
    how: Any = {"axis": axes, "keepdims": keepdims}
    if ord == math.inf:
        return statistics.max(size, **how)
    if ord == -math.inf:
        return statistics.min(size, **how)
    if ord == 0:
        return astype(statistics.count_nonzero(size, **how), size.dtype)
    if ord == 1:
        return statistics.sum(size, **how)
    if ord == 2:
        return ew.sqrt(statistics.sum(ew.square(size), **how))
    total = statistics.sum(ew.pow(size, float(ord)), **how)
    return ew.pow(total, 1.0 / ord)


# -- the rest ----------------------------------------------------------------------------------


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """The diagonals of matrices, `offset` above the main one."""
    x = as_array(x, "diagonal")
    rows, columns = x.shape[-2:]
    first, last = max(0, -offset), min(rows, columns - offset)
    places = [i * columns + i + offset for i in range(first, last)]
    flat = reshape(x, (*x.shape[:-2], rows * columns))
    return taken(flat, creation.asarray(places, dtype=dtypes.int64), x.ndim - 2)


def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Sums of diagonals."""
    return statistics.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def outer(x1: Array, x2: Array, /) -> Array:
    """All products of the elements of two vectors."""
    x, y = promote(as_array(x1, "outer"), as_array(x2, "outer"))
    return ew.multiply(_column(x), expand_dims(y, 0))


def matrix_power(x: Array, n: int, /) -> Array:
    """x multiplied by itself; inverted first for a negative n."""
    x = _matrices("matrix_power", x, square=True)
    base, exponent = (inv(x), -n) if n < 0 else (x, n)
    eye = creation.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    found = broadcast_to(eye, x.shape)
    while exponent:
        found = matmul(found, base) if exponent % 2 else found
        base, exponent = matmul(base, base) if exponent > 1 else base, exponent // 2
    return found


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Cross products of vectors of three elements along an axis, counted from the end.

    Raises:
        ValueError: the vectors have not three elements.
    """
    x, y = promote(as_array(x1, "cross"), as_array(x2, "cross"))
    require("cross", x, "numeric")
    if x.shape[axis] != 3 or y.shape[axis] != 3:
        raise ValueError(f"cross takes vectors of three elements, not {x.shape} and {y.shape}")
    x, y = moveaxis(x, axis, -1), moveaxis(y, axis, -1)
    parts = [
        ew.subtract(ew.multiply(x[..., i], y[..., j]), ew.multiply(x[..., j], y[..., i]))
        for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    return moveaxis(stack(parts, axis=-1), -1, axis)
