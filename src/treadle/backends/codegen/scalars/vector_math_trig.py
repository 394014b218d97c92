"""Circular functions and their inverses.

x = j pi/2 + r. The first fma of a reduction is exact, because pi/2 and x have no bits below those
of r; hence three constants serve up to a limit far above every ordinary angle. Beyond it, if a
lane is there at all, a branch multiplies by as much of 2/pi as it takes (Payne and Hanek 1983).
"""

from __future__ import annotations

from treadle.backends.codegen.kernel.builder import builder_of
from treadle.backends.codegen.kernel.language import (
    Value,
    copysign,
    fma,
    maximum,
    rint,
    select,
    sqrt,
)
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
"""The number of them that the largest argument takes."""


# -- reduction ---------------------------------------------------------------------------------


def _reduce(x: Value, lost: bool = False) -> tuple[Value, ...]:
    """(j in the low bits of an unsigned integer, r) with x = j pi/2 + r, |r| <= pi/4.

    With `lost`, also what r lost when it was rounded.
    """
    form = format_of(x)
    first, second, third = form.half_pi
    shifted = fma(x, _TWO_OVER_PI, form.magic)
    j = shifted - form.magic
    # The parts have one sign, so that -0 stays -0.
    exact = fma(j, -first, x, exact=True)
    r = fma(j, -third, fma(j, -second, exact, exact=True))
    short = [shifted.bitcast(form.integer), r]
    if lost:
        product, product_low = two_product(j, -second)
        near, near_low = two_sum(exact, product)
        low = fma(j, -third, near_low + product_low)
        short.append(near - r + low)
    large = _LIMIT[form.dtype] < abs(x)
    result = list(short)
    with builder_of(x).when(large.reduce("or"), changing=result):
        found = _reduce_large(x, form)
        result[:] = [select(large, v, w) for v, w in zip(found, short, strict=False)]
    return tuple(result)


def _reduce_large(x: Value, form: Format) -> tuple[Value, Value, Value]:
    """All three for any size, in float64: the products with the parts of 2/pi, modulo 4."""
    wide = x.cast(dt.float64) * 2.0**-_SHIFT
    state = [wide.constant(0.0)] * 3
    with builder_of(x).loop(_PARTS[form.dtype], carrying=state) as i:
        total, low, j = state
        high, rest = two_product(wide, _part(i, _PARTS[form.dtype]).splat(x.lanes))
        total, lost = two_sum(total, _modulo_four(high))
        whole = rint(total)
        j, total = j + whole, total - whole
        total, lost_too = two_sum(total, _modulo_four(rest))
        total, low = two_sum(total, low + (lost + lost_too))
        whole = rint(total)
        j, total = j + whole, total - whole
        state[:] = *fast_two_sum(total, low), j
    total, low, j = state
    high, rest = two_product(total, FLOAT64.half_pi[0])
    rest = fma(total, FLOAT64.half_pi[1], fma(low, FLOAT64.half_pi[0], rest))
    sum_, rest = fast_two_sum(high, rest)
    r = sum_.cast(form.dtype)
    lost = (sum_ - r.cast(dt.float64) + rest).cast(form.dtype)
    quadrant = j.cast(form.dtype) + form.magic
    return quadrant.bitcast(form.integer), r, lost


def _part(index: Value, count: int) -> Value:
    """Part number `index` of 2/pi; a kernel has no tables."""
    found = index.constant(_TWO_OVER_PI_PARTS[0], dt.float64)
    for i in range(1, count):
        found = select(index == i, _TWO_OVER_PI_PARTS[i], found)
    return found


def _modulo_four(x: Value) -> Value:
    """x less the nearest multiple of 4, exactly."""
    return fma(rint(x * 0.25), -4.0, x)


def _sine_and_cosine(r: Value) -> tuple[Value, Value]:
    """Return sine and cosine of r, |r| <= pi/4."""
    z = r * r
    sine = fma(r * z, polynomial(z, table.SIN[r.dtype]), r)
    cosine = fma(z, fma(z, polynomial(z, table.COS[r.dtype]), -0.5), 1.0)
    # Adding 0 to -0 lost its sign.
    return select(r == 0.0, r, sine), cosine


def _long_sine_and_cosine(r: Value, lost: Value) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    """Return sine and cosine of r + lost, each as a sum of two numbers."""
    z = r * r
    bend = fma(r * z, polynomial(z, table.SIN[r.dtype]), lost)
    dip = fma(z, polynomial(z, table.COS[r.dtype]), -0.5)
    dip = fma(z, dip, -(r * lost))
    return fast_two_sum(r, bend), fast_two_sum(1.0, dip)


def _odd(quadrant: Value) -> Value:
    return (quadrant & 1) != 0


def _turned(x: Value, quadrant: Value) -> Value:
    """x, negated in the quadrants 2 and 3."""
    form = format_of(x)
    sign = (quadrant & 2) << (form.integer.bits - 2)
    return (x.bitcast(form.integer) ^ sign).bitcast(form.dtype)


def sin(x: Value) -> Value:
    """Return the sine of x, in radians."""
    quadrant, r = _reduce(x)
    sine, cosine = _sine_and_cosine(r)
    return _turned(select(_odd(quadrant), cosine, sine), quadrant)


def cos(x: Value) -> Value:
    """Return the cosine of x, in radians."""
    quadrant, r = _reduce(x)
    sine, cosine = _sine_and_cosine(r)
    return _turned(select(_odd(quadrant), sine, cosine), quadrant + 1)


def tan(x: Value) -> Value:
    """Tangent: sine by cosine, where three roundings would add up; hence the long forms."""
    quadrant, r, lost = _reduce(x, lost=True)
    sine, cosine = _long_sine_and_cosine(r, lost)
    odd = _odd(quadrant)
    over, over_low = (select(odd, -c, s) for c, s in zip(cosine, sine, strict=True))
    under, under_low = (select(odd, s, c) for c, s in zip(cosine, sine, strict=True))
    ratio = over / under
    opposite = -ratio
    rest = fma(opposite, under, over, exact=True) + fma(opposite, under_low, over_low)
    return select(x == 0.0, x, ratio + rest / under)


# -- inverses ----------------------------------------------------------------------------------


def _arc_sine(size: Value) -> tuple[Value, Value, Value]:
    """(small, s, t): asin(size) is s + t where small, else pi/2 - 2 (s + t)."""
    small = size < 0.5
    half = fma(size, -0.5, 0.5)
    z = select(small, size * size, half)
    root = sqrt(z)
    s = select(small, size, root)
    return small, s, s * z * polynomial(z, table.ASIN[size.dtype])


def asin(x: Value) -> Value:
    """Inverse sine."""
    high, low, _ = format_of(x).half_pi
    small, s, t = _arc_sine(abs(x))
    # The large parts first: their difference is exact or nearly so.
    far = fma(s, -2.0, high) + fma(t, -2.0, low)
    return copysign(select(small, s + t, far), x)


def acos(x: Value) -> Value:
    """Inverse cosine."""
    high, low, _ = format_of(x).half_pi
    small, s, t = _arc_sine(abs(x))
    arc = s + t
    near = high - (copysign(arc, x) - low)
    double = arc + arc
    far = select(x < 0.0, 2 * high - (double - 2 * low), double)
    return select(small, near, far)


def _arc_tangent(over: Value, under: Value) -> Value:
    """atan(over / under) of two numbers that are not negative and not both infinite or 0.

    Turned by 0, 45 or 90 degrees into the eighth of the circle around 0, with one division.
    """
    high, low, _ = format_of(over).half_pi
    large = under * 2.414213562373095 < over
    middle = under * 0.41421356237309503 < over
    upper = select(large, -under, select(middle, over - under, over))
    lower = select(large, over, select(middle, over + under, under))
    r = upper / lower
    z = r * r
    arc = r * z * polynomial(z, table.ATAN[r.dtype])

    def turn(part: float) -> Value:
        half = select(middle, r.constant(part * 0.5), 0.0)
        return select(large, part, half)

    return turn(high) + (r + (arc + turn(low)))


def atan(x: Value) -> Value:
    """Inverse tangent."""
    return copysign(_arc_tangent(abs(x), x.constant(1.0)), x)


def atan2(y: Value, x: Value) -> Value:
    """Angle of the point (x, y), C's special cases included."""
    form = format_of(x)
    high, low, _ = form.half_pi
    over, under = abs(y), abs(x)
    # Equal infinities count as equal numbers; 0 / 0 as 0 / 1.
    infinite = (over == float("inf")) & (under == float("inf"))
    over, under = (select(infinite, 1.0, v) for v in (over, under))
    under = select(maximum(over, under) == 0.0, 1.0, under)
    # The sum of the two must not overflow.
    large = 2.0 ** (form.bias - 2) < maximum(over, under)
    scale = select(large, x.constant(0.25), 1.0)
    arc = _arc_tangent(over * scale, under * scale)
    left = copysign(1.0, x) < 0.0
    arc = select(left, 2 * high - (arc - 2 * low), arc)
    missing = (x != x) | (y != y)
    return copysign(select(missing, float("nan"), arc), y)
