"""Special functions of ATen, written in float64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.elementwise import LARGER, SMALLER
from treadle.interop.torch.shaping import extents, part
from treadle.interop.torch.table import OperatorCall, along_axes, axis_of, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, unary
from treadle.ops.creation import Iota
from treadle.ops.movement import Concat
from treadle.ops.select import Where
from treadle.ops.special import ERFC_P, ERFC_Q

V = GraphOperand


def function(*names: str) -> Callable[[Callable[[V], V]], Callable[[V], V]]:
    """Register a function of one number, given in float64."""

    def add(function: Callable[[V], V]) -> Callable[[V], V]:
        def lower(call: OperatorCall, x: V, **kwargs: Any) -> V:
            return function(x.astype(dt.float64)).astype(call.dtype)

        lowers(*names)(lower)
        return function

    return add


def polynomial(x: V, coefficients: Sequence[float]) -> V:
    """Return the polynomial in x by Horner's rule; coefficients have the highest power first."""
    y = x.constant(coefficients[0])
    for c in coefficients[1:]:
        y = y * x + c
    return y


def where(condition: V, x: Any, y: Any) -> V:
    """x where the condition holds, else y; one of them may be a number."""
    like = x if isinstance(x, GraphOperand) else y
    first, second = (v if isinstance(v, GraphOperand) else like.constant(v) for v in (x, y))
    made: V = Where()(condition, first, second)
    return made


def less(x: V, y: Any) -> V:
    """x < y, of a tensor and a number."""
    made: V = logic.Less()(x, x.constant(y))
    return made


# -- gamma -------------------------------------------------------------------------------------

# C. Lanczos, A precision approximation of the gamma function (1964), g = 7, nine terms.
_LANCZOS = (
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""Numbers 2, 4, ..."""
_SHIFT = 10


def _sine_of_half_turns(x: V) -> V:
    """sin(pi x), of what is left of x after whole turns."""
    rest = x - unary.Floor()(x * 0.5) * 2.0
    made: V = unary.Sin()(rest * math.pi)
    return made


@function("lgamma.default")
def _lgamma(x: V) -> V:
    mirrored = less(x, 0.5)
    y = where(mirrored, 1.0 - x, x) - 1.0
    total = y.constant(_LANCZOS[0])
    for i, c in enumerate(_LANCZOS[1:], 1):
        total = total + c / (y + float(i))
    t = y + 7.5
    found = unary.Log()(total * math.sqrt(2 * math.pi)) + (y + 0.5) * unary.Log()(t) - t
    found = where(logic.IsInf()(x), math.inf, found)
    pole = logic.Equal()(x, unary.Floor()(x)) & logic.LessEqual()(x, x.constant(0.0))
    away = unary.Log()(math.pi / unary.Abs()(_sine_of_half_turns(x)))
    return where(pole, math.inf, where(mirrored, away - found, found))


def _shifted(x: V, order: int) -> tuple[V, V]:
    """x + 10 and the sum of (x + k)^-order for k from 0 to 9."""
    total = x.constant(0.0).broadcast_to(extents(x))
    for k in range(_SHIFT):
        total = total + _power(1.0 / (x + float(k)), order)
    return x + float(_SHIFT), total


def _power(x: V, n: int) -> V:
    made = x
    for _ in range(n - 1):
        made = made * x
    return made


def _cotangent_slope(x: V, n: int) -> V:
    """The n-th derivative of pi cot(pi x), a polynomial of the cotangent."""
    powers = [0.0, 1.0]  # of c, lowest first
    for _ in range(n):
        slope = [i * p for i, p in enumerate(powers)][1:]
        grown = [0.0] * (len(slope) + 2)
        for i, p in enumerate(slope):  # times -pi (1 + c^2)
            grown[i] -= math.pi * p
            grown[i + 2] -= math.pi * p
        powers = grown
    quarter = _sine_of_half_turns(x + 0.5) / _sine_of_half_turns(x)
    return polynomial(quarter, [p * math.pi for p in reversed(powers)])


def _polygamma_of_positive(x: V, n: int) -> V:
    """Return polygamma(n, x) for x >= 0.5: a shift by ten, then Euler and Maclaurin's series."""
    far, near = _shifted(x, n + 1)
    inverse = 1.0 / far
    square, made = inverse * inverse, None
    if n == 0:
        tail = unary.Log()(far) - inverse * 0.5
        power = square
        for i, b in enumerate(_BERNOULLI, 1):
            tail = tail - power * (b / (2 * i))
            power = power * square
        made = tail - near
    else:
        power = _power(inverse, n)
        tail = power * (1 / n) + power * inverse * 0.5
        power, rising = power * square, float(n + 1)
        for i, b in enumerate(_BERNOULLI, 1):
            tail = tail + power * (b * rising / math.factorial(2 * i))
            rising *= (n + 2 * i) * (n + 2 * i + 1)
            power = power * square
        made = (near + tail) * float((-1) ** (n + 1) * math.factorial(n))
    return made


def _polygamma(x: V, n: int) -> V:
    mirrored = less(x, 0.5)
    found = _polygamma_of_positive(where(mirrored, 1.0 - x, x), n)
    away = (found if n % 2 == 0 else -found) - _cotangent_slope(x, n)
    return where(mirrored, away, found)


@function("digamma.default")
def _digamma(x: V) -> V:
    whole = logic.Equal()(x, unary.Floor()(x)) & less(x, 0.0)
    found = where(whole, math.nan, _polygamma(x, 0))
    zero = logic.Equal()(x, x.constant(0.0))
    return where(zero, -1.0 / x, found)


@lowers("polygamma.default", "special_polygamma.default")
def _polygamma_of_order(call: OperatorCall, n: int, x: V) -> V:
    if n > 12:
        raise NotImplementedError(f"polygamma of order {n}")
    wide = x.astype(dt.float64)
    if n == 0:
        return _digamma(wide).astype(call.dtype)
    pole = logic.Equal()(wide, unary.Floor()(wide)) & logic.LessEqual()(wide, wide.constant(0.0))
    most = math.inf if n % 2 else -math.inf
    return where(pole, most, _polygamma(wide, n)).astype(call.dtype)


# -- errors ------------------------------------------------------------------------------------

# W. J. Cody, Rational Chebyshev approximations for the error function (1969): of 1/x^2 from 4 on.
# Highest power first. Up to 4 the tables are those of the ops' own erf.
_FAR = (
    (
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ),
    (
        1.0,
        2.56852019228982242e00,
        1.87295284992346725e00,
        5.27905102951428412e-1,
        6.05183413124413191e-2,
        2.33520497626869185e-3,
    ),
)


def _scaled_complement(x: V) -> V:
    """exp(x^2) erfc(x) of x from 0.46875."""
    near = ew.Minimum()(x, x.constant(4.0))
    first = polynomial(near, ERFC_P) / polynomial(near, ERFC_Q)
    inverse = 1.0 / ew.Maximum()(x, x.constant(4.0))
    square = inverse * inverse
    rest = square * polynomial(square, _FAR[0]) / polynomial(square, _FAR[1])
    second = (1 / math.sqrt(math.pi) - rest) * inverse
    return where(logic.LessEqual()(x, x.constant(4.0)), first, second)


@function("erfc.default", "special_erfc.default")
def _erfc(x: V) -> V:
    size = unary.Abs()(x)
    far = _scaled_complement(ew.Maximum()(size, size.constant(0.46875)))
    far = far * unary.Exp()(-size * size)
    far = where(less(x, 0.0), 2.0 - far, far)
    found = where(less(size, 0.46875), 1.0 - unary.Erf()(x), far)
    return where(logic.IsNan()(x), x, found)


@function("special_erfcx.default")
def _erfcx(x: V) -> V:
    size = unary.Abs()(x)
    far = _scaled_complement(ew.Maximum()(size, size.constant(0.46875)))
    grown = unary.Exp()(x * x)
    far = where(less(x, 0.0), grown * 2.0 - far, far)
    return where(less(size, 0.46875), grown * (1.0 - unary.Erf()(x)), far)


def _inverse_complement(q: V) -> V:
    """y > 0 with erfc(y) = q for q up to 1: a first guess, then Newton's steps on log erfc."""
    t = unary.Sqrt()(-2.0 * unary.Log()(q * 0.5))
    # Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.23.
    guess = t - polynomial(t, (0.010328, 0.802853, 2.515517)) / polynomial(
        t, (0.001308, 0.189269, 1.432788, 1.0)
    )
    y, target = guess * math.sqrt(0.5), unary.Log()(q)
    for _ in range(3):
        own = _erfc(y)
        slope = unary.Exp()(-y * y) * (-2 / math.sqrt(math.pi)) / own
        y = y - (unary.Log()(own) - target) / slope
    return y


def _inverse_of_small(x: V) -> V:
    """The inverse of erf for sizes up to 0.5: a series, then Newton's steps."""
    square = x * x
    y = x * polynomial(square, (127 * math.pi**3 / 40320, 7 * math.pi**2 / 480, math.pi / 12, 1))
    y = y * (math.sqrt(math.pi) / 2)
    for _ in range(3):
        y = y - (unary.Erf()(y) - x) * unary.Exp()(y * y) * (math.sqrt(math.pi) / 2)
    return y


@function("erfinv.default", "special_erfinv.default")
def _erfinv(x: V) -> V:
    size = unary.Abs()(x)
    small = ew.Minimum()(size, size.constant(0.5))
    rest = ew.Minimum()(1.0 - size, size.constant(0.5))
    rest = ew.Maximum()(rest, rest.constant(1e-300))
    found = where(less(size, 0.5), _inverse_of_small(small), _inverse_complement(rest))
    found = where(less(x, 0.0), -found, found)
    one = logic.Equal()(size, size.constant(1.0))
    found = where(one, x * math.inf, found)
    return where(logic.LessEqual()(size, size.constant(1.0)), found, math.nan)


@function("special_ndtri.default")
def _ndtri(p: V) -> V:
    least = ew.Minimum()(p, 1.0 - p)
    inside = ew.Maximum()(least * 2.0, least.constant(1e-300))
    size = _inverse_complement(inside) * math.sqrt(2)
    size = where(logic.Equal()(least, least.constant(0.0)), math.inf, size)
    size = where(logic.Equal()(least, least.constant(0.5)), 0.0, size)
    size = where(less(least, 0.0), math.nan, size)
    return where(less(p, 0.5), -size, size)


# -- signs, sizes, exponents -------------------------------------------------------------------


def is_negative(x: V) -> V:
    """Return whether the sign is set, that of a zero too."""
    below = less(x, 0)
    if not x.type.dtype.is_float:
        return below
    zero = logic.Equal()(x, x.constant(0.0))
    return below | (zero & less(1.0 / x, 0.0))


@lowers("signbit.default")
def _signbit(call: OperatorCall, x: V) -> V:
    return is_negative(x)


@lowers("copysign.Tensor", "copysign.Scalar")
def _copysign(call: OperatorCall, x: V, y: Any) -> V:
    wide = x.astype(call.dtype)
    size = unary.Abs()(wide)
    sign = is_negative(call.operand(y, call.dtype, wide))
    return where(sign, -size, size)


_STEPS = (512, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Powers of two that together lead from any number to one between 1/2 and 1, exactly."""


@lowers("frexp.Tensor")
def _frexp(call: OperatorCall, x: V) -> tuple[V, V]:
    wide = x.astype(dt.float64)
    size = unary.Abs()(wide)
    apart = logic.IsNan()(wide) | logic.IsInf()(wide) | logic.Equal()(size, size.constant(0.0))
    size = where(apart, 0.5, size)
    exponent = size * 0.0
    for k in _STEPS:
        small = less(size, 2.0**-k)
        great = logic.GreaterEqual()(size, size.constant(2.0 ** (k - 1)))
        size = where(small, size * 2.0**k, where(great, size * 2.0**-k, size))
        exponent = exponent + where(small, float(-k), great.astype(dt.float64) * float(k))
    found = where(apart, wide, where(less(wide, 0.0), -size, size))
    return found.astype(x.type.dtype), exponent.astype(dt.int32)


@lowers("hypot.default")
def _hypot(call: OperatorCall, x: V, y: V) -> V:
    first, second = unary.Abs()(x.astype(call.dtype)), unary.Abs()(y.astype(call.dtype))
    most, least = ew.Maximum()(first, second), ew.Minimum()(first, second)
    none = logic.Equal()(most, most.constant(0.0))
    share = least / where(none, 1.0, most)
    size = most * unary.Sqrt()(share * share + 1.0)
    endless = logic.IsInf()(first) | logic.IsInf()(second)
    return where(endless, math.inf, size)


def _ignoring_nan(extremum: Any) -> Any:
    def lower(call: OperatorCall, x: V, y: V) -> V:
        first, second = x.astype(call.dtype), y.astype(call.dtype)
        found: V = extremum(call, first, second)
        if not call.dtype.is_float:
            return found
        found = where(logic.IsNan()(second), first, found)
        return where(logic.IsNan()(first), second, found)

    return lower


lowers("fmax.default")(_ignoring_nan(LARGER))
lowers("fmin.default")(_ignoring_nan(SMALLER))


# -- prefixes ----------------------------------------------------------------------------------


def _prefixes(xs: tuple[V, ...], axis: int, join: Callable[..., tuple[V, ...]]) -> tuple[V, ...]:
    """Running results of an associative operator, by doubling."""
    count, step = extents(xs[0])[axis], 1
    while step < count:
        before = tuple(part(x, axis, 0, count - step) for x in xs)
        now = tuple(part(x, axis, step, count) for x in xs)
        first = (part(x, axis, 0, step) for x in xs)
        made = join(before, now)
        xs = tuple(Concat(axis)(f, m) for f, m in zip(first, made, strict=True))
        step *= 2
    return xs


@lowers("logcumsumexp.default")
@along_axes
def _logcumsumexp(call: OperatorCall, x: V, dim: int) -> V:
    def join(before: tuple[V, ...], now: tuple[V, ...]) -> tuple[V, ...]:
        (a,), (b,) = before, now
        most, least = ew.Maximum()(a, b), ew.Minimum()(a, b)
        same = logic.Equal()(a, b)  # infinities would leave no difference
        apart = Where()(same, a.constant(0.0), least - most)
        return (most + unary.Log1p()(unary.Exp()(apart)),)

    found = _prefixes((x.astype(dt.float64),), axis_of(dim, x), join)[0]
    return found.astype(x.type.dtype)


def _running_extremum(op: Any) -> Any:
    @along_axes
    def lower(call: OperatorCall, x: V, dim: int) -> tuple[V, V]:
        axis, kind = axis_of(dim, x), x.type.dtype
        y = x.astype(dt.uint8) if kind is dt.bool_ else x
        line = call.builder.apply(Iota(0, 1, extents(x)[axis], dt.int64), ())[0]
        wide = tuple(d if i == axis else 1 for i, d in enumerate(extents(x)))
        places = line.reshape(wide).broadcast_to(extents(x))

        def join(before: tuple[V, ...], now: tuple[V, ...]) -> tuple[V, ...]:
            takes = op(now[0], before[0])
            if kind.is_float:  # what is no number stays
                takes = takes & logic.LogicalNot()(logic.IsNan()(before[0]))
                takes = takes | logic.IsNan()(now[0])
            return tuple(Where()(takes, n, b) for n, b in zip(now, before, strict=True))

        values, found = _prefixes((y, places), axis, join)
        return values.astype(kind), found

    return lower


lowers("cummax.default")(_running_extremum(logic.GreaterEqual()))
lowers("cummin.default")(_running_extremum(logic.LessEqual()))
