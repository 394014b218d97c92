"""Linear algebra of ATen: factors, solutions, inverses, determinants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.shaping import extents, part
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce, unary
from treadle.ops.factorization import Cholesky, Lu, Qr, swapped, triangle
from treadle.ops.gather_along import ScatterAlongAxis, TakeAlongAxis
from treadle.ops.linalg import MatInv, Svd
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Concat, Flip
from treadle.ops.select import Where

V = GraphOperand
_EXCHANGES = 64
"""So many exchanges of rows are written out."""


def _lead(x: V) -> tuple[int, ...]:
    return extents(x)[:-2]


def _info(call: OperatorCall, number: int) -> V:
    """Return zeros, the report that nothing went wrong: failures raise instead."""
    shape = tuple(call.values[number].shape)
    return call.builder.constant(np.zeros(shape, np.int32))


def _identity(x: V) -> V:
    ones = x.constant(1).broadcast_to(extents(x))
    return triangle(triangle(ones, upper=True), upper=False)


def _triangular(x: V, upper: bool, unit: bool) -> V:
    if not unit:
        return triangle(x, upper=upper)
    strict = triangle(x, upper=upper, offset=1 if upper else -1)
    return strict + _identity(x)


def _product(x: V, y: V) -> V:
    """x @ y of stacks whose leading axes broadcast."""
    lead = np.broadcast_shapes(_lead(x), _lead(y))
    first = x.broadcast_to((*lead, *extents(x)[-2:]))
    second = y.broadcast_to((*lead, *extents(y)[-2:]))
    made: V = Matmul()(first, second)
    return made


def _inverse(x: V) -> V:
    made: V = MatInv()(x)
    return made


def _solved(matrix: V, right: V, left: bool = True) -> V:
    """X of matrix X = right, or of X matrix = right."""
    return _product(_inverse(matrix), right) if left else _product(right, _inverse(matrix))


@lowers("linalg_solve_triangular.default")
def _solve_triangular(
    call: OperatorCall, x: V, y: V, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> V:
    return _solved(_triangular(x, upper, unitriangular), y, left)


@lowers("triangular_solve.default")
def _solve_triangular_too(
    call: OperatorCall,
    y: V,
    x: V,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[V, V]:
    matrix = _triangular(x, upper, unitriangular)
    found = _solved(swapped(matrix) if transpose else matrix, y)
    return found, x.broadcast_to(tuple(call.values[1].shape))


@lowers("linalg_inv_ex.default")
def _inv(call: OperatorCall, x: V, *, check_errors: bool = False) -> tuple[V, V]:
    return _inverse(x), _info(call, 1)


# -- L and U -----------------------------------------------------------------------------------


def _factors(x: V) -> tuple[V, V]:
    packed, pivots, _ = Lu().outputs(x)
    return packed, pivots


def _lower(packed: V) -> V:
    k = min(extents(packed)[-2:])
    return _triangular(part(packed, packed.type.ndim - 1, 0, k), upper=False, unit=True)


def _upper(packed: V) -> V:
    k = min(extents(packed)[-2:])
    return triangle(part(packed, packed.type.ndim - 2, 0, k), upper=True)


def _order(pivots: V, rows: int) -> V:
    """Return the order of rows after the exchanges."""
    lead, count = extents(pivots)[:-1], extents(pivots)[-1]
    if count > _EXCHANGES:
        raise NotImplementedError(f"{count} exchanges of rows")
    axis, wide = len(lead), (*lead, 1)
    order = pivots.constant(np.arange(rows), dt.int32).broadcast_to((*lead, rows))
    take, put = TakeAlongAxis(axis), ScatterAlongAxis(axis)
    for row in range(min(count, rows)):
        here = pivots.constant(row, dt.int32).broadcast_to(wide)
        there = part(pivots, axis, row, row + 1) - 1
        first, second = take(order, here), take(order, there)
        order = put(put(order, there, first), here, second)
    return order


def _permutation(order: V, like: V) -> V:
    """P with P x[order] = x."""
    *lead, n = extents(order)
    rows = order.constant(np.arange(n).reshape(n, 1), dt.int32)
    here = logic.Equal()(rows, order.reshape((*lead, 1, n)))
    return here.astype(like.type.dtype)


@lowers("linalg_lu_factor_ex.default")
def _lu_factor(
    call: OperatorCall, x: V, *, pivot: bool = True, check_errors: bool = False
) -> tuple[V, V, V]:
    return (*_factors(x), _info(call, 2))


@lowers("linalg_lu.default")
def _lu(call: OperatorCall, x: V, *, pivot: bool = True) -> tuple[V, V, V]:
    packed, _, order = Lu().outputs(x)
    return _permutation(order, x), _lower(packed), _upper(packed)


@lowers("lu_unpack.default")
def _lu_unpack(
    call: OperatorCall, packed: V, pivots: V, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[V, V, V]:
    def empty(number: int) -> V:
        shape = tuple(call.values[number].shape)
        return packed.constant(0).broadcast_to(shape)

    place = empty(0)
    if unpack_pivots:
        place = _permutation(_order(pivots, extents(packed)[-2]), packed)
    if not unpack_data:
        return place, empty(1), empty(2)
    return place, _lower(packed), _upper(packed)


@lowers("linalg_lu_solve.default")
def _lu_solve(
    call: OperatorCall, packed: V, pivots: V, y: V, *, left: bool = True, adjoint: bool = False
) -> V:
    place = _permutation(_order(pivots, extents(packed)[-2]), packed)
    inverse = _product(_inverse(_upper(packed)), _inverse(_lower(packed)))
    inverse = _product(inverse, swapped(place))
    inverse = swapped(inverse) if adjoint else inverse
    return _product(inverse, y) if left else _product(y, inverse)


def _sign_and_diagonal(call: OperatorCall, x: V) -> tuple[V, V, V, V]:
    """The sign of the exchanges, the diagonal of U, and the factors."""
    # PyTorch's gradient expects those of the transposed matrix, where that saves it a copy.
    packed, pivots = _factors(swapped(x) if call.inputs[0].is_contiguous() else x)
    n = extents(x)[-1]
    diagonal = reduce.Sum((x.type.ndim - 1,), False)(packed * _identity(packed))
    own = pivots.constant(np.arange(1, n + 1), dt.int32)
    moved = logic.NotEqual()(pivots, own).astype(x.type.dtype)
    last = (x.type.ndim - 2,)
    sign = reduce.Prod(last, False)(1.0 - moved * 2.0)
    return sign, diagonal, packed, pivots


@lowers("_linalg_det.default")
def _det(call: OperatorCall, x: V) -> tuple[V, V, V]:
    sign, diagonal, packed, pivots = _sign_and_diagonal(call, x)
    return sign * reduce.Prod((x.type.ndim - 2,), False)(diagonal), packed, pivots


@lowers("_linalg_slogdet.default")
def _slogdet(call: OperatorCall, x: V) -> tuple[V, V, V, V]:
    sign, diagonal, packed, pivots = _sign_and_diagonal(call, x)
    last = (x.type.ndim - 2,)
    turned = sign * reduce.Prod(last, False)(unary.Sign()(diagonal))
    size = reduce.Sum(last, False)(unary.Log()(unary.Abs()(diagonal)))
    return turned, size, packed, pivots


@lowers("_linalg_solve_ex.default")
def _solve(
    call: OperatorCall, x: V, y: V, *, left: bool = True, check_errors: bool = False
) -> tuple[V, V, V, V]:
    is_vector = y.type.ndim == 1 or (
        x.type.ndim - 1 == y.type.ndim and extents(y) == extents(x)[:-1]
    )
    right = y.reshape((*extents(y), 1)) if is_vector else y
    found = _solved(x, right, left).reshape(call.shape)
    return (found, *_factors(x), _info(call, 3))


# -- positive matrices -------------------------------------------------------------------------


@lowers("linalg_cholesky_ex.default")
def _cholesky_ex(
    call: OperatorCall, x: V, *, upper: bool = False, check_errors: bool = False
) -> tuple[V, V]:
    made: V = _cholesky(call, x, upper)
    return made, _info(call, 1)


@lowers("cholesky.default")
def _cholesky(call: OperatorCall, x: V, upper: bool = False) -> V:
    lower = Cholesky()(swapped(x) if upper else x)
    return swapped(lower) if upper else lower


@lowers("cholesky_inverse.default")
def _cholesky_inverse(call: OperatorCall, factor: V, upper: bool = False) -> V:
    inverse = _inverse(triangle(factor, upper=upper))
    first, second = (inverse, swapped(inverse)) if upper else (swapped(inverse), inverse)
    return _product(first, second)


@lowers("cholesky_solve.default")
def _cholesky_solve(call: OperatorCall, y: V, factor: V, upper: bool = False) -> V:
    made: V = _product(_cholesky_inverse(call, factor, upper), y)
    return made


@lowers("linalg_qr.default")
def _qr(call: OperatorCall, x: V, mode: str = "reduced") -> tuple[V, V]:
    q, r = Qr(mode == "complete").outputs(x)
    if mode != "r":
        return q, r
    return x.constant(0).broadcast_to(tuple(call.values[0].shape)), r


# -- values and vectors ------------------------------------------------------------------------


def _empty(call: OperatorCall, number: int, like: V) -> V:
    """A result that was not asked for."""
    return like.constant(0).broadcast_to(tuple(call.values[number].shape))


@lowers("_linalg_svd.default")
def _svd(
    call: OperatorCall,
    x: V,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: Any = None,
) -> tuple[V, V, V]:
    u, s, vh = Svd(full_matrices and compute_uv).outputs(x)
    return (u, s, vh) if compute_uv else (_empty(call, 0, x), s, _empty(call, 2, x))


def _eigen(x: V, upper: bool) -> tuple[V, V]:
    """Values, ascending, and vectors of symmetric matrices, of which one half is read.

    With its size added on the diagonal a matrix has no negative values, so that they and its
    singular values are the same.
    """
    own = triangle(x, upper=upper)
    whole = own + swapped(triangle(x, upper=upper, offset=1 if upper else -1))
    n = x.type.ndim
    size = unary.Sqrt()(reduce.Sum((n - 2, n - 1), True)(whole * whole))
    u, s, _ = Svd(False).outputs(whole + _identity(whole) * size)
    return Flip((n - 2,))(s - size.reshape((*_lead(x), 1))), Flip((n - 1,))(u)


@lowers("_linalg_eigh.default")
def _eigh(call: OperatorCall, x: V, uplo: str = "L", compute_v: bool = True) -> tuple[V, V]:
    values, vectors = _eigen(x, uplo.upper() == "U")
    return values, vectors if compute_v else _empty(call, 1, x)


@lowers("linalg_pinv.atol_rtol_tensor")
def _pinv(
    call: OperatorCall,
    x: V,
    *,
    atol: V | None = None,
    rtol: V | None = None,
    hermitian: bool = False,
) -> V:
    """Return the pseudoinverse: large enough singular values are inverted, others dropped."""
    m, n = extents(x)[-2:]
    if hermitian:
        s, vectors = _eigen(x, upper=False)
        u, v = vectors, vectors
    else:
        u, s, vh = Svd(False).outputs(x)
        v = swapped(vh)
    if 0 in extents(x):
        return x.constant(0).broadcast_to(call.shape)
    size = unary.Abs()(s)
    most = reduce.Max((s.type.ndim - 1,), True)(size)
    share = max(m, n) * float(np.finfo(x.type.dtype.numpy).eps)
    least = x.constant(0.0) if atol is None else _beside(atol.astype(x.type.dtype))
    if rtol is not None:
        least = ew.Maximum()(least, _beside(rtol.astype(x.type.dtype)) * most)
    elif atol is None:
        least = most * share
    else:
        none = logic.Greater()(least, least.constant(0.0))
        least = ew.Maximum()(
            least, Where()(none, least.constant(0.0), least.constant(share)) * most
        )
    kept = logic.Greater()(size, least)
    inverse = Where()(kept, 1.0 / Where()(kept, s, s.constant(1.0)), s.constant(0.0))
    return _product(v * inverse.reshape((*_lead(x), 1, extents(s)[-1])), swapped(u))


def _beside(x: V) -> V:
    """A bound for each matrix, beside its values."""
    return x.reshape((*extents(x), 1))


@lowers("linalg_householder_product.default", "orgqr.default")
def _householder(call: OperatorCall, x: V, tau: V) -> V:
    """The first columns of the product of reflections I - tau v v', v below the diagonal of x."""
    return _reflected(x, tau, _identity(x))


def _reflected(x: V, tau: V, y: V, backwards: bool = False) -> V:
    """The product of reflections, times y; backwards: of the reflections in the other order."""
    count, last = extents(tau)[-1], x.type.ndim - 1
    if count > _EXCHANGES:
        raise NotImplementedError(f"{count} reflections")
    lines = _triangular(x, upper=False, unit=True)
    for i in range(count) if backwards else reversed(range(count)):
        v = part(lines, last, i, i + 1)
        factor = part(tau, tau.type.ndim - 1, i, i + 1).reshape((*_lead(x), 1, 1))
        y = y - _product(v * factor, _product(swapped(v), y))
    return y


@lowers("ormqr.default")
def _ormqr(call: OperatorCall, x: V, tau: V, y: V, left: bool = True, transpose: bool = False) -> V:
    if left:
        return _reflected(x, tau, y, transpose)
    return swapped(_reflected(x, tau, swapped(y), not transpose))


@lowers("geqrf.default")
def _geqrf(call: OperatorCall, x: V) -> tuple[V, V]:
    """R, and below its diagonal the vectors of the reflections that lead to it."""
    m, n = extents(x)[-2:]
    count = min(m, n)
    if count > _EXCHANGES:
        raise NotImplementedError(f"{count} reflections")
    if 0 in extents(x):
        return x, _empty(call, 1, x)
    factors = []
    for i in range(count):
        x, factor = _one_column(x, i)
        factors.append(factor.reshape((*_lead(x), 1)))
    return x, Concat(x.type.ndim - 2)(*factors)


def _one_column(x: V, i: int) -> tuple[V, V]:
    """x after the reflection that clears column i below its diagonal, which keeps its vector."""
    (m, n), rank = extents(x)[-2:], x.type.ndim
    rows, columns = np.arange(m)[:, None], np.arange(n)[None]
    below, own = x.builder.constant(rows > i), x.builder.constant(rows == i)
    zero, one = x.constant(0.0), x.constant(1.0)
    column = part(x, rank - 1, i, i + 1)
    first, rest = part(column, rank - 2, i, i + 1), Where()(below, column, zero)
    size = reduce.Sum((rank - 2, rank - 1), True)(rest * rest)
    none = logic.Equal()(size, zero)
    length = unary.Sqrt()(first * first + size)
    length = Where()(logic.Less()(first, zero), length, -length)
    v = rest / Where()(none, one, first - length)
    factor = Where()(none, zero, 1.0 - first / Where()(none, one, length))
    whole = Where()(own, one, v)
    turned = x - _product(whole * factor, _product(swapped(whole), x))
    own_column = Where()(own, Where()(none, first, length), Where()(below, v, column))
    later = Where()(x.builder.constant(columns > i), turned, x)
    return Where()(x.builder.constant(columns == i), own_column, later), factor


@lowers("linalg_matrix_exp.default")
def _matrix_exp(call: OperatorCall, x: V) -> V:
    """Taylor's series of what is halved until its size is at most 1/2, squared as often."""
    if 0 in extents(x):
        return x
    axes = (x.type.ndim - 2, x.type.ndim - 1)
    size = reduce.Max((axes[0],), True)(reduce.Sum((axes[1],), True)(unary.Abs()(x)))
    known = ew.Maximum()(size, size.constant(0.5))
    halvings = unary.Ceil()(unary.Log()(known) / math.log(2)) + 1.0
    share = ew.Pow()(halvings.constant(0.5), halvings)
    small, found = x * share, _identity(x)
    for k in range(14, 0, -1):
        found = _product(small, found) / float(k) + _identity(x)

    def goes_on(k: V, most: V, *state: V) -> V:
        made: V = logic.Less()(k, most)
        return made

    def turn(k: V, most: V, times: V, y: V) -> tuple[V, ...]:
        return k + 1.0, most, times, Where()(logic.Less()(k, times), _product(y, y), y)

    most = reduce.Max(tuple(range(x.type.ndim)), False)(halvings)
    state = (most.constant(0.0), most, halvings, found)
    return call.builder.while_loop(goes_on, turn, state)[-1]
