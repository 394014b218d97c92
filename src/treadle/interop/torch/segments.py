"""Reductions of ATen over segments of an axis, whose lengths or bounds are data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.shaping import extents, part
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce
from treadle.ops.check import InRange
from treadle.ops.cumulative import CumSum
from treadle.ops.select import Where

V = GraphOperand

_OPS: dict[str, tuple[Any, float]] = {
    "sum": (reduce.Sum, 0.0),
    "mean": (reduce.Sum, 0.0),
    "prod": (reduce.Prod, 1.0),
    "max": (reduce.Max, -math.inf),
    "min": (reduce.Min, math.inf),
}


class _Segments:
    """Elements along an axis as (leading axes, segment, element, further axes).

    Attributes:
        inside: whether an element is of a segment, with further axes of extent 1.
        lengths: of the segments, with extents of 1 behind them.
    """

    def __init__(
        self, x: V, lengths: V | None, offsets: V | None, axis: int, unsafe: bool = True
    ) -> None:
        self._axis = axis
        if lengths is not None:
            lengths = lengths.astype(dt.int64)
            most = extents(x)[axis]
            if not unsafe:
                lengths = InRange("segment_reduce (lengths)", 0, most + 1)(lengths)
            last = CumSum(axis)(lengths)
            first = last - lengths
            if not unsafe and extents(lengths)[axis]:
                total = reduce.Sum((axis,), True)(lengths)
                whole = InRange("segment_reduce (sum of lengths)", most, most + 1)(total)
                last = last + (whole - most)
        elif offsets is not None:
            offsets = InRange("segment_reduce (offsets)", 0, extents(x)[axis] + 1)(offsets)
            count = extents(offsets)[axis]
            first = part(offsets, axis, 0, count - 1).astype(dt.int64)
            last = part(offsets, axis, 1, count).astype(dt.int64)
            if not unsafe:  # As PyTorch's kernel asks; what the gradient gets was asked before.
                most = extents(x)[axis] + 1
                last = first + InRange("segment_reduce (length by offsets)", 0, most)(last - first)
        else:
            raise NotImplementedError("neither lengths nor offsets")
        shape = extents(first)
        rest = (1,) * (x.type.ndim - axis - 1)
        first, last = (v.reshape((*shape, 1, *rest)) for v in (first, last))
        line = np.arange(extents(x)[axis]).reshape((-1, *rest))
        here = x.constant(line, dt.int64)
        self.inside = logic.GreaterEqual()(here, first) & logic.Less()(here, last)
        self.lengths = (last - first).reshape((*shape, *rest)).astype(x.type.dtype)

    def elements(self, x: V) -> V:
        """x, for every segment anew."""
        shape = extents(x)
        return x.reshape((*shape[: self._axis], 1, *shape[self._axis :]))

    def results(self, y: V) -> V:
        """Return each segment's result, for every element of it anew."""
        shape, here = extents(y), self._axis + 1
        return y.reshape((*shape[:here], 1, *shape[here:]))

    def reduced(self, op: Any, x: V, neutral: float) -> V:
        """A reduction of what is inside, given for every segment."""
        known = Where()(self.inside, x, x.constant(neutral))
        made: V = op((self._axis + 1,), False)(known)
        return made

    def spread(self, x: V) -> V:
        """The sum over the segments that an element is in."""
        made: V = reduce.Sum((self._axis,), False)(Where()(self.inside, x, x.constant(0.0)))
        return made


@lowers("segment_reduce.default")
def _segment_reduce(
    call: OperatorCall,
    x: V,
    how: str,
    *,
    lengths: V | None = None,
    indices: V | None = None,
    offsets: V | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> V:
    segments = _Segments(x, lengths, offsets, axis, unsafe)
    op, neutral = _OPS[how]
    found = segments.reduced(op, segments.elements(x), neutral)
    if initial is not None:
        start = found.constant(initial)
        met = {
            "sum": found + start,
            "mean": found + start,
            "prod": found * start,
            "max": Where()(logic.Less()(found, start), start, found),
            "min": Where()(logic.Greater()(found, start), start, found),
        }
        found = met[how]
    if how != "mean":
        return found
    some = logic.Greater()(segments.lengths, segments.lengths.constant(0))
    none = found if initial is not None else found.constant(math.nan)
    return Where()(some, found / segments.lengths, none)


@lowers("_segment_reduce_backward.default")
def _segment_reduce_backward(
    call: OperatorCall,
    dy: V,
    y: V,
    x: V,
    how: str,
    *,
    lengths: V | None = None,
    offsets: V | None = None,
    axis: int = 0,
    initial: Any = None,
) -> V:
    segments = _Segments(x, lengths, offsets, axis)
    wide, passed = segments.elements(x), segments.results(dy)
    if how == "sum":
        return segments.spread(passed)
    if how == "mean":
        return segments.spread(segments.results(dy / segments.lengths))
    if how == "prod":
        return segments.spread(passed * _others(segments, wide, initial))
    same = logic.Equal()(wide, segments.results(y)) | logic.IsNan()(wide)
    ones = same.astype(x.type.dtype)
    count = segments.results(segments.reduced(reduce.Sum, ones, 0.0))
    # Where a start was the extremum, no element is it. PyTorch shares what is positive alone.
    shared = passed / ew.Maximum()(count, count.constant(1.0))
    positive = logic.Greater()(passed, passed.constant(0.0))
    return segments.spread(ones * Where()(positive, shared, passed))


def _others(segments: _Segments, x: V, initial: Any) -> V:
    """Return for each element the product of the others in its segment."""
    zero = logic.Equal()(x, x.constant(0.0))
    known = Where()(zero, x.constant(1.0), x)
    zeros = segments.results(segments.reduced(reduce.Sum, zero.astype(x.type.dtype), 0.0))
    product = segments.results(segments.reduced(reduce.Prod, known, 1.0))
    if initial is not None:
        product = product * float(initial)
    left = zeros - zero.astype(x.type.dtype)
    return Where()(logic.Equal()(left, left.constant(0.0)), product / known, x.constant(0.0))
