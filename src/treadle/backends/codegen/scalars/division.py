"""Division that rounds down and remainders, of integers and of floats; powers of integers."""

from __future__ import annotations

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.base import dtype as dt

_PRECISION = {dt.float32: 24, dt.float64: 53}
_POWER = {dt.float32: 2.0**126, dt.float64: 2.0**1022}
_STEPS = {dt.float32: 14, dt.float64: 43}
"""Turns that bring the largest float below the smallest one, 21 (50) bits at a time."""


def floor_div(b: Builder, x: Value, y: Value) -> Value:
    """The largest whole number not above x / y; 0 for integers divided by 0."""
    return _floor_of_floats(b, x, y) if x.dtype.is_float else _floor_of_integers(b, x, y)


def modulo(b: Builder, x: Value, y: Value) -> Value:
    """The remainder, with y's sign for integers (0 for y = 0) and with x's for floats."""
    return _remainder_of_floats(b, x, y) if x.dtype.is_float else _modulo_of_integers(b, x, y)


# -- integers ----------------------------------------------------------------------------------


def _divided(b: Builder, x: Value, y: Value) -> tuple[Value, Value, Value]:
    """Quotient truncated, remainder, and a divisor that is never 0.

    1 stands in for 0, and for -1 beside the smallest integer, whose quotient does not fit: x and
    a remainder of 0 are what wrapping gives there.
    """
    avoid = b.compare("eq", y, 0)
    if x.dtype.kind == "int":
        smallest = b.compare("eq", x, -(1 << (x.dtype.bits - 1)))
        wraps = b.bitwise("and", smallest, b.compare("eq", y, -1))
        avoid = b.bitwise("or", avoid, wraps)
    divisor = b.select(avoid, 1, y)
    if x.dtype.bits == 64:
        quotient = b.div(x, divisor)
    else:
        # Vectors of integers are divided one by one, and their quotients are exact in a float.
        wide = dt.float64 if x.dtype.bits == 32 else dt.float32
        quotient = b.cast(b.div(b.cast(x, wide), b.cast(divisor, wide)), x.dtype)
    return quotient, b.sub(x, b.mul(quotient, divisor)), divisor


def _crosses(b: Builder, rest: Value, divisor: Value) -> Value:
    """Whether a remainder is there and has not the divisor's sign."""
    opposite = b.compare("lt", b.bitwise("xor", rest, divisor), 0)
    return b.bitwise("and", b.compare("ne", rest, 0), opposite)


def _floor_of_integers(b: Builder, x: Value, y: Value) -> Value:
    quotient, rest, divisor = _divided(b, x, y)
    if x.dtype.kind == "int":
        quotient = b.select(_crosses(b, rest, divisor), b.sub(quotient, 1), quotient)
    return b.select(b.compare("eq", y, 0), 0, quotient)


def _modulo_of_integers(b: Builder, x: Value, y: Value) -> Value:
    _, rest, divisor = _divided(b, x, y)
    if x.dtype.kind == "int":
        rest = b.select(_crosses(b, rest, divisor), b.add(rest, divisor), rest)
    return rest


_FEW = 6
"""Bits of the exponents that most powers have."""


def power(b: Builder, x: Value, y: Value) -> Value:
    """x to the power y, both integers; it wraps, and a negative power is cut off towards 0."""
    one = b.constant(1, x.dtype, x.lanes)
    many = b.reduce("or", b.compare("ne", b.bitwise("shr", y, _FEW), 0))

    def turn(_: Value, rest: Value, factor: Value, result: Value) -> tuple[Value, ...]:
        odd = b.compare("ne", b.bitwise("and", rest, 1), 0)
        result = b.select(odd, b.mul(result, factor), result)
        return b.bitwise("shr", rest, 1), b.mul(factor, factor), result

    turns = b.select(many, b.index(x.dtype.bits), b.index(_FEW))
    *_, result = b.loop(0, turns, 1, turn, (y, x, one))
    if x.dtype.kind != "int":
        return result
    odd = b.compare("ne", b.bitwise("and", y, 1), 0)
    sign = b.select(odd, b.constant(-1, x.dtype, x.lanes), 1)
    cut = b.select(b.compare("eq", x, 1), one, b.select(b.compare("eq", x, -1), sign, 0))
    return b.select(b.compare("lt", y, 0), cut, result)


# -- floats ------------------------------------------------------------------------------------


def _floor_of_floats(b: Builder, x: Value, y: Value) -> Value:
    """The floor of the exact quotient, also where the rounded one reaches the next integer."""
    ratio = b.div(x, y)
    quotient = b.unary("floor", ratio)
    # The sign of the remainder survives its rounding. For a quotient of 0 it is x, also if y is
    # infinite.
    rest = b.fma(b.neg(quotient), y, x)
    rest = b.select(b.compare("eq", quotient, 0.0), x, rest)
    below = b.compare("lt", b.mul(b.copysign(1.0, rest), b.copysign(1.0, y)), 0.0)
    wrong = b.bitwise("and", below, b.compare("ne", rest, 0.0))
    # Larger quotients are whole numbers as they are.
    small = b.compare("lt", b.abs(quotient), 2.0 ** _PRECISION[x.dtype])
    exact = b.select(b.bitwise("and", wrong, small), b.sub(quotient, 1.0), quotient)
    infinite = b.compare("eq", b.abs(x), float("inf"))
    by_zero = b.compare("eq", y, 0.0)
    exact = b.select(b.bitwise("and", infinite, b.invert(by_zero)), float("nan"), exact)
    return exact


def _remainder_of_floats(b: Builder, x: Value, y: Value) -> Value:
    """C's fmod, exact: quotients of a few more than 20 (50) bits are taken off until one fits."""
    large = b.compare("le", 2.0 ** (_PRECISION[x.dtype] - 2), b.abs(b.div(x, y)))

    def reduced() -> Value:
        steps = _STEPS[x.dtype]
        return b.loop(0, steps, 1, lambda _, rest: _take_off(b, rest, y), (x,))[0]

    some = b.reduce("or", large)
    (start,) = b.branch(some, reduced, lambda: x, (x,))
    rest = b.fma(b.neg(b.unary("trunc", b.div(start, y))), y, start)
    # A quotient rounded up leaves a remainder of the other sign.
    crossed = b.compare("lt", b.mul(b.copysign(1.0, x), rest), 0.0)
    rest = b.select(crossed, b.add(rest, b.copysign(y, x)), rest)
    rest = b.select(b.compare("lt", b.abs(x), b.abs(y)), x, rest)
    return b.copysign(rest, x)


def _take_off(b: Builder, x: Value, y: Value) -> Value:
    """x less a multiple of y whose factor has so few bits that nothing is rounded."""
    # Where x / y overflows, a power of 2 times y divides; y is small there, and two are enough.
    for _ in range(2):
        overflows = b.compare("eq", b.abs(b.div(x, y)), float("inf"))
        y = b.select(overflows, b.mul(y, _POWER[x.dtype]), y)
    integer = dt.int32 if x.dtype is dt.float32 else dt.int64
    cut = b.bitwise("and", b.bitcast(b.div(x, y), integer), -4)
    return b.fma(b.neg(b.unary("trunc", b.bitcast(cut, x.dtype))), y, x)
