"""Element-wise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from treadle.array_api import complex_numbers, dtypes
from treadle.array_api.array import (
    Array,
    apply,
    as_array,
    broadcast,
    cast,
    converted,
    promote,
    require,
)
from treadle.base.shape import broadcast_shapes
from treadle.ops import elementwise as ew
from treadle.ops import logic, unary
from treadle.ops.op import Op
from treadle.ops.select import Where
from treadle.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Array])
Single = Callable[[Array], Array]
Double = Callable[[Any, Any], Array]
FLOATING = ("real floating", "complex floating")
REAL = ("integral", "real floating")


# -- of one array ------------------------------------------------------------------------------


def _of_floats(
    name: str, op: Op | None = None, real: Callable[[Tensor], Tensor] | None = None
) -> Single:
    """A function of real and complex numbers: an op on the former, formulas on the latter."""

    def function(x: Array, /) -> Array:
        x = as_array(x, name)
        require(name, x, *FLOATING)
        if x.imag_part is not None:
            return Array(*complex_numbers.FUNCTIONS[name](x.real_part, x.imag_part))
        return Array(apply(op, x.real_part) if real is None else real(x.real_part))

    return _named(function, name)


def _named(function: F, name: str, text: str = "") -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text or _TEXTS.get(name, "")
    return function


_TEXTS = {
    "acos": "Inverse cosine.",
    "acosh": "Inverse hyperbolic cosine.",
    "asin": "Inverse sine.",
    "asinh": "Inverse hyperbolic sine.",
    "atan": "Inverse tangent.",
    "atanh": "Inverse hyperbolic tangent.",
    "cos": "Cosine.",
    "cosh": "Hyperbolic cosine.",
    "exp": "e to the power x.",
    "expm1": "exp(x) - 1, accurate near 0.",
    "log": "Natural logarithm.",
    "log1p": "log(1 + x), accurate near 0.",
    "log2": "Logarithm to base 2.",
    "log10": "Logarithm to base 10.",
    "sin": "Sine.",
    "sinh": "Hyperbolic sine.",
    "sqrt": "Square root.",
    "tan": "Tangent.",
    "tanh": "Hyperbolic tangent.",
}

acos = _of_floats("acos", unary.Acos())
acosh = _of_floats("acosh", unary.Acosh())
asin = _of_floats("asin", unary.Asin())
asinh = _of_floats("asinh", unary.Asinh())
atan = _of_floats("atan", unary.Atan())
atanh = _of_floats("atanh", unary.Atanh())
cos = _of_floats("cos", unary.Cos())
cosh = _of_floats("cosh", unary.Cosh())
exp = _of_floats("exp", unary.Exp())
expm1 = _of_floats("expm1", unary.Expm1())
log = _of_floats("log", unary.Log())
log1p = _of_floats("log1p", unary.Log1p())
log2 = _of_floats("log2", real=lambda t: apply(unary.Log(), t) / math.log(2.0))
log10 = _of_floats("log10", real=lambda t: apply(unary.Log(), t) / math.log(10.0))
sin = _of_floats("sin", unary.Sin())
sinh = _of_floats("sinh", unary.Sinh())
sqrt = _of_floats("sqrt", unary.Sqrt())
tan = _of_floats("tan", unary.Tan())
tanh = _of_floats("tanh", unary.Tanh())


def abs(x: Array, /) -> Array:
    """Magnitudes; real for complex numbers."""
    x = as_array(x, "abs")
    require("abs", x, "numeric")
    if x.imag_part is not None:
        return Array(complex_numbers.hypot(x.real_part, x.imag_part))
    return x if x.dtype in dtypes.UNSIGNED else Array(apply(unary.Abs(), x.real_part))


def positive(x: Array, /) -> Array:
    """The same numbers."""
    x = as_array(x, "positive")
    require("positive", x, "numeric")
    return x[...]


def negative(x: Array, /) -> Array:
    """-x; integers wrap."""
    x = as_array(x, "negative")
    require("negative", x, "numeric")
    return x.map(lambda t: apply(ew.Neg(), t))


def square(x: Array, /) -> Array:
    """x * x."""
    x = as_array(x, "square")
    require("square", x, "numeric")
    if x.imag_part is not None:
        return Array(*complex_numbers.square(x.real_part, x.imag_part))
    return Array(apply(unary.Square(), x.real_part))


def reciprocal(x: Array, /) -> Array:
    """1 / x."""
    return divide(1.0, x)


def sign(x: Array, /) -> Array:
    """-1, 0 or 1 by the sign; z / |z| for complex numbers."""
    x = as_array(x, "sign")
    require("sign", x, "numeric")
    if x.imag_part is not None:
        return Array(*complex_numbers.sign(x.real_part, x.imag_part))
    return Array(apply(unary.Sign(), x.real_part))


def _rounding(name: str, op: Op, text: str, *, parts: bool = False) -> Single:
    def function(x: Array, /) -> Array:
        x = as_array(x, name)
        require(name, x, *(("numeric",) if parts else REAL))
        if x.dtype in dtypes.KINDS["integral"]:
            return x[...]
        return x.map(lambda t: apply(op, t))

    return _named(function, name, text)


ceil = _rounding("ceil", unary.Ceil(), "The least whole number that is not below x.")
floor = _rounding("floor", unary.Floor(), "The greatest whole number that is not above x.")
trunc = _rounding("trunc", unary.Trunc(), "x without its fraction.")
round = _rounding(
    "round", unary.RoundEven(), "The nearest whole number, halves to even ones.", parts=True
)


def _test(name: str, op: Op, otherwise: bool, both: Op, text: str) -> Single:
    def function(x: Array, /) -> Array:
        x = as_array(x, name)
        require(name, x, "numeric")
        if x.dtype in dtypes.KINDS["integral"]:
            zero = x.real_part == 0
            return Array(zero | ~zero if otherwise else zero & ~zero)
        found = apply(op, x.real_part)
        return Array(found if x.imag_part is None else apply(both, found, apply(op, x.imag_part)))

    return _named(function, name, text)


isfinite = _test("isfinite", logic.IsFinite(), True, logic.LogicalAnd(), "Whether x is a number.")
isinf = _test("isinf", logic.IsInf(), False, logic.LogicalOr(), "Whether x is infinite.")
isnan = _test("isnan", logic.IsNan(), False, logic.LogicalOr(), "Whether x is NaN.")


def signbit(x: Array, /) -> Array:
    """Return whether the sign of a number is minus, also that of -0 and NaN."""
    x = as_array(x, "signbit")
    require("signbit", x, "real floating")
    return Array(complex_numbers.copysign(1.0, x.real_part) < 0.0)


def real(x: Array, /) -> Array:
    """The real part."""
    x = as_array(x, "real")
    require("real", x, "numeric")
    return Array(x.real_part)[...]


def imag(x: Array, /) -> Array:
    """The imaginary part."""
    x = as_array(x, "imag")
    require("imag", x, "complex floating")
    return Array(x.imag_part)[...] if x.imag_part is not None else x


def conj(x: Array, /) -> Array:
    """The complex conjugate."""
    x = as_array(x, "conj")
    require("conj", x, "numeric")
    return x[...] if x.imag_part is None else Array(x.real_part, apply(ew.Neg(), x.imag_part))


def logical_not(x: Array, /) -> Array:
    """True where x is False."""
    x = as_array(x, "logical_not")
    require("logical_not", x, "bool")
    return Array(apply(logic.LogicalNot(), x.real_part))


def bitwise_invert(x: Array, /) -> Array:
    """Every bit flipped."""
    x = as_array(x, "bitwise_invert")
    require("bitwise_invert", x, "bool", "integral")
    return Array(apply(logic.BitNot(), x.real_part))


# -- of two arrays -----------------------------------------------------------------------------

Both = Callable[[Tensor, Tensor], Tensor]
Pairs = Callable[[complex_numbers.Pair, complex_numbers.Pair], complex_numbers.Pair]


def _binary(
    name: str, real: Op | Both, text: str, *kinds: str, pairs: Pairs | None = None
) -> Double:
    """A function of two arrays, of which one may be a number."""
    compute: Both = (lambda a, b: apply(real, a, b)) if isinstance(real, Op) else real
    allowed = kinds or (("numeric",) if pairs else REAL)

    def function(x1: Any, x2: Any, /) -> Array:
        x, y = promote(x1, x2)
        require(name, x, *allowed)
        if x.imag_part is None or y.imag_part is None:
            return Array(compute(x.real_part, y.real_part))
        if pairs is None:
            raise TypeError(f"{name} takes real numbers, not {x.dtype}")
        return Array(*pairs((x.real_part, x.imag_part), (y.real_part, y.imag_part)))

    return _named(function, name, text)


def _remainder(x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder with the divisor's sign, as in Python; `ew.Mod` is C's for floats."""
    rest = apply(ew.Mod(), x, y)
    if x.dtype not in dtypes.REAL:
        return rest
    crosses = (rest != 0.0) & ((rest < 0.0) != (y < 0.0))
    return complex_numbers.where(
        rest == 0.0,
        complex_numbers.copysign(0.0, y + rest * 0.0),
        complex_numbers.where(crosses, rest + y, rest),
    )


def _floor_divide(x: Tensor, y: Tensor) -> Tensor:
    found = apply(ew.FloorDiv(), x, y)
    if x.dtype not in dtypes.REAL:
        return found
    infinite = apply(logic.IsInf(), x) | (apply(logic.IsInf(), y) & apply(logic.IsFinite(), x))
    return complex_numbers.where(infinite, apply(ew.Div(), x, y), found)


def _power(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype in dtypes.REAL:
        return apply(ew.Pow(), x, y)
    wide = dtypes.uint64 if x.dtype == dtypes.uint64 else dtypes.int64
    return cast(apply(ew.Pow(), cast(x, wide), cast(y, wide)), x.dtype)


def _logaddexp(x: Tensor, y: Tensor) -> Tensor:
    large = apply(ew.Maximum(), x, y)
    apart = apply(ew.Neg(), apply(unary.Abs(), x - y))
    found = large + apply(unary.Log1p(), apply(unary.Exp(), apart))
    return complex_numbers.where(x == y, x + math.log(2.0), found)


def _nextafter(x: Tensor, y: Tensor) -> Tensor:
    """Rump, Zimmermann, Boldo and Melquiond 2009: neighbors by rounding to nearest alone."""
    limits = np.finfo(x.dtype)
    unit, tiny = float(limits.eps) / 2, float(limits.smallest_subnormal)
    scale = 2.0 ** (limits.nmant + 2)
    small = apply(unary.Abs(), x) < float(limits.smallest_normal) * scale
    scaled = complex_numbers.where(small, x * scale, x)
    size = apply(unary.Abs(), scaled) * (unit * (1.0 + 2.0 * unit))
    up = x < y
    step = complex_numbers.where(up, size, -size)
    moved = scaled + step
    moved = complex_numbers.where(small, moved * (1.0 / scale), moved)
    least = apply(unary.Abs(), x) < 2.0 * float(limits.smallest_normal)
    nearest = complex_numbers.where(up, x + tiny, x - tiny)
    moved = complex_numbers.where(least, nearest, moved)
    largest = float(limits.max)
    moved = complex_numbers.where((x == math.inf) & ~up, largest, moved)
    moved = complex_numbers.where((x == -math.inf) & up, -largest, moved)
    moved = complex_numbers.where(apply(logic.IsNan(), x + y), x + y, moved)
    return complex_numbers.where(x == y, y, moved)


def _each(op: Op) -> Pairs:
    return lambda x, y: (apply(op, x[0], y[0]), apply(op, x[1], y[1]))


add = _binary("add", ew.Add(), "x1 + x2.", pairs=_each(ew.Add()))
subtract = _binary("subtract", ew.Sub(), "x1 - x2.", pairs=_each(ew.Sub()))
multiply = _binary("multiply", ew.Mul(), "x1 * x2.", pairs=complex_numbers.multiply)
divide = _binary("divide", ew.Div(), "x1 / x2.", *FLOATING, pairs=complex_numbers.divide)
floor_divide = _binary("floor_divide", _floor_divide, "x1 / x2, rounded down.")
remainder = _binary("remainder", _remainder, "What rounding x1 / x2 down leaves.")
pow = _binary("pow", _power, "x1 to the power x2.", pairs=complex_numbers.power)
atan2 = _binary("atan2", ew.Atan2(), "The angle of the point (x2, x1).", "real floating")
copysign = _binary("copysign", ew.Copysign(), "x1 with the sign of x2.", "real floating")
hypot = _binary("hypot", complex_numbers.hypot, "The length of (x1, x2).", "real floating")
logaddexp = _binary("logaddexp", _logaddexp, "log(exp(x1) + exp(x2)).", "real floating")
nextafter = _binary("nextafter", _nextafter, "The neighbor of x1 towards x2.", "real floating")
maximum = _binary("maximum", ew.Maximum(), "The larger one, NaN if either is.")
minimum = _binary("minimum", ew.Minimum(), "The smaller one, NaN if either is.")

less = _binary("less", logic.Less(), "Whether x1 < x2.")
less_equal = _binary("less_equal", logic.LessEqual(), "Whether x1 <= x2.")
greater = _binary("greater", logic.Greater(), "Whether x1 > x2.")
greater_equal = _binary("greater_equal", logic.GreaterEqual(), "Whether x1 >= x2.")

_TRUTH, _BITS = ("bool",), ("bool", "integral")
logical_and = _binary("logical_and", logic.LogicalAnd(), "Whether both are True.", *_TRUTH)
logical_or = _binary("logical_or", logic.LogicalOr(), "Whether one is True.", *_TRUTH)
logical_xor = _binary("logical_xor", logic.LogicalXor(), "Whether just one is True.", *_TRUTH)
bitwise_and = _binary("bitwise_and", logic.BitAnd(), "Bits that both have.", *_BITS)
bitwise_or = _binary("bitwise_or", logic.BitOr(), "Bits that one has.", *_BITS)
bitwise_xor = _binary("bitwise_xor", logic.BitXor(), "Bits that just one has.", *_BITS)
bitwise_left_shift = _binary(
    "bitwise_left_shift", logic.ShiftLeft(), "x1 shifted left by x2 bits.", "integral"
)
bitwise_right_shift = _binary(
    "bitwise_right_shift", logic.ShiftRight(), "x1 shifted right by x2 bits.", "integral"
)


def equal(x1: Any, x2: Any, /) -> Array:
    """Return whether x1 == x2."""
    x, y = promote(x1, x2)
    found = apply(logic.Equal(), x.real_part, y.real_part)
    if x.imag_part is not None and y.imag_part is not None:
        found = found & apply(logic.Equal(), x.imag_part, y.imag_part)
    return Array(found)


def not_equal(x1: Any, x2: Any, /) -> Array:
    """Return whether x1 != x2."""
    return logical_not(equal(x1, x2))


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """x between two bounds, each of which may be missing; of the type of x."""
    x = as_array(x, "clip")
    require("clip", x, *REAL)
    for bound, op in ((min, ew.Maximum()), (max, ew.Minimum())):
        if bound is not None:
            limit = converted(bound, x.dtype, x.device)
            x = Array(apply(op, x.real_part, limit.real_part))
    return x[...]


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    """x1 where the condition holds, else x2."""
    mask = as_array(condition, "where")
    x, y = promote(x1, x2) if not _both_numbers(x1, x2) else _numbers(x1, x2)
    shape = broadcast_shapes("where", mask.shape, x.shape, y.shape)
    mask, x, y = (broadcast(v, tuple(int(d) for d in shape)) for v in (mask, x, y))
    made = apply(Where(), mask.real_part, x.real_part, y.real_part)
    if x.imag_part is None or y.imag_part is None:
        return Array(made)
    return Array(made, apply(Where(), mask.real_part, x.imag_part, y.imag_part))


def _both_numbers(x1: Any, x2: Any) -> bool:
    return all(isinstance(v, (bool, int, float, complex)) for v in (x1, x2))


def _numbers(x1: Any, x2: Any) -> list[Array]:
    dtype = np.result_type(type(x1), type(x2))
    return [converted(v, dtype) for v in (x1, x2)]


__all__ = [
    *("abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and"),
    *("bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor"),
    *("ceil", "clip", "conj", "copysign", "cos", "cosh", "divide", "equal", "exp", "expm1"),
    *("floor", "floor_divide", "greater", "greater_equal", "hypot", "imag", "isfinite", "isinf"),
    *("isnan", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logical_and"),
    *("logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative"),
    *("nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round"),
    *("sign", "signbit", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc"),
    "where",
]
