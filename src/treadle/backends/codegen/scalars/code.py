"""Scalar expressions as kernel IR: what an elementwise op does to one element, or to one vector.

Values are in compute types here: float16 and bfloat16 are widened to float32 when they are loaded,
and what an op gives is rounded to its 16 bits, to nearest even, though it stays a float32: a group
gives what its ops give one by one. The rules are those of the comment above
`ops.scalar.INTRINSICS`, and of `Cast` for conversions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treadle.backends.codegen.kernel.language import (
    KernelError,
    Number,
    Pointer,
    Value,
    copysign,
    maximum,
    minimum,
    select,
    sqrt,
    trunc,
    unary,
)
from treadle.backends.codegen.scalars import division
from treadle.backends.codegen.scalars import vector_math as vm
from treadle.backends.codegen.scalars.convert import compute_dtype, convert, rounded_result
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.families import Elementwise
from treadle.ops.scalar import Scalar

Given = Value | Number

__all__ = ["apply", "compute_dtype", "convert", "emit", "load_value", "store_value"]


# -- memory ------------------------------------------------------------------------------------


def load_value(
    pointer: Pointer,
    index: Value | int,
    lanes: int = 1,
    mask: Value | None = None,
    aligned: bool = False,
) -> Value:
    """`lanes` elements from `pointer[index]` on, in the compute type of what it points to."""
    return pointer.load(index, lanes, mask, aligned=aligned).cast(compute_dtype(pointer.dtype))


def store_value(
    pointer: Pointer,
    index: Value | int,
    value: Value,
    mask: Value | None = None,
    aligned: bool = False,
    streaming: bool = False,
) -> None:
    """Write a value of the compute type to `pointer[index]` and on, rounded to nearest even."""
    if value.dtype is not compute_dtype(pointer.dtype):
        raise KernelError(f"store of {value.type} where {pointer.type} holds what is computed")
    pointer.store(index, value.cast(pointer.dtype), mask, aligned=aligned, streaming=streaming)


# -- expressions -------------------------------------------------------------------------------


def apply(op: Elementwise, values: Sequence[Value], result_dtype: DType) -> Value:
    """An elementwise op on values in compute types; rounded, in the type of `result_dtype`'s."""
    inputs = {Scalar("input"): v for v in values}
    expr = op.scalar(*inputs)
    result = emit(expr, inputs)
    wanted = compute_dtype(result_dtype)
    if result.dtype is not wanted:
        return convert(result, result_dtype)
    if wanted is result_dtype or _is_held(expr, result_dtype):
        return result
    return rounded_result(result, result_dtype)


_CHOOSING = frozenset(
    ("neg", "abs", "min", "max", "clamp", "floor", "ceil", "trunc", "rint", "round")
)
"""Intrinsics that give an operand, its sign changed or its fraction gone."""


def _is_held(expr: Scalar, dtype: DType) -> bool:
    """True if numbers of this type, which the inputs are, need no rounding behind an expression."""
    if expr.code == "const":
        number = np.float64(expr.value)
        return bool(number.astype(dtype.numpy) == number)
    if expr.code == "cast":
        return expr.dtype is dtype
    if expr.code == "select":
        return all(_is_held(a, dtype) for a in expr.args[1:])
    return expr.code == "input" or (
        expr.code in _CHOOSING and all(_is_held(a, dtype) for a in expr.args)
    )


def emit(expr: Scalar, inputs: Mapping[Scalar, Value]) -> Value:
    """The value of a scalar expression; its lanes follow the inputs, which may mix 1 and n.

    Raises:
        KernelError: the expression does something that its element types do not allow.
    """
    values = list(inputs.values())
    # A mask in front does not decide what constants are.
    like = next((v for v in values if v.dtype is not dt.bool_), values[0])
    done: dict[Scalar, Given] = dict(inputs)

    def walk(node: Scalar) -> Given:
        if node not in done:
            done[node] = _step(node, [walk(a) for a in node.args], like)
        return done[node]

    return _value(walk(expr), like)


def _step(node: Scalar, args: list[Given], like: Value) -> Given:
    """One node. Constants stay numbers until they meet a value, whose type they take."""
    if node.code == "const":
        return node.value
    if node.code == "cast":
        if node.dtype is None:
            raise KernelError("a cast names its element type")
        x = _value(args[0], like)
        return x.cast(node.dtype) if _fits(node, x) else convert(x, node.dtype)
    if node.code == "select":
        condition, *cases = args
        return select(_value(condition, like, dt.bool_), *_typed(cases, like))
    if node.code == "pow" and not isinstance(args[1], Value):
        return _power(_value(args[0], like), args[1])
    write = _WRITERS.get(node.code)
    if write is None:
        raise KernelError(f"no code is generated for the intrinsic {node.code!r}")
    return write(*_typed(args, like))


def _fits(node: Scalar, x: Value) -> bool:
    """True if a float that becomes an integer is known to lie between limits which that one has."""
    clamp, wide = node.args[0], node.dtype
    if clamp.code != "clamp" or wide is None or not (wide.is_integer and x.dtype.is_float):
        return False
    bounds = [bound.value for bound in clamp.args[1:] if bound.code == "const"]
    limits = np.iinfo(wide.numpy)
    return len(bounds) == 2 and limits.min <= bounds[0] and bounds[1] <= limits.max


def _typed(args: Sequence[Given], like: Value) -> list[Value]:
    """The operands as values of one type, that of `like` if all are numbers, and of equal lanes."""
    values = [a for a in args if isinstance(a, Value)]
    dtype = values[0].dtype if values else like.dtype
    lanes = max((v.lanes for v in values), default=1)
    return [_value(a, like, dtype).splat(lanes) for a in args]


def _value(x: Given, like: Value, dtype: DType | None = None) -> Value:
    """A number as a scalar of `dtype`, or of the element type of `like`; values as they are."""
    if isinstance(x, Value):
        return x
    dtype = dtype or like.dtype
    if isinstance(x, bool) or dtype is dt.bool_:
        return like.home.constant(bool(x), dt.bool_)
    if dtype.is_float:
        return like.home.constant(float(x), dtype)
    return like.home.constant(int(x) % (1 << dtype.bits) if dtype.kind == "uint" else int(x), dtype)


# -- what the language has other rules for -----------------------------------------------------


Binary = Callable[[Value, Value], Value]


def _extreme(combine: Binary, exceeds: Callable[[Value, Value], Value]) -> Binary:
    """`minimum` or `maximum`, with NaN where either operand is, and y where they are equal."""

    def write(x: Value, y: Value) -> Value:
        # The language gives the second operand where they are equal, or either one is NaN.
        if not x.dtype.is_float or x.literal is not None:
            return combine(x, y)
        if y.literal is None:
            return select(x != x, x, combine(x, y))
        if y.literal != 0:
            return combine(y, x)
        # Equal numbers may be different zeros.
        return select(exceeds(x, y), y, x)

    return write


def _compare(of_numbers: Binary, of_truths: Binary) -> Binary:
    return lambda x, y: (of_truths if x.dtype is dt.bool_ else of_numbers)(x, y)


def _shift_left(x: Value, y: Value) -> Value:
    """x << y; a count that is not a count shifts everything out."""
    inside = _counts(x, y)
    return select(inside, x << select(inside, y, 0), 0)


def _shift_right(x: Value, y: Value) -> Value:
    """x >> y; a count that is not a count shifts everything but the sign out."""
    inside = _counts(x, y)
    if x.dtype.kind == "int":
        return x >> select(inside, y, x.dtype.bits - 1)
    return select(inside, x >> select(inside, y, 0), 0)


def _counts(x: Value, y: Value) -> Value:
    """True in lanes where y is a number of bits by which x can be shifted."""
    inside = y <= x.dtype.bits - 1
    return inside & (y >= 0) if y.dtype.kind == "int" else inside


def _rounding(code: str) -> Callable[[Value], Value]:
    """A rounding function, which leaves integers alone."""
    return lambda x: unary(code, x) if x.dtype.is_float else x


def _round(x: Value) -> Value:
    """Halves away from 0: towards 0 after adding the largest number below a half.

    That much keeps what is just below a half from being rounded up, and still makes every half a
    whole number: the sum is rounded to even.
    """
    if not x.dtype.is_float:
        return x
    half = float(np.nextafter(x.dtype.numpy.type(0.5), 0))
    return trunc(x + copysign(half, x))


def _clamp(x: Value, low: Value, high: Value) -> Value:
    # The language gives the second operand where either one is NaN.
    return minimum(maximum(x, low), high)


def _abs(x: Value) -> Value:
    return x if x.dtype.kind == "uint" else abs(x)


def _isnan(x: Value) -> Value:
    if not x.dtype.is_float:
        return x.constant(False, dt.bool_)
    return x != x


def _isinf(x: Value) -> Value:
    if not x.dtype.is_float:
        return x.constant(False, dt.bool_)
    return abs(x) == float("inf")


def _div(x: Value, y: Value) -> Value:
    if not x.dtype.is_float:
        raise KernelError(f"real division of {x.dtype.name}")
    return x / y


def _real(code: str, function: Callable[..., Value]) -> Callable[..., Value]:
    """A function of real numbers, refused for others."""

    def write(*args: Value) -> Value:
        if not args[0].dtype.is_float:
            raise KernelError(f"{code} of {args[0].dtype.name}")
        return function(*args)

    return write


def _power(x: Value, exponent: Number) -> Value:
    """x to a constant; small whole exponents are products."""
    if exponent == 1:
        return x
    if exponent == 2:
        return x * x
    if exponent == 3:
        return x * x * x
    if exponent == -1 and x.dtype.is_float:
        return 1.0 / x
    return _pow(*_typed((x, exponent), x))


def _pow(x: Value, y: Value) -> Value:
    return vm.power(x, y) if x.dtype.is_float else division.power(x, y)


_WRITERS: dict[str, Callable[..., Value]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _div,
    "floor_div": division.floor_div,
    "mod": division.modulo,
    "neg": operator.neg,
    "abs": _abs,
    "sqrt": _real("sqrt", sqrt),
    "copysign": _real("copysign", copysign),
    "isnan": _isnan,
    "isinf": _isinf,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "shl": _shift_left,
    "shr": _shift_right,
    "min": _extreme(minimum, lambda x, y: y <= x),
    "max": _extreme(maximum, lambda x, y: x <= y),
    # False is less than True.
    "eq": _compare(operator.eq, lambda x, y: ~(x ^ y)),
    "ne": _compare(operator.ne, operator.xor),
    "lt": _compare(operator.lt, lambda x, y: ~x & y),
    "le": _compare(operator.le, lambda x, y: ~x | y),
    "round": _round,
    "clamp": _clamp,
    **{code: _rounding(code) for code in ("floor", "ceil", "trunc", "rint")},
    **{code: _real(code, function) for code, function in vm.FUNCTIONS.items()},
    "pow": _pow,
}
"""By the names of `ops.scalar.INTRINSICS`."""
