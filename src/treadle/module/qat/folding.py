"""Batch normalization folded into the layer before it."""

from __future__ import annotations

from typing import Any, NamedTuple

import treadle.functional as F
from treadle.tensor import Tensor


class Affine(NamedTuple):
    """Batch normalization at given statistics: y = factor x + shift, both (1, C, 1, 1)."""

    factor: Tensor
    shift: Tensor


def affine_of(bn: Any, mean: Tensor | None = None, var: Tensor | None = None) -> Affine:
    """The map of a batch norm layer with these statistics, its running ones if left out.

    A layer that has none is the identity but for its weight and bias.
    """
    shape = (1, bn.num_features, 1, 1)
    gamma = F.ones(shape) if bn.weight is None else bn.weight.reshape(shape)
    beta = F.zeros(shape) if bn.bias is None else bn.bias.reshape(shape)
    mean, var = bn.running_mean if mean is None else mean, bn.running_var if var is None else var
    if mean is None or var is None:
        return Affine(gamma, beta)
    factor = gamma / F.sqrt(var.detach().reshape(shape) + bn.eps)
    return Affine(factor, beta - mean.detach().reshape(shape) * factor)


def by_batch(bn: Any, training: bool) -> bool:
    """Return whether a batch norm layer normalizes by the statistics of the batch."""
    return training or bn.running_mean is None


def divisible(factor: Tensor) -> Tensor:
    """Return the factor to fold in where it is divided by again: a channel scaled by 0 keeps its
    weight.
    """
    safe: Tensor = F.where(F.abs(factor) < 1e-12, F.ones_like(factor), factor)
    return safe


def folded_bias(affine: Affine, bias: Tensor | None) -> Tensor:
    """The bias of the layer that computes both, (1, C, 1, 1)."""
    if bias is None:
        return affine.shift
    return affine.shift + bias.reshape((1, -1, 1, 1)) * affine.factor
