"""Gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable

import treadle.functional as F
from treadle.autodiff import no_grad
from treadle.tensor import Tensor


def clip_grad_norm(tensors: Tensor | Iterable[Tensor], max_norm: float, ord: float = 2.0) -> Tensor:
    """Scale all gradients by one factor so that their joint norm is at most `max_norm`.

    The factor is min(1, max_norm / (norm + 1e-6)); gradients keep their handles.

    Args:
        tensors: tensors whose `grad` is clipped; those without one are passed over.
        max_norm: the largest norm allowed.
        ord: which p-norm, a positive number; infinity takes the largest absolute value.

    Returns:
        The norm before clipping, a 0-d tensor; 0 if there are no gradients.
    """
    with no_grad():
        grads = _gradients(tensors)
        if not grads:
            return Tensor(0.0)
        norm = _joint_norm(grads, float(ord))
        scale = F.minimum(max_norm / (norm + 1e-6), 1.0)
        for grad in grads:
            mine = scale if scale.device == str(grad.device) else scale.to(grad.device)
            grad._reset(grad * mine.astype(grad.dtype))
        return norm


def clip_grad_value(tensors: Tensor | Iterable[Tensor], lower: float, upper: float) -> None:
    """Clamp every element of every gradient to [lower, upper]; gradients keep their handles.

    Args:
        tensors: tensors whose `grad` is clipped; those without one are passed over.
        lower, upper: the bounds.
    """
    with no_grad():
        for grad in _gradients(tensors):
            grad._reset(F.clip(grad, lower, upper))


def _gradients(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    several = [tensors] if isinstance(tensors, Tensor) else tensors
    return [t.grad for t in several if t.grad is not None]


def _joint_norm(grads: list[Tensor], order: float) -> Tensor:
    """The norm of all elements together, in float32 or wider, on the first gradient's device."""
    if order <= 0.0:
        raise ValueError(f"clip_grad_norm: ord must be positive, got {order}")
    parts = []
    for grad in grads:
        wide = grad if grad.dtype.itemsize >= 4 else grad.astype("float32")
        size = F.abs(wide)
        part = F.max(size) if math.isinf(order) else F.sum(_power(size, order))
        parts.append(part if part.device == str(grads[0].device) else part.to(grads[0].device))
    joined = F.stack(parts)
    if math.isinf(order):
        return F.max(joined)
    total = F.sum(joined)
    return F.sqrt(total) if order == 2.0 else total ** (1.0 / order)


def _power(size: Tensor, order: float) -> Tensor:
    return F.square(size) if order == 2.0 else size**order
