"""Losses. `reduction` is "mean", "sum" or "none" and must be passed by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from treadle.functional import elemwise as ew
from treadle.functional.arguments import as_float, as_tensor, axis_of, indices_of
from treadle.ops import loss as ops
from treadle.ops import unary as un
from treadle.tensor import Tensor

__all__ = ["binary_cross_entropy", "cross_entropy", "hinge_loss", "l1_loss", "square_loss"]

_F = TypeVar("_F", bound=Callable[..., Tensor])


def _reduced(loss: _F) -> _F:
    """Give a per-element loss its `reduction` keyword."""

    @functools.wraps(loss)
    def wrapper(*args: Any, reduction: str = "mean", **kwargs: Any) -> Tensor:
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
        each = loss(*args, **kwargs)
        if reduction == "none":
            return each
        return each.mean() if reduction == "mean" else each.sum()

    return cast(_F, wrapper)


@_reduced
def l1_loss(pred: Tensor, label: Tensor) -> Tensor:
    """|pred - label|, averaged."""
    return ew.abs(as_tensor(pred) - label)


@_reduced
def square_loss(pred: Tensor, label: Tensor) -> Tensor:
    """(pred - label)^2, averaged."""
    difference = as_tensor(pred) - label
    return difference * difference


@_reduced
def cross_entropy(
    pred: Tensor,
    label: Tensor,
    axis: int = 1,
    with_logits: bool = True,
    label_smooth: float = 0,
) -> Tensor:
    """Cross entropy of class scores along an axis against class numbers.

    Args:
        pred: scores (logits, or probabilities with `with_logits=False`), classes along `axis`.
        label: integers of the shape of `pred` without `axis`.
        label_smooth: share of the target spread evenly over all classes.
        reduction: "mean", "sum" or "none", by name.

    Raises:
        AssertionError: the label does not have one axis less than pred.
        IndexRangeError: a label is no class.
    """
    x = as_float(pred)
    target = indices_of(label, x)
    if target.ndim != x.ndim - 1:
        raise AssertionError(f"label has {target.ndim} axes, pred {x.ndim}: expected one less")
    if not with_logits:
        x = ew.log(x)
    at = axis_of(axis, x, "cross_entropy")
    return ops.SoftmaxCrossEntropy(at, float(label_smooth))(x, target)


@_reduced
def binary_cross_entropy(pred: Tensor, label: Tensor, with_logits: bool = True) -> Tensor:
    """Cross entropy of two classes: -(label log p + (1 - label) log(1 - p)).

    `pred` holds logits, or probabilities with `with_logits=False`; shapes are equal.
    """
    x = as_float(pred)
    y = as_tensor(label, x).astype(x.dtype)
    if with_logits:
        return ops.BinaryCrossEntropyWithLogits()(x, y)
    return -(y * ew.log(x) + (1 - y) * ew.log(1 - x))


@_reduced
def hinge_loss(pred: Tensor, label: Tensor, norm: str = "L1") -> Tensor:
    """Sum over axis 1 of max(0, 1 - pred label), squared for norm "L2"; labels are 1 and -1."""
    if norm not in ("L1", "L2"):
        raise AssertionError(f"norm must be 'L1' or 'L2', got {norm!r}")
    x = as_float(pred)
    margin = un.Relu()(1 - x * as_tensor(label, x).astype(x.dtype))
    return (margin if norm == "L1" else margin * margin).sum(1)
