"""Integer division, remainders, places and scattering as ONNX and PyTorch have them, in ops.

Ours are NumPy's and MegEngine's: division of integers rounds down, the remainder of floats is C's.
"""

from __future__ import annotations

from typing import Any

from treadle.base import dtype as dt
from treadle.ops import elementwise as ew
from treadle.ops import logic, unary
from treadle.ops.check import InRange
from treadle.ops.gather_along import ScatterAlongAxis, TakeAlongAxis
from treadle.ops.movement import Concat
from treadle.ops.select import Where
from treadle.ops.slicing import along
from treadle.ops.sort import Sort


def truncated_quotient(x: Any, y: Any) -> Any:
    """x / y rounded to zero, of one element type."""
    if x.type.dtype.is_float:
        return unary.Trunc()(ew.Div()(x, y))
    quotient = ew.FloorDiv()(x, y)
    if x.type.dtype.kind == "uint":
        return quotient
    # One more where rounding down went past it.
    inexact = logic.NotEqual()(quotient * y, x)
    down = logic.Less()(quotient, quotient.constant(0))
    return Where()(inexact & down, quotient + 1, quotient)


def remainder(x: Any, y: Any, *, truncated: bool) -> Any:
    """Return what is left of x after whole multiples of y, both of one element type.

    With `truncated` it has the sign of x, as C's; else that of y, as Python's.
    """
    rest, kind = ew.Mod()(x, y), x.type.dtype
    if kind.kind == "uint" or truncated == kind.is_float:
        return rest
    zero = x.constant(0)
    wanted = logic.Less()(x if truncated else y, zero)
    apart = logic.LogicalXor()(logic.Less()(rest, zero), wanted)
    other = logic.NotEqual()(rest, zero) & apart
    return Where()(other, rest - y if truncated else rest + y, rest)


def from_start(index: Any, extent: Any, of: str = "") -> Any:
    """Places that may count from the end of an axis, as int64 from its start.

    With `of`, the name of an op, those of no element are errors.
    """
    index = index.astype(dt.int64)
    if of:
        index = InRange(of, -extent, extent)(index)
    return Where()(logic.Less()(index, index.constant(0)), index + extent, index)


def extremum_last(axis: int, places: Any, values: Any, *, least: bool) -> tuple[Any, Any]:
    """Places and values so that what is written last to a place is its extremum, or a NaN."""
    turned = least and values.type.dtype.is_float  # NaN, which sorts last, stays there
    found, order = Sort(axis, least and not turned).outputs(-values if turned else values)
    return TakeAlongAxis(axis)(places, order), -found if turned else found


def scattered_products(x: Any, axis: int, places: Any, values: Any) -> Any:
    """x with the product of its values at every place: runs of equal places, by doubling."""
    places, order = Sort(axis, False).outputs(places)
    values, count, step = TakeAlongAxis(axis)(values, order), places.type.shape[axis], 1
    while step < count:
        same = logic.Equal()(along(places, axis, 0, count - step), along(places, axis, step, count))
        before, here = along(values, axis, 0, count - step), along(values, axis, step, count)
        both = Where()(same, before * here, here)
        values = Concat(axis)(along(values, axis, 0, step), both)
        step *= 2
    return ScatterAlongAxis(axis)(x, places, values)
