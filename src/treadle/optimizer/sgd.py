"""Stochastic gradient descent."""

from __future__ import annotations

import functools

from treadle.ops.update import MomentumUpdate, SgdUpdate
from treadle.optimizer.optimizer import Group, Optimizer, Params

# One object for all steps: dispatch then finds it by identity.
_momentum_update = functools.lru_cache(maxsize=64)(MomentumUpdate)


class SGD(Optimizer):
    """g = grad + weight_decay * param; v = momentum * v + g; param -= lr * v.

    With `nesterov`, param -= lr * (g + momentum * v) (Sutskever et al., "On the importance of
    initialization and momentum in deep learning", 2013).

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        momentum: factor of the velocity; 0 keeps none.
        nesterov: look ahead; takes effect with momentum.
        weight_decay: L2 penalty.

    Raises:
        AssertionError: a hyper-parameter is negative, or `nesterov` comes without momentum.
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if value < 0.0:
                raise AssertionError(f"SGD: {name} must not be negative, got {value}")
        if nesterov and momentum <= 0.0:
            raise AssertionError("SGD: nesterov requires a momentum")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self.nesterov = nesterov
        super().__init__(params, defaults)

    def _create_state(self, param_group: Group) -> None:
        if param_group["momentum"] != 0.0:
            for param in param_group["params"]:
                self._add_state(param, "momentum_buffer")

    def _updates(self, param_group: Group) -> None:
        momentum = float(param_group["momentum"])
        plain, moving = SgdUpdate(), _momentum_update(momentum, self.nesterov)
        for param in param_group["params"]:
            grad = param.grad
            if grad is None:
                continue
            lr = self._scalar(param_group, "lr", param)
            decay = self._scalar(param_group, "weight_decay", param)
            if momentum == 0.0:
                param._reset(plain(param, grad, lr, decay))
                continue
            if "momentum_buffer" not in self._state.get(param, {}):
                # Momentum was switched on after construction.
                self._add_state(param, "momentum_buffer")
            velocity = self._state[param]["momentum_buffer"]
            new, moved = moving.outputs(param, grad, velocity, lr, decay)
            param._reset(new)
            velocity._reset(moved)
