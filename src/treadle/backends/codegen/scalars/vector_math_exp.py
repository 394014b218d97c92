"""The exponential family: exp, expm1, sinh, cosh, tanh, erf.

The argument is split as n log 2 + r, exp(r) is a polynomial, and 2**n is made from its bits. NaN
passes every clamp, because the constant comes first.
"""

from __future__ import annotations

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.backends.codegen.scalars import vector_math_table as table
from treadle.backends.codegen.scalars.vector_math_format import (
    FLOAT32,
    LN2,
    Format,
    bits_of,
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


def _lanes(b: Builder, number: float, x: Value) -> Value:
    """A constant of the type of x."""
    return b.constant(number, x.dtype, x.lanes)


def _clamp(b: Builder, x: Value, low: float, high: float) -> Value:
    return b.max(low, b.min(high, x))


def _multiples(b: Builder, x: Value, form: Format, bias: int) -> tuple[Value, Value]:
    """(n, n + bias in the low bits of a float) for the integer n nearest to x / log(2)."""
    shifted = b.fma(x, _LOG2_E, form.magic + bias)
    return b.sub(shifted, form.magic + bias), shifted


def exp_parts(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """(p, s, t) with exp(x) = p * s * t.

    Two factors, because 2**n itself is no number where the result is subnormal or nearly infinite.
    """
    form = format_of(x)
    x = _clamp(b, x, *_RANGE[form.dtype])
    n, shifted = _multiples(b, x, form, 2 * form.bias)
    r = b.fma(n, -form.ln2[1], b.fma(n, -form.ln2[0], x))
    p = polynomial(b, r, (1.0, 1.0, *table.EXP[form.dtype]))
    # n = i + j with i = n // 2, both with a bias.
    both = bits_of(b, shifted)
    half = b.bitwise("shr", both, 1)
    return p, two_to_the(b, half, form), two_to_the(b, b.sub(both, half), form)


def exp(b: Builder, x: Value) -> Value:
    """e to the power x."""
    p, s, t = exp_parts(b, x)
    return b.mul(b.mul(p, s), t)


def half_exp(b: Builder, x: Value) -> Value:
    """exp(x) / 2, which is finite a little longer than exp(x)."""
    p, s, t = exp_parts(b, x)
    return b.mul(b.mul(p, s), b.mul(t, 0.5))


def _expm1_parts(b: Builder, x: Value, form: Format, bias: int) -> tuple[Value, Value]:
    """(q, s) with exp(x) = s * (1 + q) and s = 2**(n + bias - form.bias)."""
    n, shifted = _multiples(b, x, form, bias)
    # The first step is exact; its result is the largest term of q, the others are added first.
    leading = b.fma(n, -form.ln2[0], x)
    r = b.fma(n, -form.ln2[1], leading)
    rest = b.mul(b.mul(r, r), polynomial(b, r, table.EXP[r.dtype]))
    return b.add(leading, b.fma(n, -form.ln2[1], rest)), two_to_the(b, shifted, form)


def expm1(b: Builder, x: Value) -> Value:
    """exp(x) - 1."""
    form = format_of(x)
    # Half the scale, so that it does not overflow before the result does.
    inside = _clamp(b, x, *_EXPM1_RANGE[form.dtype])
    q, scale = _expm1_parts(b, inside, form, form.bias - 1)
    half = b.fma(scale, q, b.sub(scale, 0.5))
    return b.select(b.compare("lt", b.abs(x), form.tiny), x, b.add(half, half))


def tanh(b: Builder, x: Value) -> Value:
    """Hyperbolic tangent: |e / (e + 2)| for e = expm1(2 x) or e = expm1(-2 x).

    Below 1/2 the argument is negative, because e + 2 is rounded less below 2 than above.
    """
    form = format_of(x)
    size = b.abs(x)
    near = b.compare("lt", size, 0.5)
    argument = b.min(_TANH_ONE[form.dtype], b.mul(size, b.select(near, _lanes(b, -2.0, x), 2.0)))
    q, scale = _expm1_parts(b, argument, form, form.bias)
    e = b.fma(scale, q, b.sub(scale, 1.0))
    return b.copysign(b.div(e, b.add(e, 2.0)), x)


def sinh(b: Builder, x: Value) -> Value:
    """Hyperbolic sine: a polynomial below 1, exponentials above."""
    size = b.abs(x)
    square = b.mul(size, size)
    near = b.fma(b.mul(size, square), polynomial(b, square, table.SINH[x.dtype]), size)
    half = half_exp(b, size)
    far = b.sub(half, b.div(_lanes(b, 0.25, x), half))
    return b.copysign(b.select(b.compare("lt", size, 1.0), near, far), x)


def cosh(b: Builder, x: Value) -> Value:
    """Hyperbolic cosine."""
    half = half_exp(b, b.abs(x))
    return b.add(half, b.div(_lanes(b, 0.25, x), half))


def erf(b: Builder, x: Value) -> Value:
    """2/sqrt(pi) times the integral of exp(-t**2) from 0 to x."""
    form = format_of(x)
    size = b.min(_ERF_ONE[form.dtype], b.abs(x))
    square = b.mul(size, size)
    near = b.fma(size, polynomial(b, square, table.ERF_NEAR[form.dtype]), size)
    far = _erf_far_single(b, size, form) if form is FLOAT32 else _erf_far_double(b, size, square)
    return b.copysign(b.select(b.compare("lt", size, 1.0), near, far), x)


def _erf_far_single(b: Builder, x: Value, form: Format) -> Value:
    """1 - exp(log(erfc(x))), where the logarithm is a polynomial; no result is near a limit."""
    logarithm = polynomial(b, x, table.LOG_ERFC)
    n, shifted = _multiples(b, logarithm, form, form.bias)
    p = polynomial(b, b.fma(n, -LN2, logarithm), (1.0, 1.0, *table.EXP[form.dtype]))
    return b.sub(1.0, b.mul(p, two_to_the(b, shifted, form)))


def _erf_far_double(b: Builder, x: Value, square: Value) -> Value:
    """1 - exp(-x**2) times a polynomial."""
    place = b.div(b.sub(x, 2.0), b.add(x, 2.0))
    return b.fma(b.neg(exp(b, b.neg(square))), polynomial(b, place, table.ERF_FAR), 1.0)
