"""Elements as unsigned integers of the same order: what sorting compares.

NaN is the greatest, the two zeros are equal, and for a descending order all bits are inverted, so
that ascending integers are the order wanted.
"""

from __future__ import annotations

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.base import dtype as dt
from treadle.base.dtype import DType


def key_type(dtype: DType) -> DType:
    """uint64 for types of 8 bytes, uint32 for all others."""
    return dt.uint64 if dtype.itemsize == 8 else dt.uint32


def key_of(b: Builder, value: Value, kind: DType, descending: bool) -> Value:
    """Keys of type `kind` of elements in their compute type."""
    bits = kind.bits
    if value.dtype.is_float:
        key = _float_key(b, value, kind)
    else:
        key = b.cast(value, kind)
        if value.dtype.kind == "int":
            key = b.bitwise("xor", key, 1 << (bits - 1))
    return b.bitwise("xor", key, (1 << bits) - 1) if descending else key


def _float_key(b: Builder, value: Value, kind: DType) -> Value:
    """The sign bit inverted where it is 0, all bits where it is 1."""
    signed = dt.int64 if kind is dt.uint64 else dt.int32
    bits = b.bitcast(b.add(value, 0.0), signed)  # -0.0 becomes 0.0
    sign = b.bitwise("shr", bits, kind.bits - 1)
    flips = b.bitwise("or", b.cast(sign, kind), 1 << (kind.bits - 1))
    key = b.bitwise("xor", b.cast(bits, kind), flips)
    greatest = b.constant((1 << kind.bits) - 1, kind, value.lanes)
    return b.select(b.compare("ne", value, value), greatest, key)
