"""Adadelta."""

from __future__ import annotations

import treadle.functional as F
from treadle.optimizer.optimizer import Group, Optimizer, Params


class Adadelta(Optimizer):
    """s = rho s + (1 - rho) g^2; d = g sqrt(a + eps) / sqrt(s + eps); param -= lr * d.

    Afterwards a = rho a + (1 - rho) d^2. Zeiler, "ADADELTA: an adaptive learning rate method",
    2012. g is the gradient plus weight_decay * param.

    Args:
        params: parameters or parameter groups.
        lr: factor of the step; 1 in the paper.
        rho: decay of the two averages, in [0, 1].
        eps: added under both roots.
        weight_decay: L2 penalty.

    Raises:
        AssertionError: a hyper-parameter is out of range.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        for name, value in defaults.items():
            if value < 0.0:
                raise AssertionError(f"Adadelta: {name} must not be negative, got {value}")
        if rho > 1.0:
            raise AssertionError(f"Adadelta: rho must not be above 1, got {rho}")
        super().__init__(params, defaults)

    def _create_state(self, param_group: Group) -> None:
        for param in param_group["params"]:
            self._add_state(param, "square_avg")
            self._add_state(param, "acc_delta")

    def _updates(self, param_group: Group) -> None:
        rho, eps = param_group["rho"], param_group["eps"]
        for param in param_group["params"]:
            if param.grad is None:
                continue
            lr = self._scalar(param_group, "lr", param)
            decay = self._scalar(param_group, "weight_decay", param)
            state = self._state[param]
            squares, deltas = state["square_avg"], state["acc_delta"]
            wide = param.astype(squares.dtype)
            grad = param.grad.astype(squares.dtype) + decay * wide
            squares._reset(squares * rho + F.square(grad) * (1.0 - rho))
            delta = F.sqrt(deltas + eps) / F.sqrt(squares + eps) * grad
            deltas._reset(deltas * rho + F.square(delta) * (1.0 - rho))
            param._reset((wide - lr * delta).astype(param.dtype))
