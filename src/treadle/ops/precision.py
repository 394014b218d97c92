"""The one rule of internal precision: 16-bit floats are computed in float32."""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.ops.op import V


def compute_type(dtype: DType) -> DType:
    """The type in which sums and transcendental functions of `dtype` are computed."""
    return dt.float32 if dtype.is_float and dtype.itemsize == 2 else dtype


def widen(x: V) -> V:
    """The operand in its compute type; itself where that is the same."""
    return x.astype(compute_type(x.type.dtype))


def widen_array(x: Array) -> Array:
    """The array in its compute type; itself where that is the same."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x
