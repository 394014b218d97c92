"""Bessel, Airy and zeta functions of ATen, written in float64 and rounded once.

Up to 25 an integral over a circle or a line is a short sum: the trapezoidal rule is exact there to
the last digits. From 25 on, Hankel's series in 1/x takes over. So there are no tables of fits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.shaping import extents
from treadle.interop.torch.special import function, less, polynomial, where
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce, unary

V = GraphOperand

_SPLIT = 25.0
_TERMS = 24
"""Of Hankel's series; further ones would not change a result at 25."""
_EULER = 0.57721566490153286
_QUARTER = math.pi / 4


def _at_most(x: V, bound: float) -> V:
    made: V = ew.Minimum()(x, x.constant(bound))
    return made


def _at_least(x: V, bound: float) -> V:
    made: V = ew.Maximum()(x, x.constant(bound))
    return made


def _far(x: V, near: V, far: Callable[[V], V], split: float = _SPLIT) -> V:
    """`near` below the split, `far` of x from there on."""
    return where(less(x, split), near, far(_at_least(x, split)))


@functools.cache
def _hankel(order: float) -> list[float]:
    """a_k with K(x) ~ sqrt(pi / 2x) exp(-x) sum a_k / x^k (Abramowitz and Stegun, 9.7.2)."""
    made = [1.0]
    for k in range(1, _TERMS):
        made.append(made[-1] * (4 * order * order - (2 * k - 1) ** 2) / (8 * k))
    return made


def _series(x: V, order: float, sign: float) -> V:
    terms = [a * sign**k for k, a in enumerate(_hankel(order))]
    return polynomial(1.0 / x, terms[::-1])


def _two_series(x: V, order: float) -> tuple[V, V]:
    """P and Q: J(x) ~ sqrt(2 / pi x) (P cos(phase) - Q sin(phase)) (9.2.5)."""
    inverse, terms = 1.0 / x, _hankel(order)
    square = inverse * inverse
    first = [a * (-1) ** k for k, a in enumerate(terms[::2])]
    second = [a * (-1) ** k for k, a in enumerate(terms[1::2])]
    return polynomial(square, first[::-1]), polynomial(square, second[::-1]) * inverse


def _circle(points: int) -> tuple[Array, Array]:
    """Angles of a quarter of so many points, and how many points each stands for, halved."""
    quarter = points // 4
    counts = np.full(quarter + 1, 2.0)
    counts[[0, -1]] = 1.0
    return 2 * np.pi * np.arange(quarter + 1) / points, counts


def _sum(x: V, term: Callable[[V], V], weights: Array) -> V:
    """The sum of weighted terms of x, which are made along an axis behind the others."""
    terms = term(x.reshape((*extents(x), 1))) * x.constant(weights)
    made: V = reduce.Sum((x.type.ndim,), False)(terms)
    return made


# -- I -----------------------------------------------------------------------------------------

_POINTS_OF_I = 48


def _scaled_i(x: V, order: int) -> V:
    """exp(-x) I(x) of x from 0."""
    angles, counts = _circle(_POINTS_OF_I)
    c, shares = np.cos(angles), counts / _POINTS_OF_I

    def term(y: V) -> V:
        grown = unary.Exp()(y * y.constant(c - 1.0))
        twice = y * y.constant(-2 * c)
        # For order 1 the difference of two sides, exact for small x.
        return grown * (unary.Expm1()(twice) if order else unary.Exp()(twice) + 1.0)

    near = _sum(_at_most(x, _SPLIT), term, -c * shares if order else shares)

    def far(y: V) -> V:
        return _series(y, order, -1.0) / unary.Sqrt()(y * (2 * math.pi))

    return _far(x, near, far)


def _i(x: V, order: int, is_scaled: bool) -> V:
    size = unary.Abs()(x)
    found = _scaled_i(size, order)
    if not is_scaled:  # in two steps: the whole is finite where exp(x) is not
        half = unary.Exp()(size * 0.5)
        found = where(logic.IsInf()(size), math.inf, found * half * half)
    else:
        found = where(logic.IsInf()(size), 0.0, found)
    return where(less(x, 0.0), -found, found) if order else found


function("i0.default", "special_modified_bessel_i0.default")(lambda x: _i(x, 0, False))
function("special_i1.default", "special_modified_bessel_i1.default")(lambda x: _i(x, 1, False))
function("special_i0e.default")(lambda x: _i(x, 0, True))
function("special_i1e.default")(lambda x: _i(x, 1, True))


# -- K -----------------------------------------------------------------------------------------

_STEP, _STEPS = 0.125, 32


def _scaled_k(x: V, order: float) -> V:
    """exp(x) K(x) of x from 2: the integral of exp(-x (cosh t - 1)) cosh(order t)."""
    t = _STEP * np.arange(_STEPS)
    weights = _STEP * np.cosh(order * t)
    weights[0] *= 0.5

    def term(y: V) -> V:
        made: V = unary.Exp()(y * y.constant(1.0 - np.cosh(t)))
        return made

    near = _sum(_at_most(_at_least(x, 1.0), _SPLIT), term, weights)

    def far(y: V) -> V:
        return _series(y, order, 1.0) * unary.Sqrt()(math.pi / 2 / y)

    return _far(x, near, far)


def _small_k(x: V, order: int) -> V:
    """K(x) of x up to 2, by its series (9.6.13, 9.6.11)."""
    quarter, count = x * x * 0.25, 14
    harmonic = [sum(1 / j for j in range(1, k + 1)) for k in range(count + 1)]
    log = unary.Log()(x * 0.5)
    if order == 0:
        rest = [harmonic[k] / math.factorial(k) ** 2 for k in range(count)]
        own = [1 / math.factorial(k) ** 2 for k in range(count)]
        return polynomial(quarter, rest[::-1]) - (log + _EULER) * polynomial(quarter, own[::-1])
    both = [1 / math.factorial(k) / math.factorial(k + 1) for k in range(count)]
    rest = [(harmonic[k] + harmonic[k + 1] - 2 * _EULER) * both[k] for k in range(count)]
    i1 = polynomial(quarter, both[::-1]) * x * 0.5
    return 1.0 / x + log * i1 - x * 0.25 * polynomial(quarter, rest[::-1])


def _k(x: V, order: int, is_scaled: bool) -> V:
    small = _small_k(_at_most(x, 2.0), order)
    far = _scaled_k(x, order)
    if is_scaled:
        small = small * unary.Exp()(_at_most(x, 2.0))
    else:
        far = far * unary.Exp()(-x)
    found = where(less(x, 2.0), small, far)
    found = where(logic.IsInf()(x), 0.0, found)
    found = where(logic.Equal()(x, x.constant(0.0)), math.inf, found)
    return where(less(x, 0.0), math.nan, found)


for _order in (0, 1):
    function(f"special_modified_bessel_k{_order}.default")(
        functools.partial(_k, order=_order, is_scaled=False)
    )
    function(f"special_scaled_modified_bessel_k{_order}.default")(
        functools.partial(_k, order=_order, is_scaled=True)
    )


# -- J and Y -----------------------------------------------------------------------------------

_POINTS_OF_J, _NEUMANN = 128, 30


def _waves(x: V, order: int, weights: Array | float) -> V:
    """The mean over a circle of weight cos(x s), for order 1 of weight s sin(x s)."""
    angles, counts = _circle(_POINTS_OF_J)
    s, shares = np.sin(angles), weights * counts * 2 / _POINTS_OF_J
    wave: Any = unary.Sin() if order else unary.Cos()
    return _sum(x, lambda y: wave(y * y.constant(s)), shares * s if order else shares)


@functools.cache
def _weights() -> Array:
    """Return the weights of Neumann's series for Y (9.1.88): sum of (-1)^k cos(2 k angle) / k."""
    k = np.arange(1, _NEUMANN + 1)
    angles, _ = _circle(_POINTS_OF_J)
    waves: Array = ((-1.0) ** k / k * np.cos(2 * k * angles[:, None])).sum(1)
    return waves


def _far_wave(x: V, order: float, quarters: int) -> V:
    """J with the phase x - quarters pi / 4; two quarters more are Y."""
    first, second = _two_series(x, order)
    phase = x - quarters * _QUARTER
    wave = first * unary.Cos()(phase) - second * unary.Sin()(phase)
    return wave * unary.Sqrt()(2 / math.pi / x)


def _j(x: V, order: int) -> V:
    size = unary.Abs()(x)
    near = _waves(_at_most(size, _SPLIT), order, 1.0)
    found = _far(size, near, lambda y: _far_wave(y, order, 1 + 2 * order))
    found = where(logic.IsInf()(size), 0.0, found)
    return where(less(x, 0.0), -found, found) if order else found


def _y(x: V, order: int) -> V:
    near = _at_most(x, _SPLIT)
    log = (unary.Log()(near * 0.5) + _EULER) * (2 / math.pi)
    made = log * _waves(near, order, 1.0) - _waves(near, order, _weights()) * (4 / math.pi)
    if order:
        made = made - _waves(near, 0, 1.0) * (2 / math.pi) / near
    found = _far(x, made, lambda y: _far_wave(y, order, 3 + 2 * order))
    found = where(logic.IsInf()(x), 0.0, found)
    found = where(logic.Equal()(x, x.constant(0.0)), -math.inf, found)
    return where(less(x, 0.0), math.nan, found)


for _order in (0, 1):
    function(f"special_bessel_j{_order}.default")(functools.partial(_j, order=_order))
    function(f"special_bessel_y{_order}.default")(functools.partial(_y, order=_order))


@function("special_spherical_bessel_j0.default")
def _spherical(x: V) -> V:
    square = x * x
    near = polynomial(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(6)][::-1])
    found = where(less(unary.Abs()(x), 0.5), near, unary.Sin()(x) / x)
    return where(logic.IsInf()(x), 0.0, found)


# -- Airy --------------------------------------------------------------------------------------

_LOW, _HIGH = -7.0, 2.0
_AIRY = (0.35502805388781724, 0.25881940379280680)
"""Ai(0) and -Ai'(0)."""


def _airy_series(x: V) -> V:
    """Return Ai(x) for x from -7 to 2, by its power series (10.4.2)."""
    cube, made = x * x * x, []
    for start in (0, 1):
        terms = [1.0]
        for k in range(1, 34):
            terms.append(terms[-1] / ((3 * k + start) * (3 * k + start - 1)))
        made.append(polynomial(cube, terms[::-1]))
    return made[0] * _AIRY[0] - made[1] * x * _AIRY[1]


@function("special_airy_ai.default")
def _airy(x: V) -> V:
    high = _at_least(x, _HIGH)
    zeta = high * unary.Sqrt()(high) * (2 / 3)
    above = _scaled_k(zeta, 1 / 3) * unary.Exp()(-zeta) * unary.Sqrt()(high / 3.0) / math.pi
    low = _at_least(-x, -_LOW)
    zeta = low * unary.Sqrt()(low) * (2 / 3)
    first, second = _two_series(zeta, 1 / 3)
    phase = zeta - _QUARTER
    wave = first * unary.Cos()(phase) - second * unary.Sin()(phase)
    below = wave / unary.Sqrt()(unary.Sqrt()(low) * math.pi)
    inside = _airy_series(_at_most(_at_least(x, _LOW), _HIGH))
    found = where(less(x, _LOW), below, where(less(x, _HIGH), inside, above))
    return where(logic.IsInf()(x), math.nan, found)


# -- zeta --------------------------------------------------------------------------------------

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""Numbers 2, 4, ..."""
_SHIFT = 10


def _zeta_from_zero(s: V, q: V) -> V:
    """The sum of (q + k)^-s for q > 0: ten terms, then Euler and Maclaurin's series."""
    total = ew.Pow()(q, -s)
    for k in range(1, _SHIFT):
        total = total + ew.Pow()(q + float(k), -s)
    q = q + float(_SHIFT)
    last = ew.Pow()(q, -s)
    total = total + last * q / (s - 1.0) + last * 0.5
    inverse, rising = 1.0 / q, s
    factor = last * inverse
    for i, b in enumerate(_BERNOULLI, 1):
        total = total + factor * rising * (b / math.factorial(2 * i))
        rising = rising * (s + float(2 * i - 1)) * (s + float(2 * i))
        factor = factor * inverse * inverse
    return total


@lowers("special_zeta.default", "special_zeta.self_scalar", "special_zeta.other_scalar")
def _zeta(call: OperatorCall, s: Any, q: Any) -> V:
    """Hurwitz's zeta function; terms of negative numbers are those of positive ones, turned."""
    like = s if isinstance(s, GraphOperand) else q
    s, q = (call.operand(v, dt.float64, like).broadcast_to(call.shape) for v in (s, q))
    one = logic.Equal()(s, s.constant(1.0))
    down, below = unary.Floor()(q), logic.LessEqual()(q, q.constant(0.0))
    pole = logic.Equal()(q, down) & below
    broken = logic.NotEqual()(s, unary.Floor()(s)) & below
    above = logic.LogicalNot()(below)
    rest = where(pole, 0.5, q - down)
    n = where(less(s, 1.0) | one | broken, 2.0, s)
    first = _zeta_from_zero(n, where(above, q, rest))
    second = _zeta_from_zero(n, where(above, 1.0, 1.0 - rest))
    second = second - _zeta_from_zero(n, where(above, 1.0, 1.0 - q))
    odd = n - unary.Floor()(n * 0.5) * 2.0
    found = first + where(above, 0.0, second * (1.0 - odd * 2.0))
    found = where(pole, math.inf, where(broken, math.nan, found))
    found = where(one, math.inf, where(less(s, 1.0), math.nan, found))
    return found.astype(call.dtype)
