"""Activations by the names that configs give them, and how gated units mix their two halves."""

from __future__ import annotations

from collections.abc import Callable

import treadle.functional as F
from treadle.tensor import Tensor


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}
"""By the name in config.json."""

CLIPPED = "clipped"
"""The mix of gpt-oss, which configs have no name for."""


def mix(name: str, gate: Tensor, up: Tensor) -> Tensor:
    """Return the operand of a gated unit's last product.

    Args:
        name: a key of `ACTIVATIONS`, or `CLIPPED`: bounded, with a steeper sigmoid, and `up` counts
            from −1.
        gate: what the activation is of.
        up: what it is multiplied by.
    """
    if name != CLIPPED:
        return ACTIVATIONS[name](gate) * up
    gate = F.minimum(gate, 7.0)
    return gate * F.sigmoid(gate * 1.702) * (F.clip(up, -7.0, 7.0) + 1.0)
