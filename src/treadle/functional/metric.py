"""Figures of merit that are not trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treadle.functional.arguments import as_tensor
from treadle.functional.math import topk
from treadle.tensor import Tensor

__all__ = ["topk_accuracy"]


def topk_accuracy(logits: Tensor, target: Tensor, topk: int | Iterable[int] = 1) -> Any:
    """Share of rows of (N, classes) whose class (N,) is among the `topk` best scores.

    Returns:
        A 0-d tensor, or a list of them for several values of `topk`.

    Raises:
        ShapeError: there are fewer classes than `topk`.

    Example:
        >>> scores = mge.tensor([[1., 3., 2.], [3., 2., 1.]])
        >>> [share.item() for share in F.topk_accuracy(scores, mge.tensor([2, 0]), topk=(1, 2))]
        [0.5, 1.0]
    """
    scores, wanted = as_tensor(logits), as_tensor(target)
    several = [topk] if isinstance(topk, int) else list(topk)
    _, best = _best(scores, max(several))
    hits = (best == wanted.reshape(-1, 1)).astype("float32")
    shares = [hits[:, :k].sum(1).mean() for k in several]
    return shares[0] if isinstance(topk, int) else shares


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return topk(scores, k, descending=True)
