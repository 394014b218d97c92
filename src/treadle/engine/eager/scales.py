"""Scales of the results of ops on quantized operands, and refusals where one would be lost.

Ops compute on stored integers. Where their results are integers on the same scale, they keep the
operands' type; where nobody could tell them from plain integers, the call raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from treadle.base.errors import DTypeError
from treadle.base.quantized import QuantizedType, quantized_type
from treadle.base.types import TensorType
from treadle.ops.border import Border
from treadle.ops.families import Elementwise, Movement
from treadle.ops.op import Op
from treadle.ops.slicing import Pad
from treadle.ops.transfer import Transfer

T = TypeVar("T")


def carried_scale(
    op: Op,
    kinds: Sequence[QuantizedType | None],
    types: Sequence[TensorType],
    results: Sequence[TensorType],
) -> QuantizedType | None:
    """Return the quantized type of results of the stored type; None where there are none, or no
    scale.

    Args:
        kinds: what each operand's integers stand for.
        types, results: the types of operands and results.

    Raises:
        DTypeError: a result would be stored integers whose scale is lost.
    """
    found = {kind: None for kind in kinds if kind is not None}
    if not found:
        return None
    one = next(iter(found))
    plain = (t for kind, t in zip(kinds, types, strict=True) if kind is None)
    if len(found) > 1 or any(t.dtype is one.stored for t in plain):
        return _lost(op, found, results)
    if op.homogeneous and one.zero_point:
        if len(kinds) == 1 and op.by_sign:
            raise DTypeError(
                op.name,
                "the stored integers have a zero point, so their sign says nothing",
                saw=str(one),
                hint="cast with astype('float32') first",
            )
        return _lost(op, found, results)
    if not op.selects and not op.homogeneous:
        return _lost(op, found, results)
    if not one.is_per_channel:
        return one
    if isinstance(op, Movement) and len(types) == 1:
        return _moved(op, one, types[0])
    if isinstance(op, Border | Transfer | Elementwise):  # Axes stay, counted from the last.
        return one
    return _lost(op, found, results)


def _moved(op: Movement, kind: QuantizedType, x: TensorType) -> QuantizedType | None:
    """The type of moved integers whose channels have scales of their own: these move along."""
    shape = [d for d in x.shape if isinstance(d, int)]
    if len(shape) < x.ndim or isinstance(op, Pad):  # A border is on the grid of no channel.
        return _lost(op, [kind], [x])
    scale = op.reference(np.broadcast_to(kind.scale, shape))
    if not scale.size:
        return _lost(op, [kind], [x])
    for axis in range(scale.ndim):
        first = scale.take([0], axis)
        if (scale == first).all():
            scale = first
    return kind if np.array_equal(scale, kind.scale) else quantized_type(kind.meta, scale)


def _lost(
    op: Op, found: Iterable[QuantizedType], results: Sequence[TensorType]
) -> QuantizedType | None:
    """Refuse integers that nobody could tell from plain ones; other results are plain."""
    if any(t.dtype is one.stored for t in results for one in found):
        raise DTypeError(
            op.name,
            "its integers would have no scale: it does not keep the operands' scale",
            saw=", ".join(str(one) for one in found),
            hint="cast with astype('float32') first",
        )
    return None


def real(x: T) -> T:
    """A quantized tensor as the numbers that its integers stand for; anything else as it is."""
    kind = getattr(x, "_kind", None)
    if kind is None or kind.quantized is None:
        return x
    numbers: T = x.astype("float32")  # type: ignore[attr-defined]
    return numbers


def on_integers(op: Op, x: Any, other: Any) -> bool:
    """Return whether an operator works on the stored integers of two operands, one of them
    quantized.
    """
    mine, theirs = (getattr(t, "_kind", None) for t in (x, other))
    if mine is None or theirs is None or mine.quantized is not theirs.quantized:
        return False
    return op.homogeneous and not mine.quantized.zero_point
