"""The logarithm family: log, log1p, asinh, acosh, atanh, and powers.

x = 2**k m with m between sqrt(1/2) and sqrt(2); log(m) is a polynomial in m - 1 (float32) or in
s = (m - 1) / (m + 1) (float64, as in FreeBSD's msun).
"""

from __future__ import annotations

from treadle.backends.codegen.kernel.language import (
    Value,
    copysign,
    floor,
    fma,
    maximum,
    minimum,
    select,
    sqrt,
)
from treadle.backends.codegen.scalars import vector_math_table as table
from treadle.backends.codegen.scalars.vector_math_exp import exp, exp_parts
from treadle.backends.codegen.scalars.vector_math_format import (
    FLOAT32,
    LN2,
    Format,
    bits_of,
    fast_two_sum,
    format_of,
    polynomial,
    two_product,
    two_sum,
    two_to_the,
)
from treadle.base import dtype as dt

_INFINITY = float("inf")
_NAN = float("nan")
_LOG2_E = 1.4426950408889634
_ROOT_HALF = {dt.float32: 0x3F3504F3, dt.float64: 0x3FE6A09E667F3BCD}
"""Bits of sqrt(1/2)."""


def _exponent(x: Value, form: Format) -> tuple[Value, Value]:
    """k + bias as an unsigned integer, and m, for a normal x = 2**k m."""
    bits = bits_of(x)
    one = form.bias << form.precision
    biased = (bits + (one - _ROOT_HALF[form.dtype])) >> form.precision
    m = bits - (biased << form.precision) + one
    return biased, m.bitcast(form.dtype)


def _number(biased: Value, form: Format, less: Value | float = 0.0) -> Value:
    """k, less `less`, as a float: a small integer is put into the low bits of a large float."""
    base = 2.0**form.precision
    bits = biased | ((form.bias + form.precision) << form.precision)
    offset = base + form.bias + less if isinstance(less, float) else less + (base + form.bias)
    return bits.bitcast(form.dtype) - offset


def _normal(x: Value, form: Format) -> tuple[Value, Value]:
    """x scaled out of the subnormal range where it is there, and by which power of 2."""
    small = x < form.smallest_normal
    shift = float(form.precision + 2)
    power = select(small, x.constant(shift), 0.0)
    return select(small, x * 2.0**shift, x), power


def _log_of(k: Value, f: Value, form: Format) -> Value:
    """k log(2) + log(1 + f)."""
    high, low = form.ln2
    square = f * f
    if form is FLOAT32:
        rest = fma(polynomial(f, table.LOG), f, -0.5)
        return fma(k, high, fma(rest, square, fma(k, low, f)))
    s = f / (f + 2.0)
    z = s * s
    half = square * 0.5
    tail = z * polynomial(z, table.ATANH)
    rest = fma(s, half + tail, k * low)
    return fma(k, high, f - (half - rest))


def _ends(x: Value, result: Value, zero: float) -> Value:
    """Return log beyond the numbers above `zero`, its pole."""
    result = select(x < _INFINITY, result, x)
    pole = select(x == zero, x.constant(-_INFINITY), _NAN)
    return select(x <= zero, pole, result)


def log(x: Value) -> Value:
    """Natural logarithm."""
    form = format_of(x)
    normal, shift = _normal(x, form)
    biased, m = _exponent(normal, form)
    result = _log_of(_number(biased, form, shift), m - 1.0, form)
    return _ends(x, result, 0.0)


def log1p(x: Value) -> Value:
    """log(1 + x); what 1 + x loses is put back into the reduced argument."""
    form = format_of(x)
    total, lost = two_sum(1.0, x)
    biased, m = _exponent(total, form)
    # 2**-k; beyond the clamp the lost part is far below the result.
    inverse = 2 * form.bias - minimum(biased, 2 * form.bias - 1)
    f = fma(lost, two_to_the(inverse, form), m - 1.0)
    result = _ends(x, _log_of(_number(biased, form), f, form), -1.0)
    return select(abs(x) < form.tiny, x, result)


def asinh(x: Value) -> Value:
    """log(t + sqrt(t**2 + 1)) for t = |x|, as log1p; log(2 t) where t**2 might overflow."""
    form = format_of(x)
    size = abs(x)
    square = size * size
    root = sqrt(square + 1.0)
    near = size + square / (root + 1.0)
    return copysign(_log1p_or_double(size, near, form), x)


def acosh(x: Value) -> Value:
    """log(x + sqrt(x**2 - 1)) as log1p; log(2 x) where x**2 might overflow."""
    form = format_of(x)
    above = x - 1.0
    near = above + sqrt(above * (x + 1.0))
    result = _log1p_or_double(x, near, form)
    return select(x < 1.0, _NAN, result)


def _log1p_or_double(x: Value, near: Value, form: Format) -> Value:
    """log1p(near), or log(2 x) for x so large that it makes no difference."""
    large = 2.0 ** (form.precision + 3) < x
    result = log1p(select(large, x, near))
    return select(large, result + LN2, result)


def atanh(x: Value) -> Value:
    """log((1 + t) / (1 - t)) / 2 for t = |x|, as log1p."""
    size = abs(x)
    double = size + size
    argument = fma(double, size / (1.0 - size), double)
    result = copysign(log1p(argument) * 0.5, x)
    return select(size > 1.0, _NAN, result)


# -- powers ------------------------------------------------------------------------------------


def power(x: Value, y: Value) -> Value:
    """x to the power y with C's special cases; float32 is computed in float64."""
    size = abs(x)
    if x.dtype is dt.float32:
        wide = y.cast(dt.float64) * log(size.cast(dt.float64))
        result = exp(wide).cast(dt.float32)
    else:
        result = _power_of_size(size, y)
    return _power_cases(x, y, select(size == 1.0, 1.0, result))


def _power_cases(x: Value, y: Value, result: Value) -> Value:
    """Signs and NaN: `result` is |x| to the power y."""
    half = y * 0.5
    whole = floor(y) == y
    odd = whole & (floor(half) != half)
    result = select(odd, copysign(result, x), result)
    undefined = (x < 0.0) & ~whole
    finite = abs(x) < _INFINITY
    result = select(undefined & finite, _NAN, result)
    missing = (x != x) | (y != y)
    result = select(missing, _NAN, result)
    one = (x == 1.0) | (y == 0.0)
    return select(one, 1.0, result)


def _power_of_size(x: Value, y: Value) -> Value:
    """exp(y log(x)) for float64 x >= 0, with a logarithm of more than 64 bits."""
    form = format_of(x)
    high, low = _long_log(x, form)
    product, lost = two_product(y, high)
    rest = fma(y, low, lost)
    p, s, t = exp_parts(product, rest)
    fine = p * s * t
    # Where the product is beyond every result, what was lost is NaN or makes no difference.
    result = select(abs(product) < 760.0, fine, exp(product))
    rises = (x < 1.0) ^ (y > 0.0)
    limit = select(rises, x.constant(_INFINITY), 0.0)
    ends = (x == 0.0) | (x == _INFINITY)
    ends = ends | (abs(y) == _INFINITY)
    return select(ends, limit, result)


def _long_log(x: Value, form: Format) -> tuple[Value, Value]:
    """log(x) of a positive finite float64 as a sum of two: 2 atanh(s) + k log(2)."""
    normal, shift = _normal(x, form)
    biased, m = _exponent(normal, form)
    k = _number(biased, form, shift)
    # s = (m - 1) / (m + 1) to 106 bits.
    over = m - 1.0
    under, under_low = fast_two_sum(maximum(1.0, m), minimum(1.0, m))
    s = over / under
    s_low = fma(-s, under_low, fma(-s, under, over, exact=True)) / under
    # u = s**2, and 2/3 + u (2/5 + u tail) to some 70 bits.
    u, u_low = two_product(s, s)
    u_low = fma(s + s, s_low, u_low)
    inner = u * polynomial(u, table.ATANH_TAIL)
    fifth, fifth_low = fast_two_sum(0.4, inner)
    fifth_low = fifth_low + -2.2204460492503132e-17
    part, part_low = two_product(u, fifth)
    part_low = part_low + fma(u, fifth_low, u_low * fifth)
    third, third_low = fast_two_sum(2 / 3, part)
    third_low = third_low + 3.700743415417188e-17 + part_low
    # cube = s u (2/3 + ...).
    v, v_low = two_product(s, u)
    v_low = v_low + fma(s, u_low, s_low * u)
    cube, cube_low = two_product(v, third)
    cube_low = cube_low + fma(v, third_low, v_low * third)
    # k log(2) + 2 s + cube, the largest first.
    scaled, scaled_low = two_product(k, form.ln2[0])
    scaled_low = fma(k, form.ln2[1], scaled_low)
    total, lost = two_sum(scaled, s + s)
    total, lost_too = two_sum(total, cube)
    low = lost + lost_too + (scaled_low + (s_low + s_low) + cube_low)
    return fast_two_sum(total, low)
