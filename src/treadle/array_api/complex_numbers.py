"""Functions of complex numbers, on their two parts.

The formulas keep digits where parts cancel; those of the inverse functions are W. Kahan's, "Branch
Cuts for Complex Elementary Functions", 1987. Special values are those of C99's annex G.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from treadle.array_api.array import apply
from treadle.ops import elementwise as ew
from treadle.ops import unary
from treadle.ops.families import Unary
from treadle.ops.logic import IsFinite, IsInf, IsNan
from treadle.ops.select import Where
from treadle.tensor import Tensor

Pair = tuple[Tensor, Tensor]
_INFINITY = math.inf


def where(condition: Tensor, x: Tensor | float, y: Tensor | float) -> Tensor:
    """x where the condition holds, else y; one of them is a tensor."""
    like = x if isinstance(x, Tensor) else y
    if not isinstance(like, Tensor):
        raise TypeError("where: at least one of the two values must be a tensor")
    parts = (v if isinstance(v, Tensor) else like.constant(v) for v in (x, y))
    return apply(Where(), condition, *parts)


def copysign(size: Tensor | float, sign: Tensor) -> Tensor:
    """A magnitude with the sign of another number."""
    known = size if isinstance(size, Tensor) else sign.constant(size)
    return apply(ew.Copysign(), known, sign)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of a point."""
    return apply(ew.Atan2(), y, x)


def hypot(x: Tensor, y: Tensor) -> Tensor:
    """The length of a vector without overflow on the way; infinite if a part is."""
    a, b = apply(unary.Abs(), x), apply(unary.Abs(), y)
    large, small = apply(ew.Maximum(), a, b), apply(ew.Minimum(), a, b)
    ratio = small / where(large == 0.0, 1.0, large)
    length = large * apply(unary.Sqrt(), ratio * ratio + 1.0)
    either = apply(IsInf(), x) | apply(IsInf(), y)
    return where(either, _INFINITY, length)


def _unary(op: Unary) -> Callable[[Tensor], Tensor]:
    return lambda x: apply(op, x)


_exp, _log, _sqrt = _unary(unary.Exp()), _unary(unary.Log()), _unary(unary.Sqrt())
_sin, _cos, _tan = _unary(unary.Sin()), _unary(unary.Cos()), _unary(unary.Tan())
_sinh, _cosh, _tanh = _unary(unary.Sinh()), _unary(unary.Cosh()), _unary(unary.Tanh())
_asinh, _log1p, _expm1 = _unary(unary.Asinh()), _unary(unary.Log1p()), _unary(unary.Expm1())
_abs = _unary(unary.Abs())


def exp(a: Tensor, b: Tensor) -> Pair:
    """e to the power z; at the infinities an angle that is none is not asked for."""
    size = _exp(a)
    real, imag = size * _cos(b), size * _sin(b)
    flat = b == 0.0
    real, imag = where(flat, size, real), where(flat, b, imag)
    lost = ~apply(IsFinite(), b)
    nothing = lost & (a == -_INFINITY)
    real, imag = where(nothing, 0.0, real), where(nothing, 0.0, imag)
    return where(lost & (a == _INFINITY), a, real), imag


def expm1(a: Tensor, b: Tensor) -> Pair:
    """exp(z) - 1, accurate near 0."""
    half = _sin(b * 0.5)
    real, imag = exp(a, b)
    near = _expm1(a) * _cos(b) - half * half * 2.0
    near = where(near == 0.0, 0.0, near)
    usual = apply(IsFinite(), b) & (a < 700.0) & (a > -700.0)
    return where(usual, near, real - 1.0), imag


def log(a: Tensor, b: Tensor) -> Pair:
    """Natural logarithm, the angle between -pi and pi."""
    large, small = apply(ew.Maximum(), _abs(a), _abs(b)), apply(ew.Minimum(), _abs(a), _abs(b))
    near = (large > 0.5) & (large < 2.0)
    close = _log1p((large - 1.0) * (large + 1.0) + small * small) * 0.5
    ratio = small / where(large == 0.0, 1.0, large)
    real = where(near, close, _log(large) + _log1p(ratio * ratio) * 0.5)
    either = apply(IsInf(), a) | apply(IsInf(), b)
    return where(either, _INFINITY, real), atan2(b, a)


def log1p(a: Tensor, b: Tensor) -> Pair:
    """log(1 + z), accurate near 0."""
    real, imag = log(a + 1.0, b)
    near = (_abs(a) < 0.5) & (_abs(b) < 0.5)
    return where(near, _log1p(a * (a + 2.0) + b * b) * 0.5, real), imag


def scaled_log(base: float) -> Callable[[Tensor, Tensor], Pair]:
    """The logarithm to another base."""

    def logarithm(a: Tensor, b: Tensor) -> Pair:
        real, imag = log(a, b)
        return real / math.log(base), imag / math.log(base)

    return logarithm


def sqrt(a: Tensor, b: Tensor) -> Pair:
    """Square root with a real part that is not negative."""
    huge = apply(ew.Maximum(), _abs(a), _abs(b)) > 1e30
    scale = where(huge, 0.25, a * 0.0 + 1.0)
    scale = where(apply(IsNan(), scale), 1.0, scale)
    x, y = a * scale, b * scale
    root = _sqrt((_abs(x) + hypot(x, y)) * 0.5)
    other = _abs(y) / where(root == 0.0, 1.0, root * 2.0)
    root, other = (r / where(huge, 0.5, _ones(a)) for r in (root, other))
    forward = ~(copysign(1.0, a) < 0.0)
    real, imag = where(forward, root, other), where(forward, other, root)
    imag = copysign(imag, b)
    nan = float("nan")
    back = a == -_INFINITY
    real = where(back, where(apply(IsNan(), b), nan, _ones(a) * 0.0), real)
    imag = where(back, copysign(_INFINITY, b), imag)
    ahead = a == _INFINITY
    real = where(ahead, _INFINITY, real)
    imag = where(ahead, where(apply(IsNan(), b), nan, copysign(0.0, b)), imag)
    wide = apply(IsInf(), b)
    return where(wide, _INFINITY, real), where(wide, b, imag)


def _ones(like: Tensor) -> Tensor:
    return like.constant(1.0).broadcast_to(tuple(like.shape))


def sinh(a: Tensor, b: Tensor) -> Pair:
    """Hyperbolic sine."""
    real, imag = _sinh(a) * _cos(b), _cosh(a) * _sin(b)
    real, imag = where(b == 0.0, _sinh(a), real), where(b == 0.0, b, imag)
    lost, size = ~apply(IsFinite(), b), apply(IsInf(), a)
    real = where(lost & size, a, where(lost & (a == 0.0), a, real))
    return real, imag


def cosh(a: Tensor, b: Tensor) -> Pair:
    """Hyperbolic cosine."""
    real, imag = _cosh(a) * _cos(b), _sinh(a) * _sin(b)
    real = where(b == 0.0, _cosh(a), real)
    imag = where((b == 0.0) | (a == 0.0), copysign(0.0, a) * copysign(1.0, b), imag)
    lost, size = ~apply(IsFinite(), b), apply(IsInf(), a)
    return where(lost & size, _INFINITY, real), imag


def tanh(a: Tensor, b: Tensor) -> Pair:
    """Hyperbolic tangent."""
    far = _abs(a) > 20.0
    slope, size = _tan(b), _tanh(a)
    below = size * size * slope * slope + 1.0
    real = size * (slope * slope + 1.0) / below
    grown = _cosh(where(far, 0.0, a))
    imag = slope / (grown * grown) / below
    fading = _exp(_abs(a) * -2.0) * _sin(b) * _cos(b) * 4.0
    real, imag = where(far, copysign(1.0, a), real), where(far, fading, imag)
    lost, end = ~apply(IsFinite(), b), apply(IsInf(), a)
    nan = lost & far & ~end
    real, imag = where(nan, math.nan, real), where(nan, math.nan, imag)
    imag = where(end, copysign(0.0, b), where(b == 0.0, b, imag))
    return where((a == 0.0) & lost, a, real), imag


def _turned(function: Callable[[Tensor, Tensor], Pair]) -> Callable[[Tensor, Tensor], Pair]:
    """Return z -> -i f(i z) for f(z), which makes circular functions of hyperbolic ones."""

    def turned(a: Tensor, b: Tensor) -> Pair:
        real, imag = function(-b, a)
        return imag, -real

    return turned


def cos(a: Tensor, b: Tensor) -> Pair:
    """Return the cosine of a + b i."""
    return cosh(-b, a)


def _root_beside(a: Tensor, b: Tensor, sign: float) -> Pair:
    return sqrt(a * sign + 1.0, b * sign)


def _size_of_root(a: Tensor, b: Tensor) -> tuple[Tensor, Pair]:
    """Return whether z is so large that its square would overflow, and log(2 z) there."""
    large = apply(ew.Maximum(), _abs(a), _abs(b)) > 1e15
    real, imag = log(a, b)
    return large, (real + math.log(2.0), imag)


def _is_nan(x: Tensor) -> Tensor:
    return apply(IsNan(), x)


def _without_numbers(a: Tensor, b: Tensor, real: Tensor, imag: Tensor) -> Pair:
    """NaN for both parts where one of z is NaN, before exceptions are made."""
    nan = _is_nan(a) | _is_nan(b)
    return where(nan, math.nan, real), where(nan, math.nan, imag)


def acos(a: Tensor, b: Tensor) -> Pair:
    """Inverse cosine."""
    below, above = _root_beside(a, b, -1.0), _root_beside(a, b, 1.0)
    real = atan2(below[0], above[0]) * 2.0
    imag = _asinh(above[0] * below[1] - above[1] * below[0])
    large, (size, _) = _size_of_root(a, b)
    real = where(large, atan2(_abs(b), a), real)
    imag = where(large, -copysign(size, b), imag)
    real, imag = _without_numbers(a, b, real, imag)
    real = where((a == 0.0) & _is_nan(b), math.pi / 2, real)
    wide = (_is_nan(a) & apply(IsInf(), b)) | (_is_nan(b) & apply(IsInf(), a))
    return real, where(wide, -copysign(_INFINITY, b), imag)


def acosh(a: Tensor, b: Tensor) -> Pair:
    """Inverse hyperbolic cosine."""
    below, above = sqrt(a - 1.0, b), sqrt(a + 1.0, b)
    real = _asinh(below[0] * above[0] + below[1] * above[1])
    imag = atan2(below[1], above[0]) * 2.0
    large, far = _size_of_root(a, b)
    real, imag = where(large, far[0], real), where(large, far[1], imag)
    real, imag = _without_numbers(a, b, real, imag)
    imag = where((a == 0.0) & _is_nan(b), math.pi / 2, imag)
    wide = (_is_nan(a) & apply(IsInf(), b)) | (_is_nan(b) & apply(IsInf(), a))
    return where(wide, _INFINITY, real), imag


def asinh(a: Tensor, b: Tensor) -> Pair:
    """Inverse hyperbolic sine."""
    first, second = sqrt(b + 1.0, -a), sqrt(1.0 - b, a)
    real = _asinh(first[0] * second[1] - second[0] * first[1])
    imag = atan2(b, first[0] * second[0] - first[1] * second[1])
    large, (size, _) = _size_of_root(a, b)
    real = where(large, copysign(size, a), real)
    imag = where(large, atan2(b, _abs(a)), imag)
    real, imag = _without_numbers(a, b, real, imag)
    imag = where(_is_nan(a) & (b == 0.0), b, imag)
    wide = (_is_nan(a) & apply(IsInf(), b)) | (_is_nan(b) & apply(IsInf(), a))
    return where(wide, copysign(_INFINITY, a), real), imag


def atanh(a: Tensor, b: Tensor) -> Pair:
    """Inverse hyperbolic tangent."""
    x, y = _abs(a), copysign(1.0, a) * b
    size = _abs(y)
    beside = 1.0 - x
    real = _log1p(x * 4.0 / (beside * beside + size * size)) * 0.25
    imag = atan2(y * 2.0, beside * (x + 1.0) - size * size) * 0.5
    large = apply(ew.Maximum(), x, size) > 1e15
    length = hypot(x, y)
    real = where(large, where(apply(IsInf(), length), 0.0, x / length / length), real)
    imag = where(large, copysign(math.pi / 2, y), imag)
    real = where((x == 1.0) & (y == 0.0), _INFINITY, real)
    imag = where((x == 1.0) & (y == 0.0), y, imag)
    real, imag = _without_numbers(a, b, copysign(1.0, a) * real, copysign(1.0, a) * imag)
    nothing = ((a == 0.0) | apply(IsInf(), a)) & _is_nan(b)
    real = where(nothing | (_is_nan(a) & apply(IsInf(), b)), copysign(0.0, a), real)
    return real, where(_is_nan(a) & apply(IsInf(), b), copysign(math.pi / 2, b), imag)


def square(a: Tensor, b: Tensor) -> Pair:
    """z * z."""
    return (a - b) * (a + b), a * b * 2.0


def multiply(x: Pair, y: Pair) -> Pair:
    """The product."""
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def divide(x: Pair, y: Pair) -> Pair:
    """The quotient, divided by the larger part first (Smith 1962)."""
    (a, b), (c, d) = x, y
    wide = _abs(c) >= _abs(d)
    over, under = where(wide, d, c), where(wide, c, d)
    ratio = over / under
    size = under + over * ratio
    real = where(wide, a + b * ratio, a * ratio + b) / size
    imag = where(wide, b - a * ratio, b * ratio - a) / size
    return real, imag


def power(x: Pair, y: Pair) -> Pair:
    """x to the power y: exp(y log x); 1 for y = 0."""
    size, angle = log(*x)
    real, imag = exp(*multiply((size, angle), y))
    nothing = (x[0] == 0.0) & (x[1] == 0.0) & (y[0] > 0.0)
    real, imag = where(nothing, 0.0, real), where(nothing, 0.0, imag)
    none = (y[0] == 0.0) & (y[1] == 0.0)
    return where(none, 1.0, real), where(none, 0.0, imag)


def sign(a: Tensor, b: Tensor) -> Pair:
    """z / |z|; 0 for 0."""
    length = hypot(a, b)
    nothing = length == 0.0
    safe = where(nothing, 1.0, length)
    return where(nothing, 0.0, a / safe), where(nothing, 0.0, b / safe)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Pair]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "log2": scaled_log(2.0),
    "log10": scaled_log(10.0),
    "sqrt": sqrt,
    "sin": _turned(sinh),
    "cos": cos,
    "tan": _turned(tanh),
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "asin": _turned(asinh),
    "acos": acos,
    "atan": _turned(atanh),
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "square": square,
    "sign": sign,
}
"""By the standard's names."""
