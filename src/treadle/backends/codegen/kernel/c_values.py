"""C expressions for one lane of the instructions on values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from treadle.backends.codegen.kernel.language import KernelError, Number
from treadle.base import dtype as dt
from treadle.base.dtype import DType

PRELUDE = """\
#include <math.h>
#include <stdint.h>
#include <string.h>

/* 16-bit floats travel as their bits and compute as float. Compile without contraction
   (-ffp-contract=off) and without strict aliasing (-fno-strict-aliasing). */

static inline uint32_t float_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float bits_float(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline float from_bfloat16(uint16_t h) { return bits_float((uint32_t)h << 16); }
static inline uint16_t to_bfloat16(float x) {
  uint32_t u = float_bits(x);
  if (x != x) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static inline float from_float16(uint16_t h) {
  float scaled = bits_float((uint32_t)(h & 0x7fff) << 13) * 0x1p112f;
  uint32_t u = float_bits(scaled) | (scaled >= 65536.0f ? 0x7f800000u : 0);
  return bits_float(u | (uint32_t)(h & 0x8000) << 16);
}
static inline uint16_t to_float16(float x) {
  uint32_t u = float_bits(x), m = u & 0x7fffffff, r;
  if (m >= 143u << 23) r = m > 0x7f800000u ? 0x7e00 : 0x7c00;
  else if (m < 113u << 23) r = float_bits(bits_float(m) + 0.5f) - 0x3f000000u;
  else r = (m - (112u << 23) + 0xfff + (m >> 13 & 1)) >> 13;
  return (uint16_t)(r | (u >> 16 & 0x8000));
}
"""

_TYPES: dict[DType, str] = {
    dt.bool_: "uint8_t",
    dt.float16: "uint16_t",
    dt.bfloat16: "uint16_t",
    dt.float32: "float",
    dt.float64: "double",
}
_FLOAT_BINARY = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}"}
_FLOAT_BINARY |= {"rem": "fmod{f}({0}, {1})", "copysign": "copysign{f}({0}, {1})"}
_FLOAT_UNARY = {"neg": "-{0}", "abs": "fabs{f}({0})"}
_FLOAT_UNARY |= {c: f"{c}{{f}}({{0}})" for c in ("sqrt", "floor", "ceil", "trunc", "rint")}
_ORDERED = {"min": "{0} < {1} ? {0} : {1}", "max": "{0} > {1} ? {0} : {1}"}
# Integers wrap, which C promises of unsigned ones only.
_INTEGER = {
    "add": "({t})((uint64_t){0} + (uint64_t){1})",
    "sub": "({t})((uint64_t){0} - (uint64_t){1})",
    "mul": "({t})((uint64_t){0} * (uint64_t){1})",
    "and": "({t})({0} & {1})",
    "or": "({t})({0} | {1})",
    "xor": "({t})({0} ^ {1})",
    "shl": "({t})((uint64_t){0} << {1})",
    "shr": "({t})({0} >> {1})",
    "neg": "({t})(0 - (uint64_t){0})",
}
_UNSIGNED = {"div": "({t})({0} / {1})", "rem": "({t})({0} % {1})", "abs": "{0}"}
_SIGNED = {
    "div": "{1} == -1 ? ({t})(0 - (uint64_t){0}) : ({t})({0} / {1})",
    "rem": "{1} == -1 ? 0 : ({t})({0} % {1})",
    "abs": "{0} < 0 ? ({t})(0 - (uint64_t){0}) : {0}",
}
_BOOL = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}"}
_BOOL |= {"min": _BOOL["and"], "max": _BOOL["or"]}
_COMPARE = {"eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}"}


def c_type(dtype: DType) -> str:
    """C's type of one element."""
    if dtype.is_integer:
        return f"{dtype.name}_t"
    found = _TYPES.get(dtype)
    if found is None:
        raise KernelError(f"no C type for {dtype.name}")
    return found


def is_short(dtype: DType) -> bool:
    """Return whether it is a float of 16 bits."""
    return dtype.is_float and dtype.itemsize == 2


def widen(dtype: DType, x: str) -> str:
    """A 16-bit float as float; others as they are."""
    return f"from_{dtype.name}({x})" if is_short(dtype) else x


def narrow(dtype: DType, x: str) -> str:
    """The inverse of `widen`, rounding."""
    return f"to_{dtype.name}({x})" if is_short(dtype) else x


def _templates(dtype: DType) -> dict[str, str]:
    if dtype is dt.bool_:
        return _BOOL
    if dtype.is_float:
        return _FLOAT_BINARY | _FLOAT_UNARY | _ORDERED
    return _INTEGER | _ORDERED | (_SIGNED if dtype.kind == "int" else _UNSIGNED)


def arithmetic(code: str, dtype: DType, args: Sequence[str]) -> str:
    """An arithmetic, bitwise or unary instruction on operands of one type."""
    template = _templates(dtype).get(code)
    if template is None:
        raise KernelError(f"{code} of {dtype.name} is not in the language")
    wide = [widen(dtype, a) for a in args]
    suffix = "" if dtype is dt.float64 else "f"
    return narrow(dtype, template.format(*wide, t=c_type(dtype), f=suffix))


def compare(code: str, dtype: DType, args: Sequence[str]) -> str:
    """A comparison: 0 or 1."""
    return _COMPARE[code].format(*(widen(dtype, a) for a in args))


def fma(dtype: DType, args: Sequence[str], fused: bool) -> str:
    """x * y + z, in one step, for which the library has a function on any processor, or two."""
    if not dtype.is_float:
        raise KernelError(f"fma of {dtype.name} is not in the language")
    x, y, z = (widen(dtype, a) for a in args)
    name = "fma" if dtype is dt.float64 else "fmaf"
    return narrow(dtype, f"{name}({x}, {y}, {z})" if fused else f"{x} * {y} + {z}")


def cast(source: DType, target: DType, x: str) -> str:
    """A conversion of one element."""
    if source is target:
        return x
    if is_short(source):
        x, source = widen(source, x), dt.float32
    if is_short(target):
        return narrow(target, f"(float)({x})")
    if target is dt.bool_:
        return f"({x}) != 0"
    if source.is_float and target.is_integer and target.bits < 32:
        return f"({c_type(target)})(int32_t)({x})"
    return f"({c_type(target)})({x})"


def literal(number: Number, dtype: DType) -> str:
    """A number as C writes it."""
    if dtype is dt.bool_:
        return "1" if number else "0"
    if dtype.is_float:
        return _float_literal(number, dtype)
    bits = int(number) & ((1 << dtype.bits) - 1)
    if dtype.kind == "uint":
        return f"(({c_type(dtype)})UINT64_C({bits}))"
    signed = bits - (1 << dtype.bits) if bits >> (dtype.bits - 1) else bits
    if signed == -(1 << 63):
        return "(-INT64_C(9223372036854775807) - 1)"
    return f"(({c_type(dtype)})INT64_C({signed}))" if dtype.bits < 64 else f"INT64_C({signed})"


def _float_literal(number: Number, dtype: DType) -> str:
    with np.errstate(over="ignore"):
        rounded = np.asarray(number, np.float64).astype(dtype.numpy)
    if is_short(dtype):
        return f"((uint16_t){int(rounded.view(np.uint16))})"
    exact = float(rounded)
    if math.isnan(exact):
        return "NAN"
    if math.isinf(exact):
        return "INFINITY" if exact > 0 else "(-INFINITY)"
    return f"({exact.hex()}{'' if dtype is dt.float64 else 'f'})"
