"""Losses of ATen whose own decomposition is not what PyTorch computes."""

from __future__ import annotations

import math
from typing import Any

from treadle.graph.builder import GraphOperand
from treadle.interop.torch.shaping import extents
from treadle.interop.torch.table import OperatorCall, amount, lowers
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce
from treadle.ops.check import InRange
from treadle.ops.creation import Iota
from treadle.ops.gather import as_index
from treadle.ops.gather_along import AddAlongAxis, TakeAlongAxis
from treadle.ops.select import Where

V = GraphOperand
_MEAN = 1


class _Labels:
    """Classes of each sample of `multilabel_margin_loss`, which end at the first -1.

    Attributes:
        x: scores [samples, classes].
        places: the classes [samples, labels], 0 behind the end.
        known: whether a label is before the end, as 0 and 1.
        others: whether a class is none of the sample's, as 0 and 1.
    """

    def __init__(self, x: V, target: V) -> None:
        classes = extents(x)[-1] if x.type.ndim else 1
        self.x = x.reshape((math.prod(extents(x)) // classes, classes))
        shape = extents(self.x)
        labels = InRange("multilabel_margin_loss", -1, classes)(as_index(target)).reshape(shape)
        line = labels.builder.apply(Iota(0, 1, classes, labels.type.dtype), ())[0]
        line = line.reshape((1, classes)).broadcast_to(shape)
        ends = Where()(logic.Less()(labels, labels.constant(0)), line, amount(labels, classes))
        known = logic.Less()(line, reduce.Min((1,), True)(ends))
        self.places = Where()(known, labels, labels.constant(0))
        self.known = known.astype(x.type.dtype)
        none = x.constant(0).broadcast_to(shape)
        count = AddAlongAxis(1)(none, self.places, self.known)
        self.others = logic.Equal()(count, count.constant(0)).astype(x.type.dtype)

    def margins(self) -> V:
        """Return by how much others come too near to a class: [samples, labels, classes]."""
        count, classes = extents(self.x)
        own = TakeAlongAxis(1)(self.x, self.places).reshape((count, classes, 1))
        margin = own.constant(1) - own + self.x.reshape((count, 1, classes))
        pairs = self.known.reshape((count, classes, 1)) * self.others.reshape((count, 1, classes))
        return Where()(logic.Greater()(pairs, pairs.constant(0)), margin, margin.constant(0))


@lowers("multilabel_margin_loss_forward.default")
def _multilabel_margin(call: OperatorCall, x: V, target: V, reduction: int) -> tuple[V, ...]:
    if x.type.ndim < 2 and not reduction:
        raise NotImplementedError("PyTorch propagates another shape than its kernel gives")
    labels = _Labels(x, target)
    count, classes = extents(labels.x)
    near = ew.Maximum()(labels.margins(), x.constant(0))
    y = reduce.Sum((1, 2), False)(near) / amount(x, classes)
    if reduction:
        y = reduce.Sum((0,), False)(y) / amount(x, count if reduction == _MEAN else 1)
    made: tuple[V, ...] = call.shaped((y, labels.others.constant(1) - labels.others))
    return made


@lowers("multilabel_margin_loss_backward.default")
def _multilabel_margin_backward(
    call: OperatorCall, dy: V, x: V, target: V, reduction: int, is_target: Any
) -> V:
    labels = _Labels(x, target)
    count, classes = extents(labels.x)
    margins = labels.margins()
    near = logic.Greater()(margins, margins.constant(0)).astype(x.type.dtype)
    own = -reduce.Sum((2,), False)(near)
    dx = AddAlongAxis(1)(reduce.Sum((1,), False)(near), labels.places, own)
    share = classes * (count if reduction == _MEAN else 1)
    dy = dy.reshape((-1, 1) if dy.type.ndim else ())
    return (dx * dy / amount(x, share)).reshape(call.shape)
