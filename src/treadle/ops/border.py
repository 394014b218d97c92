"""The two ends of a value's way from one memory space to another.

The partition stage puts them around every edge that crosses: an `End` where the value is made, a
`Placeholder` where it is used. Both give their operand; removing them gives the program back.
"""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import Op, Sample, family, op


@family
class Border(Op):
    """One end; the ends of one way bear the same number `pair`."""

    pair: int

    work = "collective"
    dtypes = dt.ALL
    no_gradient = "is made after differentiation"
    selects = "first"
    rearranges = True

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (TensorType(x.dtype, x.shape),)

    def reference(self, x: Array) -> Array:
        return np.array(x)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        shapes = ((2, 3), (), (0, 3), (1, 1))
        return tuple(Sample(cls(1), (Arg(s),), gradient=False) for s in shapes)


@op
class End(Border):
    """x, on its way out of the memory space it was made in."""

    name = "end"


@op
class Placeholder(Border):
    """x, as it arrives in the memory space it is used in."""

    name = "placeholder"
    keeps_axes = True
