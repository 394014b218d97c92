"""Losses.

`reduction` is "mean", "sum" or "none": the first two give a 0-d tensor, "none" one loss per sample
or element. Anything else is a `ValueError`. MegEngine ignores it when given by
position; it counts here.
"""

from __future__ import annotations

from typing import Any

from treadle.base.dtype import DType
from treadle.base.errors import ShapeError
from treadle.functional import elemwise as ew
from treadle.functional.arguments import (
    as_float,
    as_tensor,
    axis_of,
    call,
    common_dtype,
    indices_of,
    narrowed,
    widened,
)
from treadle.functional.ctc import ctc_loss
from treadle.ops import loss as ops
from treadle.ops import unary as un
from treadle.ops.methods import either
from treadle.tensor import Tensor

__all__ = [
    "binary_cross_entropy",
    "cross_entropy",
    "ctc_loss",
    "hinge_loss",
    "l1_loss",
    "square_loss",
]


class LabelError(ShapeError, AssertionError):
    """Labels that are not class numbers for these scores; MegEngine raises an AssertionError."""

    def __init__(self, pred: Tensor, label: Tensor, axis: int) -> None:
        hint = "label holds class numbers, in the shape of pred without its class axis"
        if label.shape == pred.shape:
            hint = f"one-hot labels become class numbers by F.argmax(label, axis={axis})"
        elif label.ndim == pred.ndim and 1 in label.shape[1:]:
            hint = f"drop the axis of size 1: F.squeeze(label, {label.shape.index(1, 1)})"
        elif label.ndim == pred.ndim + 1:
            hint = "pred comes first: cross_entropy(pred, label)"
        problem = f"label has {label.ndim} axes, pred {pred.ndim}: expected one less"
        super().__init__(
            "cross_entropy", problem, saw=f"pred {pred.type}, label {label.type}", hint=hint
        )


def reduced(each: Tensor, reduction: str, dtype: DType) -> Tensor:
    """A loss per element, reduced as the user asks; of operands of `dtype`."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if reduction == "mean":
        return each.mean()
    return narrowed(each if reduction == "none" else each.sum(), dtype)


def difference_of(pred: Any, label: Any) -> tuple[Tensor, DType]:
    """pred - label in no fewer than 32 bits, and the type that they promote to."""
    x = as_tensor(pred)
    if not isinstance(label, Tensor):
        return widened(x) - label, x._kind.dtype
    dtype = common_dtype([x._kind.dtype, label._kind.dtype])
    return widened(x) - widened(label), dtype


def l1_loss(pred: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """Absolute difference, |pred - label|; shapes are equal or broadcast.

    Example:
        >>> F.loss.l1_loss(mge.tensor([1., 2.]), mge.tensor([0., 5.])).item()
        2.0
    """
    distance, dtype = difference_of(pred, label)
    return reduced(ew.abs(distance), reduction, dtype)


def square_loss(pred: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """Squared difference, (pred - label)^2; shapes are equal or broadcast.

    Example:
        >>> pred, label = mge.tensor([1., 2.]), mge.tensor([0., 5.])
        >>> F.loss.square_loss(pred, label, reduction="none").tolist()
        [1.0, 9.0]
    """
    distance, dtype = difference_of(pred, label)
    return reduced(distance * distance, reduction, dtype)


def cross_entropy(
    pred: Tensor,
    label: Tensor,
    axis: int = 1,
    with_logits: bool = True,
    label_smooth: float = 0,
    reduction: str = "mean",
    *,
    label_smoothing: float | None = None,
) -> Tensor:
    """Cross entropy of class scores along an axis against class numbers.

    -log(p[label]) with p = softmax(pred); smoothed, -sum(q log(p)) with q = label_smooth / classes,
    and 1 - label_smooth more at the label.

    Args:
        pred: logits, or probabilities with `with_logits=False`; classes along `axis`.
        label: integers, or floats that are whole numbers, of the shape of `pred` without `axis`.
        label_smooth: share of the target spread evenly over all classes.
        reduction: "mean", "sum" or "none".
        label_smoothing: PyTorch's name of `label_smooth`.

    Raises:
        ShapeError: the label does not have one axis less than pred.
        DTypeError: a label is not a whole number.
        IndexRangeError: a label is not a class.

    Example:
        >>> scores = mge.tensor([[0., 0.], [0., 100.]])
        >>> F.loss.cross_entropy(scores, mge.tensor([1, 1]), reduction="none")
        Tensor([0.6931 0.    ], device=xpux:0)
    """
    if label_smoothing is not None:
        label_smooth = either("label_smooth", label_smooth, label_smoothing, 0)
    x = as_float(pred)
    given = as_tensor(label, x)
    if given.ndim != x.ndim - 1:
        raise LabelError(x, given, axis)
    target = indices_of(given, x, "cross_entropy")
    dtype, x = x._kind.dtype, widened(x)
    if not with_logits:
        x = ew.log(x)
    at = axis_of(axis, x, "cross_entropy")
    op = ops.SoftmaxCrossEntropy(at, float(label_smooth))
    return reduced(call("cross_entropy", op, x, target), reduction, dtype)


def binary_cross_entropy(
    pred: Tensor, label: Tensor, with_logits: bool = True, reduction: str = "mean"
) -> Tensor:
    """Cross entropy of two classes: -(label log p + (1 - label) log(1 - p)).

    `pred` holds logits, p = sigmoid(pred), or probabilities p with `with_logits=False`; shapes
    are equal.

    Example:
        >>> logits, label = mge.tensor([0., 100.]), mge.tensor([1., 1.])
        >>> F.loss.binary_cross_entropy(logits, label, reduction="none")
        Tensor([0.6931 0.    ], device=xpux:0)
    """
    given = as_float(pred)
    x = widened(given)
    y = as_tensor(label, x).astype(x.dtype)
    if with_logits:
        each = ops.BinaryCrossEntropyWithLogits()(x, y)
    else:
        each = -(y * ew.log(x) + (1 - y) * ew.log(1 - x))
    return reduced(each, reduction, given._kind.dtype)


def hinge_loss(pred: Tensor, label: Tensor, norm: str = "L1", reduction: str = "mean") -> Tensor:
    """Sum over axis 1 of max(0, 1 - pred label), squared for norm "L2"; labels are 1 and -1.

    `pred` and `label` are (N, C); without reduction the losses are (N,).

    Raises:
        AssertionError: the norm is neither of the two.

    Example:
        >>> pred, label = mge.tensor([[0.5, -2.]]), mge.tensor([[1., 1.]])
        >>> F.loss.hinge_loss(pred, label).item(), F.loss.hinge_loss(pred, label, norm="L2").item()
        (3.5, 9.25)
    """
    if norm not in ("L1", "L2"):
        raise AssertionError(f"norm must be 'L1' or 'L2', got {norm!r}")
    given = as_float(pred)
    x = widened(given)
    margin = un.Relu()(1 - x * as_tensor(label, x).astype(x.dtype))
    each = (margin if norm == "L1" else margin * margin).sum(1)
    return reduced(each, reduction, given._kind.dtype)
