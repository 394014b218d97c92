"""Steps of optimizers over all parameters (`fused=True`), written in operators of single tensors.

Formulas are those of PyTorch's kernels (ATen/native/cpu/Fused*Kernel.cpp). Real numbers come as
tensors without axes, since learning rates and the like change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from treadle.interop.torch.device.scalars import real, wide

aten = torch.ops.aten
Lists = tuple[list[Tensor], ...]


class _OptimizerStep:
    """The common part of steps: scaled gradients, and steps that are left out."""

    def __init__(self, scale: Tensor | None, found_inf: Tensor | None, maximize: bool) -> None:
        self._scale = scale
        self._found = found_inf
        self._maximize = maximize
        self.grads: list[Tensor] = []

    def grad(self, grad: Tensor) -> Tensor:
        """A gradient as the step uses it; it is kept as it is without its scale."""
        made = wide(grad)
        if self._scale is not None:
            made = made / self._scale.to(made.dtype)
            self.grads.append(self.kept(made.to(grad.dtype), grad))
        return -made if self._maximize else made

    def kept(self, new: Tensor, old: Tensor) -> Tensor:
        """The new value, or the old one where gradients were not finite."""
        new = new.to(old.dtype)
        return new if self._found is None else torch.where(self._found == 1, old, new)


def _number(value: Any, x: Tensor) -> Any:
    """A number in the element type that it is applied in."""
    known = real(value)
    return known.to(x.dtype) if isinstance(known, Tensor) else known


def _decayed(grad: Tensor, x: Tensor, decay: Any) -> Tensor:
    """A gradient with a weight's share, which is left out where there is none."""
    d = _number(decay, x)
    if isinstance(d, Tensor):
        return torch.where(d != 0, grad + x * d, grad)
    return grad + x * d if d else grad


def _adam(decoupled: bool) -> Callable[..., Lists]:
    def step(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        maxima: Sequence[Tensor],
        counts: Sequence[Tensor],
        *,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> Lists:
        shared = _OptimizerStep(grad_scale, found_inf, maximize)
        lr, beta1, beta2 = real(lr), real(beta1), real(beta2)
        new: Lists = ([], [], [], [])
        for i, param in enumerate(params):
            x, grad = wide(param), shared.grad(grads[i])
            rate, small = _number(lr, x), _number(1 - beta1, x)
            if decoupled:
                x = x - rate * _number(weight_decay, x) * x
            else:
                grad = _decayed(grad, x, weight_decay)
            far = grad - wide(means[i])
            near = wide(means[i]) + small * far
            mean = torch.where(small.abs() < 0.5, near, grad - far * _number(beta1, x))
            old = wide(squares[i]) * _number(beta2, x)
            square = old + grad * grad * _number(1 - beta2, x)
            largest = torch.maximum(wide(maxima[i]), square) if amsgrad else square
            count = counts[i].to(torch.float64)
            first, second = 1 - beta1**count, 1 - beta2**count
            size = _number(lr / first, x)
            root = largest.sqrt() / _number(second.sqrt(), x)
            x = x - size * mean / (root + _number(eps, x))
            new[0].append(shared.kept(x, param))
            new[1].append(shared.kept(mean, means[i]))
            new[2].append(shared.kept(square, squares[i]))
            if amsgrad:
                new[3].append(shared.kept(largest, maxima[i]))
        return new[0], shared.grads, new[1], new[2], new[3]

    return step


def _sgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    shared = _OptimizerStep(grad_scale, found_inf, maximize)
    new: Lists = ([], [])
    for i, param in enumerate(params):
        x = wide(param)
        grad = _decayed(shared.grad(grads[i]), x, weight_decay)
        if buffers:
            pace = _number(momentum, x)
            kept = wide(buffers[i]) * pace + grad * _number(1 - real(dampening), x)
            buffer = grad if is_first_step else kept
            grad = grad + buffer * pace if nesterov else buffer
            new[1].append(shared.kept(buffer, buffers[i]))
        new[0].append(shared.kept(x - grad * _number(lr, x), param))
    return new[0], shared.grads, new[1]


def _adagrad(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    sums: Sequence[Tensor],
    counts: Sequence[Tensor],
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    shared = _OptimizerStep(grad_scale, found_inf, maximize)
    new: Lists = ([], [])
    for i, param in enumerate(params):
        x = wide(param)
        grad = _decayed(shared.grad(grads[i]), x, weight_decay)
        rate = real(lr) / (1 + (counts[i].to(torch.float64) - 1) * real(lr_decay))
        total = wide(sums[i]) + grad * grad
        x = x - _number(rate, x) * grad / (total.sqrt() + _number(eps, x))
        new[0].append(shared.kept(x, param))
        new[1].append(shared.kept(total, sums[i]))
    return new[0], shared.grads, new[1]


def _unscaled(grads: Sequence[Tensor], found_inf: Tensor, inverse: Tensor) -> Any:
    """Gradients without their scale, and 1 where one is not finite."""
    made, found = [], found_inf
    for grad in grads:
        odd = torch.isfinite(grad).logical_not().any().to(found.dtype)
        found = torch.maximum(found, odd.reshape(found.shape))
        made.append((wide(grad) * inverse.to(wide(grad).dtype)).to(grad.dtype))
    return made, found


_ADAM, _OTHER = (0, 1, 2, 3, 4), (0, 1, 2)
STEPS: dict[Any, tuple[Callable[..., Any], tuple[int | str | None, ...]]] = {
    aten._fused_adamw_.default: (_adam(True), _ADAM),
    aten._fused_adamw_.tensor_lr: (_adam(True), _ADAM),
    aten._fused_adam_.default: (_adam(False), _ADAM),
    aten._fused_adam_.tensor_lr: (_adam(False), _ADAM),
    aten._fused_sgd_.default: (_sgd, _OTHER),
    aten._fused_sgd_.tensor_lr: (_sgd, _OTHER),
    aten._fused_adagrad_.default: (_adagrad, _OTHER),
    aten._fused_adagrad_.tensor_lr: (_adagrad, _OTHER),
    aten._amp_foreach_non_finite_check_and_unscale_.default: (_unscaled, (0, 1)),
}
"""By operator: the function, and the arguments that its results go into; lists that are empty are
not written."""
