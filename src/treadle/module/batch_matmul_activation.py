"""A stack of affine maps with an activation."""

from __future__ import annotations

import math

import numpy as np

import treadle.functional as F
from treadle.module import init
from treadle.module.module import Module
from treadle.module.window import require_size
from treadle.tensor import Parameter, Tensor

_MODES = ("identity", "relu")


class BatchMatMulActivation(Module):
    """activation(weight x + bias) for x (batch, in_features, N): (batch, out_features, N).

    Args:
        batch: matrices in the stack.
        in_features: rows of each x.
        out_features: rows of each result.
        bias: whether to add a trainable bias.
        nonlinear_mode: "identity" or "relu", in any case of letters.
        name: a name for messages and graphs.

    Parameters: `weight` (batch, out_features, in_features), normal with deviation
    sqrt(1 / in_features); `bias` (out_features,), zero, one number per row of the result.

    Raises:
        ValueError: there is no such activation.
        DTypeError: an extent is not an int.
        ShapeError: an extent is negative.
    """

    def __init__(
        self,
        batch: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        nonlinear_mode: str = "identity",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        sizes = {"batch": batch, "in_features": in_features, "out_features": out_features}
        for what, size in sizes.items():
            require_size(size, f"{type(self).__name__}: {what}")
        if nonlinear_mode.lower() not in _MODES:
            raise ValueError(
                f"{type(self).__name__}: nonlinear_mode must be one of {', '.join(_MODES)}; "
                f"got {nonlinear_mode!r}"
            )
        self.batch = batch
        self.in_features = in_features
        self.out_features = out_features
        self.nonlinear_mode = nonlinear_mode.lower()
        self.weight = Parameter(np.zeros((batch, out_features, in_features), np.float32))
        self.bias = Parameter(np.zeros(out_features, np.float32)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew and zero the bias."""
        init.normal_(self.weight, 0.0, math.sqrt(1 / max(self.in_features, 1)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def _calc_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's operation with another weight and bias, as quantization calls it."""
        out = F.matmul(weight, x)
        if bias is not None:
            out = out + bias.reshape(-1, 1)
        return F.relu(out) if self.nonlinear_mode == "relu" else out

    def forward(self, x: Tensor) -> Tensor:
        return self._calc_linear(x, self.weight, self.bias)

    def _module_info_string(self) -> str:
        return (
            f"batch={self.batch}, in_features={self.in_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}, "
            f"nonlinear_mode={self.nonlinear_mode}"
        )
