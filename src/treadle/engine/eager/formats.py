"""MegEngine's names for orders of axes, as tags that results of ops inherit.

A tag says nothing about memory or values: which order compiled programs use is in their reports.
It is a part of the eager type, so a launch that is found holds its results' tag already.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.base.types import TensorType
from treadle.ops.families import Elementwise
from treadle.ops.op import Op

DEFAULT = "default"


def inherited(
    op: Op, formats: Sequence[str], types: Sequence[TensorType], results: Sequence[TensorType]
) -> str:
    """The tag of an op's results, given those of its operands, of which one is not the default.

    Tags of operands with fewer axes than the result, and tags that contradict each other, count
    for nothing.
    """
    if isinstance(op, Elementwise):
        found = {f for f in formats if f != DEFAULT}
    elif op.keeps_axes:
        rank = results[0].ndim
        given = zip(formats, types, strict=True)
        found = {f for f, t in given if f != DEFAULT and t.ndim == rank}
    else:
        return DEFAULT
    return found.pop() if len(found) == 1 else DEFAULT
