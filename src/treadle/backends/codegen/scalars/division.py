"""Division that rounds down and remainders, of integers and of floats; powers of integers."""

from __future__ import annotations

from treadle.backends.codegen.kernel.builder import builder_of
from treadle.backends.codegen.kernel.language import Value, copysign, floor, fma, select, trunc
from treadle.base import dtype as dt

_PRECISION = {dt.float32: 24, dt.float64: 53}
_POWER = {dt.float32: 2.0**126, dt.float64: 2.0**1022}
_STEPS = {dt.float32: 14, dt.float64: 43}
"""Turns that bring the largest float below the smallest one, 21 (50) bits at a time."""


def floor_div(x: Value, y: Value) -> Value:
    """The largest whole number not above x / y; 0 for integers divided by 0."""
    return _floor_of_floats(x, y) if x.dtype.is_float else _floor_of_integers(x, y)


def modulo(x: Value, y: Value) -> Value:
    """The remainder, with y's sign for integers (0 for y = 0) and with x's for floats."""
    return _remainder_of_floats(x, y) if x.dtype.is_float else _modulo_of_integers(x, y)


# -- integers ----------------------------------------------------------------------------------


def _divided(x: Value, y: Value) -> tuple[Value, Value, Value]:
    """Quotient truncated, remainder, and a divisor that is never 0.

    1 stands in for 0, and for -1 beside the smallest integer, whose quotient does not fit: x and
    a remainder of 0 are what wrapping gives there.
    """
    avoid = y == 0
    if x.dtype.kind == "int":
        smallest = x == -(1 << (x.dtype.bits - 1))
        wraps = smallest & (y == -1)
        avoid = avoid | wraps
    divisor = select(avoid, 1, y)
    if x.dtype.bits == 64:
        quotient = x // divisor
    else:
        # Vectors of integers are divided one by one, and their quotients are exact in a float.
        wide = dt.float64 if x.dtype.bits == 32 else dt.float32
        quotient = (x.cast(wide) / divisor.cast(wide)).cast(x.dtype)
    return quotient, x - quotient * divisor, divisor


def _crosses(rest: Value, divisor: Value) -> Value:
    """Return whether a remainder is there and has not the divisor's sign."""
    opposite = (rest ^ divisor) < 0
    return (rest != 0) & opposite


def _floor_of_integers(x: Value, y: Value) -> Value:
    quotient, rest, divisor = _divided(x, y)
    if x.dtype.kind == "int":
        quotient = select(_crosses(rest, divisor), quotient - 1, quotient)
    return select(y == 0, 0, quotient)


def _modulo_of_integers(x: Value, y: Value) -> Value:
    _, rest, divisor = _divided(x, y)
    if x.dtype.kind == "int":
        rest = select(_crosses(rest, divisor), rest + divisor, rest)
    return rest


_FEW = 6
"""Bits of the exponents that most powers have."""


def power(x: Value, y: Value) -> Value:
    """x to the power y, both integers; it wraps, and a negative power is cut off towards 0."""
    e, one = builder_of(x), x.constant(1)
    many = ((y >> _FEW) != 0).reduce("or")
    turns = select(many, e.index(x.dtype.bits), e.index(_FEW))
    state = [y, x, one]
    with e.loop(turns, carrying=state):
        rest, factor, result = state
        odd = (rest & 1) != 0
        result = select(odd, result * factor, result)
        state[:] = rest >> 1, factor * factor, result
    *_, result = state
    if x.dtype.kind != "int":
        return result
    odd = (y & 1) != 0
    sign = select(odd, x.constant(-1), 1)
    cut = select(x == 1, one, select(x == -1, sign, 0))
    return select(y < 0, cut, result)


# -- floats ------------------------------------------------------------------------------------


def _floor_of_floats(x: Value, y: Value) -> Value:
    """The floor of the exact quotient, also where the rounded one reaches the next integer."""
    ratio = x / y
    quotient = floor(ratio)
    # The sign of the remainder survives its rounding. For a quotient of 0 it is x, also if y is
    # infinite.
    rest = fma(-quotient, y, x, exact=True)
    rest = select(quotient == 0.0, x, rest)
    below = copysign(1.0, rest) * copysign(1.0, y) < 0.0
    wrong = below & (rest != 0.0)
    # Larger quotients are whole numbers as they are.
    small = abs(quotient) < 2.0 ** _PRECISION[x.dtype]
    exact = select(wrong & small, quotient - 1.0, quotient)
    infinite = abs(x) == float("inf")
    by_zero = y == 0.0
    return select(infinite & ~by_zero, float("nan"), exact)


def _remainder_of_floats(x: Value, y: Value) -> Value:
    """C's fmod, exact: quotients of a few more than 20 (50) bits are taken off until one fits."""
    large = 2.0 ** (_PRECISION[x.dtype] - 2) <= abs(x / y)
    e, state = builder_of(x), [x]
    with e.when(large.reduce("or"), changing=state), e.loop(_STEPS[x.dtype], carrying=state):
        state[0] = _take_off(state[0], y)
    (start,) = state
    rest = fma(-trunc(start / y), y, start, exact=True)
    # A quotient rounded up leaves a remainder of the other sign.
    crossed = copysign(1.0, x) * rest < 0.0
    rest = select(crossed, rest + copysign(y, x), rest)
    rest = select(abs(x) < abs(y), x, rest)
    return copysign(rest, x)


def _take_off(x: Value, y: Value) -> Value:
    """x less a multiple of y whose factor has so few bits that nothing is rounded."""
    # Where x / y overflows, a power of 2 times y divides; y is small there, and two are enough.
    for _ in range(2):
        overflows = abs(x / y) == float("inf")
        y = select(overflows, y * _POWER[x.dtype], y)
    integer = dt.int32 if x.dtype is dt.float32 else dt.int64
    cut = (x / y).bitcast(integer) & -4
    return fma(-trunc(cut.bitcast(x.dtype)), y, x, exact=True)
