"""Adam, and what it shares with its variants."""

from __future__ import annotations

import abc
import functools
from typing import Any

import numpy as np

import treadle.functional as F
from treadle.ops.update import AdamFamily, AdamUpdate
from treadle.optimizer.optimizer import Group, Optimizer, Params
from treadle.tensor import Tensor

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
        amsgrad: bool,
    ) -> None:
        self.amsgrad = amsgrad
        name = type(self).__name__
        for what, value in (("learning rate", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if value < 0.0:
                raise ValueError(f"{name}: invalid {what}: {value}; it must not be negative")
        for i, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name}: invalid beta at index {i}: {beta}; 0 <= beta < 1")
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
            if self.amsgrad:
                self._add_state(param, "max_exp_avg_sq")

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
            if "max_exp_avg_sq" in state:
                self._update_by_largest(param, param_group, lr, decay)
                continue
            new, m, v = update.outputs(param, grad, first, second, step, lr, decay)
            param._reset(new)
            first._reset(m)
            second._reset(v)

    def _update_by_largest(self, param: Any, group: Group, lr: Tensor, decay: Tensor) -> None:
        """One update with the largest second moment so far in the place of the last one."""
        beta1, beta2 = group["betas"]
        state = self._state[param]
        first, second = state["exp_avg"], state["exp_avg_sq"]
        step = state["step"].astype(first.dtype)
        wide, grad = param.astype(first.dtype), param.grad.astype(first.dtype)
        grad, wide = self._decayed(grad, wide, lr, decay)
        first._reset(beta1 * first + (1.0 - beta1) * grad)
        second._reset(beta2 * second + (1.0 - beta2) * F.square(grad))
        largest = state["max_exp_avg_sq"]
        largest._reset(F.maximum(largest, second))
        root = F.sqrt(largest / (1.0 - beta2**step)) + group["eps"]
        new = wide - lr * (first / (1.0 - beta1**step)) / root
        param._reset(new.astype(param.dtype))

    @abc.abstractmethod
    def _decayed(
        self, grad: Tensor, param: Tensor, lr: Tensor, decay: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradient and parameter after weight decay."""


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
        amsgrad: divide by the largest v so far (Reddi et al., 2018).

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
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)

    def _decayed(
        self, grad: Tensor, param: Tensor, lr: Tensor, decay: Tensor
    ) -> tuple[Tensor, Tensor]:
        return grad + decay * param, param

    def _rule(self, beta1: float, beta2: float, eps: float) -> AdamFamily:
        return _update(beta1, beta2, eps)
