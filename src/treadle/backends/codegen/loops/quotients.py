"""Quotients with one divisor for a whole inner loop: inverted once, multiplied by.

Only divisors that sums decide, whose last digits hang on the order of additions anyway: another
quotient is rounded once, as it is op by op, since rounding or a comparison may follow.
"""

from __future__ import annotations

from typing import NamedTuple

from treadle.backends.codegen.kernel.language import Value, select
from treadle.base import dtype as dt
from treadle.graph.cells import AppliedOp, Cell, Literal, Total
from treadle.ops.elementwise import Maximum, Sub
from treadle.ops.reduce import Max, Mean, Sum
from treadle.ops.unary import Exp, Sqrt

_FAR = {dt.float32: 100, dt.float64: 900}
"""Divisors below 2**-n or above 2**n have inverses that are infinite or lose digits, or nearly."""
_STEP = {dt.float32: 64, dt.float64: 512}
"""Times 2**n, or its inverse, they have not, down to the least and up to the greatest number."""


class Inverse(NamedTuple):
    """The factors of a quotient's dividend: a power of two first, where there is one."""

    scale: Value | None
    value: Value

    def times(self, x: Value) -> Value:
        """The quotient."""
        return (x if self.scale is None else x * self.scale) * self.value


def of_sums(cell: Cell) -> bool:
    """Return whether a number is computed from a sum or a mean."""
    if isinstance(cell, Total):
        return isinstance(cell.op, Sum | Mean) or of_sums(cell.arg)
    return isinstance(cell, AppliedOp) and any(map(of_sums, cell.args))


def inverse_of(divisor: Cell, value: Value) -> Inverse:
    """Divide 1 by a divisor, scaled where it may be so small or so large that it matters.

    A dividend that overflows, or loses digits, by the same scale has an infinite quotient, or 0.
    """
    if _is_moderate(divisor) or value.dtype not in _FAR:
        return Inverse(None, 1.0 / value)
    far, step, size = _FAR[value.dtype], _STEP[value.dtype], abs(value)
    scale = select(size < 2.0**-far, value.constant(2.0**step), 1.0)
    scale = select(size > 2.0**far, 2.0**-step, scale)
    return Inverse(scale, 1.0 / (value * scale))


def _is_moderate(cell: Cell) -> bool:
    """Return whether a number is known to be 0 or in the middle of its type's range: see `_FAR`."""
    if isinstance(cell, Total):
        return isinstance(cell.op, Sum) and _has_a_one(cell.arg)
    if isinstance(cell, Literal):
        return 2.0**-100 < abs(float(cell.value)) < 2.0**100
    if isinstance(cell, AppliedOp) and isinstance(cell.op, Maximum):
        return all(map(_is_moderate, cell.args))
    return isinstance(cell, AppliedOp) and isinstance(cell.op, Sqrt)


def _has_a_one(cell: Cell) -> bool:
    """Return whether it is exp(x - max(x)), which is 1 at the maximum and at most 1 elsewhere."""
    if not (isinstance(cell, AppliedOp) and isinstance(cell.op, Exp)):
        return False
    (shifted,) = cell.args
    if not (isinstance(shifted, AppliedOp) and isinstance(shifted.op, Sub)):
        return False
    x, most = shifted.args
    return isinstance(most, Total) and isinstance(most.op, Max) and most.arg is x
