"""RMSprop."""

from __future__ import annotations

import treadle.functional as F
from treadle.optimizer.optimizer import Group, Optimizer, Params


class RMSprop(Optimizer):
    """s = alpha s + (1 - alpha) g^2; param -= lr * g / (sqrt(s) + eps).

    Tieleman and Hinton, lecture 6.5 of "Neural networks for machine learning", 2012. g is the
    gradient plus weight_decay * param. `centered` subtracts the square of the gradient's running
    mean from s (Graves, 2013). With momentum, b = momentum b + g / (...) is what is subtracted.

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        alpha: share of the old s that is kept, in [0, 1).
        eps: added to the root.
        weight_decay: L2 penalty.
        momentum: share of the last change that is kept.
        centered: whether to divide by an estimate of the deviation.

    Raises:
        ValueError: a hyper-parameter is out of range.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        numbers = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        for name, value in numbers.items():
            if value < 0.0:
                raise ValueError(f"RMSprop: {name} must not be negative, got {value}")
        if not 0.0 <= alpha < 1.0:
            raise ValueError(f"RMSprop: alpha must be in [0, 1), got {alpha}")
        super().__init__(params, {**numbers, "alpha": alpha, "centered": centered})

    def _create_state(self, param_group: Group) -> None:
        for param in param_group["params"]:
            self._add_state(param, "square_avg")
            if param_group["momentum"]:
                self._add_state(param, "momentum_buffer")
            if param_group["centered"]:
                self._add_state(param, "grad_avg")

    def _updates(self, param_group: Group) -> None:
        alpha, momentum = param_group["alpha"], param_group["momentum"]
        for param in param_group["params"]:
            if param.grad is None:
                continue
            state = self._state[param]
            squares = state["square_avg"]
            lr = self._scalar(param_group, "lr", param)
            decay = self._scalar(param_group, "weight_decay", param)
            wide = param.astype(squares.dtype)
            grad = param.grad.astype(squares.dtype) + decay * wide
            squares._reset(alpha * squares + (1.0 - alpha) * F.square(grad))
            spread = squares
            if param_group["centered"]:
                mean = state["grad_avg"]
                mean._reset(alpha * mean + (1.0 - alpha) * grad)
                # Rounding may leave less than nothing.
                spread = F.maximum(squares - F.square(mean), 0.0)
            change = grad / (F.sqrt(spread) + param_group["eps"])
            if momentum:
                buffer = state["momentum_buffer"]
                buffer._reset(momentum * buffer + change)
                change = buffer
            param._reset((wide - lr * change).astype(param.dtype))
