"""Adam, and what it shares with its variants."""

from __future__ import annotations

import abc
import functools

import numpy as np

from treadle.ops.update import AdamFamily, AdamUpdate
from treadle.optimizer.optimizer import Group, Optimizer, Params

# One object for all steps: dispatch then finds it by identity.
_update = functools.lru_cache(maxsize=64)(AdamUpdate)


class AdamBase(Optimizer):
    """First and second moments of the gradient, and a count of steps, per parameter."""

    def __init__(
        self,
        params: Params,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        name = type(self).__name__
        for what, value in (("learning rate", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if value < 0.0:
                raise ValueError(f"{name}: invalid {what}: {value}; it must not be negative")
        for i, beta in enumerate(betas):
            if not 0.0 < beta < 1.0:
                raise ValueError(f"{name}: invalid beta at index {i}: {beta}; 0 < beta < 1")
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        )

    @abc.abstractmethod
    def _rule(self, beta1: float, beta2: float, eps: float) -> AdamFamily:
        """The update op."""

    def _create_state(self, param_group: Group) -> None:
        for param in param_group["params"]:
            self._add_state(param, "exp_avg")
            self._add_state(param, "exp_avg_sq")
            self._add_state(param, "step", np.zeros((), np.float32))

    def _updates(self, param_group: Group) -> None:
        beta1, beta2 = param_group["betas"]
        update = self._rule(beta1, beta2, param_group["eps"])
        for param in param_group["params"]:
            grad = param.grad
            if grad is None:
                continue
            state = self._state[param]
            first, second, step = state["exp_avg"], state["exp_avg_sq"], state["step"]
            step += 1.0
            lr = self._scalar(param_group, "lr", param)
            decay = self._scalar(param_group, "weight_decay", param)
            new, m, v = update.outputs(param, grad, first, second, step, lr, decay)
            param._reset(new)
            first._reset(m)
            second._reset(v)


class Adam(AdamBase):
    """Adam (Kingma and Ba, 2015), bias-corrected; weight decay is added to the gradient.

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; at step t,
    param -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        betas: b1 and b2, each in (0, 1).
        eps: added to the denominator.
        weight_decay: L2 penalty.

    Raises:
        ValueError: a hyper-parameter is out of range.
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _rule(self, beta1: float, beta2: float, eps: float) -> AdamFamily:
        return _update(beta1, beta2, eps)
