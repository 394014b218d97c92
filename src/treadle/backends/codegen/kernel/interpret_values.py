"""Instructions on values in NumPy: the rules of the language, executable.

A value is an array with one entry per lane.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import numpy as np

from treadle.backends.codegen.kernel.ir import Instruction
from treadle.backends.codegen.kernel.language import KernelError, Type
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType

Rule = Callable[[Instruction, Type, list[Array]], Array]


def _is_short(dtype: DType) -> bool:
    return dtype.is_float and dtype.itemsize == 2


def _wide(x: Array, dtype: DType) -> Array:
    return x.astype(np.float32) if _is_short(dtype) else x


# -- arithmetic --------------------------------------------------------------------------------


def _divide(x: Array, y: Array) -> Array:
    """Truncating division of integers."""
    if not y.all():
        raise KernelError("integer division by 0")
    quotient = x // y
    inexact = quotient * y != x
    truncated: Array = quotient + (inexact & ((x < 0) != (y < 0))).astype(x.dtype)
    return truncated


def _shifted(operation: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def shift(x: Array, y: Array) -> Array:
        if ((y < 0) | (y >= 8 * x.dtype.itemsize)).any():
            raise KernelError(f"shift of {8 * x.dtype.itemsize} bits by {y}")
        return operation(x, y)

    return shift


_INTEGER: dict[str, Callable[[Array, Array], Array]] = {
    "div": _divide,
    "rem": lambda x, y: x - _divide(x, y) * y,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shifted(np.left_shift),
    "shr": _shifted(np.right_shift),
}
_FLOAT: dict[str, Callable[[Array, Array], Array]] = {
    "div": np.divide,
    "rem": np.fmod,
    "copysign": np.copysign,
}
_BOTH: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": lambda x, y: np.where(x < y, x, y),
    "max": lambda x, y: np.where(x > y, x, y),
}
_OF_FLOATS = _BOTH | _FLOAT
_OF_INTEGERS = _BOTH | _INTEGER
_BOOL: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "min": np.logical_and,
    "max": np.logical_or,
}
_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
}
_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
}


def binary(code: str, dtype: DType, x: Array, y: Array) -> Array:
    """An arithmetic or bitwise instruction; 16-bit floats compute in float32 and round."""
    table = _BOOL if dtype is dt.bool_ else _OF_FLOATS if dtype.is_float else _OF_INTEGERS
    if code not in table:
        raise KernelError(f"{code} of {dtype.name} is not in the language")
    return table[code](_wide(x, dtype), _wide(y, dtype)).astype(dtype.numpy, copy=False)


def _binary(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    return binary(instruction.code, result.dtype, *args)


def _unary(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    dtype, code = result.dtype, instruction.code
    if dtype is dt.bool_ or not (dtype.is_float or code in ("neg", "abs")):
        raise KernelError(f"{code} of {dtype.name} is not in the language")
    return _UNARY[code](_wide(args[0], dtype)).astype(dtype.numpy)


def _compare(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    x, y = (_wide(a, v.dtype) for a, v in zip(args, instruction.arguments, strict=True))
    return _COMPARE[instruction.code](x, y)


def fma(dtype: DType, x: Array, y: Array, z: Array) -> Array:
    """x * y + z, rounded once (float64 by rational numbers; the others as `_fma_float32`)."""
    if not dtype.is_float:
        raise KernelError(f"fma of {dtype.name} is not in the language")
    if dtype is dt.float64:
        lanes = zip(x.tolist(), y.tolist(), z.tolist(), strict=True)
        return np.array([_fma_float64(*lane) for lane in lanes], np.float64)
    args = (_wide(v, dtype) for v in (x, y, z))
    return _fma_float32(*args).astype(dtype.numpy)


def _fma_float32(x: Array, y: Array, z: Array) -> Array:
    """The product is exact in float64; the sum is rounded to odd, so that the second rounding,
    to float32, is the only one that counts (Boldo and Melquiond, "Emulation of FMA and correctly
    rounded sums", 2008)."""
    product, addend = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    if not error.any():  # NaN is true
        return total.astype(np.float32)
    odd = (total.view(np.int64) & 1) != 0
    move = np.isfinite(total) & np.isfinite(error) & (error != 0) & ~odd
    toward = np.where(error > 0, np.inf, -np.inf)
    rounded: Array = np.where(move, np.nextafter(total, toward), total).astype(np.float32)
    return rounded


def _fma_float64(x: float, y: float, z: float) -> float:
    if not (isfinite(x) and isfinite(y) and isfinite(z)):
        return float(np.float64(x) * np.float64(y) + np.float64(z))
    (a, below_a), (b, below_b), (c, below_c) = (v.as_integer_ratio() for v in (x, y, z))
    product, below = a * b, below_a * below_b
    total = product * below_c + c * below
    if not total:
        return 0.0 if product else x * y + z
    try:
        return total / (below * below_c)  # Python rounds quotients of integers correctly
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def _select(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    return np.where(args[0], args[1], args[2])


# -- types -------------------------------------------------------------------------------------


def _cast(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    source, target, x = instruction.arguments[0].dtype, result.dtype, args[0]
    x = _wide(x, source)
    if _is_short(target):
        x = x.astype(np.float32)
        x = flushed(x) if "flush" in instruction.detail else x
    if x.dtype.kind == "f" and target.is_integer and target.bits < 32:
        x = x.astype(np.int32)
    return x.astype(target.numpy)


def _bitcast(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    bits = np.ascontiguousarray(args[0]).view(np.uint8)
    made: Array = bits != 0 if result.dtype is dt.bool_ else bits.view(result.dtype.numpy)
    return made


# -- lanes -------------------------------------------------------------------------------------


def _splat(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    return np.repeat(args[0], result.lanes)


def _iota(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    return np.arange(result.lanes).astype(result.dtype.numpy)


def _first_lanes(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    return np.asarray(np.arange(result.lanes) < args[0])


def _shuffle(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    order = np.array(instruction.detail)
    both = np.concatenate(args)
    if (order < -1).any() or (order >= both.size).any():
        raise KernelError(f"shuffle of {instruction.arguments[0].type} by {instruction.detail}")
    picked: Array = both[order]
    picked.view(np.uint8).reshape(order.size, -1)[order < 0] = 0xFF  # undefined: be conspicuous
    return picked


def _lane(instruction: Instruction) -> int:
    lane: int = instruction.detail[0]
    if not 0 <= lane < instruction.arguments[0].lanes:
        raise KernelError(f"no lane {lane} in {instruction.arguments[0].type}")
    return lane


def _extract(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    lane = _lane(instruction)
    return args[0][lane : lane + 1]


def _insert(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    made = args[0].copy()
    made[_lane(instruction)] = args[1][0]
    return made


def _reduce(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    x = args[0]
    if x.size & (x.size - 1):
        raise KernelError(f"reduce of {instruction.arguments[0].type}: no power of two")
    while x.size > 1:
        half = x.size // 2
        x = binary(instruction.detail[0], result.dtype, x[:half], x[half:])
    return x


def flushed(x: Array) -> Array:
    """float32 with zeros for subnormal numbers, as instructions on bfloat16 have them."""
    least = np.finfo(np.float32).tiny
    return np.where(np.abs(x) < least, np.copysign(np.float32(0), x), x)


_DOTS_OF_BYTES = (dt.int32, dt.uint8, dt.int8), (dt.int32, dt.int8, dt.int8)


def _dot(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    kinds = tuple(v.dtype for v in instruction.arguments)
    total, x, y = args
    if kinds in _DOTS_OF_BYTES and x.size == y.size == 4 * total.size:
        fours = (x.astype(np.int32) * y.astype(np.int32)).reshape(-1, 4)
        pairs = fours.reshape(-1, 2).sum(1)
        if instruction.detail and (pairs != pairs.astype(np.int16)).any():
            raise KernelError("sums of two products do not fit in 16 bits, as was claimed")
        return np.asarray(total + fours.sum(1, dtype=np.int32))
    if kinds == (dt.int32, dt.int16, dt.int16) and x.size == y.size == 2 * total.size:
        twos = (x.astype(np.int32) * y.astype(np.int32)).reshape(-1, 2)
        return np.asarray(total + twos.sum(1, dtype=np.int32))
    if kinds == (dt.float32, dt.bfloat16, dt.bfloat16) and x.size == y.size == 2 * total.size:
        pairs = [flushed(v.astype(np.float32)).reshape(-1, 2) for v in (x, y)]
        for term in (1, 0):
            total = flushed(_fma_float32(pairs[0][:, term], pairs[1][:, term], flushed(total)))
        return np.asarray(total)
    types = [str(v.type) for v in instruction.arguments]
    raise KernelError(f"dot of {types} is not in the language")


def _lookup(instruction: Instruction, result: Type, args: list[Array]) -> Array:
    (x,) = args
    if (x > 15).any():
        raise KernelError("what is looked up lies outside of the table")
    return np.asarray(instruction.detail, np.uint8)[x]


def rules(fused: bool) -> dict[str, Rule]:
    """The meaning of instructions on values; without `fused`, fma rounds twice where it may."""

    def multiply_add(instruction: Instruction, result: Type, args: list[Array]) -> Array:
        if fused or instruction.detail or not result.dtype.is_float:
            return fma(result.dtype, *args)
        x, y, z = (_wide(a, result.dtype) for a in args)
        return np.asarray(x * y + z).astype(result.dtype.numpy)

    return {
        **dict.fromkeys((*_BOTH, *_FLOAT, *_INTEGER), _binary),
        **dict.fromkeys(_UNARY, _unary),
        **dict.fromkeys(_COMPARE, _compare),
        "fma": multiply_add,
        "select": _select,
        "cast": _cast,
        "bitcast": _bitcast,
        "splat": _splat,
        "iota": _iota,
        "first_lanes": _first_lanes,
        "shuffle": _shuffle,
        "extract": _extract,
        "insert": _insert,
        "reduce": _reduce,
        "dot": _dot,
        "lookup": _lookup,
    }
