"""Elementwise arithmetic and elementary functions; `logic` has the comparisons.

Operands are tensors, numbers or arrays; they broadcast and promote as the Python operators do.
Results have the broadcast shape. Elementary functions (`exp`, `sin`, ...) compute integers in
float32. Shapes that do not broadcast are a `ShapeError`.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable
from typing import Any

from treadle.base import late
from treadle.functional import logic
from treadle.functional.arguments import (
    as_float,
    as_tensor,
    binary,
    narrowed,
    promote_all,
    unary,
    unary_float,
    widened,
)
from treadle.functional.logic import *  # noqa: F403
from treadle.ops import elementwise as ew
from treadle.ops import logic as lg
from treadle.ops import select as sl
from treadle.ops import unary as un
from treadle.ops.operators import power
from treadle.tensor import Tensor

__all__ = [
    *logic.__all__,
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "ceil",
    "clip",
    "cos",
    "cosh",
    "div",
    "erf",
    "exp",
    "expm1",
    "floor",
    "floor_div",
    "left_shift",
    "log",
    "log1p",
    "logaddexp",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "neg",
    "pow",
    "right_shift",
    "round",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "sub",
    "tan",
    "tanh",
]


def neg(x: Any) -> Tensor:
    """-x.

    Example:
        >>> F.neg(mge.tensor([1., -2.])).tolist()
        [-1.0, 2.0]
    """
    return unary(ew.Neg(), x)


def abs(x: Any) -> Tensor:
    """Absolute value, |x|.

    Example:
        >>> F.abs(mge.tensor([1., -2.])).tolist()
        [1.0, 2.0]
    """
    return unary(un.Abs(), x)


def exp(x: Any) -> Tensor:
    """e to the power x.

    Example:
        >>> F.exp(mge.tensor([0., 1.]))
        Tensor([1.     2.7183], device=xpux:0)
    """
    return unary_float(un.Exp(), x)


def expm1(x: Any) -> Tensor:
    """exp(x) - 1, exact near 0.

    Example:
        >>> F.expm1(mge.tensor([0., 1.]))
        Tensor([0.     1.7183], device=xpux:0)
    """
    return unary_float(un.Expm1(), x)


def erf(x: Any) -> Tensor:
    """Error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    Example:
        >>> F.erf(mge.tensor([0., 1.]))
        Tensor([0.     0.8427], device=xpux:0)
    """
    return unary_float(un.Erf(), x)


def log(x: Any) -> Tensor:
    """Natural logarithm; NaN below 0, -inf at 0.

    Example:
        >>> F.log(mge.tensor([1., 10.]))
        Tensor([0.     2.3026], device=xpux:0)
    """
    return unary_float(un.Log(), x)


def log1p(x: Any) -> Tensor:
    """log(1 + x), exact near 0.

    Example:
        >>> F.log1p(mge.tensor([0., 1.]))
        Tensor([0.     0.6931], device=xpux:0)
    """
    return unary_float(un.Log1p(), x)


def sqrt(x: Any) -> Tensor:
    """Square root; NaN below 0.

    Example:
        >>> F.sqrt(mge.tensor([4., 9.])).tolist()
        [2.0, 3.0]
    """
    return unary_float(un.Sqrt(), x)


def square(x: Any) -> Tensor:
    """x * x.

    Example:
        >>> F.square(mge.tensor([-3., 4.])).tolist()
        [9.0, 16.0]
    """
    return unary(un.Square(), x)


def round(x: Any) -> Tensor:
    """Nearest integer, halves away from zero.

    Example:
        >>> F.round(mge.tensor([0.5, 1.4, -2.5])).tolist()
        [1.0, 1.0, -3.0]
    """
    return unary(un.Round(), x)


def ceil(x: Any) -> Tensor:
    """Smallest integer not below x.

    Example:
        >>> F.ceil(mge.tensor([0.5, -1.5])).tolist()
        [1.0, -1.0]
    """
    return unary(un.Ceil(), x)


def floor(x: Any) -> Tensor:
    """Largest integer not above x.

    Example:
        >>> F.floor(mge.tensor([0.5, -0.5])).tolist()
        [0.0, -1.0]
    """
    return unary(un.Floor(), x)


def cos(x: Any) -> Tensor:
    """Cosine, x in radians.

    Example:
        >>> F.cos(mge.tensor([0., np.pi]))
        Tensor([ 1. -1.], device=xpux:0)
    """
    return unary_float(un.Cos(), x)


def sin(x: Any) -> Tensor:
    """Sine, x in radians.

    Example:
        >>> F.sin(mge.tensor([0., np.pi / 2]))
        Tensor([0. 1.], device=xpux:0)
    """
    return unary_float(un.Sin(), x)


def tan(x: Any) -> Tensor:
    """Tangent, x in radians.

    Example:
        >>> F.tan(mge.tensor([0., np.pi / 4]))
        Tensor([0. 1.], device=xpux:0)
    """
    return unary_float(un.Tan(), x)


def acos(x: Any) -> Tensor:
    """Inverse cosine, in radians from 0 to pi; NaN outside [-1, 1].

    Example:
        >>> F.acos(mge.tensor([1., 0.]))
        Tensor([0.     1.5708], device=xpux:0)
    """
    return unary_float(un.Acos(), x)


def asin(x: Any) -> Tensor:
    """Inverse sine, in radians from -pi/2 to pi/2; NaN outside [-1, 1].

    Example:
        >>> F.asin(mge.tensor([0., 1.]))
        Tensor([0.     1.5708], device=xpux:0)
    """
    return unary_float(un.Asin(), x)


def atan(x: Any) -> Tensor:
    """Inverse tangent, in radians from -pi/2 to pi/2.

    Example:
        >>> F.atan(mge.tensor([0., 1.]))
        Tensor([0.     0.7854], device=xpux:0)
    """
    return unary_float(un.Atan(), x)


def cosh(x: Any) -> Tensor:
    """Hyperbolic cosine, (exp(x) + exp(-x)) / 2.

    Example:
        >>> F.cosh(mge.tensor([0., 1.]))
        Tensor([1.     1.5431], device=xpux:0)
    """
    return unary_float(un.Cosh(), x)


def sinh(x: Any) -> Tensor:
    """Hyperbolic sine, (exp(x) - exp(-x)) / 2.

    Example:
        >>> F.sinh(mge.tensor([0., 1.]))
        Tensor([0.     1.1752], device=xpux:0)
    """
    return unary_float(un.Sinh(), x)


def tanh(x: Any) -> Tensor:
    """Hyperbolic tangent, sinh(x) / cosh(x).

    Example:
        >>> F.tanh(mge.tensor([0., 1.]))
        Tensor([0.     0.7616], device=xpux:0)
    """
    return unary_float(un.Tanh(), x)


def acosh(x: Any) -> Tensor:
    """Inverse hyperbolic cosine, log(x + sqrt(x^2 - 1)); NaN below 1.

    Example:
        >>> F.acosh(mge.tensor([1., 2.]))
        Tensor([0.    1.317], device=xpux:0)
    """
    return unary_float(un.Acosh(), x)


def asinh(x: Any) -> Tensor:
    """Inverse hyperbolic sine, log(x + sqrt(x^2 + 1)).

    Example:
        >>> F.asinh(mge.tensor([0., 1.]))
        Tensor([0.     0.8814], device=xpux:0)
    """
    return unary_float(un.Asinh(), x)


def atanh(x: Any) -> Tensor:
    """Inverse hyperbolic tangent, log((1 + x) / (1 - x)) / 2; NaN outside [-1, 1].

    Example:
        >>> F.atanh(mge.tensor([0., 0.5]))
        Tensor([0.     0.5493], device=xpux:0)
    """
    return unary_float(un.Atanh(), x)


def add(x: Any, y: Any) -> Tensor:
    """x + y.

    Example:
        >>> F.add(mge.tensor([1., 2.]), 10).tolist()
        [11.0, 12.0]
    """
    return binary(ew.Add(), x, y)


def sub(x: Any, y: Any) -> Tensor:
    """x - y.

    Example:
        >>> F.sub(mge.tensor([1., 2.]), 10).tolist()
        [-9.0, -8.0]
    """
    return binary(ew.Sub(), x, y)


def mul(x: Any, y: Any) -> Tensor:
    """x * y.

    Example:
        >>> F.mul(mge.tensor([1., 2.]), mge.tensor([[3.], [4.]])).tolist()
        [[3.0, 6.0], [4.0, 8.0]]
    """
    return binary(ew.Mul(), x, y)


def div(x: Any, y: Any) -> Tensor:
    """x / y; integers give float32.

    Example:
        >>> F.div(mge.tensor([1, 2]), 4).tolist()
        [0.25, 0.5]
    """
    return binary(ew.Div(), x, y)


def floor_div(x: Any, y: Any) -> Tensor:
    """x / y rounded towards minus infinity.

    Example:
        >>> F.floor_div(mge.tensor([7, -7]), 2).tolist()
        [3, -4]
    """
    return binary(ew.FloorDiv(), x, y)


def mod(x: Any, y: Any) -> Tensor:
    """Remainder of x / y: integers take the sign of y, floats that of x.

    Example:
        >>> F.mod(mge.tensor([7, -7]), 3).tolist(), F.mod(mge.tensor([7., -7.]), 3).tolist()
        ([1, 2], [1.0, -1.0])
    """
    return binary(ew.Mod(), x, y)


def pow(x: Any, y: Any) -> Tensor:
    """x to the power y. Integers give float32, except uint32, int64 and uint64: exact, wrapping.

    Raises:
        DTypeError: integers of these types to the power of a negative number. Negative elements of
            a tensor y give 0, or x where x is 1, and 1 or -1 where x is -1.

    Example:
        >>> F.pow(mge.tensor([2., 3.]), 2).tolist()
        [4.0, 9.0]
    """
    if isinstance(x, Tensor):
        return power(x, y)
    return binary(ew.Pow(), x, y)


def maximum(x: Any, y: Any) -> Tensor:
    """The larger of x and y; a tie's gradient goes to x.

    Example:
        >>> F.maximum(mge.tensor([1., 5.]), mge.tensor([2., 4.])).tolist()
        [2.0, 5.0]
    """
    return binary(ew.Maximum(), x, y)


def minimum(x: Any, y: Any) -> Tensor:
    """The smaller of x and y; a tie's gradient goes to x.

    Example:
        >>> F.minimum(mge.tensor([1., 5.]), mge.tensor([2., 4.])).tolist()
        [1.0, 4.0]
    """
    return binary(ew.Minimum(), x, y)


def atan2(y: Any, x: Any) -> Tensor:
    """Angle of the point (x, y) seen from the origin, in radians from -pi to pi.

    Example:
        >>> F.atan2(mge.tensor([1., 0.]), mge.tensor([1., -1.]))
        Tensor([0.7854 3.1416], device=xpux:0)
    """
    return binary(ew.Atan2(), y, x)


def left_shift(x: Any, y: Any) -> Tensor:
    """x shifted left by y bits, integers only.

    Example:
        >>> F.left_shift(mge.tensor([1, 3]), 2).tolist()
        [4, 12]
    """
    return binary(lg.ShiftLeft(), x, y)


def right_shift(x: Any, y: Any) -> Tensor:
    """x shifted right by y bits, integers only; the sign is kept.

    Example:
        >>> F.right_shift(mge.tensor([8, -8]), 2).tolist()
        [2, -2]
    """
    return binary(lg.ShiftRight(), x, y)


def logaddexp(x: Any, y: Any) -> Tensor:
    """log(exp(x) + exp(y)) without overflow.

    Example:
        >>> F.logaddexp(mge.tensor([0., 1000.]), mge.tensor([0., 1000.]))
        Tensor([   0.6931 1000.6932], device=xpux:0)
    """
    like = as_tensor(x, y if isinstance(y, Tensor) else None)
    given = [as_float(t) for t in promote_all([like, as_tensor(y, like)])]
    first, second = (widened(t) for t in given)
    # Not with maximum and abs, whose gradients at a tie do not add up to one half each.
    larger = first >= second
    high, low = sl.Where()(larger, first, second), sl.Where()(larger, second, first)
    gap = low - high
    equal_infinities = lg.LogicalAnd()(lg.IsInf()(high), low == high)
    excess = un.Softplus()(sl.Where()(equal_infinities, gap.constant(0.0), gap))
    return narrowed(high + excess, given[0]._kind.dtype)


def clip(x: Any, lower: Any = None, upper: Any = None) -> Tensor:
    """x limited to [lower, upper]; gradients pass at number bounds.

    Args:
        x: any shape.
        lower, upper: numbers or tensors; at least one must be given. Float bounds promote
            integers.

    Raises:
        ValueError: neither bound is given.

    Example:
        >>> F.clip(mge.tensor([-2., 0.5, 2.]), -1., 1.).tolist()
        [-1.0, 0.5, 1.0]
    """
    if lower is None and upper is None:
        raise ValueError("clip needs at least one of lower and upper")
    x = as_tensor(x)
    numbers = (builtins.int, builtins.float)
    if x._kind.dtype.is_float and all(b is None or isinstance(b, numbers) for b in (lower, upper)):
        bounds = [None if b is None else builtins.float(b) for b in (lower, upper)]
        return unary(sl.Clip(*bounds), x)
    if lower is not None:
        x = maximum(x, lower)
    return x if upper is None else minimum(x, upper)


def _elwise(*args: Any, mode: str) -> Tensor:
    """An elementwise function by MegEngine's name of its mode, as `module.Elemwise` has it."""
    made: Tensor = late.elementwise_by_mode()(*args, mode=mode)
    return made


MOVED: dict[str, Callable[..., Tensor]] = {}
"""Activations, which stood here in old MegEngine programs; `activation` enters them."""


def __getattr__(name: str) -> Any:
    """Return a function that has moved to `nn`, with a warning."""
    if name not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    warnings.warn(f"F.elemwise.{name} is F.nn.{name} now", DeprecationWarning, stacklevel=2)
    return MOVED[name]
