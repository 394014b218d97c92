"""The logarithm family: log, log1p, asinh, acosh, atanh, and powers.

x = 2**k m with m between sqrt(1/2) and sqrt(2); log(m) is a polynomial in m - 1 (float32) or in
s = (m - 1) / (m + 1) (float64, as in FreeBSD's msun).
"""

from __future__ import annotations

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
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


def _exponent(b: Builder, x: Value, form: Format) -> tuple[Value, Value]:
    """k + bias as an unsigned integer, and m, for a normal x = 2**k m."""
    bits = bits_of(b, x)
    one = form.bias << form.precision
    biased = b.bitwise("shr", b.add(bits, one - _ROOT_HALF[form.dtype]), form.precision)
    m = b.add(b.sub(bits, b.bitwise("shl", biased, form.precision)), one)
    return biased, b.bitcast(m, form.dtype)


def _number(b: Builder, biased: Value, form: Format, less: Value | float = 0.0) -> Value:
    """k, less `less`, as a float: a small integer is put into the low bits of a large float."""
    base = 2.0**form.precision
    bits = b.bitwise("or", biased, (form.bias + form.precision) << form.precision)
    offset = base + form.bias + less if isinstance(less, float) else b.add(less, base + form.bias)
    return b.sub(b.bitcast(bits, form.dtype), offset)


def _normal(b: Builder, x: Value, form: Format) -> tuple[Value, Value]:
    """x scaled out of the subnormal range where it is there, and by which power of 2."""
    small = b.compare("lt", x, form.smallest_normal)
    shift = float(form.precision + 2)
    power = b.select(small, b.constant(shift, form.dtype, x.lanes), 0.0)
    return b.select(small, b.mul(x, 2.0**shift), x), power


def _log_of(b: Builder, k: Value, f: Value, form: Format) -> Value:
    """k log(2) + log(1 + f)."""
    high, low = form.ln2
    square = b.mul(f, f)
    if form is FLOAT32:
        rest = b.fma(polynomial(b, f, table.LOG), f, -0.5)
        return b.fma(k, high, b.fma(rest, square, b.fma(k, low, f)))
    s = b.div(f, b.add(f, 2.0))
    z = b.mul(s, s)
    half = b.mul(square, 0.5)
    tail = b.mul(z, polynomial(b, z, table.ATANH))
    rest = b.fma(s, b.add(half, tail), b.mul(k, low))
    return b.fma(k, high, b.sub(f, b.sub(half, rest)))


def _ends(b: Builder, x: Value, result: Value, zero: float) -> Value:
    """What log gives beyond the numbers above `zero`, its pole."""
    result = b.select(b.compare("lt", x, _INFINITY), result, x)
    pole = b.select(b.compare("eq", x, zero), b.constant(-_INFINITY, x.dtype, x.lanes), _NAN)
    return b.select(b.compare("le", x, zero), pole, result)


def log(b: Builder, x: Value) -> Value:
    """Natural logarithm."""
    form = format_of(x)
    normal, shift = _normal(b, x, form)
    biased, m = _exponent(b, normal, form)
    result = _log_of(b, _number(b, biased, form, shift), b.sub(m, 1.0), form)
    return _ends(b, x, result, 0.0)


def log1p(b: Builder, x: Value) -> Value:
    """log(1 + x); what 1 + x loses is put back into the reduced argument."""
    form = format_of(x)
    total, lost = two_sum(b, b.constant(1.0, x.dtype, x.lanes), x)
    biased, m = _exponent(b, total, form)
    # 2**-k; beyond the clamp the lost part is far below the result.
    inverse = b.sub(2 * form.bias, b.min(biased, 2 * form.bias - 1))
    f = b.fma(lost, two_to_the(b, inverse, form), b.sub(m, 1.0))
    result = _ends(b, x, _log_of(b, _number(b, biased, form), f, form), -1.0)
    return b.select(b.compare("lt", b.abs(x), form.tiny), x, result)


def asinh(b: Builder, x: Value) -> Value:
    """log(t + sqrt(t**2 + 1)) for t = |x|, as log1p; log(2 t) where t**2 might overflow."""
    form = format_of(x)
    size = b.abs(x)
    square = b.mul(size, size)
    root = b.sqrt(b.add(square, 1.0))
    near = b.add(size, b.div(square, b.add(root, 1.0)))
    return b.copysign(_log1p_or_double(b, size, near, form), x)


def acosh(b: Builder, x: Value) -> Value:
    """log(x + sqrt(x**2 - 1)) as log1p; log(2 x) where x**2 might overflow."""
    form = format_of(x)
    above = b.sub(x, 1.0)
    near = b.add(above, b.sqrt(b.mul(above, b.add(x, 1.0))))
    result = _log1p_or_double(b, x, near, form)
    return b.select(b.compare("lt", x, 1.0), _NAN, result)


def _log1p_or_double(b: Builder, x: Value, near: Value, form: Format) -> Value:
    """log1p(near), or log(2 x) for x so large that it makes no difference."""
    large = b.compare("lt", 2.0 ** (form.precision + 3), x)
    result = log1p(b, b.select(large, x, near))
    return b.select(large, b.add(result, LN2), result)


def atanh(b: Builder, x: Value) -> Value:
    """log((1 + t) / (1 - t)) / 2 for t = |x|, as log1p."""
    size = b.abs(x)
    double = b.add(size, size)
    argument = b.fma(double, b.div(size, b.sub(1.0, size)), double)
    result = b.copysign(b.mul(log1p(b, argument), 0.5), x)
    return b.select(b.compare("lt", 1.0, size), _NAN, result)


# -- powers ------------------------------------------------------------------------------------


def power(b: Builder, x: Value, y: Value) -> Value:
    """x to the power y with C's special cases; float32 is computed in float64."""
    size = b.abs(x)
    if x.dtype is dt.float32:
        wide = b.mul(b.cast(y, dt.float64), log(b, b.cast(size, dt.float64)))
        result = b.cast(exp(b, wide), dt.float32)
    else:
        result = _power_of_size(b, size, y)
    return _power_cases(b, x, y, b.select(b.compare("eq", size, 1.0), 1.0, result))


def _power_cases(b: Builder, x: Value, y: Value, result: Value) -> Value:
    """Signs and NaN: `result` is |x| to the power y."""
    half = b.mul(y, 0.5)
    whole = b.compare("eq", b.unary("floor", y), y)
    odd = b.bitwise("and", whole, b.compare("ne", b.unary("floor", half), half))
    result = b.select(odd, b.copysign(result, x), result)
    undefined = b.bitwise("and", b.compare("lt", x, 0.0), b.invert(whole))
    finite = b.compare("lt", b.abs(x), _INFINITY)
    result = b.select(b.bitwise("and", undefined, finite), _NAN, result)
    missing = b.bitwise("or", b.compare("ne", x, x), b.compare("ne", y, y))
    result = b.select(missing, _NAN, result)
    one = b.bitwise("or", b.compare("eq", x, 1.0), b.compare("eq", y, 0.0))
    return b.select(one, 1.0, result)


def _power_of_size(b: Builder, x: Value, y: Value) -> Value:
    """exp(y log(x)) for float64 x >= 0, with a logarithm of more than 64 bits."""
    form = format_of(x)
    high, low = _long_log(b, x, form)
    product, lost = two_product(b, y, high)
    rest = b.fma(y, low, lost)
    p, s, t = exp_parts(b, product)
    fine = b.mul(b.mul(b.fma(p, rest, p), s), t)
    # Where the product is beyond every result, what was lost is NaN or makes no difference.
    result = b.select(b.compare("lt", b.abs(product), 760.0), fine, exp(b, product))
    rises = b.bitwise("xor", b.compare("lt", x, 1.0), b.compare("lt", 0.0, y))
    limit = b.select(rises, b.constant(_INFINITY, x.dtype, x.lanes), 0.0)
    ends = b.bitwise("or", b.compare("eq", x, 0.0), b.compare("eq", x, _INFINITY))
    ends = b.bitwise("or", ends, b.compare("eq", b.abs(y), _INFINITY))
    return b.select(ends, limit, result)


def _long_log(b: Builder, x: Value, form: Format) -> tuple[Value, Value]:
    """log(x) of a positive finite float64 as a sum of two: 2 atanh(s) + k log(2)."""
    normal, shift = _normal(b, x, form)
    biased, m = _exponent(b, normal, form)
    k = _number(b, biased, form, shift)
    # s = (m - 1) / (m + 1) to 106 bits.
    over = b.sub(m, 1.0)
    under, under_low = fast_two_sum(b, b.max(1.0, m), b.min(1.0, m))
    s = b.div(over, under)
    s_low = b.div(b.fma(b.neg(s), under_low, b.fma(b.neg(s), under, over)), under)
    # u = s**2, and 2/3 + u (2/5 + u tail) to some 70 bits.
    u, u_low = two_product(b, s, s)
    u_low = b.fma(b.add(s, s), s_low, u_low)
    inner = b.mul(u, polynomial(b, u, table.ATANH_TAIL))
    fifth, fifth_low = fast_two_sum(b, b.constant(0.4, x.dtype, x.lanes), inner)
    fifth_low = b.add(fifth_low, -2.2204460492503132e-17)
    part, part_low = two_product(b, u, fifth)
    part_low = b.add(part_low, b.fma(u, fifth_low, b.mul(u_low, fifth)))
    third, third_low = fast_two_sum(b, b.constant(2 / 3, x.dtype, x.lanes), part)
    third_low = b.add(b.add(third_low, 3.700743415417188e-17), part_low)
    # cube = s u (2/3 + ...).
    v, v_low = two_product(b, s, u)
    v_low = b.add(v_low, b.fma(s, u_low, b.mul(s_low, u)))
    cube, cube_low = two_product(b, v, third)
    cube_low = b.add(cube_low, b.fma(v, third_low, b.mul(v_low, third)))
    # k log(2) + 2 s + cube, the largest first.
    scaled, scaled_low = two_product(b, k, b.constant(form.ln2[0], x.dtype, x.lanes))
    scaled_low = b.fma(k, form.ln2[1], scaled_low)
    total, lost = two_sum(b, scaled, b.add(s, s))
    total, lost_too = two_sum(b, total, cube)
    low = b.add(b.add(lost, lost_too), b.add(b.add(scaled_low, b.add(s_low, s_low)), cube_low))
    return fast_two_sum(b, total, low)
