"""An affine layer and the batch normalization behind it, as one layer that quantization folds."""

from __future__ import annotations

import treadle.functional as F
from treadle.module.batchnorm import BatchNorm1d
from treadle.module.linear import Linear
from treadle.module.module import Module
from treadle.tensor import Tensor


class _LinearBnActivation1d(Module):
    """Holds the two layers."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        compute_mode: str = "default",
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.linear = Linear(in_features, out_features, bias, compute_mode)
        self.bn = BatchNorm1d(out_features, eps, momentum, affine, track_running_stats)


class LinearBn1d(_LinearBnActivation1d):
    """bn(linear(x)), over (N, in_features).

    Args:
        in_features, out_features, bias, compute_mode: of the sub-module `linear`, a `Linear`.
        eps, momentum, affine, track_running_stats: of the sub-module `bn`, a `BatchNorm1d`.
        name: a name for messages and graphs.
    """

    def forward(self, inp: Tensor) -> Tensor:
        out: Tensor = self.bn(self.linear(inp))
        return out


class LinearBnRelu1d(_LinearBnActivation1d):
    """relu(bn(linear(x))), over (N, in_features).

    Args:
        in_features, out_features, bias, compute_mode: of the sub-module `linear`, a `Linear`.
        eps, momentum, affine, track_running_stats: of the sub-module `bn`, a `BatchNorm1d`.
        name: a name for messages and graphs.
    """

    def forward(self, inp: Tensor) -> Tensor:
        return F.relu(self.bn(self.linear(inp)))
