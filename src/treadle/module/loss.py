"""Losses as layers, for those who pass them on as objects; `F.loss` has them as functions."""

from __future__ import annotations

import treadle.functional as F
from treadle.base.dtype import DType
from treadle.base.errors import ShapeError
from treadle.functional.loss import difference_of, reduced
from treadle.module.module import Module
from treadle.tensor import Tensor


class _Loss(Module):
    """Base of all losses: how the losses of samples or elements become one."""

    def __init__(self, reduction: str = "mean", name: str | None = None) -> None:
        super().__init__(name)
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(
                f"{type(self).__name__}: reduction must be 'mean', 'sum' or 'none', "
                f"got {reduction!r}"
            )
        self.reduction = reduction

    def _check(self, pred: Tensor, label: Tensor) -> None:
        """Shapes that broadcast to a table of all pairs are a mistake more often than not."""
        if tuple(pred.shape) != tuple(label.shape):
            raise ShapeError(
                type(self).__name__,
                "pred and label differ in shape",
                saw=f"pred {tuple(pred.shape)}, label {tuple(label.shape)}",
                hint="reshape one of them; the functions of F.loss broadcast",
            )

    def _module_info_string(self) -> str:
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
    """Cross entropy of scores (N, C, *) against class numbers (N, *): `F.loss.cross_entropy`.

    Args:
        reduction: "mean", "sum" or "none".
        label_smooth: share of the target spread evenly over all classes.
        axis: where the classes are.
        name: a name for messages and graphs.

    Raises:
        ValueError: there is no such reduction.
        ShapeError: the label does not have one axis less than pred.
    """

    def __init__(
        self,
        reduction: str = "mean",
        label_smooth: float = 0.0,
        axis: int = 1,
        name: str | None = None,
    ) -> None:
        super().__init__(reduction, name)
        self.label_smooth = label_smooth
        self.axis = axis

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        return F.loss.cross_entropy(
            pred, label, self.axis, label_smooth=self.label_smooth, reduction=self.reduction
        )


class MSELoss(_Loss):
    """(pred - label)^2 of equal shapes: `F.loss.square_loss`.

    Args:
        reduction: "mean", "sum" or "none".
        name: a name for messages and graphs.

    Raises:
        ValueError: there is no such reduction.
        ShapeError: the shapes differ.
    """

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        self._check(pred, label)
        return F.loss.square_loss(pred, label, reduction=self.reduction)


class L1Loss(_Loss):
    """|pred - label| of equal shapes: `F.loss.l1_loss`.

    Args:
        reduction: "mean", "sum" or "none".
        name: a name for messages and graphs.

    Raises:
        ValueError: there is no such reduction.
        ShapeError: the shapes differ.
    """

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        self._check(pred, label)
        return F.loss.l1_loss(pred, label, reduction=self.reduction)


class HuberLoss(_Loss):
    """Half the square where |pred - label| <= delta, delta (|pred - label| - delta / 2) elsewhere.

    Args:
        reduction: "mean", "sum" or "none".
        delta: where the square becomes a line, above 0.
        name: a name for messages and graphs.

    Raises:
        ValueError: there is no such reduction, or delta is not above 0.
        ShapeError: the shapes differ.
    """

    def __init__(
        self, reduction: str = "mean", delta: float = 1.0, name: str | None = None
    ) -> None:
        super().__init__(reduction, name)
        if not delta > 0:
            raise ValueError(f"{type(self).__name__}: delta must be above 0, got {delta}")
        self.delta = delta

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        self._check(pred, label)
        difference, dtype = difference_of(pred, label)
        distance = F.abs(difference)
        # Up to delta the square, beyond it a line: d q - q^2 / 2 with q = min(d, delta).
        near = F.minimum(distance, self.delta)
        return self._reduced(near * (distance - near / 2), dtype)

    def _reduced(self, each: Tensor, dtype: DType) -> Tensor:
        return reduced(each, self.reduction, dtype)


class SmoothL1Loss(HuberLoss):
    """The loss of `HuberLoss` divided by beta: with slope 1 far from the label.

    Args:
        reduction: "mean", "sum" or "none".
        beta: where the square becomes a line, above 0; `L1Loss` is the limit.
        name: a name for messages and graphs.

    Raises:
        ValueError: there is no such reduction, or beta is not above 0.
        ShapeError: the shapes differ.
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0, name: str | None = None) -> None:
        super().__init__(reduction, beta, name)

    def _reduced(self, each: Tensor, dtype: DType) -> Tensor:
        return super()._reduced(each / self.delta, dtype)


class BCEWithLogitsLoss(_Loss):
    """Cross entropy of two classes from logits, of equal shapes: `F.loss.binary_cross_entropy`.

    Args:
        reduction: "mean", "sum" or "none".
        name: a name for messages and graphs.

    Raises:
        ValueError: there is no such reduction.
        ShapeError: the shapes differ.
    """

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        self._check(pred, label)
        return F.loss.binary_cross_entropy(pred, label, reduction=self.reduction)


class BCELoss(_Loss):
    """Cross entropy of two classes from probabilities in (0, 1), of equal shapes.

    `BCEWithLogitsLoss` of what comes before the sigmoid does not overflow.

    Args:
        reduction: "mean", "sum" or "none".
        name: a name for messages and graphs.

    Raises:
        ValueError: there is no such reduction.
        ShapeError: the shapes differ.
    """

    def forward(self, pred: Tensor, label: Tensor) -> Tensor:
        self._check(pred, label)
        return F.loss.binary_cross_entropy(pred, label, with_logits=False, reduction=self.reduction)
