"""Circular functions and their inverses.

x = j pi/2 + r. The first fma of a reduction is exact, because pi/2 and x have no bits below those
of r; hence three constants serve up to a limit far above every ordinary angle. Beyond it, if a
lane is there at all, a branch multiplies by as much of 2/pi as it takes (Payne and Hanek 1983).
"""

from __future__ import annotations

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.backends.codegen.scalars import vector_math_table as table
from treadle.backends.codegen.scalars.vector_math_format import (
    FLOAT64,
    Format,
    fast_two_sum,
    format_of,
    polynomial,
    two_product,
    two_sum,
)
from treadle.base import dtype as dt

_TWO_OVER_PI = 0.6366197723675814
_LIMIT = {dt.float32: 2.0**16, dt.float64: 2.0**30}
"""Up to here the short reduction is used."""
_SHIFT = 200
_TWO_OVER_PI_PARTS = tuple(
    float.fromhex(part)
    for part in (
        "0x1.45f306dc9c883p+199",
        "-0x1.6b01ec5417056p+145",
        "-0x1.6447e493ad4cep+91",
        "0x1.e21c820ff28b2p+37",
        "-0x1.508510ea79237p-18",
        "0x1.b8e909374b802p-74",
        "-0x1.b6d115f62e6dep-128",
        "-0x1.80f10a71a76b3p-183",
        "0x1.cfba208d7d4bbp-238",
        "-0x1.2edec598e3f65p-294",
        "-0x1.741037d8cdc54p-349",
        "0x1.cc1a99cfa4e42p-403",
        "0x1.7e2ef7e4a0ec8p-458",
        "-0x1.da00087e99fc0p-518",
        "-0x1.0d0ee74a5f593p-572",
        "0x1.f6d367ecf27cbp-628",
        "0x1.36e9e8c7ecd3dp-685",
        "-0x1.00ae9456c229cp-739",
        "-0x1.41a0e84c2f8c6p-796",
        "-0x1.0eb5ada2b2809p-853",
        "-0x1.0277039517bd5p-907",
        "0x1.98237e3db5d60p-967",
    )
)
"""2/pi times 2**200 as a sum: its bits down to 2**-1160."""
_PARTS = {dt.float32: 5, dt.float64: len(_TWO_OVER_PI_PARTS)}
"""How many of them the largest argument takes."""


# -- reduction ---------------------------------------------------------------------------------


def _reduce(b: Builder, x: Value, lost: bool = False) -> tuple[Value, ...]:
    """(j in the low bits of an unsigned integer, r) with x = j pi/2 + r, |r| <= pi/4.

    With `lost`, also what r lost when it was rounded.
    """
    form = format_of(x)
    first, second, third = form.half_pi
    shifted = b.fma(x, _TWO_OVER_PI, form.magic)
    j = b.sub(shifted, form.magic)
    # The parts have one sign, so that -0 stays -0.
    exact = b.fma(j, -first, x)
    r = b.fma(j, -third, b.fma(j, -second, exact))
    short = [b.bitcast(shifted, form.integer), r]
    if lost:
        product, product_low = two_product(b, j, b.constant(-second, x.dtype, x.lanes))
        near, near_low = two_sum(b, exact, product)
        low = b.fma(j, -third, b.add(near_low, product_low))
        short.append(b.add(b.sub(near, r), low))
    large = b.compare("lt", _LIMIT[form.dtype], b.abs(x))

    def long() -> tuple[Value, ...]:
        found = _reduce_large(b, x, form)
        return tuple(b.select(large, v, w) for v, w in zip(found, short, strict=False))

    return b.branch(b.reduce("or", large), long, lambda: tuple(short), short)


def _reduce_large(b: Builder, x: Value, form: Format) -> tuple[Value, Value, Value]:
    """All three for any size, in float64: the products with the parts of 2/pi, modulo 4."""
    wide = b.mul(b.cast(x, dt.float64), 2.0**-_SHIFT)
    zero = b.constant(0.0, dt.float64, x.lanes)

    def turn(i: Value, total: Value, low: Value, j: Value) -> tuple[Value, Value, Value]:
        high, rest = two_product(b, wide, b.splat(_part(b, i, _PARTS[form.dtype]), x.lanes))
        total, lost = two_sum(b, total, _modulo_four(b, high))
        whole = b.unary("rint", total)
        j, total = b.add(j, whole), b.sub(total, whole)
        total, lost_too = two_sum(b, total, _modulo_four(b, rest))
        total, low = two_sum(b, total, b.add(low, b.add(lost, lost_too)))
        whole = b.unary("rint", total)
        j, total = b.add(j, whole), b.sub(total, whole)
        return (*fast_two_sum(b, total, low), j)

    total, low, j = b.loop(0, _PARTS[form.dtype], 1, turn, (zero, zero, zero))
    high, rest = two_product(b, total, b.constant(FLOAT64.half_pi[0], dt.float64, x.lanes))
    rest = b.fma(total, FLOAT64.half_pi[1], b.fma(low, FLOAT64.half_pi[0], rest))
    sum_, rest = fast_two_sum(b, high, rest)
    r = b.cast(sum_, form.dtype)
    lost = b.cast(b.add(b.sub(sum_, b.cast(r, dt.float64)), rest), form.dtype)
    quadrant = b.add(b.cast(j, form.dtype), form.magic)
    return b.bitcast(quadrant, form.integer), r, lost


def _part(b: Builder, index: Value, count: int) -> Value:
    """Part number `index` of 2/pi; a kernel has no tables."""
    found = b.constant(_TWO_OVER_PI_PARTS[0], dt.float64)
    for i in range(1, count):
        found = b.select(b.compare("eq", index, i), _TWO_OVER_PI_PARTS[i], found)
    return found


def _modulo_four(b: Builder, x: Value) -> Value:
    """x less the nearest multiple of 4, exactly."""
    return b.fma(b.unary("rint", b.mul(x, 0.25)), -4.0, x)


def _sine_and_cosine(b: Builder, r: Value) -> tuple[Value, Value]:
    """Of |r| <= pi/4."""
    z = b.mul(r, r)
    sine = b.fma(b.mul(r, z), polynomial(b, z, table.SIN[r.dtype]), r)
    cosine = b.fma(z, b.fma(z, polynomial(b, z, table.COS[r.dtype]), -0.5), 1.0)
    # Adding 0 to -0 lost its sign.
    return b.select(b.compare("eq", r, 0.0), r, sine), cosine


def _long_sine_and_cosine(
    b: Builder, r: Value, lost: Value
) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    """Of r + lost, each as a sum of two."""
    z = b.mul(r, r)
    bend = b.fma(b.mul(r, z), polynomial(b, z, table.SIN[r.dtype]), lost)
    dip = b.fma(z, polynomial(b, z, table.COS[r.dtype]), -0.5)
    dip = b.fma(z, dip, b.neg(b.mul(r, lost)))
    one = b.constant(1.0, r.dtype, r.lanes)
    return fast_two_sum(b, r, bend), fast_two_sum(b, one, dip)


def _odd(b: Builder, quadrant: Value) -> Value:
    return b.compare("ne", b.bitwise("and", quadrant, 1), 0)


def _turned(b: Builder, x: Value, quadrant: Value) -> Value:
    """x, negated in the quadrants 2 and 3."""
    form = format_of(x)
    sign = b.bitwise("shl", b.bitwise("and", quadrant, 2), form.integer.bits - 2)
    return b.bitcast(b.bitwise("xor", b.bitcast(x, form.integer), sign), form.dtype)


def sin(b: Builder, x: Value) -> Value:
    """Sine."""
    quadrant, r = _reduce(b, x)
    sine, cosine = _sine_and_cosine(b, r)
    return _turned(b, b.select(_odd(b, quadrant), cosine, sine), quadrant)


def cos(b: Builder, x: Value) -> Value:
    """Cosine."""
    quadrant, r = _reduce(b, x)
    sine, cosine = _sine_and_cosine(b, r)
    return _turned(b, b.select(_odd(b, quadrant), sine, cosine), b.add(quadrant, 1))


def tan(b: Builder, x: Value) -> Value:
    """Tangent: sine by cosine, where three roundings would add up; hence the long forms."""
    quadrant, r, lost = _reduce(b, x, lost=True)
    sine, cosine = _long_sine_and_cosine(b, r, lost)
    odd = _odd(b, quadrant)
    over, over_low = (b.select(odd, b.neg(c), s) for c, s in zip(cosine, sine, strict=True))
    under, under_low = (b.select(odd, s, c) for c, s in zip(cosine, sine, strict=True))
    ratio = b.div(over, under)
    opposite = b.neg(ratio)
    rest = b.add(b.fma(opposite, under, over), b.fma(opposite, under_low, over_low))
    return b.select(b.compare("eq", x, 0.0), x, b.add(ratio, b.div(rest, under)))


# -- inverses ----------------------------------------------------------------------------------


def _arc_sine(b: Builder, size: Value) -> tuple[Value, Value, Value]:
    """(small, s, t): asin(size) is s + t where small, else pi/2 - 2 (s + t)."""
    small = b.compare("lt", size, 0.5)
    half = b.fma(size, -0.5, 0.5)
    z = b.select(small, b.mul(size, size), half)
    root = b.sqrt(z)
    s = b.select(small, size, root)
    return small, s, b.mul(b.mul(s, z), polynomial(b, z, table.ASIN[size.dtype]))


def asin(b: Builder, x: Value) -> Value:
    """Inverse sine."""
    high, low, _ = format_of(x).half_pi
    small, s, t = _arc_sine(b, b.abs(x))
    # The large parts first: their difference is exact or nearly so.
    far = b.add(b.fma(s, -2.0, high), b.fma(t, -2.0, low))
    return b.copysign(b.select(small, b.add(s, t), far), x)


def acos(b: Builder, x: Value) -> Value:
    """Inverse cosine."""
    high, low, _ = format_of(x).half_pi
    small, s, t = _arc_sine(b, b.abs(x))
    arc = b.add(s, t)
    near = b.sub(high, b.sub(b.copysign(arc, x), low))
    double = b.add(arc, arc)
    far = b.select(b.compare("lt", x, 0.0), b.sub(2 * high, b.sub(double, 2 * low)), double)
    return b.select(small, near, far)


def _arc_tangent(b: Builder, over: Value, under: Value) -> Value:
    """atan(over / under) of two numbers that are not negative and not both infinite or 0.

    Turned by 0, 45 or 90 degrees into the eighth of the circle around 0, with one division.
    """
    high, low, _ = format_of(over).half_pi
    large = b.compare("lt", b.mul(under, 2.414213562373095), over)
    middle = b.compare("lt", b.mul(under, 0.41421356237309503), over)
    upper = b.select(large, b.neg(under), b.select(middle, b.sub(over, under), over))
    lower = b.select(large, over, b.select(middle, b.add(over, under), under))
    r = b.div(upper, lower)
    z = b.mul(r, r)
    arc = b.mul(b.mul(r, z), polynomial(b, z, table.ATAN[r.dtype]))

    def turn(part: float) -> Value:
        half = b.select(middle, b.constant(part * 0.5, r.dtype, r.lanes), 0.0)
        return b.select(large, part, half)

    return b.add(turn(high), b.add(r, b.add(arc, turn(low))))


def atan(b: Builder, x: Value) -> Value:
    """Inverse tangent."""
    return b.copysign(_arc_tangent(b, b.abs(x), b.constant(1.0, x.dtype, x.lanes)), x)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    """Angle of the point (x, y), C's special cases included."""
    form = format_of(x)
    high, low, _ = form.half_pi
    over, under = b.abs(y), b.abs(x)
    # Equal infinities count as equal numbers; 0 / 0 as 0 / 1.
    infinite = b.bitwise("and", *(b.compare("eq", v, float("inf")) for v in (over, under)))
    over, under = (b.select(infinite, 1.0, v) for v in (over, under))
    under = b.select(b.compare("eq", b.max(over, under), 0.0), 1.0, under)
    # The sum of the two must not overflow.
    large = b.compare("lt", 2.0 ** (form.bias - 2), b.max(over, under))
    scale = b.select(large, b.constant(0.25, form.dtype, x.lanes), 1.0)
    arc = _arc_tangent(b, b.mul(over, scale), b.mul(under, scale))
    left = b.compare("lt", b.copysign(1.0, x), 0.0)
    arc = b.select(left, b.sub(2 * high, b.sub(arc, 2 * low)), arc)
    missing = b.bitwise("or", b.compare("ne", x, x), b.compare("ne", y, y))
    return b.copysign(b.select(missing, float("nan"), arc), y)
