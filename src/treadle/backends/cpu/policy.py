"""Limits from which single ops run on generated kernels, in elements of an operand or result.

A launch costs a few microseconds before it computes anything, and a new kernel some milliseconds to
compile; NumPy costs a pass over memory for every step of an op, and one thread.
"""

from __future__ import annotations

from treadle.ops.adaptive_pool import AdaptiveWindow
from treadle.ops.composite import Composite
from treadle.ops.conv import Convolution
from treadle.ops.cumulative import Cumulative
from treadle.ops.distribution import Draw
from treadle.ops.elementwise import Pow
from treadle.ops.families import Elementwise, Reduce, UnaryFloat
from treadle.ops.matmul import IntMatmul, MatrixProduct
from treadle.ops.op import Op
from treadle.ops.pool import Pooling
from treadle.ops.random import RandomBits
from treadle.ops.regions import KeptBoxes

_TABLE: tuple[tuple[type[Op] | tuple[type[Op], ...], int | None], ...] = (
    ((RandomBits, Draw), 1 << 12),
    (Composite, 1 << 8),
    (KeptBoxes, 1 << 6),
    ((Convolution, Pooling, AdaptiveWindow), 1 << 9),
    ((UnaryFloat, Pow), 1 << 12),
    (Elementwise, 1 << 15),
    (IntMatmul, None),
    (MatrixProduct, 1 << 12),
    ((Reduce, Cumulative), 1 << 12),
)
"""The first row that fits decides. The figures are where the two took equal time."""


def least_elements(op: Op) -> int | None:
    """Elements from which on a generated kernel runs an op; None where NumPy always does."""
    if op.is_view:
        return None
    return next((least for family, least in _TABLE if isinstance(op, family)), None)
