"""Batch normalization layers (Ioffe and Szegedy, 2015)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import treadle.functional as F
from treadle.base.errors import ShapeError
from treadle.module import init
from treadle.module.module import Module
from treadle.module.window import require_size
from treadle.tensor import Parameter, Tensor


class _BatchNorm(Module):
    """(x - mean) / sqrt(var + eps) * weight + bias for every channel."""

    _flat_state = True
    _ranks: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        freeze: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        require_size(num_features, f"{type(self).__name__}: num_features")
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.freeze = freeze
        shape = (1, num_features, 1, 1)
        self.weight = Parameter(np.ones(shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(shape, np.float32)) if affine else None
        self.running_mean = Tensor(np.zeros(shape, np.float32)) if track_running_stats else None
        self.running_var = Tensor(np.ones(shape, np.float32)) if track_running_stats else None

    def reset_running_stats(self) -> None:
        """Set the running mean to 0 and the running variance to 1."""
        if self.running_mean is not None and self.running_var is not None:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)

    def reset_parameters(self) -> None:
        """Forget all statistics and set the weight to 1 and the bias to 0."""
        self.reset_running_stats()
        if self.weight is not None and self.bias is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def forward(self, inp: Tensor) -> Tensor:
        self._check_rank(inp)
        shape = inp.shape
        if len(shape) < 4:
            wide = inp.reshape((*shape, 1, 1)[:4])
        else:
            wide = inp if len(shape) == 4 else inp.reshape((*shape[:3], -1))
        out = self._normalized(wide)
        return out if len(shape) == 4 else out.reshape(shape)

    def _normalized(self, inp: Tensor) -> Tensor:
        tracked = self.track_running_stats
        if tracked and self.running_mean is None:
            raise ValueError(
                f"{type(self).__name__}: track_running_stats is True, but the layer was built "
                "without running statistics; build it with track_running_stats=True"
            )
        weight: Tensor | None = self.weight
        bias: Tensor | None = self.bias
        if self.freeze and weight is not None and bias is not None:
            weight, bias = weight.detach(), bias.detach()
        return self._applied(
            inp,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            weight,
            bias,
            training=not tracked or (self.training and not self.freeze),
            momentum=self.momentum,
            eps=self.eps,
        )

    def _applied(self, inp: Tensor, *given: Any, **how: Any) -> Tensor:
        out: Tensor = F.batch_norm(inp, *given, **how)
        return out

    def _check_rank(self, inp: Tensor) -> None:
        if inp.ndim not in self._ranks:
            wanted = " or ".join(str(n) for n in self._ranks)
            raise ShapeError(
                type(self).__name__,
                f"expects {wanted} axes, got {inp.ndim}",
                saw=str(inp.type),
                hint="reshape the input",
            )

    def _module_info_string(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """Batch normalization over (N, C) or (N, C, L).

    Args:
        num_features: channels C.
        eps: added to the variance.
        momentum: the share of the OLD value that running statistics keep at each update.
        affine: whether to scale and shift by trainable `weight` and `bias`, both (1, C, 1, 1).
        track_running_stats: keep `running_mean` and `running_var` (unbiased), both (1, C, 1, 1),
            for evaluation; without them the batch's own statistics are used, also in evaluation.
        freeze: use the running values in training too, and train neither weight nor bias.
        name: a name for messages and graphs.

    Raises:
        ShapeError: the input has another number of axes.
    """

    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalization over (N, C, H, W).

    Args:
        num_features: channels C.
        eps: added to the variance.
        momentum: the share of the OLD value that running statistics keep at each update.
        affine: whether to scale and shift by trainable `weight` and `bias`, both (1, C, 1, 1).
        track_running_stats: keep `running_mean` and `running_var` (unbiased), both (1, C, 1, 1),
            for evaluation; without them the batch's own statistics are used, also in evaluation.
        freeze: use the running values in training too, and train neither weight nor bias.
        name: a name for messages and graphs.

    Raises:
        ShapeError: the input has another number of axes.
    """

    _ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalization over (N, C, D, H, W).

    Args:
        num_features: channels C.
        eps: added to the variance.
        momentum: the share of the OLD value that running statistics keep at each update.
        affine: whether to scale and shift by trainable `weight` and `bias`, both (1, C, 1, 1).
        track_running_stats: keep `running_mean` and `running_var` (unbiased), both (1, C, 1, 1),
            for evaluation; without them the batch's own statistics are used, also in evaluation.
        freeze: use the running values in training too, and train neither weight nor bias.
        name: a name for messages and graphs.

    Raises:
        ShapeError: the input has another number of axes.
    """

    _ranks = (5,)


class SyncBatchNorm(_BatchNorm):
    """Batch normalization over (N, C), (N, C, L) or (N, C, H, W) with statistics of all ranks.

    In one process it equals `BatchNorm1d` and `BatchNorm2d`; in several, the same layer on their
    batches put together: `F.sync_batch_norm` with parameters and running statistics.

    Args:
        num_features: channels C.
        eps: added to the variance.
        momentum: the share of the OLD value that running statistics keep at each update.
        affine: whether to scale and shift by trainable `weight` and `bias`, both (1, C, 1, 1).
        track_running_stats: keep `running_mean` and `running_var` (unbiased), both (1, C, 1, 1),
            for evaluation; without them the batch's own statistics are used, also in evaluation.
        freeze: use the running values in training too, and train neither weight nor bias.
        group: the ranks that share statistics, a `distributed.Group`; None means all of them.
        name: a name for messages and graphs.

    Raises:
        ShapeError: the input has another number of axes.
    """

    _ranks = (2, 3, 4)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        freeze: bool = False,
        group: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, freeze, name)
        self.group = group

    def _applied(self, inp: Tensor, *given: Any, **how: Any) -> Tensor:
        norm: Any = F.sync_batch_norm
        out: Tensor = norm(inp, *given, group=self.group, **how)
        return out
