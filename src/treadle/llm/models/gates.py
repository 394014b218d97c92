"""How gated units mix their two halves."""

from __future__ import annotations

from collections.abc import Callable

import treadle.functional as F
from treadle.tensor import Tensor


def _clipped(gate: Tensor, up: Tensor) -> Tensor:
    """Of gpt-oss: bounded, with a steeper sigmoid, and up counts from −1."""
    gate = F.minimum(gate, 7.0)
    return gate * F.sigmoid(gate * 1.702) * (F.clip(up, -7.0, 7.0) + 1.0)


def _gelu(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate) * up


def _gelu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * up


def _silu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _relu(gate: Tensor, up: Tensor) -> Tensor:
    return F.relu(gate) * up


MIXES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "clipped": _clipped,
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": _relu,
    "silu": _silu,
    "swish": _silu,
}
"""By the name of the activation in config.json."""
