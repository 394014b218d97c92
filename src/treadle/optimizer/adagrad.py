"""Adagrad."""

from __future__ import annotations

import numpy as np

import treadle.functional as F
from treadle.optimizer.optimizer import Group, Optimizer, Params


class Adagrad(Optimizer):
    """s = s + g^2; param -= lr / (1 + (t - 1) * lr_decay) * g / sqrt(s + eps) at step t.

    Duchi et al., "Adaptive subgradient methods for online learning and stochastic optimization",
    2011. g is the gradient plus weight_decay * param.

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        lr_decay: how fast the learning rate falls with the steps.
        eps: added to s under the root.
        weight_decay: L2 penalty.

    Raises:
        AssertionError: a hyper-parameter is negative.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
        for name, value in defaults.items():
            if value < 0.0:
                raise AssertionError(f"Adagrad: {name} must not be negative, got {value}")
        super().__init__(params, defaults)

    def _create_state(self, param_group: Group) -> None:
        for param in param_group["params"]:
            self._add_state(param, "square_avg")
            self._add_state(param, "step", np.zeros((), np.float32))

    def _updates(self, param_group: Group) -> None:
        for param in param_group["params"]:
            if param.grad is None:
                continue
            lr, lr_decay, decay = (
                self._scalar(param_group, name, param)
                for name in ("lr", "lr_decay", "weight_decay")
            )
            state = self._state[param]
            squares, step = state["square_avg"], state["step"]
            step += 1.0
            wide = param.astype(squares.dtype)
            grad = param.grad.astype(squares.dtype) + decay * wide
            squares += F.square(grad)
            rate = lr / (1.0 + (step - 1.0) * lr_decay)
            new = wide - rate * grad / F.sqrt(squares + param_group["eps"])
            param._reset(new.astype(param.dtype))
