"""The exponential family: exp, expm1, sinh, cosh, tanh, erf.

The argument is split as n log 2 + r, exp(r) is a polynomial, and 2**n is made from its bits. NaN
passes every clamp, because the constant comes first.
"""

from __future__ import annotations

from treadle.backends.codegen.kernel.language import Value, copysign, fma, maximum, minimum, select
from treadle.backends.codegen.scalars import vector_math_table as table
from treadle.backends.codegen.scalars.vector_math_format import (
    FLOAT32,
    LN2,
    Format,
    bits_of,
    fast_two_sum,
    format_of,
    polynomial,
    two_to_the,
)
from treadle.base import dtype as dt

_LOG2_E = 1.4426950408889634
_RANGE = {dt.float32: (-104.0, 90.0), dt.float64: (-746.0, 711.0)}
"""Beyond it exp(x) is 0, or infinite also when halved."""
_EXPM1_RANGE = {dt.float32: (-18.0, 89.0), dt.float64: (-38.0, 710.0)}
"""Beyond it exp(x) - 1 is -1 or infinite."""
_TANH_ONE = {dt.float32: 20.0, dt.float64: 40.0}
"""tanh(x / 2) is 1 above it."""
_ERF_ONE = {dt.float32: 3.95, dt.float64: 6.0}
"""erf(x) is 1 from here on."""


def _clamp(x: Value, low: float, high: float) -> Value:
    return maximum(low, minimum(high, x))


def _multiples(x: Value, form: Format, bias: int) -> tuple[Value, Value]:
    """(n, n + bias in the low bits of a float) for the integer n nearest to x / log(2)."""
    shifted = fma(x, _LOG2_E, form.magic + bias)
    return shifted - (form.magic + bias), shifted


def exp_parts(x: Value, less: Value | None = None) -> tuple[Value, Value, Value]:
    """(p, s, t) with exp(x) = p * s * t; of x + less, p is rounded once, so that it is exact where
    a number of the type is.

    Two factors, since 2**n itself is not a number where the result is subnormal or near inf.
    """
    form = format_of(x)
    x = _clamp(x, *_RANGE[form.dtype])
    n, shifted = _multiples(x, form, 2 * form.bias)
    leading = fma(n, -form.ln2[0], x)
    if less is None:
        r = fma(n, -form.ln2[1], leading)
        p = polynomial(r, (1.0, 1.0, *table.EXP[form.dtype]))
    else:
        r, r_low = fast_two_sum(leading, fma(n, -form.ln2[1], less))
        p, p_low = fast_two_sum(1.0, r)
        rest = fma(r * r, polynomial(r, table.EXP[form.dtype]), fma(p, r_low, p_low))
        p = p + rest
    # n = i + j with i = n // 2, both with a bias.
    both = bits_of(shifted)
    half = both >> 1
    return p, two_to_the(half, form), two_to_the(both - half, form)


def exp(x: Value) -> Value:
    """e to the power x."""
    p, s, t = exp_parts(x)
    return p * s * t


def half_exp(x: Value) -> Value:
    """exp(x) / 2, which is finite a little longer than exp(x)."""
    p, s, t = exp_parts(x)
    return p * s * (t * 0.5)


def _expm1_parts(x: Value, form: Format, bias: int) -> tuple[Value, Value]:
    """(q, s) with exp(x) = s * (1 + q) and s = 2**(n + bias - form.bias)."""
    n, shifted = _multiples(x, form, bias)
    # The first step is exact; its result is the largest term of q, the others are added first.
    leading = fma(n, -form.ln2[0], x)
    r = fma(n, -form.ln2[1], leading)
    rest = r * r * polynomial(r, table.EXP[r.dtype])
    return leading + fma(n, -form.ln2[1], rest), two_to_the(shifted, form)


def expm1(x: Value) -> Value:
    """exp(x) - 1."""
    form = format_of(x)
    # Half the scale, so that it does not overflow before the result does.
    inside = _clamp(x, *_EXPM1_RANGE[form.dtype])
    q, scale = _expm1_parts(inside, form, form.bias - 1)
    half = fma(scale, q, scale - 0.5)
    return select(abs(x) < form.tiny, x, half + half)


def tanh(x: Value) -> Value:
    """Hyperbolic tangent: |e / (e + 2)| for e = expm1(2 x) or e = expm1(-2 x).

    Below 1/2 the argument is negative, because e + 2 is rounded less below 2 than above.
    """
    form = format_of(x)
    size = abs(x)
    near = size < 0.5
    argument = minimum(_TANH_ONE[form.dtype], size * select(near, x.constant(-2.0), 2.0))
    q, scale = _expm1_parts(argument, form, form.bias)
    e = fma(scale, q, scale - 1.0)
    return copysign(e / (e + 2.0), x)


def sinh(x: Value) -> Value:
    """Hyperbolic sine: a polynomial below 1, exponentials above."""
    size = abs(x)
    square = size * size
    near = fma(size * square, polynomial(square, table.SINH[x.dtype]), size)
    half = half_exp(size)
    far = half - 0.25 / half
    return copysign(select(size < 1.0, near, far), x)


def cosh(x: Value) -> Value:
    """Hyperbolic cosine."""
    half = half_exp(abs(x))
    return half + 0.25 / half


def erf(x: Value) -> Value:
    """2/sqrt(pi) times the integral of exp(-t**2) from 0 to x."""
    form = format_of(x)
    size = minimum(_ERF_ONE[form.dtype], abs(x))
    square = size * size
    near = fma(size, polynomial(square, table.ERF_NEAR[form.dtype]), size)
    far = _erf_far_single(size, form) if form is FLOAT32 else _erf_far_double(size, square)
    return copysign(select(size < 1.0, near, far), x)


def _erf_far_single(x: Value, form: Format) -> Value:
    """1 - exp(log(erfc(x))), where the logarithm is a polynomial; no result is near a limit."""
    logarithm = polynomial(x, table.LOG_ERFC)
    n, shifted = _multiples(logarithm, form, form.bias)
    p = polynomial(fma(n, -LN2, logarithm), (1.0, 1.0, *table.EXP[form.dtype]))
    return 1.0 - p * two_to_the(shifted, form)


def _erf_far_double(x: Value, square: Value) -> Value:
    """1 - exp(-x**2) times a polynomial."""
    place = (x - 2.0) / (x + 2.0)
    return fma(-exp(-square), polynomial(place, table.ERF_FAR), 1.0)
