"""Conversions between element types, as `ops.elementwise.Cast` defines them."""

from __future__ import annotations

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelError, Value
from treadle.base import dtype as dt
from treadle.base.dtype import DType


def compute_dtype(dtype: DType) -> DType:
    """The type in which values of `dtype` are computed: float32 for 16-bit floats, else itself."""
    return dt.float32 if dtype.is_float and dtype.itemsize == 2 else dtype


def convert(b: Builder, x: Value, dtype: DType) -> Value:
    """A value in its compute type converted to `dtype`; the result is in that one's compute type.

    Converting to float16 or bfloat16 rounds, although the result is held as float32.

    Raises:
        KernelError: one of the types is complex.
    """
    if "complex" in (x.dtype.kind, dtype.kind):
        raise KernelError("kernels do not compute complex numbers")
    if dtype is dt.bool_:
        return x if x.dtype is dt.bool_ else b.compare("ne", x, 0.0 if x.dtype.is_float else 0)
    if dtype.is_integer and x.dtype.is_float:
        return _to_integer(b, x, dtype)
    if compute_dtype(dtype) is dtype:
        return b.cast(x, dtype)
    return rounded(b, _to_odd(b, x) if x.dtype is dt.float64 else b.cast(x, dt.float32), dtype)


def rounded(b: Builder, x: Value, dtype: DType) -> Value:
    """A value of the compute type of `dtype`, rounded to that one; it stays in the compute type."""
    return b.cast(b.cast(x, dtype), x.dtype)


def rounded_result(b: Builder, x: Value, dtype: DType) -> Value:
    """`rounded` for what was computed from values of `dtype`.

    The low half of such a NaN is empty, so that rounding a bfloat16 by its bits keeps it a NaN.
    """
    if dtype is not dt.bfloat16 or x.literal is not None:
        return rounded(b, x, dtype)
    bits = b.bitcast(x, dt.uint32)
    odd = b.bitwise("and", b.bitwise("shr", bits, 16), 1)
    moved = b.add(b.add(bits, 0x7FFF), odd)
    return b.holding(b.bitcast(b.bitwise("and", moved, 0xFFFF0000), x.dtype), dtype)


def _to_integer(b: Builder, x: Value, dtype: DType) -> Value:
    """Truncated; what does not fit as x86 converts it, on every machine."""
    if dtype is dt.uint64:
        high = b.compare("le", 2.0**63, x)
        part = _fitting(b, b.select(high, b.sub(x, 2.0**63), x), dt.int64)
        sign = b.select(high, b.constant(-(2**63), dt.int64, x.lanes), 0)
        return b.cast(b.bitwise("xor", part, sign), dtype)
    # Narrow types keep the low bits of an int32, uint32 those of an int64.
    wide = dt.int64 if dtype in (dt.int64, dt.uint32) else dt.int32
    return b.cast(_fitting(b, x, wide), dtype)


def _fitting(b: Builder, x: Value, dtype: DType) -> Value:
    """x as int32 or int64; the smallest integer where it does not fit, and for NaN."""
    limit = 2.0 ** (dtype.bits - 1)
    fits = b.bitwise("and", b.compare("le", -limit, x), b.compare("lt", x, limit))
    return b.cast(b.select(fits, x, -limit), dtype)


def _to_odd(b: Builder, x: Value) -> Value:
    """float64 to float32, rounded to odd, so that rounding again to 16 bits rounds only once.

    (Boldo and Melquiond 2008, Emulation of FMA and correctly rounded sums.)
    """
    near = b.cast(x, dt.float32)
    back = b.cast(near, dt.float64)
    bits = b.bitcast(near, dt.int32)
    # Magnitudes count upwards in the bits, so one less is the neighbor towards zero.
    beyond = b.compare("lt", b.abs(x), b.abs(back))
    toward_zero = b.select(beyond, b.sub(bits, 1), bits)
    inexact = b.compare("ne", x, back)
    finite = b.compare("lt", b.abs(x), float("inf"))
    odd = b.select(b.bitwise("and", inexact, finite), b.bitwise("or", toward_zero, 1), bits)
    return b.bitcast(odd, dt.float32)
