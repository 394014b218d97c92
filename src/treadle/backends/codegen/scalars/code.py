"""Scalar expressions as kernel IR: what an elementwise op does to one element, or to one vector.

Values are in compute types here: float16 and bfloat16 are widened to float32 when they are loaded,
and what an op gives is rounded to its 16 bits, to nearest even, though it stays a float32: a group
gives what its ops give one by one. The rules are those of the comment above
`ops.scalar.INTRINSICS`, and of `Cast` for conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelError, Number, Value
from treadle.backends.codegen.scalars import division
from treadle.backends.codegen.scalars import vector_math as vm
from treadle.backends.codegen.scalars.convert import compute_dtype, convert, rounded_result
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.families import Elementwise
from treadle.ops.scalar import Scalar

Operand = Value | Number

__all__ = ["apply", "compute_dtype", "convert", "emit", "load_value", "store_value"]


# -- memory ------------------------------------------------------------------------------------


def load_value(
    b: Builder,
    pointer: Value,
    index: Value | int,
    lanes: int = 1,
    mask: Value | None = None,
    aligned: bool = False,
) -> Value:
    """`lanes` elements from `pointer[index]` on, in the compute type of what it points to."""
    return b.cast(b.load(pointer, index, lanes, mask, aligned), compute_dtype(pointer.dtype))


def store_value(
    b: Builder,
    pointer: Value,
    index: Value | int,
    value: Value,
    mask: Value | None = None,
    aligned: bool = False,
    streaming: bool = False,
) -> None:
    """Write a value of the compute type to `pointer[index]` and on, rounded to nearest even."""
    if value.dtype is not compute_dtype(pointer.dtype):
        raise KernelError(f"store of {value.type} where {pointer.type} holds what is computed")
    b.store(pointer, index, b.cast(value, pointer.dtype), mask, aligned, streaming)


# -- expressions -------------------------------------------------------------------------------


def apply(b: Builder, op: Elementwise, values: Sequence[Value], result_dtype: DType) -> Value:
    """An elementwise op on values in compute types; rounded, in the type of `result_dtype`'s."""
    inputs = {Scalar("input"): v for v in values}
    expr = op.scalar(*inputs)
    result = emit(b, expr, inputs)
    wanted = compute_dtype(result_dtype)
    if result.dtype is not wanted:
        return convert(b, result, result_dtype)
    if wanted is result_dtype or _is_held(expr, result_dtype):
        return result
    return rounded_result(b, result, result_dtype)


_CHOOSING = frozenset(
    ("neg", "abs", "min", "max", "clamp", "floor", "ceil", "trunc", "rint", "round")
)
"""Intrinsics that give an operand, its sign changed or its fraction gone."""


def _is_held(expr: Scalar, dtype: DType) -> bool:
    """Whether numbers of this type, which the inputs are, need no rounding behind an expression."""
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


def emit(b: Builder, expr: Scalar, inputs: Mapping[Scalar, Value]) -> Value:
    """The value of a scalar expression; its lanes follow the inputs, which may mix 1 and n.

    Raises:
        KernelError: the expression does something that its element types do not allow.
    """
    values = list(inputs.values())
    # A mask in front does not decide what constants are.
    like = next((v for v in values if v.dtype is not dt.bool_), values[0])
    done: dict[Scalar, Operand] = dict(inputs)

    def walk(node: Scalar) -> Operand:
        if node not in done:
            done[node] = _step(b, node, [walk(a) for a in node.args], like.dtype)
        return done[node]

    return _value(b, walk(expr), like.dtype)


def _step(b: Builder, node: Scalar, args: list[Operand], compute: DType) -> Operand:
    """One node. Constants stay numbers until they meet a value, whose type they take."""
    if node.code == "const":
        return node.value
    if node.code == "cast":
        if node.dtype is None:
            raise KernelError("a cast names its element type")
        x = _value(b, args[0], compute)
        return b.cast(x, node.dtype) if _fits(node, x) else convert(b, x, node.dtype)
    if node.code == "select":
        condition, *cases = args
        return b.select(_value(b, condition, dt.bool_), *_typed(b, cases, compute))
    if node.code == "pow" and not isinstance(args[1], Value):
        return _power(b, _value(b, args[0], compute), args[1])
    write = _WRITERS.get(node.code)
    if write is None:
        raise KernelError(f"no code is generated for the intrinsic {node.code!r}")
    return write(b, *_typed(b, args, compute))


def _fits(node: Scalar, x: Value) -> bool:
    """Whether a float that becomes an integer is known to lie between limits which that one has."""
    clamp, wide = node.args[0], node.dtype
    if clamp.code != "clamp" or wide is None or not (wide.is_integer and x.dtype.is_float):
        return False
    bounds = [bound.value for bound in clamp.args[1:] if bound.code == "const"]
    limits = np.iinfo(wide.numpy)
    return len(bounds) == 2 and limits.min <= bounds[0] and bounds[1] <= limits.max


def _typed(b: Builder, args: Sequence[Operand], compute: DType) -> list[Value]:
    """The operands as values of one type and of equal lanes."""
    values = [a for a in args if isinstance(a, Value)]
    dtype = values[0].dtype if values else compute
    lanes = max((v.lanes for v in values), default=1)
    return [b.splat(_value(b, a, dtype), lanes) for a in args]


def _value(b: Builder, x: Operand, dtype: DType) -> Value:
    """A number as a constant of `dtype`; values as they are."""
    if isinstance(x, Value):
        return x
    if isinstance(x, bool) or dtype is dt.bool_:
        return b.constant(bool(x), dt.bool_)
    if dtype.is_float:
        return b.constant(float(x), dtype)
    number = int(x)
    return b.constant(number % (1 << dtype.bits) if dtype.kind == "uint" else number, dtype)


# -- what the language has other rules for -----------------------------------------------------


def _extreme(code: str) -> Callable[[Builder, Value, Value], Value]:
    """min or max: NaN where either operand is, y where they are equal."""

    def write(b: Builder, x: Value, y: Value) -> Value:
        combine = b.min if code == "min" else b.max
        # The language gives the second operand where they are equal, or either one is NaN.
        if not x.dtype.is_float or x.literal is not None:
            return combine(x, y)
        if y.literal is None:
            return b.select(b.compare("ne", x, x), x, combine(x, y))
        if y.literal != 0:
            return combine(y, x)
        # Equal numbers may be different zeros.
        beyond = b.compare("le", x, y) if code == "max" else b.compare("le", y, x)
        return b.select(beyond, y, x)

    return write


def _compare(code: str) -> Callable[[Builder, Value, Value], Value]:
    """A comparison; False is less than True."""

    def write(b: Builder, x: Value, y: Value) -> Value:
        if x.dtype is not dt.bool_:
            return b.compare(code, x, y)
        if code in ("eq", "ne"):
            differ = b.bitwise("xor", x, y)
            return differ if code == "ne" else b.invert(differ)
        return b.bitwise("and" if code == "lt" else "or", b.invert(x), y)

    return write


def _shift(code: str) -> Callable[[Builder, Value, Value], Value]:
    """A shift; a count that is no count shifts everything out, `shr` leaves the sign."""

    def write(b: Builder, x: Value, y: Value) -> Value:
        last = x.dtype.bits - 1
        inside = b.compare("le", y, last)
        if y.dtype.kind == "int":
            inside = b.bitwise("and", inside, b.compare("le", 0, y))
        if code == "shr" and x.dtype.kind == "int":
            return b.bitwise("shr", x, b.select(inside, y, last))
        return b.select(inside, b.bitwise(code, x, b.select(inside, y, 0)), 0)

    return write


def _rounding(code: str) -> Callable[[Builder, Value], Value]:
    """A rounding function, which leaves integers alone."""
    return lambda b, x: b.unary(code, x) if x.dtype.is_float else x


def _round(b: Builder, x: Value) -> Value:
    """Halves away from 0: towards 0 after adding the largest number below a half.

    That much keeps what is just below a half from being rounded up, and still makes every half a
    whole number: the sum is rounded to even.
    """
    if not x.dtype.is_float:
        return x
    half = b.constant(float(np.nextafter(x.dtype.numpy.type(0.5), 0)), x.dtype, x.lanes)
    return b.unary("trunc", b.add(x, b.copysign(half, x)))


def _clamp(b: Builder, x: Value, low: Value, high: Value) -> Value:
    # The language gives the second operand where either one is NaN.
    return b.min(b.max(x, low), high)


def _abs(b: Builder, x: Value) -> Value:
    return x if x.dtype.kind == "uint" else b.abs(x)


def _isnan(b: Builder, x: Value) -> Value:
    if not x.dtype.is_float:
        return b.constant(False, dt.bool_, x.lanes)
    return b.compare("ne", x, x)


def _isinf(b: Builder, x: Value) -> Value:
    if not x.dtype.is_float:
        return b.constant(False, dt.bool_, x.lanes)
    return b.compare("eq", b.abs(x), float("inf"))


def _div(b: Builder, x: Value, y: Value) -> Value:
    if not x.dtype.is_float:
        raise KernelError(f"real division of {x.dtype.name}")
    return b.div(x, y)


def _real(code: str, function: Callable[..., Value]) -> Callable[..., Value]:
    """A function of real numbers, refused for others."""

    def write(b: Builder, *args: Value) -> Value:
        if not args[0].dtype.is_float:
            raise KernelError(f"{code} of {args[0].dtype.name}")
        return function(b, *args)

    return write


def _power(b: Builder, x: Value, exponent: Number) -> Value:
    """x to a constant; small whole exponents are products."""
    if exponent == 1:
        return x
    if exponent == 2:
        return b.mul(x, x)
    if exponent == 3:
        return b.mul(b.mul(x, x), x)
    if exponent == -1 and x.dtype.is_float:
        return b.div(b.constant(1.0, x.dtype, x.lanes), x)
    return _pow(b, *_typed(b, (x, exponent), x.dtype))


def _pow(b: Builder, x: Value, y: Value) -> Value:
    return vm.power(b, x, y) if x.dtype.is_float else division.power(b, x, y)


_WRITERS: dict[str, Callable[..., Value]] = {
    "add": Builder.add,
    "sub": Builder.sub,
    "mul": Builder.mul,
    "div": _div,
    "floor_div": division.floor_div,
    "mod": division.modulo,
    "neg": Builder.neg,
    "abs": _abs,
    "sqrt": _real("sqrt", Builder.sqrt),
    "copysign": _real("copysign", Builder.copysign),
    "isnan": _isnan,
    "isinf": _isinf,
    "not": Builder.invert,
    **{code: _extreme(code) for code in ("min", "max")},
    **{code: _compare(code) for code in ("eq", "ne", "lt", "le")},
    **{code: _shift(code) for code in ("shl", "shr")},
    "round": _round,
    "clamp": _clamp,
    **{code: _rounding(code) for code in ("floor", "ceil", "trunc", "rint")},
    **{code: _real(code, function) for code, function in vm.FUNCTIONS.items()},
    "pow": _pow,
}


def _bitwise(code: str) -> Callable[[Builder, Value, Value], Value]:
    return lambda b, x, y: b.bitwise(code, x, y)


_WRITERS |= {code: _bitwise(code) for code in ("and", "or", "xor")}
