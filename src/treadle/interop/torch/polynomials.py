"""Orthogonal polynomials of ATen, of degrees that are data; written in float64, rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.special import less, where
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce, unary

V = GraphOperand
Polynomial = Callable[[OperatorCall, V, V], V]


def _polynomial(*names: str) -> Callable[[Polynomial], Polynomial]:
    """Register a polynomial of x, of degree n from 0 on; it is 0 for lower degrees."""

    def add(made: Polynomial) -> Polynomial:
        def lower(call: OperatorCall, x: Any, n: Any) -> V:
            like = x if isinstance(x, GraphOperand) else n
            wide = call.operand(x, dt.float64, like).broadcast_to(call.shape)
            # A degree that is a float is cut in its own type.
            degree = unary.Trunc()(call.operand(n, dt.float64, like)).broadcast_to(call.shape)
            found = made(call, wide, ew.Maximum()(degree, degree.constant(0.0)))
            return where(less(degree, 0.0), 0.0, found).astype(call.dtype)

        for name in names:
            lowers(*(f"{name}.{kind}" for kind in ("default", "x_scalar", "n_scalar")))(lower)
        return made

    return add


# -- Chebyshev: in closed form, by the angle whose cosine is x ---------------------------------


def _angles(x: V) -> tuple[V, V, V, V]:
    """|x|, its angle inside, its angle outside, and whether x is outside."""
    size = unary.Abs()(x)
    inside = unary.Acos()(ew.Minimum()(size, size.constant(1.0)))
    outside = unary.Acosh()(ew.Maximum()(size, size.constant(1.0)))
    return size, inside, outside, logic.Greater()(size, size.constant(1.0))


def _cosines(x: V, m: V, h: float) -> V:
    """cos(m t) / cos(h t) for |x| = cos(t)."""
    _, inside, outside, far = _angles(x)
    near = unary.Cos()(m * inside) / unary.Cos()(inside * h)
    return where(far, unary.Cosh()(m * outside) / unary.Cosh()(outside * h), near)


def _sines(x: V, m: V, h: float) -> V:
    """sin(m t) / sin(h t) for |x| = cos(t)."""
    size, inside, outside, far = _angles(x)
    near = unary.Sin()(m * inside) / unary.Sin()(inside * h)
    found = where(far, unary.Sinh()(m * outside) / unary.Sinh()(outside * h), near)
    return where(logic.Equal()(size, size.constant(1.0)), m / h, found)


def _sign(x: V, n: V) -> V:
    """(-1)^n for negative x."""
    odd = n - unary.Floor()(n * 0.5) * 2.0
    return where(less(x, 0.0), 1.0 - odd * 2.0, 1.0)


def _first(x: V, n: V) -> V:
    return _sign(x, n) * _cosines(x, n, 0.0)


def _second(x: V, n: V) -> V:
    return _sign(x, n) * _sines(x, n + 1.0, 1.0)


def _third(x: V, n: V) -> V:
    even, odd = _cosines(x, n + 0.5, 0.5), _sines(x, n + 0.5, 0.5)
    return _sign(x, n) * where(less(x, 0.0), odd, even)


def _fourth(x: V, n: V) -> V:
    even, odd = _cosines(x, n + 0.5, 0.5), _sines(x, n + 0.5, 0.5)
    return _sign(x, n) * where(less(x, 0.0), even, odd)


def _chebyshev(kind: str, made: Callable[[V, V], V]) -> None:
    _polynomial(f"special_chebyshev_polynomial_{kind}")(lambda call, x, n: made(x, n))
    _polynomial(f"special_shifted_chebyshev_polynomial_{kind}")(
        lambda call, x, n: made(x * 2.0 - 1.0, n)
    )


for _kind, _made in {"t": _first, "u": _second, "v": _third, "w": _fourth}.items():
    _chebyshev(_kind, _made)


# -- others: by their recurrence, in a loop ----------------------------------------------------


def _recurrence(call: OperatorCall, x: V, n: V, first: V, step: Callable[[V, V, V, V], V]) -> V:
    """The polynomial of degree n: that of degree k + 1 is step(k, x, that of k, that of k - 1)."""
    most = x.constant(0.0)
    if math.prod(call.shape):
        axes = tuple(range(n.type.ndim))
        most = reduce.Max(axes, False)(n) if axes else n

    def goes_on(k: V, most: V, *state: V) -> V:
        made: V = logic.Less()(k, most)
        return made

    def turn(k: V, most: V, x: V, n: V, before: V, now: V) -> tuple[V, ...]:
        here = logic.Less()(k, n)
        made = step(k, x, now, before)
        return k + 1.0, most, x, n, where(here, now, before), where(here, made, now)

    ones = where(logic.IsNan()(x), x, 1.0)
    state = (x.constant(1.0), most, x, n, ones, first)
    found = call.builder.while_loop(goes_on, turn, state)[-1]
    return where(less(n, 1.0), 1.0, found)


def _most_of_hermite(dtype: DType) -> float:
    """The degree from which PyTorch gives no number."""
    return 512.0 if dtype is dt.float64 else 128.0


def _hermite(scale: float) -> Polynomial:
    def made(call: OperatorCall, x: V, n: V) -> V:
        most = _most_of_hermite(call.dtype)
        known = ew.Minimum()(n, n.constant(most))

        def step(k: V, x: V, now: V, before: V) -> V:
            return (x * now - k * before) * scale

        found = _recurrence(call, x, known, x * scale, step)
        return where(logic.Greater()(n, n.constant(most)), math.nan, found)

    return made


_polynomial("special_hermite_polynomial_h")(_hermite(2.0))
_polynomial("special_hermite_polynomial_he")(_hermite(1.0))


@_polynomial("special_laguerre_polynomial_l")
def _laguerre(call: OperatorCall, x: V, n: V) -> V:
    def step(k: V, x: V, now: V, before: V) -> V:
        return ((k * 2.0 + 1.0 - x) * now - k * before) / (k + 1.0)

    return _recurrence(call, x, n, 1.0 - x, step)


@_polynomial("special_legendre_polynomial_p")
def _legendre(call: OperatorCall, x: V, n: V) -> V:
    def step(k: V, x: V, now: V, before: V) -> V:
        return ((k * 2.0 + 1.0) * x * now - k * before) / (k + 1.0)

    return _recurrence(call, x, n, x, step)
