"""Connectionist temporal classification.

`reduction` is as for the other losses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base.dialect import Dialect
from treadle.base.errors import ShapeError
from treadle.base.modes import capturing
from treadle.base.symbol import Dim
from treadle.functional import elemwise as ew
from treadle.functional.activation import logsumexp
from treadle.functional.arguments import as_float, call, indices_of, narrowed, widened
from treadle.functional.creation import full, zeros
from treadle.functional.tensor import concat, cumsum, gather, stack, where
from treadle.ops.check import InRange
from treadle.tensor import Tensor

__all__ = ["ctc_loss"]

_LEAST = float(np.log(np.finfo(np.float32).tiny))
_NEVER = -1e30
"""The logarithm of a path's probability that stands for 0, finite so that gradients are."""


def ctc_loss(
    pred: Tensor,
    pred_lengths: Tensor,
    label: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
) -> Tensor:
    """-log of the probability that one of all alignments spells the label.

    An alignment gives every frame a class; repeated classes are merged, then blanks removed.

    Args:
        pred: (T, N, C), probabilities of classes in every frame.
        pred_lengths: (N,), frames of each sample.
        label: (N, S) padded, or (sum of lengths,): classes without blanks.
        label_lengths: (N,), classes of each label.
        blank: the class that separates.
        reduction: "mean" (each loss divided by its label's length first), "sum" or "none".

    Returns:
        A 0-d tensor, or (N,) without reduction. A label that no alignment spells costs about 1e30;
        in programs that import `megengine`, where each state may be the first at the price of the
        smallest float32, it costs a number near 87, as there.

    Raises:
        ShapeError: shapes do not fit.
        IndexRangeError: a label is not a class, or a length is longer than what it counts.
        ValueError: an unknown reduction, or a blank that is not a class.

    Source: Graves et al., Connectionist temporal classification, ICML 2006.

    Example:
        >>> pred = mge.tensor([[[0.1, 0.9]], [[0.8, 0.2]]])
        >>> loss = F.loss.ctc_loss(pred, mge.tensor([2]), mge.tensor([[1]]), mge.tensor([1]))
        >>> round(loss.item(), 4)  # all paths but (0, 0): -log(1 - 0.1 * 0.8)
        0.0834
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    given = as_float(pred)
    x = widened(given)
    frames, sizes = (indices_of(t, x, "ctc_loss") for t in (pred_lengths, label_lengths))
    classes = _padded(x, indices_of(label, x, "ctc_loss"), sizes)
    n = x.shape[1]
    if frames.shape != (n,) or sizes.shape != (n,) or classes.shape[0] != n:
        raise _misfit(x, classes)
    if not 0 <= blank < x.shape[2]:
        raise ValueError(f"ctc_loss: blank {blank} is none of {x.shape[2]} classes")
    frames, sizes = _inside(frames, x.shape[0] + 1), _inside(sizes, classes.shape[1] + 1)
    each = _losses(x, frames, classes, sizes, blank)
    if reduction != "mean":
        return narrowed(each if reduction == "none" else each.sum(), given._kind.dtype)
    return (each / ew.maximum(sizes.astype(x.dtype), 1)).mean()


def _inside(numbers: Tensor, beyond: Dim) -> Tensor:
    """Numbers of classes, frames or symbols, from 0."""
    return call("ctc_loss", InRange("ctc_loss", 0, beyond), numbers)


def _misfit(x: Tensor, label: Tensor) -> ShapeError:
    return ShapeError(
        "ctc_loss",
        "takes (T, N, C), labels of N samples, and N lengths of each",
        saw=f"pred {x.type}, label {label.type}",
        hint="time comes first: transpose pred where the batch does",
    )


def _padded(x: Tensor, label: Tensor, sizes: Tensor) -> Tensor:
    """Labels as (N, S); those that stand one behind the other are taken apart."""
    if x.ndim != 3 or label.ndim not in (1, 2):
        raise _misfit(x, label)
    if label.ndim == 2:
        return label
    # In a compiled function the lengths are not known: no label is longer than all of them.
    longest = label.size if capturing() else int(np.max(sizes.numpy(), initial=0))
    ends = _inside(cumsum(_inside(sizes, label.size + 1), 0), label.size + 1)
    starts = (ends - sizes).reshape(-1, 1)
    places = starts + label.constant(np.arange(longest, dtype=np.int32), sizes._kind.dtype)
    inside = ew.minimum(places, max(label.size - 1, 0))
    return gather(label, 0, inside.reshape(-1)).reshape(inside.shape) if label.size else inside


def _beginning(count: int, first: float, rest: float) -> np.ndarray[Any, Any]:
    """A number for the two states that an alignment may begin with, and one for the others."""
    return np.array([[first] * min(count, 2) + [rest] * (count - 2)], np.float32)


def _losses(x: Tensor, frames: Tensor, label: Tensor, sizes: Tensor, blank: int) -> Tensor:
    """The loss of every sample, (N,), by Graves' forward variables in logarithms."""
    logs = ew.log(ew.maximum(x, float(np.finfo(np.float32).tiny)))
    n, symbols = label.shape
    within = sizes.reshape(n, 1) > sizes.constant(np.arange(symbols), sizes._kind.dtype)
    # Whatever the padding was.
    label = _inside(where(within, label, label * 0 + blank), x.shape[2])
    gaps = full((n, symbols), blank, dtype=label._kind.dtype, device=label.device)
    # Blanks before, between and after the classes: 2 S + 1 states.
    states = concat([stack([gaps, label], 2).reshape(n, 2 * symbols), gaps[:, :1]], 1)
    if not symbols:
        states = full((n, 1), blank, dtype=label._kind.dtype, device=label.device)
    count = states.shape[1]
    never = full((n, 2), _NEVER, dtype=x.dtype, device=x.device)
    behind = concat([gaps[:, :1] - 1, gaps[:, :1] - 1, states], 1)[:, :count]
    skips = states != behind  # Blanks have blanks two states before them.
    alpha = gather(logs[0], 1, states) + x.constant(_beginning(count, 0.0, _NEVER))
    if Dialect.megengine:
        alpha = alpha * x.constant(_beginning(count, 1.0, 0.0))
        alpha = alpha + x.constant(_beginning(count, 0.0, _LEAST))
    for t in range(1, x.shape[0]):
        wide = concat([never, alpha], 1)
        jump = where(skips, wide[:, :count], zeros((n, count), dtype=x.dtype) + _NEVER)
        ways = stack([alpha, wide[:, 1 : count + 1], jump], 0)
        moved = logsumexp(ways, 0) + gather(logs[t], 1, states)
        alpha = where((frames > t).reshape(n, 1) & (states >= 0), moved, alpha)
    last = (sizes * 2).reshape(n, 1)
    ends = concat([last, ew.maximum(last - 1, 0)], 1)
    total = gather(alpha, 1, ends)
    empty = concat([last < 0, last < 1], 1)  # the empty label has one end, not two
    return -logsumexp(where(empty, total * 0 + _NEVER, total), 1)
