"""LAMB: Adam with a learning rate per layer."""

from __future__ import annotations

import numpy as np

import treadle.functional as F
from treadle.base.modes import capturing
from treadle.optimizer.optimizer import Group, Optimizer, Params
from treadle.tensor import Parameter, Tensor


class LAMB(Optimizer):
    """Adam's direction, scaled to each parameter's norm (You et al., 2020, arXiv:1904.00962).

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; at step t,
    d = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * param;
    param -= lr * r * d, with r = |param| / |d|, or 1 where one of the norms is 0.

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        betas: b1 and b2, each in [0, 1).
        eps: added to the denominator.
        bias_correction: whether moments are divided by 1 - b^t.
        weight_decay: share of the parameter that is added to d.
        always_adapt: scale by r also without weight decay, where r is 1 otherwise.

    Raises:
        ValueError: a hyper-parameter is out of range.
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        bias_correction: bool = True,
        weight_decay: float = 0.0,
        always_adapt: bool = False,
    ) -> None:
        name = type(self).__name__
        for what, value in (("learning rate", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if value < 0.0:
                raise ValueError(f"{name}: invalid {what}: {value}; it must not be negative")
        for i, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name}: invalid beta at index {i}: {beta}; 0 <= beta < 1")
        self.bias_correction = bias_correction
        self.always_adapt = always_adapt
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        )

    def _create_state(self, param_group: Group) -> None:
        for param in param_group["params"]:
            self._add_state(param, "exp_avg")
            self._add_state(param, "exp_avg_sq")
            self._add_state(param, "step", np.zeros((), np.float32))

    def _updates(self, param_group: Group) -> None:
        adapts = self._adapts(param_group)
        for param in param_group["params"]:
            if param.grad is not None:
                new = self._updated(param_group, param, self._master(param), adapts)
                self._rebind(param, new)

    def _master(self, param: Parameter) -> Tensor:
        """The value that is updated."""
        return param

    def _rebind(self, param: Parameter, new: Tensor) -> None:
        param._reset(new.astype(param.dtype))

    def _adapts(self, group: Group) -> bool:
        """Return whether steps are scaled to norms; a compiled step holds for the present
        answer.
        """

        def answer() -> bool:
            return self.always_adapt or group["weight_decay"] > 0.0

        capture = capturing()
        if capture is not None:
            capture.guard(answer, answer())
        return answer()

    def _updated(self, group: Group, param: Parameter, master: Tensor, adapts: bool) -> Tensor:
        """The parameter's next value, in the type of its state; the state moves on."""
        state = self._state[param]
        first, second, step = state["exp_avg"], state["exp_avg_sq"], state["step"]
        beta1, beta2 = group["betas"]
        step += 1.0
        wide, grad = master.astype(first.dtype), param.grad.astype(first.dtype)
        first._reset(first * beta1 + grad * (1.0 - beta1))
        second._reset(second * beta2 + F.square(grad) * (1.0 - beta2))
        mean = self._corrected(first, beta1, step)
        spread = self._corrected(second, beta2, step)
        change = mean / (F.sqrt(spread) + group["eps"])
        change = change + self._scalar(group, "weight_decay", param) * wide
        if adapts:
            change = change * _ratio(wide, change)
        new: Tensor = wide - self._scalar(group, "lr", param) * change
        return new

    def _corrected(self, moment: Tensor, beta: float, step: Tensor) -> Tensor:
        if not self.bias_correction or beta == 0.0:
            return moment
        return moment / -F.expm1(step.astype(moment.dtype) * float(np.log(beta)))


def _ratio(param: Tensor, change: Tensor) -> Tensor:
    """|param| / |change|, or 1 where one of them is 0."""
    norms = [F.sqrt(F.square(x).sum()) for x in (param, change)]
    sound = F.logical_and(norms[0] > 0, norms[1] > 0)
    one = F.ones_like(norms[0])
    ratio: Tensor = F.where(sound, norms[0] / F.where(sound, norms[1], one), one)
    return ratio


class LAMBFp16(LAMB):
    """`LAMB` for float16 parameters: the updates happen on a copy in float32.

    The copy is the state `param_fp32`; the parameter is it, rounded. Arguments are those of `LAMB`.
    """

    def _create_state(self, param_group: Group) -> None:
        super()._create_state(param_group)
        for param in param_group["params"]:
            self._add_state(param, "param_fp32", param.numpy().astype(np.float32))

    def _master(self, param: Parameter) -> Tensor:
        return self._state[param]["param_fp32"]

    def _rebind(self, param: Parameter, new: Tensor) -> None:
        self._state[param]["param_fp32"]._reset(new)
        param._reset(new.astype(param.dtype))
