"""Conversions between element types, as `ops.elementwise.Cast` defines them."""

from __future__ import annotations

from treadle.backends.codegen.kernel.language import KernelError, Value, select
from treadle.base import dtype as dt
from treadle.base.dtype import DType


def compute_dtype(dtype: DType) -> DType:
    """The type in which values of `dtype` are computed: float32 for 16-bit floats, else itself."""
    return dt.float32 if dtype.is_float and dtype.itemsize == 2 else dtype


def convert(x: Value, dtype: DType) -> Value:
    """A value in its compute type converted to `dtype`; the result is in that one's compute type.

    Converting to float16 or bfloat16 rounds, although the result is held as float32.

    Raises:
        KernelError: one of the types is complex.
    """
    if "complex" in (x.dtype.kind, dtype.kind):
        raise KernelError("kernels do not compute complex numbers")
    if dtype is dt.bool_:
        return x if x.dtype is dt.bool_ else x != (0.0 if x.dtype.is_float else 0)
    if dtype.is_integer and x.dtype.is_float:
        return _to_integer(x, dtype)
    if compute_dtype(dtype) is dtype:
        return x.cast(dtype)
    return rounded(_to_odd(x) if x.dtype is dt.float64 else x.cast(dt.float32), dtype)


def rounded(x: Value, dtype: DType) -> Value:
    """A value of the compute type of `dtype`, rounded to that one; it stays in the compute type."""
    return x.cast(dtype).cast(x.dtype)


def rounded_result(x: Value, dtype: DType) -> Value:
    """`rounded` for what was computed from values of `dtype`.

    The low half of such a NaN is empty, so that rounding a bfloat16 by its bits keeps it a NaN.
    """
    if dtype is not dt.bfloat16 or x.literal is not None:
        return rounded(x, dtype)
    bits = x.bitcast(dt.uint32)
    odd = (bits >> 16) & 1
    moved = bits + 0x7FFF + odd
    return (moved & 0xFFFF0000).bitcast(x.dtype).holding(dtype)


def _to_integer(x: Value, dtype: DType) -> Value:
    """Truncated; what does not fit as x86 converts it, on every machine."""
    if dtype is dt.uint64:
        high = x >= 2.0**63
        part = _fitting(select(high, x - 2.0**63, x), dt.int64)
        sign = select(high, x.constant(-(2**63), dt.int64), 0)
        return (part ^ sign).cast(dtype)
    # Narrow types keep the low bits of an int32, uint32 those of an int64.
    wide = dt.int64 if dtype in (dt.int64, dt.uint32) else dt.int32
    return _fitting(x, wide).cast(dtype)


def _fitting(x: Value, dtype: DType) -> Value:
    """x as int32 or int64; the smallest integer where it does not fit, and for NaN."""
    limit = 2.0 ** (dtype.bits - 1)
    fits = (-limit <= x) & (x < limit)
    return select(fits, x, -limit).cast(dtype)


def _to_odd(x: Value) -> Value:
    """float64 to float32, rounded to odd, so that rounding again to 16 bits rounds only once.

    (Boldo and Melquiond 2008, Emulation of FMA and correctly rounded sums.)
    """
    near = x.cast(dt.float32)
    back = near.cast(dt.float64)
    bits = near.bitcast(dt.int32)
    # Magnitudes count upwards in the bits, so one less is the neighbor towards zero.
    beyond = abs(x) < abs(back)
    toward_zero = select(beyond, bits - 1, bits)
    inexact = x != back
    finite = abs(x) < float("inf")
    odd = select(inexact & finite, toward_zero | 1, bits)
    return odd.bitcast(dt.float32)
