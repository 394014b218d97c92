"""Elements as unsigned integers of the same order: what sorting compares.

NaN is the greatest, the two zeros are equal, and for a descending order all bits are inverted, so
that ascending integers are the order wanted.
"""

from __future__ import annotations

from treadle.backends.codegen.kernel.language import Value, select
from treadle.base import dtype as dt
from treadle.base.dtype import DType


def key_type(dtype: DType) -> DType:
    """uint64 for types of 8 bytes, uint32 for all others."""
    return dt.uint64 if dtype.itemsize == 8 else dt.uint32


def key_of(value: Value, kind: DType, descending: bool) -> Value:
    """Keys of type `kind` of elements in their compute type."""
    bits = kind.bits
    if value.dtype.is_float:
        key = _float_key(value, kind)
    else:
        key = value.cast(kind)
        if value.dtype.kind == "int":
            key = key ^ (1 << (bits - 1))
    return key ^ ((1 << bits) - 1) if descending else key


def _float_key(value: Value, kind: DType) -> Value:
    """The sign bit inverted where it is 0, all bits where it is 1."""
    signed = dt.int64 if kind is dt.uint64 else dt.int32
    bits = (value + 0.0).bitcast(signed)  # -0.0 becomes 0.0
    sign = bits >> (kind.bits - 1)
    flips = sign.cast(kind) | (1 << (kind.bits - 1))
    key = bits.cast(kind) ^ flips
    return select(value != value, (1 << kind.bits) - 1, key)
