"""Dropout (Srivastava et al., 2014)."""

from __future__ import annotations

import treadle.functional as F
from treadle.module.module import Module
from treadle.tensor import Tensor


class Dropout(Module):
    """Zeroes elements at random in training and scales the rest by 1 / (1 - drop_prob).

    Args:
        drop_prob: probability of zero, in [0, 1).
        name: a name for messages and graphs.

    Raises:
        ValueError: the probability is outside [0, 1).
    """

    def __init__(self, drop_prob: float = 0.0, name: str | None = None) -> None:
        super().__init__(name)
        if not 0 <= drop_prob < 1:
            raise ValueError(f"{type(self).__name__}: drop_prob must be in [0, 1), got {drop_prob}")
        self.drop_prob = drop_prob

    def forward(self, inputs: Tensor) -> Tensor:
        return F.dropout(inputs, self.drop_prob, training=True) if self.training else inputs

    def _module_info_string(self) -> str:
        return f"drop_prob={self.drop_prob}"
