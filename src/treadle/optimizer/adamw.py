"""Adam with decoupled weight decay."""

from __future__ import annotations

import functools

from treadle.ops.update import AdamFamily, AdamWUpdate
from treadle.optimizer.adam import AdamBase
from treadle.optimizer.optimizer import Params
from treadle.tensor import Tensor

# One object for all steps: dispatch then finds it by identity.
_update = functools.lru_cache(maxsize=64)(AdamWUpdate)


class AdamW(AdamBase):
    """Adam whose weight decay acts on the parameter (Loshchilov and Hutter, 2019).

    param -= lr * (direction + weight_decay * param), the direction being Adam's without decay.

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        betas: decay of the first and second moment, each in (0, 1).
        eps: added to the denominator.
        weight_decay: share of the parameter that is taken off per unit of learning rate.
        amsgrad: divide by the largest second moment so far (Reddi et al., 2018).

    Raises:
        ValueError: a hyper-parameter is out of range.
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)

    def _decayed(
        self, grad: Tensor, param: Tensor, lr: Tensor, decay: Tensor
    ) -> tuple[Tensor, Tensor]:
        return grad, param * (1.0 - lr * decay)

    def _rule(self, beta1: float, beta2: float, eps: float) -> AdamFamily:
        return _update(beta1, beta2, eps)
